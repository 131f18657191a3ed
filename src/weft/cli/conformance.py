"""`weft conformance`: run the test suite of the installed onnx package on a device."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from weft.cli import option_types, options, output
from weft.cli.fitted_tables import FittedTable
from weft.cli.output_files import write_text
from weft.compat.conformance import (
    KINDS,
    CaseResult,
    ConformanceReport,
    Tally,
    is_known,
    new_failures,
    read_known_failures,
    run_suite,
    stale_entries,
)
from weft.errors import InputError
from weft.runtime.devices import choose

EXAMPLES = (
    ("a few cases", "weft conformance -k softmax"),
    ("all cases on the CPU", "weft conformance --device cpu"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "conformance",
        help="run the test suite of the installed onnx package",
        description="Run the test suite of the installed onnx package and compare with its expected outputs.",
    )
    parser.add_argument("--device", default="reference", help="device to run on (default: %(default)s)")
    parser.add_argument(
        "--kind",
        default=",".join(KINDS),
        metavar="KIND,...",
        help="kinds of cases, separated by commas (default: %(default)s)",
    )
    parser.add_argument("-k", dest="pattern", default="", metavar="PATTERN", help="only cases whose name matches")
    options.add_json(parser)
    options.add_output(parser, "also write the report, as JSON")
    parser.add_argument(
        "--workers",
        type=option_types.process_count,
        default=2,
        metavar="N",
        help="worker processes (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=option_types.seconds,
        default=120.0,
        metavar="S",
        help="seconds for one case (default: %(default)g)",
    )
    parser.add_argument(
        "--known-failures",
        type=Path,
        metavar="FILE",
        help="cases that may fail, one 'name  # reason' per line; a case that passes must not be listed",
    )
    parser.add_argument(
        "--native", action="store_true", help="also fail a case if a kernel is missing, so that a step runs on the host"
    )
    parser.add_argument("--all-ops", action="store_true", help="list all operators, not only those with failures")


def run(args: argparse.Namespace) -> int:
    """Run the suite; return 1 if a case fails that is not a known failure."""
    known_failures = {} if args.known_failures is None else read_known_failures(args.known_failures)
    device = choose(args.device).name  # fail now rather than in every case
    kinds = [kind.strip() for kind in args.kind.split(",") if kind.strip()]
    report = _run_with_progress(device, args, kinds)
    if not report.cases:
        raise InputError(
            f"no case matches -k {args.pattern!r} among those of --kind {args.kind!r}",
            hint="cases are named like test_relu; a pattern may be any part of a name",
        )
    console = _error_console() if args.json else output.console()
    _print_report(console, report, known_failures, verbose=args.all_ops)
    stale = stale_entries(report, known_failures, whole=not args.pattern and set(kinds) == set(KINDS))
    for line in stale:
        console.print(output.escape_unprintable(line), soft_wrap=True)
    if args.json:
        output.print_json(report.to_json())
    if args.output is not None:
        write_text(args.output, json.dumps(report.to_json(), indent=2) + "\n")
    console.print(str(report.tally))
    return 1 if stale or new_failures(report, known_failures) else 0


def _run_with_progress(device: str, args: argparse.Namespace, kinds: list[str]) -> ConformanceReport:
    options: dict[str, Any] = {
        "kinds": kinds,
        "pattern": args.pattern,
        "workers": args.workers,
        "timeout": args.timeout,
        "loader": "weft.compat.conformance.native:load_native" if args.native else "weft:load",
    }
    terminal = _error_console()
    if not terminal.is_terminal:
        return run_suite(device, **options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task("preparing the suite", total=None)

        def advance(result: CaseResult, total: int) -> None:
            bar.update(task, advance=1, total=total, description=result.name)

        return run_suite(device, **options, progress=advance)


def _error_console() -> Console:
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def _print_report(
    console: Console, report: ConformanceReport, known_failures: Mapping[str, str], *, verbose: bool
) -> None:
    title = f"onnx {report.onnx_version} on {report.device}, {report.seconds:.1f} s"
    console.print(_table(title, "kind", report.by_kind()))
    ops = {op: tally for op, tally in report.by_op().items() if verbose or tally.failed}
    if ops:
        console.print(_table("all operators" if verbose else "operators of failed cases", "op", ops))
    for case in report.cases:
        if case.status != "passed":
            label = "known failure" if case.status == "failed" and is_known(case, known_failures) else case.status
            console.print(output.escape_unprintable(f"{label}: {case.name}: {case.reason}"), soft_wrap=True)


def _table(title: str, key: str, tallies: dict[str, Tally]) -> FittedTable:
    numbers = ("total", "passed", "failed", "skipped")
    rows = [(name, *(getattr(tally, number) for number in numbers)) for name, tally in tallies.items()]
    return output.table(title, (key, *numbers), rows, right=numbers)
