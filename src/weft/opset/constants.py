"""Constants: stored in the model, or filled with one value."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.opset.language import Tensor, build, constant, literal
from weft.opset.registry import Sizes, op, require


@op("Constant")
def constant_(
    *,
    value: np.ndarray[Any, Any] | None = None,
    sparse_value: np.ndarray[Any, Any] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Tensor:
    choices = (
        (value, None),
        (sparse_value, None),
        (value_float, DType.float32),
        (value_floats, DType.float32),
        (value_int, DType.int64),
        (value_ints, DType.int64),
        (value_string, DType.string),
        (value_strings, DType.string),
    )
    values = [(content, dtype) for content, dtype in choices if content is not None]
    require(len(values) == 1, f"a constant needs exactly one value, not {len(values)}")
    return constant(*values[0])


@op("ConstantOfShape", since=9)
def constant_of_shape(shape: Sizes, *, value: np.ndarray[Any, Any] | None = None) -> Tensor:
    content = np.zeros(1, np.float32) if value is None else value
    require(content.size == 1, f"value must have one element, not {content.size}")
    number = literal(content.reshape(-1)[0], from_numpy(content.dtype))
    return build(shape, lambda *_: number)
