"""`weft ops`: the operators weft knows, beside those of the installed onnx, and those that models need beyond these."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.cli import options, output
from weft.cli.operator_table import STYLES, print_facts
from weft.cli.parsing import closest_match
from weft.compat.op_coverage import Coverage, list_coverage
from weft.compat.op_facts import describe_op
from weft.errors import InputError
from weft.opset.registry import definitions
from weft.report.missing import ModelOps, model_ops

EXAMPLES = (
    ("one operator: versions, inputs, attributes, types", "weft ops relu"),
    ("all whose name has these letters", "weft ops 'reduce*'"),
    ("what these models need and weft lacks", "weft ops --missing models/*.onnx"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "ops",
        help="the operators weft knows, one of them, or those that a model lacks",
        description="List the operators that weft knows beside those of the installed onnx package, or tell of one: "
        "its versions, inputs, attributes and types, where it is defined and where one can read on.",
    )
    parser.add_argument(
        "operators",
        nargs="*",
        metavar="NAME",
        help="operators, upper case or lower, or patterns with * and ?; with --missing: models to look through",
    )
    parser.add_argument("--domain", metavar="DOMAIN", help="only this domain, for instance ai.onnx or ai.onnx.ml")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="only operators of onnx that weft lacks, or has in part; with models: what they need and weft lacks,"
        " and who defines it elsewhere",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.missing and args.operators:
        if args.domain is not None:
            raise InputError("models are looked through for all domains", hint="weft ops --missing MODEL...")
        return _look_through(args)
    every = list_coverage(definitions())
    domains = sorted({_domain(row) for row in every})
    if args.domain is not None and args.domain not in domains:
        raise InputError(f"no domain {args.domain!r}", hint=f"there are {', '.join(domains)}")
    rows = [row for row in every if args.domain in (None, _domain(row))]
    if args.operators:
        return _tell(args, rows)
    counts = {domain: Counter(row.status for row in rows if _domain(row) == domain) for domain in domains}
    if args.missing:
        rows = [row for row in rows if row.status in ("missing", "partial")]
    if args.json:
        output.print_json({"summary": {name: found for name, found in counts.items() if found}, "ops": _records(rows)})
    else:
        _print(rows, counts)
    return 0


def _tell(args: argparse.Namespace, rows: list[Coverage]) -> int:
    """Of operators by name: one is told of in full, several are listed."""
    found = list(dict.fromkeys(row for asked in args.operators for row in _named(asked, rows)))
    exact = [row for row in found if any(_same(asked, row) for asked in args.operators)]
    known = list(definitions())
    facts = [describe_op(row, known) for row in exact or (found if len(found) == 1 else [])]
    if args.json:
        output.print_json({"ops": _records(found), "facts": [asdict(each) for each in facts]})
        return 0
    console = output.console()
    for number, each in enumerate(facts):
        if number:
            console.print()
        print_facts(each, console)
    others = found if not facts else [row for row in found if row not in exact and len(found) > 1]
    if others and not facts:
        _print(others, {})
        console.print(Text("weft ops NAME tells of one", "dim"))
    elif others:
        console.print(Text(f"\nothers with such names: {', '.join(row.name for row in others)}", "dim"))
    return 0


def _named(asked: str, rows: list[Coverage]) -> list[Coverage]:
    """The operators that a word means: those of this name, or those that it is a part of."""
    form = _form(asked)
    pattern = form if any(mark in form for mark in "*?[") else f"*{form}*"
    found = [row for row in rows if _same(asked, row) or fnmatchcase(_form(row.name), pattern)]
    if found:
        return found
    if Path(asked).suffix == ".onnx" or Path(asked).exists():
        hint = f"weft ops --missing {asked} looks a model through; weft info {asked} lists what it has"
    else:
        close = closest_match(asked, [row.name for row in rows])
        hint = f"{close} may be meant; weft ops lists all" if close else "weft ops lists all"
    raise InputError(f"there is no operator {asked!r}", hint=hint)


def _same(asked: str, row: Coverage) -> bool:
    return _form(asked) in (_form(row.name), _form(f"{_domain(row)}.{row.name}"))


def _form(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _domain(row: Coverage) -> str:
    return row.domain or "ai.onnx"


def _records(rows: list[Coverage]) -> list[dict[str, object]]:
    return [
        {
            "domain": _domain(row),
            "op": row.name,
            "status": row.status,
            "since": row.defined,
            "onnx_versions": row.listed,
            "deprecated": row.deprecated,
        }
        for row in rows
    ]


def _print(rows: list[Coverage], counts: dict[str, Counter[str]]) -> None:
    console = output.console()
    cells = [
        (
            _domain(row),
            Text(row.name, "dim" if row.deprecated else ""),
            Text(row.status, STYLES[row.status]),
            ", ".join(map(str, row.defined)),
            ", ".join(map(str, row.listed)),
        )
        for row in rows
    ]
    if cells:
        console.print(output.table("", ("domain", "operator", "status", "defined since", "onnx versions"), cells))
        console.print()
    for domain, found in counts.items():
        if found:
            parts = [f"{number} {status}" for status, number in sorted(found.items())]
            console.print(f"{domain}: {found.total()} operators, {', '.join(parts)}")


def _look_through(args: argparse.Namespace) -> int:
    looked = [model_ops(model) for model in args.operators]
    if args.json:
        output.print_json({"models": [_model_record(each) for each in looked]})
    else:
        console = output.console()
        for each in looked:
            _print_model(console, each)
    return 1 if any(each.missing or each.error for each in looked) else 0


def _model_record(looked: ModelOps) -> dict[str, object]:
    rows = [
        {
            "domain": each.domain or "ai.onnx",
            "op": each.op,
            "version": each.version,
            "kind": each.kind,
            "problem": each.problem,
            "nodes": each.count,
            "first_node": each.node,
            "defined_by": each.definer,
            "advice": each.advice,
        }
        for each in looked.missing
    ]
    return {"model": looked.model, "nodes": looked.nodes, "error": looked.error, "missing": rows}


def _print_model(console: Any, looked: ModelOps) -> None:
    if looked.error:
        for line in looked.error.splitlines():
            console.print(Text(output.escape_unprintable(line), "red"))
        return
    if not looked.missing:
        console.print(
            Text(
                output.escape_unprintable(f"{looked.model}: weft has all operators of its {looked.nodes} nodes"),
                "green",
            )
        )
        return
    rows = [
        (
            each.domain or "ai.onnx",
            Text(output.escape_unprintable(each.op), "red"),
            each.version,
            each.count,
            each.node,
            each.definer if each.kind == "operator" else each.problem,
        )
        for each in looked.missing
    ]
    count = sum(each.count for each in looked.missing)
    title = f"{looked.model}: {count} of {looked.nodes} nodes"
    columns = ("domain", "operator", "opset", "nodes", "first node", "defined by")
    console.print(output.table(output.escape_unprintable(title), columns, rows, ("opset", "nodes")))
    for advice, names in _by_advice(looked).items():
        console.print(Text(output.escape_unprintable(f"  {', '.join(names)}: {advice}"), "dim"))


def _by_advice(looked: ModelOps) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in looked.missing:
        names = found.setdefault(each.advice, [])
        if each.qualified_name not in names:
            names.append(each.qualified_name)
    return found
