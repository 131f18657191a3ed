"""`weft quantize`: write a model with fewer bits per number, and measure size, speed and error."""

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

SHOWN_LAYERS = 10
HIGH_NOISE = 0.1  # of an output, above which advice is printed
COLUMNS = ("layer", "op", "alone", "in the model", "")
EXAMPLES = (
    (
        "int8, calibrated with your images",
        "weft quantize model.onnx small.onnx --to int8 --data pictures",
    ),
    ("weights in float16", "weft quantize model.onnx half.onnx --to fp16 --form weights"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quantize",
        help="write an ONNX model with fewer bits per number, and measure the error",
        description="Write an ONNX model in int8 (QuantizeLinear and DequantizeLinear, weights per channel, calibrated "
        "activations), int4 (block-quantized weights of matrix products), fp16 or bf16. Layers with an unusually large "
        "error are not quantized. A table shows size, speed and error before and after. The exit code is 1 if the "
        "error of an output exceeds --budget.",
    )
    options.add_model(parser)
    options.add_new_model(parser)
    parser.add_argument("--to", required=True, choices=TARGETS, help="the type to convert to")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder of samples: .npz files with an array for each input; .npy, image or WAV files for a model with "
        "one input; or folders with input_0.pb, … (default: random data)",
    )
    forms = "; ".join(f"{to}: {', '.join(names)}" for to, names in FORMS.items() if len(names) > 1)
    parser.add_argument("--form", choices=sorted({each for names in FORMS.values() for each in names}), help=forms)
    parser.add_argument(
        "--block", type=int, default=32, choices=BLOCKS, help="int4: number of weights that share a scale"
    )
    parser.add_argument(
        "--embeddings", action="store_true", help="int4: also quantize embedding tables (GatherBlockQuantized)"
    )
    parser.add_argument(
        "--calibration", choices=tuple(METHODS), default="mse", help="int8: how ranges are chosen (default mse)"
    )
    parser.add_argument(
        "--activations", choices=ACTIVATIONS, default="uint8", help="int8: the type of activations (default uint8)"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="do not quantize layers whose node, weight or output name matches; may be repeated",
    )
    parser.add_argument("--all", action="store_true", help="also quantize layers with an unusually large error")
    parser.add_argument(
        "--budget",
        type=option_types.positive,
        metavar="ERROR",
        help="the largest allowed error of an output, relative to its largest magnitude; the worst layers are left out "
        "until it is met",
    )
    parser.add_argument(
        "--samples",
        type=option_types.count,
        default=SAMPLES,
        metavar="N",
        help=f"number of samples (default {SAMPLES})",
    )
    options.add_sizes(parser)
    options.add_seed(parser)
    options.add_loading(
        parser, "device for the measurements", without=tuple(set(options.LOADING) - {"device", "threads"})
    )
    parser.add_argument("--quick", action="store_true", help="do not compare and time the result")
    options.add_json(parser, "print JSON instead of tables, with all layers")
    add_image_options(parser.add_argument_group("images", "Settings that are left out are inferred from the model."))


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
    """Return the report as plain data."""
    return {**asdict(report), "path": str(report.path), "error": report.error}


def _print(report: QuantizationReport, budget: float | None) -> None:
    console = output.console()
    if report.made_up:
        figures = "ranges and errors are" if report.to == "int8" else "errors are"
        warning = f"Without --data, {figures} those of {report.samples} random samples."
        console.print(Text(f"{warning} Calibrate with real samples before you use the result.", "bold yellow"))
    quantized = sum(layer.narrowed for layer in report.layers)
    rows: list[tuple[str, object, object, object]] = []
    if report.sizes is not None:
        before, after = report.sizes.before, report.sizes.after
        rows.append(("size", format_bytes(before), format_bytes(after), f"{before / after:.2f} × smaller"))
    if report.times is not None:
        before_time, after_time = report.times.before, report.times.after
        gain = f"{before_time / after_time:.2f} × the speed, median of {report.times.runs} runs"
        rows.append(("time", format_seconds(before_time), format_seconds(after_time), gain))
    for each in report.outputs:
        is_over = budget is not None and each.error > budget
        error = Text(f"{each.error:.2g}", "bold red" if is_over else "")
        note = f"noise {each.noise:.2g}; the same element is largest in {each.agreement:.1%} of rows"
        rows.append((f"error of {each.name}", "", error, note))
    title = f"{report.path}: {quantized} of {len(report.layers)} layers in {report.to}"
    console.print(output.table(title, ("", "before", "after", ""), rows, ("before", "after")))
    if any(each.noise > HIGH_NOISE for each in report.outputs):
        advice = "The error is large. Try --budget, or --keep with the worst layers below."
        console.print(Text(advice, "bold yellow"))
    _print_layers(console, report.layers)
    source = "random" if report.made_up else "real"
    context = (
        "error: largest difference, relative to the largest magnitude; noise: root mean square of the difference, "
        "relative to that of the value; alone: the layer by itself, on the values of the original model"
    )
    for note in (f"form {report.form}, opset {report.opset}; {report.samples} {source} samples", context):
        console.print(Text(output.escape_unprintable(note), "dim"))


def _print_layers(console: Any, layers: Sequence[LayerReport]) -> None:
    worst = sorted(layers, key=_layer_noise, reverse=True)[:SHOWN_LAYERS]
    rows = [
        (
            layer.node,
            layer.op,
            "" if layer.alone is None else f"{layer.alone.error:.2g}",
            "" if layer.error is None else f"{layer.error:.2g}",
            Text("" if layer.narrowed else f"not quantized: {layer.reason}", "yellow"),
        )
        for layer in worst
    ]
    console.print(output.table(f"the worst {len(rows)} layers", COLUMNS, rows, COLUMNS[2:4]))
    left = [layer for layer in layers if not layer.narrowed and layer not in worst]
    if left:
        console.print(Text(output.escape_unprintable(f"{len(left)} more are not quantized; see --json"), "dim"))


def _layer_noise(layer: LayerReport) -> float:
    return layer.alone.noise if layer.alone is not None else layer.error or 0.0
