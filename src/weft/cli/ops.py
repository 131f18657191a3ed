"""`weft ops`: list supported operators, describe one, or find what models lack."""

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
from weft.report.missing import ModelOps, find_model_ops

EXAMPLES = (
    ("one operator: versions, inputs, attributes, types", "weft ops relu"),
    ("all operators that match a pattern", "weft ops 'reduce*'"),
    ("operators that models need and weft lacks", "weft ops --missing models/*.onnx"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "ops",
        help="list supported operators, describe one, or find what a model lacks",
        description="List supported operators next to those of the installed onnx package, or describe one: versions, "
        "inputs, attributes, types, its definition and its documentation.",
    )
    parser.add_argument(
        "operators",
        nargs="*",
        metavar="NAME",
        help="operators in upper or lower case, or patterns with * and ?; with --missing: models",
    )
    parser.add_argument("--domain", metavar="DOMAIN", help="only this domain, for instance ai.onnx or ai.onnx.ml")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="list only operators of onnx that weft lacks or only partly supports; with models: the operators that "
        "they need and weft lacks, and who defines them",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.missing and args.operators:
        if args.domain is not None:
            raise InputError("--domain does not apply to models", hint="weft ops --missing MODEL...")
        return _find_missing(args)
    all_rows = list_coverage(definitions())
    domains = sorted({_domain_name(row) for row in all_rows})
    if args.domain is not None and args.domain not in domains:
        raise InputError(f"no domain {args.domain!r}", hint=f"there are {', '.join(domains)}")
    rows = [row for row in all_rows if args.domain in (None, _domain_name(row))]
    if args.operators:
        return _describe_operators(args, rows)
    counts = {domain: Counter(row.status for row in rows if _domain_name(row) == domain) for domain in domains}
    if args.missing:
        rows = [row for row in rows if row.status in ("missing", "partial")]
    if args.json:
        output.print_json(
            {"summary": {name: count for name, count in counts.items() if count}, "ops": _coverage_records(rows)}
        )
    else:
        _print_coverage(rows, counts)
    return 0


def _describe_operators(args: argparse.Namespace, rows: list[Coverage]) -> int:
    """Describe operators that are named exactly, or else the only match; list several matches."""
    matches = list(dict.fromkeys(row for name in args.operators for row in _find_operators(name, rows)))
    exact = [row for row in matches if any(_is_name_of(name, row) for name in args.operators)]
    all_definitions = list(definitions())
    facts = [describe_op(row, all_definitions) for row in exact or (matches if len(matches) == 1 else [])]
    if args.json:
        output.print_json({"ops": _coverage_records(matches), "facts": [asdict(each) for each in facts]})
        return 0
    console = output.console()
    for number, each in enumerate(facts):
        if number:
            console.print()
        print_facts(each, console)
    others = matches if not facts else [row for row in matches if row not in exact and len(matches) > 1]
    if others and not facts:
        _print_coverage(others, {})
        console.print(Text("weft ops NAME describes one", "dim"))
    elif others:
        console.print(Text(f"\nsimilar names: {', '.join(row.name for row in others)}", "dim"))
    return 0


def _find_operators(text: str, rows: list[Coverage]) -> list[Coverage]:
    """Return the operators that match a pattern, or whose name contains a text."""
    form = _normalize(text)
    pattern = form if any(mark in form for mark in "*?[") else f"*{form}*"
    matches = [row for row in rows if _is_name_of(text, row) or fnmatchcase(_normalize(row.name), pattern)]
    if matches:
        return matches
    if Path(text).suffix == ".onnx" or Path(text).exists():
        hint = f"weft ops --missing {text} checks a model; weft info {text} lists its operators"
    else:
        close = closest_match(text, [row.name for row in rows])
        hint = f"did you mean {close}? weft ops lists all" if close else "weft ops lists all"
    raise InputError(f"there is no operator {text!r}", hint=hint)


def _is_name_of(text: str, row: Coverage) -> bool:
    return _normalize(text) in (_normalize(row.name), _normalize(f"{_domain_name(row)}.{row.name}"))


def _normalize(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _domain_name(row: Coverage) -> str:
    return row.domain or "ai.onnx"


def _coverage_records(rows: list[Coverage]) -> list[dict[str, object]]:
    return [
        {
            "domain": _domain_name(row),
            "op": row.name,
            "status": row.status,
            "since": row.defined,
            "onnx_versions": row.listed,
            "deprecated": row.deprecated,
        }
        for row in rows
    ]


def _print_coverage(rows: list[Coverage], counts: dict[str, Counter[str]]) -> None:
    console = output.console()
    cells = [
        (
            _domain_name(row),
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
    for domain, count in counts.items():
        if count:
            parts = [f"{number} {status}" for status, number in sorted(count.items())]
            console.print(f"{domain}: {count.total()} operators, {', '.join(parts)}")


def _find_missing(args: argparse.Namespace) -> int:
    models = [find_model_ops(model) for model in args.operators]
    if args.json:
        output.print_json({"models": [_model_record(model) for model in models]})
    else:
        console = output.console()
        for model in models:
            _print_model(console, model)
    return 1 if any(model.missing or model.error for model in models) else 0


def _model_record(model: ModelOps) -> dict[str, object]:
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
        for each in model.missing
    ]
    return {"model": model.model, "nodes": model.nodes, "error": model.error, "missing": rows}


def _print_model(console: Any, model: ModelOps) -> None:
    if model.error:
        for line in model.error.splitlines():
            console.print(Text(output.escape_unprintable(line), "red"))
        return
    if not model.missing:
        console.print(
            Text(
                output.escape_unprintable(f"{model.model}: weft supports the operators of all {model.nodes} nodes"),
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
        for each in model.missing
    ]
    count = sum(each.count for each in model.missing)
    title = f"{model.model}: {count} of {model.nodes} nodes"
    columns = ("domain", "operator", "opset", "nodes", "first node", "defined by")
    console.print(output.table(output.escape_unprintable(title), columns, rows, ("opset", "nodes")))
    for advice, names in _by_advice(model).items():
        console.print(Text(output.escape_unprintable(f"  {', '.join(names)}: {advice}"), "dim"))


def _by_advice(model: ModelOps) -> dict[str, list[str]]:
    names_by_advice: dict[str, list[str]] = {}
    for each in model.missing:
        names = names_by_advice.setdefault(each.advice, [])
        if each.qualified_name not in names:
            names.append(each.qualified_name)
    return names_by_advice
