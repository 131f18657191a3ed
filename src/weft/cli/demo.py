"""`weft demo`: recognise handwritten digits with the small model in the package."""

from __future__ import annotations

import argparse
import time
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

import weft
from weft.cli import options, output
from weft.cli.demo_gallery import format_gallery
from weft.cli.process import peak_memory
from weft.records import dataclass
from weft.report.summary import summarize_weights

TIMED_RUNS = 20
EXAMPLES = (
    ("try weft without a model", "weft demo"),
    ("on the exact reference", "weft demo --device reference"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("demo", help="recognise a few handwritten digits; needs no file and no network")
    options.add_loading(parser, without=("trusted",))
    options.add_json(parser)


@dataclass(frozen=True, slots=True)
class DigitPredictions:
    """The predictions of the model, its time and its memory."""

    pixels: np.ndarray[Any, Any]  # [count, 8, 8], 0 to 16
    truth: list[int]
    predictions: list[int]
    confidences: list[float]
    device: str
    load_seconds: float
    seconds: float  # median time for all samples at once
    peak_bytes: int | None
    weight_bytes: int
    parameters: int
    accuracy: float  # on all held-out digits, measured after training


def run(args: argparse.Namespace) -> int:
    result = recognize_digits(**options.load_arguments(args))
    if args.json:
        output.print_json(_record(result))
    else:
        _print(result, output.console())
    return 0


def recognize_digits(**load_options: Any) -> DigitPredictions:
    """Load the model, run it on the samples, and time it."""
    folder = files("weft.cli") / "demo_data"
    with (folder / "digits.npz").open("rb") as file, np.load(file) as samples:
        pixels, labels = samples["pixels"], samples["labels"]
    start = time.perf_counter()
    model = weft.load((folder / "digits.onnx").read_bytes(), **load_options)
    load_seconds = time.perf_counter() - start
    images = (pixels[:, None] / 16).astype(np.float32)
    probabilities = model(images)
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        model(images)
        times.append(time.perf_counter() - start)
    weights = summarize_weights(model.source.graph)
    return DigitPredictions(
        pixels,
        labels.tolist(),
        probabilities.argmax(axis=1).tolist(),
        probabilities.max(axis=1).tolist(),
        model.device,
        load_seconds,
        median(times),
        peak_memory(),
        weights.stored_bytes,
        weights.elements,
        float(model.source.metadata["held_out_accuracy"]),
    )


def _record(result: DigitPredictions) -> dict[str, object]:
    return {
        "predictions": result.predictions,
        "confidences": result.confidences,
        "truth": result.truth,
        "correct": sum(a == b for a, b in zip(result.predictions, result.truth, strict=True)),
        "held_out_accuracy": result.accuracy,
        "device": result.device,
        "load_ms": result.load_seconds * 1e3,
        "latency_ms": result.seconds * 1e3,
        "timed_runs": TIMED_RUNS,
        "peak_memory_bytes": result.peak_bytes,
        "weight_bytes": result.weight_bytes,
        "parameters": result.parameters,
    }


def _print(result: DigitPredictions, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            ("weft demo", "bold"),
            f"  {len(result.truth)} handwritten digits that were not in the training data",
        )
    )
    console.print()
    samples = list(zip(result.pixels, result.truth, result.predictions, result.confidences, strict=True))
    for line in format_gallery(samples, console):
        console.print(line, soft_wrap=True)
    correct = sum(a == b for a, b in zip(result.predictions, result.truth, strict=True))
    count = len(result.truth)
    peak = "" if result.peak_bytes is None else f"{output.format_bytes(result.peak_bytes)} process peak, "
    each = output.format_seconds(result.seconds / count)
    load = output.format_seconds(result.load_seconds)
    style = "bold green" if correct == count else "bold yellow"
    console.print(
        output.facts(
            [
                ("result", Text(f"{correct} of {count} recognised", style)),
                ("model", f"{result.parameters:,} parameters, {result.accuracy:.1%} accuracy on all held-out digits"),
                ("device", Text(result.device, "bold")),
                ("latency", f"{output.format_seconds(result.seconds)} for all {count}, {each} each"),
                ("", Text(f"median of {TIMED_RUNS} runs, after {load} to load", "dim")),
                ("memory", f"{peak}{output.format_bytes(result.weight_bytes)} of weights"),
            ]
        )
    )
    console.print(Text("\nnext: weft info MODEL.onnx, weft run MODEL.onnx\n", "dim"))
