"""Models of one node, named culprit, and the check that weft refuses a model for the right reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto, helper

import weft

INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def save(folder: Path, built: onnx.ModelProto) -> Path:
    path = folder / "bad.onnx"
    path.write_bytes(built.SerializeToString())
    return path


def refuse(folder: Path, built: onnx.ModelProto, kind: type[Exception], *messages: str) -> None:
    """Loading must fail with `kind`, with an error that names the file and contains all `messages`."""
    path = save(folder, built)
    with pytest.raises(kind) as caught:
        weft.load(path)
    for text in (str(path), *messages):
        assert text in str(caught.value)
    assert "cannot be applied here" not in str(caught.value), "the message of a Python exception"


def single(op: str, inputs: Sequence[Any], outputs: int = 1, opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    """A model of one node, named culprit. An input is an array (a constant), a shape, a (shape, dtype), or None."""
    names, declared, constants = [], [], []
    for number, operand in enumerate(inputs):
        name = f"in{number}"
        names.append("" if operand is None else name)
        match operand:
            case None:
                continue
            case np.ndarray():
                constants.append(tensor(name, operand))
            case (list() as shape, int() as dtype):
                declared.append(value(name, shape, dtype))
            case list():
                declared.append(value(name, operand))
    results = [f"out{number}" for number in range(outputs)]
    domain = attributes.pop("domain", "")
    tested = node(op, names, results, name="culprit", domain=domain, **attributes)
    typeless = [helper.make_empty_tensor_value_info(name) for name in results]
    return model([tested], declared, typeless, constants, opsets={"": opset, "com.microsoft": 1, "ai.onnx.ml": 4})


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)
