"""Models and inputs as JSON: a graph in base64, and for large arrays a description from which they are drawn.

A draw is a dict: dtype and shape, and either the values themselves, or a seed with the mean, spread and range of the
numbers. Weights are drawn too: an initializer whose doc_string is a draw has no data of its own.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Draw = dict[str, Any]
SMALL = 64
"""Arrays with at most this many elements are written out."""
LARGE = 1e5
"""Numbers beyond it are not like those of a trained model."""


def packed(model: onnx.ModelProto) -> str:
    return base64.b64encode(zlib.compress(model.SerializeToString(deterministic=True), 9)).decode()


def unpacked(text: str) -> onnx.ModelProto:
    """Decode the model without its large weights."""
    return onnx.ModelProto.FromString(zlib.decompress(base64.b64decode(text)))


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its weights drawn."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in (*tensors(whole.graph), *(tensor for body in whole.functions for tensor in constants(body.node))):
        if tensor.doc_string.startswith("{"):
            tensor.CopyFrom(numpy_helper.from_array(draw(json.loads(tensor.doc_string)), tensor.name))
    return whole


def tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield the constants of a graph and its subgraphs."""
    yield from graph.initializer
    yield from constants(graph.node)


def constants(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from tensors(attribute.g)
            elif attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def describe_array(array: Array, seed: int) -> Draw:
    """Describe an array: its values if there are few, otherwise a distribution like theirs."""
    description: Draw = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.dtype == object or array.dtype.kind in "US":
        return description | {"dtype": "str", "values": [str(text) for text in array.ravel()]}
    if array.size <= SMALL:
        flat = array.ravel().tolist()
        return description | {"values": [float(f"{number:.5g}") for number in flat] if is_float(array) else flat}
    wide = array.astype(np.float64)
    wide = wide[np.isfinite(wide)]
    if not wide.size:
        return description | {"seed": seed, "mean": 0.0, "std": 1.0}
    if is_float(array) and (
        wide.std() == 0 or np.abs(wide).max() > LARGE
    ):  # weights that are one number, and what follows
        return description | {"seed": seed, "mean": 0.0, "std": 1.0}
    facts = {"mean": wide.mean(), "std": wide.std(), "low": wide.min(), "high": wide.max()}
    return description | {"seed": seed} | {name: float(f"{number:.4g}") for name, number in facts.items()}


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def draw(description: Mapping[str, Any]) -> Array:
    shape = tuple(description["shape"])
    if description["dtype"] == "str":
        return np.resize(np.array(description.get("values", ["a"]), object), shape)
    dtype = dtype_of(description["dtype"])
    if "values" in description:
        values = np.array(description["values"], np.float64 if dtype.kind not in "iub" else dtype)
        with np.errstate(all="ignore"):
            return np.resize(values, shape).astype(dtype) if values.size else np.ones(shape, dtype)
    random = np.random.default_rng(description["seed"])
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    low, high = description.get("low", -4.0), description.get("high", 4.0)
    if dtype.kind in "iu":
        facts = np.iinfo(dtype)
        first, last = (int(min(max(end, facts.min), facts.max)) for end in (low, high))
        return random.integers(first, max(first, last), shape, dtype, endpoint=True)
    numbers = np.clip(random.standard_normal(shape) * description["std"] + description["mean"], low, high)
    with np.errstate(all="ignore"):
        return np.asarray(numbers).astype(dtype)


def as_initializer(name: str, description: Draw) -> TensorProto:
    """Make an initializer that holds its description, or its few values."""
    if "values" in description:
        return numpy_helper.from_array(draw(description), name)
    dtype = helper.np_dtype_to_tensor_dtype(dtype_of(description["dtype"]))
    return TensorProto(name=name, data_type=dtype, dims=description["shape"], doc_string=json.dumps(description))


def draw_of(tensor: TensorProto) -> Draw:
    """Return the description of an initializer."""
    if tensor.doc_string.startswith("{"):
        return dict(json.loads(tensor.doc_string))
    return describe_array(numpy_helper.to_array(tensor), 0)


def resized(description: Draw, shape: list[int]) -> Draw:
    return description | {"shape": shape}
