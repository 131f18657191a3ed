"""`weft ops`: the operators weft knows, generated from their definitions, beside those of the installed onnx."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.text import Text

from weft.cli import output
from weft.compat.op_coverage import Coverage, cover
from weft.errors import InputError
from weft.opset.registry import definitions

STYLES = {"defined": "green", "extension": "green", "inlined": "cyan", "partial": "yellow", "missing": "red"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("ops", help="the operators weft knows")
    parser.add_argument("--domain", metavar="D", help="only this domain, for instance ai.onnx or ai.onnx.ml")
    parser.add_argument("--missing", action="store_true", help="only operators of onnx that weft lacks, or has in part")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
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
