"""`weft ops`: the operators weft knows, beside those of the installed onnx, and those that models need beyond these."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.text import Text

from weft.cli import options, output
from weft.compat.op_coverage import Coverage, cover
from weft.errors import InputError
from weft.opset.registry import definitions
from weft.report.missing import ModelOps, model_ops

STYLES = {"defined": "green", "extension": "green", "inlined": "cyan", "partial": "yellow", "missing": "red"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("ops", help="the operators weft knows, and those that a model lacks")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="with --missing: models to look through")
    parser.add_argument("--domain", metavar="D", help="only this domain, for instance ai.onnx or ai.onnx.ml")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="only operators of onnx that weft lacks, or has in part; with models: what they need and weft lacks,"
        " and who defines it elsewhere",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.models:
        if not args.missing or args.domain is not None:
            raise InputError("models are looked through for what is missing", hint="weft ops --missing MODEL...")
        return _look_through(args)
    every = cover(definitions())
    domains = sorted({_domain(row) for row in every})
    if args.domain is not None and args.domain not in domains:
        raise InputError(f"no domain {args.domain!r}", hint=f"there are {', '.join(domains)}")
    rows = [row for row in every if args.domain in (None, _domain(row))]
    counts = {domain: Counter(row.status for row in rows if _domain(row) == domain) for domain in domains}
    if args.missing:
        rows = [row for row in rows if row.status in ("missing", "partial")]
    if args.json:
        output.print_json({"summary": {name: found for name, found in counts.items() if found}, "ops": _records(rows)})
    else:
        _print(rows, counts)
    return 0


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
    looked = [model_ops(model) for model in args.models]
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
            console.print(Text(output.printable(line), "red"))
        return
    if not looked.missing:
        console.print(
            Text(output.printable(f"{looked.model}: weft has all operators of its {looked.nodes} nodes"), "green")
        )
        return
    rows = [
        (
            each.domain or "ai.onnx",
            Text(output.printable(each.op), "red"),
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
    console.print(output.table(output.printable(title), columns, rows, ("opset", "nodes")))
    for advice, names in _by_advice(looked).items():
        console.print(Text(output.printable(f"  {', '.join(names)}: {advice}"), "dim"))


def _by_advice(looked: ModelOps) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in looked.missing:
        names = found.setdefault(each.advice, [])
        if each.qualified_name not in names:
            names.append(each.qualified_name)
    return found
