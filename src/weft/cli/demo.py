"""`weft demo`: read handwritten digits with the small network inside the package. No file, no network."""

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
from weft.cli.demo_gallery import gallery
from weft.cli.process import peak_memory
from weft.records import dataclass
from weft.report.summary import summarize_weights

TIMED_RUNS = 20
EXAMPLES = (
    ("a look at weft without a model of your own", "weft demo"),
    ("the same on the exact reference", "weft demo --device reference"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("demo", help="read a few handwritten digits: no file, no network")
    options.add_loading(parser, without=("trusted",))
    options.add_json(parser)


@dataclass(frozen=True, slots=True)
class DigitReading:
    """What the network made of the samples, and what it took."""

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
    accuracy: float  # on all held-out digits, as the training script measured it


def run(args: argparse.Namespace) -> int:
    reading = read_digits(**options.load_arguments(args))
    if args.json:
        output.print_json(_record(reading))
    else:
        _print(reading, output.console())
    return 0


def read_digits(**loading: Any) -> DigitReading:
    """Load the network, read the samples and time it."""
    folder = files("weft.cli") / "demo_data"
    with (folder / "digits.npz").open("rb") as file, np.load(file) as samples:
        pixels, labels = samples["pixels"], samples["labels"]
    start = time.perf_counter()
    model = weft.load((folder / "digits.onnx").read_bytes(), **loading)
    loaded = time.perf_counter() - start
    images = (pixels[:, None] / 16).astype(np.float32)
    probabilities = model(images)
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        model(images)
        times.append(time.perf_counter() - start)
    weights = summarize_weights(model.source.graph)
    return DigitReading(
        pixels,
        labels.tolist(),
        probabilities.argmax(axis=1).tolist(),
        probabilities.max(axis=1).tolist(),
        model.device,
        loaded,
        median(times),
        peak_memory(),
        weights.stored_bytes,
        weights.elements,
        float(model.source.metadata["held_out_accuracy"]),
    )


def _record(reading: DigitReading) -> dict[str, object]:
    return {
        "predictions": reading.predictions,
        "confidences": reading.confidences,
        "truth": reading.truth,
        "correct": sum(a == b for a, b in zip(reading.predictions, reading.truth, strict=True)),
        "held_out_accuracy": reading.accuracy,
        "device": reading.device,
        "load_ms": reading.load_seconds * 1e3,
        "latency_ms": reading.seconds * 1e3,
        "timed_runs": TIMED_RUNS,
        "peak_memory_bytes": reading.peak_bytes,
        "weight_bytes": reading.weight_bytes,
        "parameters": reading.parameters,
    }


def _print(reading: DigitReading, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            ("weft demo", "bold"),
            f"  {len(reading.truth)} handwritten digits that the network has never seen",
        )
    )
    console.print()
    cards = list(zip(reading.pixels, reading.truth, reading.predictions, reading.confidences, strict=True))
    for line in gallery(cards, console):
        console.print(line, soft_wrap=True)
    correct = sum(a == b for a, b in zip(reading.predictions, reading.truth, strict=True))
    count = len(reading.truth)
    peak = "" if reading.peak_bytes is None else f"{output.format_bytes(reading.peak_bytes)} process peak, "
    each = output.format_seconds(reading.seconds / count)
    load = output.format_seconds(reading.load_seconds)
    style = "bold green" if correct == count else "bold yellow"
    console.print(
        output.facts(
            [
                ("result", Text(f"{correct} of {count} read correctly", style)),
                ("network", f"{reading.parameters:,} parameters, {reading.accuracy:.1%} right on all held-out digits"),
                ("device", Text(reading.device, "bold")),
                ("latency", f"{output.format_seconds(reading.seconds)} for all {count}, {each} each"),
                ("", Text(f"median of {TIMED_RUNS} runs, after {load} to load", "dim")),
                ("memory", f"{peak}{output.format_bytes(reading.weight_bytes)} of weights"),
            ]
        )
    )
    console.print(Text("\nnext: weft info MODEL.onnx, weft run MODEL.onnx\n", "dim"))
