"""`weft run`: run a model on files or random data, and show its outputs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.text import Text

import weft
from weft.cli import inputs, option_types, options, output
from weft.cli.describe_outputs import SHOWN_VALUES, ClassNames, describe_output, dtype_name, print_outputs
from weft.cli.image_batches import ImageBatch, join_outputs, split_images
from weft.cli.inputs import InputSet
from weft.cli.labels import labels_of_model, read_labels
from weft.cli.output_files import STDOUT
from weft.cli.run_rows import is_for_rows
from weft.cli.save_outputs import KINDS, check_target, save_outputs
from weft.ir.narrowed_products import NarrowedProduct
from weft.runtime.explain import HostStep
from weft.runtime.model import Model
from weft.runtime.progress import stages

LONG_RUN = 1.0  # seconds of a first run that is not repeated only to time it

EXAMPLES = (
    ("on random data", "weft run model.onnx"),
    ("classify an image", "weft run model.onnx photo.jpg --labels labels.txt"),
    ("classify a folder of images", "weft run model.onnx pictures -o scores.csv"),
    ("inputs by name, outputs into a folder", "weft run model.onnx -i x=x.npy -i rate=16000 -o results"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a model on files or random data",
        description="Run a model. Without data, inputs are random, and dynamic dims get typical sizes. Files are "
        "recognised by their content; the conversion of images and audio is described on stderr. Many images run in "
        "batches. The rows of a table, or the files of a folder, give a table of results if -o names one.",
    )
    options.add_model(parser)
    inputs.add_inputs(parser)
    tables = parser.add_argument_group("tables", "Columns of a Parquet, Arrow or CSV file are inputs by name.")
    tables.add_argument(
        "--columns",
        action="append",
        metavar="INPUT=COLUMN,...",
        help="the column of an input, or several columns of numbers that make it; may be repeated",
    )
    group = parser.add_argument_group("outputs")
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="TO",
        help=f"write the outputs to {KINDS}; a folder gets .npy files, and .png files of outputs that are images; - is "
        "standard output",
    )
    group.add_argument("--labels", metavar="FILE", help="class names: one per line, or JSON")
    group.add_argument(
        "--top",
        type=option_types.count,
        default=SHOWN_VALUES,
        metavar="N",
        help=f"classes to show (default {SHOWN_VALUES})",
    )
    options.add_json(group)
    options.add_repeat(parser, 1)
    options.add_loading(parser)
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write each stage of the compiler into this folder")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="list the steps that run in Python instead of native code, and why, and the products that round their "
        "operands",
    )


def run(args: argparse.Namespace) -> int:
    if is_for_rows(args):
        return _run_rows(args)
    if args.output is not None:
        check_target(args.output)
    user_names = ClassNames(read_labels(args.labels), args.labels, is_user_given=True) if args.labels else None
    start = time.perf_counter()
    model = weft.load(args.model, **options.load_arguments(args), dump=args.dump)
    load_seconds = time.perf_counter() - start
    batches = split_images(args, model)
    files = [file for batch in batches for file in batch.files]
    input_set, results, first_seconds, seconds = _run_batches(model, batches, args.repeat)
    classes = user_names or ClassNames(*labels_of_model(model.metadata.properties, args.model))
    record = {
        "model": args.model,
        "device": model.device,
        "precision": args.precision,
        "sizes": input_set.sizes,
        "inputs": [
            {
                "name": item.name,
                "dtype": dtype_name(item.array),
                "shape": item.array.shape,
                "source": item.source,
                "how": item.note,
            }
            for item in input_set.items
        ],
        "outputs": [describe_output(name, content, classes, args.top, files) for name, content in results.items()],
        "load_ms": load_seconds * 1e3,
        "latency_ms": median(seconds or [first_seconds]) * 1e3,
        "first_run_ms": first_seconds * 1e3,
        "runs": max(len(seconds), 1),
        "batches": len(batches),
        "files": files,
        "saved": save_outputs(results, args.output, input_set.rate, files) if args.output else {},
    }
    _warn_of_unused_labels(classes, record["outputs"])
    host_steps = model.explain() if args.explain else ()
    with redirect_stdout(sys.stderr if args.output == STDOUT else sys.stdout):
        if args.json:
            if args.explain:
                record["host_steps"] = [asdict(step) for step in host_steps]
                record["narrowed"] = [asdict(product) for product in model.narrowed()]
            output.print_json(record)
            return 0
        _print(record, input_set, classes, is_first_run=not seconds)
        if args.explain:
            _print_host_steps(host_steps)
            _print_narrowed(args.precision, model.narrowed())
    return 0


def _run_rows(args: argparse.Namespace) -> int:
    from weft.cli.run_rows import check_arguments, print_rows, run_rows

    check_arguments(args)
    start = time.perf_counter()
    model = weft.load(args.model, **options.load_arguments(args), dump=args.dump)
    loaded = {"model": args.model, "device": model.device, "load_ms": (time.perf_counter() - start) * 1e3}
    results, status = run_rows(args, model)
    record = {**loaded, **results}
    if args.json:
        output.print_json(record)
    else:
        print_rows(record)
    return status


def _warn_of_unused_labels(classes: ClassNames, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Warn if the user's class names fit no output."""
    rows = [row for item in outputs for row in item.get("classes", ())]
    if classes.is_user_given and not any(
        each["label"] is not None and each["index"] is not None for row in rows for each in row
    ):
        line = f"--labels {classes.origin}: no output has {len(classes.names)} scores, one for each name"
        output.error_console().print(Text(output.escape_unprintable(line), "bold yellow"))


def _run_batches(
    model: Model, batches: Sequence[ImageBatch], repeat: int
) -> tuple[InputSet, dict[str, Any], float, list[float]]:
    """Run all batches; return the inputs of the first, the joined outputs, and the seconds of the first and other runs.

    Each batch runs `repeat` times after an untimed first run, unless that alone took long.
    """
    first = inputs.inputs_for(batches[0].args, model, lambda: model.source)
    total = sum(len(batch.files) for batch in batches)
    parts = []
    seconds: list[float] = []
    done = 0
    with stages("running") as progress:
        start = time.perf_counter()
        outputs = model.run(first.arrays)
        first_seconds = time.perf_counter() - start
        for batch in batches:
            is_first = batch is batches[0]
            if not (is_first and repeat == 1 and first_seconds > LONG_RUN):
                arrays = first.arrays if is_first else _read_batch(model, batch, first)
                outputs, times = _time_runs(model, arrays, repeat)
                seconds += times if len(batch.files) == len(batches[0].files) else []  # the last may be smaller
            parts.append(outputs)
            done += len(batch.files)
            progress.stage("images", done / max(total, 1), f"{done} of {total}")
    return first, join_outputs(parts, batches), first_seconds, seconds


def _read_batch(model: Model, batch: ImageBatch, first: InputSet) -> dict[str, Any]:
    return inputs.inputs_for(batch.with_image_size(first.sizes), model, lambda: model.source, quiet=True).arrays


def _time_runs(model: Model, arrays: dict[str, Any], count: int) -> tuple[dict[str, Any], list[float]]:
    results: dict[str, Any] = {}
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        results = model.run(arrays)
        seconds.append(time.perf_counter() - start)
    return results, seconds


def _print(record: dict[str, Any], input_set: InputSet, classes: ClassNames, is_first_run: bool) -> None:
    console = output.console()
    rows: list[Sequence[object]] = [
        (item["name"], item["dtype"], output.format_shape(item["shape"]), Text(item["source"], "cyan"))
        for item in record["inputs"]
    ]
    if rows:
        console.print(output.table("inputs", ("name", "dtype", "shape", "from"), rows))
    if record["batches"] > 1:
        line = f"{len(record['files'])} images in {record['batches']} batches; the shape is that of the first batch"
        console.print(Text(line, "dim"))
    if input_set.guessed:
        sizes = ", ".join(f"{name} = {size}" for name, size in input_set.guessed.items())
        line = f"assumed {sizes}; set another size with --shape {next(iter(input_set.guessed))}=N"
        console.print(Text(output.escape_unprintable(line), "dim"))
    console.print()
    print_outputs(record["outputs"], classes)
    runs = f"median of {record['runs']} runs" if record["runs"] > 1 else "one run"
    label = "first run; --repeat N times later ones" if is_first_run else f"{runs}, after a first one"
    facts: list[tuple[str, object]] = [
        ("device", record["device"]),
        ("latency", f"{output.format_seconds(record['latency_ms'] / 1e3)} ({label})"),
        ("load", output.format_seconds(record["load_ms"] / 1e3)),
    ]
    if record["saved"]:
        facts.append(("saved", ", ".join(dict.fromkeys(record["saved"].values()))))
    console.print()
    console.print(output.facts(facts))


def _print_host_steps(steps: Sequence[HostStep]) -> None:
    console = output.console()
    console.print()
    if not steps:
        console.print(Text("all steps run as native code", "green"))
        return
    rows = [(step.node, step.step, Text(step.reason, "dim" if step.by_nature else "yellow")) for step in steps]
    console.print(output.table("steps that run in Python", ("node", "step", "why"), rows))


def _print_narrowed(precision: str, products: Sequence[NarrowedProduct]) -> None:
    from weft.runtime.device_report import rounding_text

    console = output.console()
    if products:
        rows = [(product.node, product.operands, product.template) for product in products]
        console.print(output.table("products that round their operands", ("node", "to", "template"), rows))
    console.print(Text(rounding_text(precision, products), "dim"))
