"""Rows of the list for ONNX files: `python -m models.survey SOURCE FILE...` (with PYTHONPATH=src:tests).

Inputs are looked for with which onnxruntime runs the model: sizes of dynamic dims are guessed, one for all of them or
one for each, until it does.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

SIZES = (32, 64, 320, 100, 16, 1, 160, 640, 224, 8, 512, 4, 2, 1000, 16000)
MOST_TRIES = 220
TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}
Array = np.ndarray[Any, Any]


def session(path: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def find_inputs(opened: onnxruntime.InferenceSession) -> dict[str, Array] | None:
    """Search for inputs that run; None if no guess does, or the catalog has no notation for a type."""
    specs = opened.get_inputs()
    if any(spec.type not in TYPES for spec in specs):
        return None
    for sizes in itertools.islice(_guesses(specs), MOST_TRIES):
        feeds = {spec.name: _random_array(spec, sizes) for spec in specs}
        if sum(array.nbytes for array in feeds.values()) > 1 << 28:
            continue
        try:
            opened.run(None, feeds)
        except Exception:  # whatever onnxruntime says: these sizes are not for this model
            continue
        return feeds
    return None


def _guesses(specs: list[Any]) -> Iterator[dict[str, int]]:
    """Sizes of dynamic dims by name: batches are 1, the others first all alike, then each its own."""
    names = [name for spec in specs for axis, dim in enumerate(spec.shape) if (name := _name(spec, axis, dim))]
    names = list(dict.fromkeys(names))
    batch = {name: 1 for name in names if _is_batch(name)}
    open_names = [name for name in names if name not in batch]
    pictures = {name: 3 for name in open_names if name.endswith(".1") and _rank(specs, name) == 4}
    for size in SIZES:
        yield batch | dict.fromkeys(open_names, size) | pictures
    for size in SIZES:
        yield batch | dict.fromkeys(open_names, size)
    for chosen in itertools.product(SIZES[:8], repeat=min(len(open_names), 3)):
        yield batch | dict.fromkeys(open_names, 1) | dict(zip(open_names, chosen))


def _name(spec: Any, axis: int, dim: Any) -> str:
    if isinstance(dim, int) and dim > 0:
        return ""
    return dim if isinstance(dim, str) and dim else f"{spec.name}.{axis}"


def _is_batch(name: str) -> bool:
    return "batch" in name.lower() or name in ("N", "B", "b", "bs") or name.endswith(".0")


def _rank(specs: list[Any], name: str) -> int:
    return next((len(spec.shape) for spec in specs if name.startswith(f"{spec.name}.")), 0)


def _random_array(spec: Any, sizes: dict[str, int]) -> Array:
    shape = [dim if not (name := _name(spec, axis, dim)) else sizes[name] for axis, dim in enumerate(spec.shape)]
    dtype = np.dtype(TYPES[spec.type])
    generator = np.random.default_rng(0)
    if dtype.kind == "f":
        return np.asarray(generator.normal(0, 1, shape)).astype(dtype)
    if dtype.kind == "b":
        return np.ones(shape, bool)
    if not shape or "len" in spec.name.lower():
        longest = max((size for size in sizes.values()), default=16)
        return np.full(shape, 16000 if spec.name == "sr" else longest, dtype)
    return np.asarray(generator.integers(0, 1, shape, endpoint=True)).astype(dtype)


def describe_input(name: str, array: Array) -> str:
    """Describe an input in the catalog's notation."""
    shape = ", ".join(map(str, array.shape))
    if array.dtype.kind == "f":
        values = "~N(0,1)"
    elif array.dtype.kind in "iu" and array.ndim and array.size > 2:
        values = "in 0..1"
    else:
        values = f"=[{', '.join(str(int(number)) for number in array.reshape(-1)[:1])}]"
    return f"{name} {array.dtype.name}[{shape}] {values}"


def row(name: str, source: str, member: str, path: Path) -> list[str] | None:
    """Return the catalog row of a file, or None if no inputs run."""
    opened = session(path)
    feeds = find_inputs(opened)
    if feeds is None:
        return None
    model = onnx.load(path, load_external_data=False)
    content = path.read_bytes()
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    declared = "; ".join(_declared(spec) for spec in opened.get_inputs())
    ops = " ".join(sorted({node.op_type for node in model.graph.node}))
    inputs = "; ".join(describe_input(*pair) for pair in feeds.items())
    digest = hashlib.sha256(content).hexdigest()
    size = f"{len(content) / 1e6:.2f}"
    return [
        name,
        "pypi",
        source,
        member,
        digest,
        size,
        str(opset),
        str(len(model.graph.node)),
        inputs,
        declared,
        "",
        "",
        ops,
    ]


def _declared(spec: Any) -> str:
    dims = ", ".join(
        str(dim) if isinstance(dim, int) and dim > 0 else str(dim or "?").replace(" ", "") for dim in spec.shape
    )
    return f"{spec.name}:{spec.type[7:-1]}[{dims}]"


if __name__ == "__main__":
    for file in map(Path, sys.argv[2:]):
        line = row(file.stem, sys.argv[1], file.name, file)
        print(
            "\t".join(line) if line else f"{file}: no inputs were found that run",
            file=sys.stdout if line else sys.stderr,
        )
