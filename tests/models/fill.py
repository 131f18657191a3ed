"""Gives a skeleton its weights.

A skeleton is a real architecture whose large initializers have dims and a dtype but no data. The doc_string of each
says how to draw it: "normal MEAN STD SEED". The draw is the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

RECIPE = "normal"


def fill(skeleton: Path, filled: Path) -> None:
    """Write `skeleton` with all its weights to `filled`, which appears only when it is whole."""
    model = onnx.load(skeleton)
    for tensor in model.graph.initializer:
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
