"""`weft tune`: choose the tiles of a model's products by measuring them on a GPU, and keep what was best."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.backends.device import TunableDriver
from weft.cache.tuning import joined, keep_choices, to_text
from weft.cli import option_types, options, output
from weft.cli.output import format_seconds
from weft.cli.output_files import write_text
from weft.cli.sizes import check_sizes, sizes_of_file
from weft.compiler import Pipeline
from weft.errors import DeviceError
from weft.ir.groups import FusedProgram
from weft.ir.specs import signature
from weft.loading import open_pipeline
from weft.runtime.options import LoadOptions
from weft.runtime.progress import stages
from weft.runtime.ranking import likely_sizes
from weft.runtime.tuning import Tuning, tunable_target, tune

SECONDS = 60.0
COLUMNS = ("product", "uses", "ways", "before", "best", "gain", "chosen")
EXAMPLES = (
    ("a minute on the GPU that is here", "weft tune model.onnx"),
    ("for a batch of 8, ten seconds", "weft tune model.onnx --batch 8 --seconds 10"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="choose the tiles of a model's products by measuring them on a GPU",
        description="Time the products of a model in several ways on a GPU, those that take most of the time first, "
        "and keep the best: later loads take them. Dynamic dims that are not given get usual sizes, which are said.",
    )
    options.add_model(parser)
    options.add_sizes(parser, "that is measured")
    parser.add_argument(
        "--seconds", type=option_types.seconds, default=SECONDS, metavar="S", help=f"time to take (default {SECONDS:g})"
    )
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    options.add_output(parser, "also write the choices here, for weft.load(tune=FILE)")
    options.add_loading(parser, "what to measure", without=("strict", "threads", "memory_limit", "prefer", "cache"))
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    given = sizes_of_file(args)
    pipeline = open_pipeline(args.model, LoadOptions(**options.load_arguments(args)))
    driver = pipeline.driver
    tunable_target(driver, args.precision)
    if not isinstance(driver, TunableDriver):
        raise DeviceError(f"device {driver.name!r} takes no tuned choices", hint="tuning is for GPUs; see weft devices")
    driver.check_precision(args.precision)
    fused, sizes = _fused(pipeline, given)
    with stages("tuning") as progress:
        terms = (fused, driver, args.precision, args.seconds)
        tuning = tune(*terms, sizes=sizes, again=args.again, tell=progress.stage)
    choices = joined(tunable_target(driver, args.precision).tuned, tuning.choices)
    kept = keep_choices(driver.hardware, tuning.choices) if tuning.timed else None
    if args.output is not None:
        write_text(args.output, to_text(driver.hardware, choices))
    if args.json:
        output.print_json(_record(tuning, driver, sizes, kept, args.output))
        return 0
    _print(tuning, driver, sizes, kept, args.output)
    return 0


def _fused(pipeline: Pipeline, given: Mapping[str, int]) -> tuple[FusedProgram, Mapping[str, int]]:
    """The groups of the model, and the sizes that they are measured for."""
    program = pipeline.program()
    check_sizes(signature(pipeline.read().graph, program).inputs, given)
    return pipeline.fuse(program), likely_sizes(program, given)


def _record(
    tuning: Tuning, driver: TunableDriver, sizes: Mapping[str, int], kept: Path | None, written: Path | None
) -> dict[str, Any]:
    return {
        "device": driver.name,
        "hardware": driver.hardware,
        "sizes": dict(sizes),
        "products": [asdict(one) for one in tuning.timed],
        "known": tuning.tuned_before,
        "left": tuning.left,
        "kept": kept,
        "written": written,
    }


def _print(
    tuning: Tuning, driver: TunableDriver, sizes: Mapping[str, int], kept: Path | None, written: Path | None
) -> None:
    console = output.console()
    rows = [
        (
            one.product,
            one.uses,
            one.ways,
            format_seconds(one.before_seconds),
            format_seconds(one.best_seconds),
            f"{one.before_seconds / one.best_seconds:.2f} ×" if one.best_seconds else "",
            Text("as before", "dim") if one.best == one.before else Text(one.best, "green"),
        )
        for one in tuning.timed
    ]
    if rows:
        console.print(output.table(f"on {driver.hardware}", COLUMNS, rows, COLUMNS[1:6]))
        before = sum(one.uses * one.before_seconds for one in tuning.timed)
        best = sum(one.uses * one.best_seconds for one in tuning.timed)
        console.print(f"\nall of them: {format_seconds(before)} before, {format_seconds(best)} now")
    said = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    notes = [f"{len(rows)} products measured, {tuning.tuned_before} known before, {tuning.left} left"]
    notes += [f"for {said}; choices hold for these sizes"] if said else []
    notes += [f"kept in {kept}"] if kept is not None else []
    notes += [f"written to {written}"] if written is not None else []
    notes += ["more --seconds would measure those that are left"] if tuning.left else []
    for note in notes:
        console.print(Text(output.escape_unprintable(note), "dim"))
