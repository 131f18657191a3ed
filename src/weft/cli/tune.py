"""`weft tune`: measure which tiles suit the matrix products of a model on a GPU, and save the best."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.backends.device import TunableDriver
from weft.cache.tuning import merge_choices, store_choices, to_text
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
COLUMNS = ("product", "uses", "candidates", "before", "best", "gain", "chosen")
EXAMPLES = (
    ("for a minute", "weft tune model.onnx"),
    ("for a batch of 8, ten seconds", "weft tune model.onnx --batch 8 --seconds 10"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure which tiles suit a model's matrix products on a GPU",
        description="Time the matrix products of a model with several tilings on a GPU, the slowest products first, "
        "and save the best for later loads. Dynamic dims without --shape get typical sizes.",
    )
    options.add_model(parser)
    options.add_sizes(parser, "to measure")
    parser.add_argument(
        "--seconds",
        type=option_types.seconds,
        default=SECONDS,
        metavar="S",
        help=f"seconds to measure (default {SECONDS:g})",
    )
    parser.add_argument("--again", action="store_true", help="also measure products that were measured before")
    options.add_output(parser, "also write the choices to a file for weft.load(tune=FILE)")
    options.add_loading(parser, "device to measure", without=("strict", "threads", "memory_limit", "prefer", "cache"))
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    user_sizes = sizes_of_file(args)
    pipeline = open_pipeline(args.model, LoadOptions(**options.load_arguments(args)))
    driver = pipeline.driver
    tunable_target(driver, args.precision)
    if not isinstance(driver, TunableDriver):
        raise DeviceError(f"device {driver.name!r} cannot be tuned", hint="tuning is for GPUs; see weft devices")
    driver.check_precision(args.precision)
    fused, sizes = _fuse(pipeline, user_sizes)
    with stages("tuning") as progress:
        tuning = tune(fused, driver, args.precision, args.seconds, sizes=sizes, again=args.again, tell=progress.stage)
    choices = merge_choices(tunable_target(driver, args.precision).tuned, tuning.choices)
    saved_path = store_choices(driver.hardware, tuning.choices) if tuning.timed else None
    if args.output is not None:
        write_text(args.output, to_text(driver.hardware, choices))
    if args.json:
        output.print_json(_record(tuning, driver, sizes, saved_path, args.output))
        return 0
    _print(tuning, driver, sizes, saved_path, args.output)
    return 0


def _fuse(pipeline: Pipeline, user_sizes: Mapping[str, int]) -> tuple[FusedProgram, Mapping[str, int]]:
    """Return the groups of the model, and the sizes to measure."""
    program = pipeline.program()
    check_sizes(signature(pipeline.read().graph, program).inputs, user_sizes)
    return pipeline.fuse(program), likely_sizes(program, user_sizes)


def _record(
    tuning: Tuning, driver: TunableDriver, sizes: Mapping[str, int], saved_path: Path | None, output_path: Path | None
) -> dict[str, Any]:
    return {
        "device": driver.name,
        "hardware": driver.hardware,
        "sizes": dict(sizes),
        "products": [asdict(product) for product in tuning.timed],
        "known": tuning.tuned_before,
        "left": tuning.left,
        "kept": saved_path,
        "written": output_path,
    }


def _print(
    tuning: Tuning, driver: TunableDriver, sizes: Mapping[str, int], saved_path: Path | None, output_path: Path | None
) -> None:
    console = output.console()
    rows = [
        (
            product.product,
            product.uses,
            product.ways,
            format_seconds(product.before_seconds),
            format_seconds(product.best_seconds),
            f"{product.before_seconds / product.best_seconds:.2f} ×" if product.best_seconds else "",
            Text("unchanged", "dim") if product.best == product.before else Text(product.best, "green"),
        )
        for product in tuning.timed
    ]
    if rows:
        console.print(output.table(f"on {driver.hardware}", COLUMNS, rows, COLUMNS[1:6]))
        before = sum(product.uses * product.before_seconds for product in tuning.timed)
        best = sum(product.uses * product.best_seconds for product in tuning.timed)
        console.print(f"\ntotal: {format_seconds(before)} before, {format_seconds(best)} now")
    sizes_text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    notes = [f"{len(rows)} products measured, {tuning.tuned_before} measured before, {tuning.left} left"]
    notes += [f"for {sizes_text}; the choices hold for these sizes"] if sizes_text else []
    notes += [f"saved in {saved_path}"] if saved_path is not None else []
    notes += [f"written to {output_path}"] if output_path is not None else []
    notes += ["use more --seconds to measure the others"] if tuning.left else []
    for note in notes:
        console.print(Text(output.escape_unprintable(note), "dim"))
