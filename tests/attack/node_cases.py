"""The node cases of onnx's suite as attacks change them: other arrays, shapes that are fixed or not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx

from weft.compat.conformance.cases import Case, collect_cases, read_data_sets

Array = np.ndarray[Any, Any]
RANDOM = ("bernoulli", "random", "dropout", "multinomial")


@cache
def node_cases() -> dict[str, Case]:
    """Those with a model and data, without the expansions of functions and what draws random numbers."""
    return {
        name: case
        for name, case in collect_cases(["node"]).items()
        if case.model is not None and "_expanded" not in name and not any(word in name for word in RANDOM)
    }


@cache
def case_inputs(name: str) -> dict[str, Any]:
    """The inputs of a case's first data set by name."""
    return dict(next(iter(read_data_sets(node_cases()[name]))).inputs)


def case_arrays(name: str) -> dict[str, Array]:
    """Those inputs that are tensors."""
    return {key: value for key, value in case_inputs(name).items() if isinstance(value, np.ndarray)}


def reshaped_model(name: str, arrays: Mapping[str, Array], symbolic: bool) -> onnx.ModelProto:
    """A case's model that takes these arrays, or with `symbolic` any of their ranks; nothing is said of outputs."""
    model = onnx.ModelProto()
    case = node_cases()[name]
    assert case.model is not None
    model.CopyFrom(case.model)
    for value in model.graph.input:
        if value.name in arrays and value.type.HasField("tensor_type"):
            del value.type.tensor_type.shape.dim[:]
            for axis, size in enumerate(arrays[value.name].shape):
                dim = value.type.tensor_type.shape.dim.add()
                if symbolic:
                    dim.dim_param = f"{value.name}_{axis}"
                else:
                    dim.dim_value = size
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return model
