"""`weft optimize`: write an ONNX model with fewer nodes and the same results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.cli import options, output
from weft.cli.sizes import MAX_DIGITS, sizes_of_file
from weft.errors import InputError
from weft.optimization.optimize import GROWTH, OptimizationReport, optimize

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
NO_LIMIT = "any"
EXAMPLES = (
    ("fewer nodes, the same results", "weft optimize model.onnx smaller.onnx"),
    ("with a fixed batch of 1", "weft optimize model.onnx smaller.onnx --shape batch=1"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("optimize", help="write an ONNX model with fewer nodes and the same results")
    options.add_model(parser)
    options.add_new_model(parser)
    options.add_sizes(parser, "to fix in the result")
    parser.add_argument("--opset", type=int, metavar="N", help="write the model in this newer opset")
    parser.add_argument(
        "--growth",
        default=str(GROWTH),
        metavar="BYTES",
        help=f"the largest constant that folding may create: 4096, 64K, 1M or {NO_LIMIT} (default: 1M)",
    )
    parser.add_argument(
        "--exact", action="store_true", help="keep the order of all arithmetic: fold no operation into weights"
    )
    parser.add_argument("--keep-inputs", action="store_true", help="let inputs still override initializers")
    parser.add_argument("--no-verify", action="store_true", help="do not compare both models on random inputs")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    report = optimize(
        args.model,
        options.new_model_path(args),
        sizes=sizes_of_file(args),
        growth=_parse_bytes(args.growth),
        opset=args.opset,
        exact=args.exact,
        keep_inputs=args.keep_inputs,
        verify=not args.no_verify,
    )
    if args.json:
        output.print_json(_record(args.model, report))
    else:
        _print(args.model, report)
    return 0


def _parse_bytes(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in UNITS or len(number) > MAX_DIGITS:
        raise InputError(f"--growth {text}: not a number of bytes", hint=f"for instance 64K, 1M or {NO_LIMIT}")
    return int(number) * UNITS[unit]


def _record(model: str, report: OptimizationReport) -> dict[str, Any]:
    def both(pair: tuple[int, int]) -> dict[str, int]:
        return {"before": pair[0], "after": pair[1]}

    return {
        "model": model,
        "path": str(report.path),
        "opset": report.opset,
        "nodes": both(report.nodes),
        "initializers": both(report.initializers),
        "bytes": both(report.bytes),
        "ops": {op: both(pair) for op, pair in report.ops.items()},
    }


def _print(model: str, report: OptimizationReport) -> None:
    console = output.console()
    changed = sorted(report.ops.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
    rows: list[tuple[object, ...]] = [(op, *_counts(pair)) for op, pair in changed if pair[0] != pair[1]]
    same = sum(after for before, after in report.ops.values() if before == after)
    if same:
        rows.append((Text("unchanged", "dim"), same, same, ""))
    rows.append((Text("nodes", "bold"), *_counts(report.nodes)))
    rows.append((Text("initializers", "bold"), *_counts(report.initializers)))
    sizes = [output.format_bytes(size) for size in report.bytes]
    rows.append((Text("file", "bold"), *sizes, ""))
    title = f"{Path(model).name} → {report.path}, opset {report.opset}"
    console.print(output.table(title, ("", "before", "after", "change"), rows, ("before", "after", "change")))


def _counts(pair: tuple[int, int]) -> tuple[object, ...]:
    before, after = pair
    change = after - before
    return before, after, Text(f"{change:+d}" if change else "", "green" if change < 0 else "yellow")
