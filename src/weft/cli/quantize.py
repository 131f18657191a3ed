"""`weft quantize`: a model with narrower numbers, and what that does to its size, its speed and its results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.cli import option_types, options, output
from weft.cli.image_options import add_image_options, image_directions
from weft.cli.output import format_bytes, format_seconds
from weft.cli.sizes import sizes_of_file
from weft.errors import InputError
from weft.quantization.options import ACTIVATIONS, BLOCKS, FORMS, SAMPLES, TARGETS
from weft.quantization.quantize import LayerReport, QuantizationReport, quantize
from weft.quantization.ranges import METHODS

WORST = 10  # layers that are listed
FAR = 0.1  # noise of an output that is worth a word
COLUMNS = ("layer", "op", "alone", "in the model", "")
EXAMPLES = (
    (
        "products in 8 bits, calibrated with pictures of your own",
        "weft quantize model.onnx small.onnx --to int8 --data pictures",
    ),
    ("weights in half precision", "weft quantize model.onnx half.onnx --to fp16 --form weights"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quantize",
        help="a model with narrower numbers, and what that costs",
        description="Write an ONNX model again with narrower numbers: int8 (QuantizeLinear and DequantizeLinear, "
        "weights per channel, values by calibration), int4 (weights of products in blocks), fp16 or bf16. Layers whose "
        "error is out of line stay as they are. At the end comes a table of size, speed and errors, before and after. "
        "The exit code is 1 if an output is further off than --budget allows.",
    )
    options.add_model(parser)
    options.add_new_model(parser)
    parser.add_argument("--to", required=True, choices=TARGETS, help="the numbers to use")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="samples, each a file: .npz with an array for each input, .npy, a picture or a WAV sound for a model with "
        "one; or folders of input_0.pb, …; without it, random data is made up",
    )
    forms = "; ".join(f"{to}: {', '.join(names)}" for to, names in FORMS.items() if len(names) > 1)
    parser.add_argument("--form", choices=sorted({each for names in FORMS.values() for each in names}), help=forms)
    parser.add_argument("--block", type=int, default=32, choices=BLOCKS, help="int4: weights that share a scale")
    parser.add_argument(
        "--embeddings", action="store_true", help="int4: also the tables of look-ups (GatherBlockQuantized)"
    )
    parser.add_argument(
        "--calibration", choices=tuple(METHODS), default="mse", help="int8: how ranges are chosen (default mse)"
    )
    parser.add_argument(
        "--activations", choices=ACTIVATIONS, default="uint8", help="int8: the codes of values (default uint8)"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="layers that stay as they are, by a pattern of the name of a node, its weights or what it gives",
    )
    parser.add_argument("--all", action="store_true", help="also narrow layers whose error is out of line")
    parser.add_argument(
        "--budget",
        type=option_types.positive,
        metavar="ERROR",
        help="the largest error of an output, relative to its largest magnitude: the worst layers stay as they are "
        "until that holds",
    )
    parser.add_argument(
        "--samples", type=option_types.count, default=SAMPLES, metavar="N", help=f"samples to use (default {SAMPLES})"
    )
    options.add_sizes(parser)
    options.add_seed(parser)
    options.add_loading(parser, "what measures", without=tuple(set(options.LOADING) - {"device", "threads"}))
    parser.add_argument("--quick", action="store_true", help="do not compare and time the result")
    options.add_json(parser, "print JSON instead of tables, with all layers")
    add_image_options(parser.add_argument_group("pictures", "What is not directed follows from the model."))


def run(args: argparse.Namespace) -> int:
    path = options.new_model_path(args)
    if path.exists() and path.samefile(args.model):
        raise InputError(f"{path} is the model itself", hint="name another file to write")
    report = quantize(
        args.model,
        path,
        data=args.data,
        to=args.to,
        form=args.form,
        block=args.block,
        embeddings=args.embeddings,
        calibration=args.calibration,
        activations=args.activations,
        keep=tuple(args.keep),
        leave=not args.all,
        budget=args.budget,
        samples=args.samples,
        sizes=sizes_of_file(args),
        seed=args.seed,
        pictures=image_directions(args),
        device=args.device,
        threads=args.threads,
        measure=not args.quick,
    )
    if report.prepared:
        output.error_console().print(Text(output.escape_unprintable(report.prepared), "dim"))
    if args.json:
        output.print_json(record(report))
    else:
        _print(report, args.budget)
    return 1 if args.budget is not None and report.outputs and report.error > args.budget else 0


def record(report: QuantizationReport) -> dict[str, Any]:
    """All that is known of a result, for programs."""
    return {**asdict(report), "path": str(report.path), "error": report.error}


def _print(report: QuantizationReport, budget: float | None) -> None:
    console = output.console()
    if report.made_up:
        what = "ranges and errors are" if report.to == "int8" else "errors are"
        warning = f"No data was given: {what} those of {report.samples} made-up random samples."
        console.print(Text(f"{warning} Give real ones with --data before the result is used.", "bold yellow"))
    narrowed = sum(layer.narrowed for layer in report.layers)
    rows: list[tuple[str, object, object, object]] = []
    if report.sizes is not None:
        before, after = report.sizes.before, report.sizes.after
        rows.append(("size", format_bytes(before), format_bytes(after), f"{before / after:.2f} × smaller"))
    if report.times is not None:
        before_time, after_time = report.times.before, report.times.after
        gain = f"{before_time / after_time:.2f} × the speed, {report.times.runs} runs each in turn"
        rows.append(("a run", format_seconds(before_time), format_seconds(after_time), gain))
    for each in report.outputs:
        far = budget is not None and each.error > budget
        told = Text(f"{each.error:.2g}", "bold red" if far else "")
        note = f"noise {each.noise:.2g}; the same element is largest in {each.agreement:.1%} of rows"
        rows.append((f"error of {each.name}", "", told, note))
    title = f"{report.path}: {narrowed} of {len(report.layers)} layers in {report.to}"
    console.print(output.table(title, ("", "before", "after", ""), rows, ("before", "after")))
    if any(each.noise > FAR for each in report.outputs):
        advice = "The results are far from what they were. Try --budget, or --keep with the layers below that err most."
        console.print(Text(advice, "bold yellow"))
    _print_layers(console, report.layers)
    source = "made-up" if report.made_up else "given"
    terms = (
        "errors are the largest difference, relative to the largest magnitude; noise is the root mean square of "
        "differences, relative to that of the value; alone: the layer on the model's own data"
    )
    for note in (f"form {report.form}, opset {report.opset}; {report.samples} {source} samples", terms):
        console.print(Text(output.escape_unprintable(note), "dim"))


def _print_layers(console: Any, layers: Sequence[LayerReport]) -> None:
    worst = sorted(layers, key=_badness, reverse=True)[:WORST]
    rows = [
        (
            layer.node,
            layer.op,
            "" if layer.alone is None else f"{layer.alone.error:.2g}",
            "" if layer.error is None else f"{layer.error:.2g}",
            Text("" if layer.narrowed else f"left as it is: {layer.reason}", "yellow"),
        )
        for layer in worst
    ]
    console.print(output.table(f"the worst {len(rows)} layers", COLUMNS, rows, COLUMNS[2:4]))
    left = [layer for layer in layers if not layer.narrowed and layer not in worst]
    if left:
        console.print(Text(output.escape_unprintable(f"{len(left)} more are left as they are; see --json"), "dim"))


def _badness(layer: LayerReport) -> float:
    return layer.alone.noise if layer.alone is not None else layer.error or 0.0
