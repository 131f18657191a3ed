"""Fill a skeleton with weights.

A skeleton is a real architecture whose large initializers have dims and a dtype but no data. The doc_string of each
says how to draw it: "normal MEAN STD SEED". The draw is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RECIPE = "normal"
LARGE = 256  # elements of an initializer that is worth leaving out
SMALLEST_STD = 1e-6


def fill(skeleton: Path, filled: Path) -> None:
    """Write `skeleton` with all its weights to `filled`, which appears only when it is whole."""
    model = onnx.load(skeleton)
    for tensor in _tensors(model.graph):
        recipe, *numbers = tensor.doc_string.split() or [""]
        if recipe == RECIPE:
            mean, std, seed = numbers
            tensor.raw_data = _draw(tensor, np.float32(mean), np.float32(std), int(seed))
            tensor.doc_string = ""
    partial = filled.with_suffix(".partial")
    onnx.save(model, partial)
    partial.replace(filled)


def _draw(tensor: TensorProto, mean: np.float32, std: np.float32, seed: int) -> bytes:
    standard = np.random.default_rng(seed).standard_normal(tuple(tensor.dims), dtype=np.float32)
    return (standard * std + mean).astype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).tobytes()


def strip(model: Path, skeleton: Path) -> None:
    """Write a model without the data of its large tensors of weights, so that `fill` gives it ones like them."""
    whole = onnx.load(model)
    for seed, tensor in enumerate(_tensors(whole.graph)):
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if math.prod(tensor.dims) >= LARGE and (dtype.kind == "f" or dtype.itemsize == 1):
            content = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.doc_string = f"{RECIPE} {content.mean():.6g} {max(content.std(), SMALLEST_STD):.6g} {seed}"
            for field in ("raw_data", "float_data", "int32_data", "double_data"):
                tensor.ClearField(field)
    onnx.save(whole, skeleton)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Initializers and constants, those of graphs inside too."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
