"""`weft run`: run a model on people's files or made-up data, and show what comes out."""

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
from weft.cli.describe_outputs import SHOWN_VALUES, ClassNames, describe, dtype_name, print_outputs
from weft.cli.inputs import InputSet
from weft.cli.labels import labels_of_model, read_labels
from weft.cli.output_files import STDOUT
from weft.cli.save_outputs import KINDS, check_target, save_outputs
from weft.ir.narrowed_products import NarrowedProduct
from weft.runtime.explain import HostStep
from weft.runtime.model import Model

EXAMPLES = (
    ("on made-up data", "weft run model.onnx"),
    ("a picture in, the likeliest classes out", "weft run model.onnx photo.jpg --labels labels.txt"),
    ("inputs by name, outputs into a folder", "weft run model.onnx -i x=x.npy -i rate=16000 -o results"),
    ("one hundred runs on a GPU, as JSON", "weft run model.onnx --repeat 100 --device webgpu --json"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a model on files or random data",
        description="Run a model. Without data, inputs are random, and dims that nothing gives a size get usual ones. "
        "Files are known by their content; what is done to pictures and sound is said on stderr.",
    )
    options.add_model(parser)
    inputs.add_inputs(parser)
    shown = parser.add_argument_group("outputs")
    shown.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="TO",
        help=f"write the outputs to {KINDS}; a folder gets .npy files, and .png where an output is a picture; - is "
        "standard output",
    )
    shown.add_argument("--labels", metavar="FILE", help="names of classes: one on each line, or JSON")
    shown.add_argument(
        "--top",
        type=option_types.count,
        default=SHOWN_VALUES,
        metavar="N",
        help=f"classes to show (default {SHOWN_VALUES})",
    )
    options.add_json(shown)
    options.add_repeat(parser, 1)
    options.add_loading(parser)
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write each stage of the compiler into this folder")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="list the steps that did not become native code, and why, and the products that round their operands",
    )


def run(args: argparse.Namespace) -> int:
    if args.output is not None:
        check_target(args.output)
    names = ClassNames(read_labels(args.labels), args.labels, asked=True) if args.labels else None
    start = time.perf_counter()
    model = weft.load(args.model, **options.load_arguments(args), dump=args.dump)
    load_seconds = time.perf_counter() - start
    made = inputs.inputs_for(args, model, lambda: model.source)
    results, times = _time_runs(model, made.arrays, args.repeat)
    classes = names or ClassNames(*labels_of_model(model.metadata.properties, args.model))
    record = {
        "model": args.model,
        "device": model.device,
        "precision": args.precision,
        "sizes": made.sizes,
        "inputs": [
            {
                "name": item.name,
                "dtype": dtype_name(item.array),
                "shape": item.array.shape,
                "source": item.source,
                "how": item.told,
            }
            for item in made.given
        ],
        "outputs": [describe(name, content, classes, args.top) for name, content in results.items()],
        "load_ms": load_seconds * 1e3,
        "latency_ms": median(times) * 1e3,
        "runs": len(times),
        "saved": save_outputs(results, args.output, made.rate) if args.output else {},
    }
    _warn_of_unused(classes, record["outputs"])
    host_steps = model.explain() if args.explain else ()
    with redirect_stdout(sys.stderr if args.output == STDOUT else sys.stdout):
        if args.json:
            listed = [asdict(step) for step in host_steps]
            narrowed = [asdict(product) for product in model.narrowed()] if args.explain else []
            output.print_json({**record, "host_steps": listed, "narrowed": narrowed} if args.explain else record)
            return 0
        _print(record, made, classes)
        if args.explain:
            _print_host_steps(host_steps)
            _print_narrowed(args.precision, model.narrowed())
    return 0


def _warn_of_unused(classes: ClassNames, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Say where names that a user gave are for no output."""
    rows = [row for item in outputs for row in item.get("classes", ())]
    if classes.asked and not any(
        each["label"] is not None and each["index"] is not None for row in rows for each in row
    ):
        line = f"--labels {classes.origin}: has {len(classes.names)} names, and no output has as many scores"
        output.error_console().print(Text(output.escape_unprintable(line), "bold yellow"))


def _time_runs(model: Model, inputs: dict[str, Any], count: int) -> tuple[dict[str, Any], list[float]]:
    """The outputs, and the seconds of `count` runs; where there are several, an untimed one goes before."""
    results = model.run(inputs) if count > 1 else {}
    times = []
    for _ in range(count):
        start = time.perf_counter()
        results = model.run(inputs)
        times.append(time.perf_counter() - start)
    return results, times


def _print(record: dict[str, Any], made: InputSet, classes: ClassNames) -> None:
    console = output.console()
    rows: list[Sequence[object]] = [
        (item["name"], item["dtype"], output.format_shape(item["shape"]), Text(item["source"], "cyan"))
        for item in record["inputs"]
    ]
    if rows:
        console.print(output.table("inputs", ("name", "dtype", "shape", "from"), rows))
    if made.assumed:
        sizes = ", ".join(f"{name} = {size}" for name, size in made.assumed.items())
        line = f"assumed {sizes}; set another size with --shape {next(iter(made.assumed))}=N"
        console.print(Text(output.escape_unprintable(line), "dim"))
    console.print()
    print_outputs(record["outputs"], classes)
    times = f"median of {record['runs']} runs" if record["runs"] > 1 else "one run"
    facts: list[tuple[str, object]] = [
        ("device", record["device"]),
        ("latency", f"{output.format_seconds(record['latency_ms'] / 1e3)} ({times})"),
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
        console.print(Text("every step became native code", "green"))
        return
    rows = [(step.node, step.step, Text(step.reason, "dim" if step.by_nature else "yellow")) for step in steps]
    console.print(output.table("steps that run in Python", ("node", "step", "why"), rows))


def _print_narrowed(precision: str, products: Sequence[NarrowedProduct]) -> None:
    from weft.runtime.device_report import rounding_text

    console = output.console()
    if products:
        rows = [(found.node, found.operands, found.template) for found in products]
        console.print(output.table("products that round their operands", ("node", "to", "template"), rows))
    console.print(Text(rounding_text(precision, products), "dim"))
