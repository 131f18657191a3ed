"""`weft run`: run a model on files or made-up data, and show what comes out."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.text import Text

import weft
from weft.cli import inputs, options, output
from weft.cli.inputs import Given
from weft.cli.sizes import sizes_for
from weft.errors import ExecutionError
from weft.ir.dtypes import DType, from_numpy
from weft.ir.narrowed import NarrowedProduct
from weft.runtime.device_report import rounding_text
from weft.runtime.explain import HostStep
from weft.runtime.model import Model

SHOWN_VALUES = 5


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a model on files or random data",
        description="Run a model. Inputs that are not given are random; dims that nothing gives a size are 1.",
    )
    options.add_model(parser)
    inputs.add_inputs(parser)
    options.add_output(parser, "save each output as a .npy file in this folder", metavar="DIR")
    options.add_repeat(parser, 1)
    options.add_loading(parser)
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write each stage of the compiler into this folder")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="list the steps that did not become native code, and why, and the products that round their operands",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    model = weft.load(args.model, **options.load_arguments(args), dump=args.dump)
    load_seconds = time.perf_counter() - start
    sizes = sizes_for(args, (*model.inputs, *model.defaults))
    asked = set(sizes)
    given = inputs.make_inputs(model.inputs, model.defaults, args.input, sizes, args.seed)
    results, times = _time_runs(model, {item.name: item.array for item in given}, args.repeat)
    saved = save_outputs(results, args.output) if args.output else {}
    record = {
        "model": args.model,
        "device": model.device,
        "precision": args.precision,
        "sizes": sizes,
        "inputs": [
            {"name": item.name, "dtype": _dtype_name(item.array), "shape": item.array.shape, "source": item.source}
            for item in given
        ],
        "outputs": [describe(name, content) for name, content in results.items()],
        "load_ms": load_seconds * 1e3,
        "latency_ms": median(times) * 1e3,
        "runs": len(times),
        "saved": {name: str(path) for name, path in saved.items()},
    }
    host_steps = model.explain() if args.explain else ()
    if args.json:
        listed = [asdict(step) for step in host_steps]
        narrowed = [asdict(product) for product in model.narrowed()] if args.explain else []
        output.print_json({**record, "host_steps": listed, "narrowed": narrowed} if args.explain else record)
        return 0
    _print(record, given, {name: size for name, size in sizes.items() if name not in asked})
    if args.explain:
        _print_host_steps(host_steps)
        _print_narrowed(args.precision, model.narrowed())
    return 0


def _time_runs(model: Model, inputs: dict[str, Any], count: int) -> tuple[dict[str, Any], list[float]]:
    """The outputs, and the seconds of `count` runs; where there are several, an untimed one goes before."""
    results = model.run(inputs) if count > 1 else {}
    times = []
    for _ in range(count):
        start = time.perf_counter()
        results = model.run(inputs)
        times.append(time.perf_counter() - start)
    return results, times


def describe(name: str, content: Any) -> dict[str, Any]:
    """An output in a few numbers; one that is not a tensor says only what it is."""
    if not isinstance(content, np.ndarray):
        length = len(content) if isinstance(content, (list, dict)) else None
        return {"name": name, "kind": type(content).__name__, "length": length, "first": repr(content)[:200]}
    record: dict[str, Any] = {"name": name, "dtype": _dtype_name(content), "shape": content.shape}
    first = content.reshape(-1)[:SHOWN_VALUES]
    if content.dtype.kind in "OUS":
        return {**record, "first": [str(item) for item in first]}
    if content.dtype.kind == "c":
        return {**record, "first": [str(complex(item)) for item in first]}
    whole = content.dtype.kind in "iub"
    numbers = first if whole else first.astype(np.float64)
    record["first"] = numbers.tolist()
    if content.size:
        wide = content.astype(np.float64)
        extremes = (content.min().item(), content.max().item()) if whole else (float(wide.min()), float(wide.max()))
        record |= {"min": extremes[0], "mean": float(wide.mean()), "max": extremes[1]}
    return record


def save_outputs(results: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Write each tensor as NAME.npy, the name made safe; types that .npy files lack are widened to float32 or int8."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for name, content in results.items():
        if not isinstance(content, np.ndarray):
            raise ExecutionError(
                f"output {name!r} is a {type(content).__name__}, which a .npy file cannot hold",
                hint="leave --output out to see it",
            )
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "output"
        taken = {path.name for path in paths.values()}
        number = 1
        path = folder / f"{stem}.npy"
        while path.name in taken:
            number += 1
            path = folder / f"{stem}_{number}.npy"
        np.save(path, _storable(content), allow_pickle=False)
        paths[name] = path
    return paths


def _storable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dtype = from_numpy(array.dtype)
    if dtype is DType.string:
        return array.astype(np.str_)
    if dtype.value in np.sctypeDict:
        return array
    return array.astype(np.float32 if dtype.is_float else np.int8)


def _dtype_name(array: np.ndarray[Any, Any]) -> str:
    return str(from_numpy(array.dtype))


def _print(record: dict[str, Any], given: Sequence[Given], assumed: Mapping[str, int]) -> None:
    console = output.console()
    rows: list[Sequence[object]] = [
        (item["name"], item["dtype"], output.format_shape(item["shape"]), Text(item["source"], "cyan"))
        for item in record["inputs"]
    ]
    if rows:
        console.print(output.table("inputs", ("name", "dtype", "shape", "from"), rows))
    from_files = any(not item.source.startswith("@") for item in given)
    if assumed and not from_files:
        sizes = ", ".join(f"{name} = {size}" for name, size in assumed.items())
        console.print(Text(f"assumed {sizes}; set another size with --shape {next(iter(assumed))}=N", "dim"))
    rows = [
        (
            item["name"],
            item.get("dtype", item.get("kind", "")),
            output.format_shape(item["shape"]) if "shape" in item else f"length {item['length']}",
            *(f"{item[key]:.6g}" if key in item else "" for key in ("min", "mean", "max")),
            _first_values(item),
        )
        for item in record["outputs"]
    ]
    columns = ("name", "dtype", "shape", "min", "mean", "max", "first values")
    console.print()
    console.print(output.table("outputs", columns, rows, right=("min", "mean", "max")))
    times = f"median of {record['runs']} runs" if record["runs"] > 1 else "one run, the first"
    facts: list[tuple[str, object]] = [
        ("device", record["device"]),
        ("latency", f"{output.format_seconds(record['latency_ms'] / 1e3)} ({times})"),
        ("load", output.format_seconds(record["load_ms"] / 1e3)),
    ]
    if record["saved"]:
        facts.append(("saved", ", ".join(record["saved"].values())))
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
    console = output.console()
    if products:
        rows = [(found.node, found.operands, found.template) for found in products]
        console.print(output.table("products that round their operands", ("node", "to", "template"), rows))
    console.print(Text(rounding_text(precision, products), "dim"))


def _first_values(item: dict[str, Any]) -> str:
    first = item["first"]
    if isinstance(first, str):
        return first[:60]
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in first]
    elements = int(np.prod(item["shape"], dtype=np.int64))
    return " ".join(texts) + (" …" if elements > len(texts) else "")
