"""Epilogues for the tests of templates, with what they mean in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernels.vector.works import Array, tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.scalar import AT_HAND, Apply, Held, Index, Literal, Load, Scalar
from weft.kernels.lower.tensors import Epilogue

KINDS = ("none", "none", "bias", "residual", "gelu")


class Ending:
    """An epilogue for a result of a shape (whose sizes may be named), its operands, and its meaning."""

    def __init__(
        self, kind: str, dtype: DType, shape: Sequence[Dim], sizes: Sequence[int], axis: int, layout: Layout, seed: int
    ) -> None:
        random = np.random.default_rng(seed)
        self.arrays: list[tuple[Array, Layout]] = []
        self.epilogue: Epilogue | None = None
        self.meaning: Callable[[Array], Array] = lambda value: value
        if kind == "none" or not shape:
            return
        axes = [dims.axis(position, size) for position, size in enumerate(shape)]
        element = Held(AT_HAND, dtype)
        wide = [1] * len(sizes)
        wide[axis] = sizes[axis]
        bias = _numbers(random, (sizes[axis],), dtype)
        added: Scalar = Load(0, (Index(axes[axis]),), dtype)
        zero = Literal(0, dtype)
        if kind == "bias":
            self._set(_two("maximum", _two("add", element, added), zero), [(bias, row_major(1), (shape[axis],))])
            self.meaning = lambda value: np.maximum(value + _wide(bias).reshape(wide), 0)
        elif kind == "residual":
            other = _numbers(random, tuple(sizes), dtype)
            residual = Load(1, tuple(map(Index, axes)), dtype)
            expression = _two("maximum", _two("add", _two("add", element, added), residual), zero)
            self._set(expression, [(bias, row_major(1), (shape[axis],)), (other, layout, tuple(shape))])
            self.meaning = lambda value: np.maximum(value + _wide(bias).reshape(wide) + _wide(other), 0)
        else:
            moved = _two("add", element, added)
            scaled = _two("multiply", moved, Literal(0.25, dtype))
            gate = Apply("tanh", (scaled,), dtype)
            self._set(_two("multiply", moved, _two("add", gate, scaled)), [(bias, row_major(1), (shape[axis],))])
            self.meaning = lambda value: _gated(value + _wide(bias).reshape(wide))

    def _set(self, expression: Scalar, operands: list[tuple[Array, Layout, tuple[Dim, ...]]]) -> None:
        tensors = tuple(tensor_of(array, layout, shape) for array, layout, shape in operands)
        self.arrays = [(array, layout) for array, layout, _ in operands]
        self.epilogue = Epilogue(expression, tensors)


def _two(function: str, left: Scalar, right: Scalar) -> Scalar:
    return Apply(function, (left, right), left.dtype)


def _gated(value: Array) -> Array:
    result: Array = value * (np.tanh(value * 0.25) + value * 0.25)
    return result


def _numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    return random.integers(0, 5, shape).astype(dtype.numpy)


def random_array(seed: int, shape: Sequence[int], dtype: DType) -> Array:
    return _numbers(np.random.default_rng(seed), tuple(shape), dtype)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def assert_close(found: Array, wanted: Array, dtype: DType, tolerance: float | None = None) -> None:
    """Integers to the bit; floats in proportion to the largest element."""
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
        return
    scale = float(np.abs(wanted).max(initial=0.0)) + 1e-30
    error = float(np.abs(found.astype(np.float64) - wanted).max(initial=0.0)) / scale
    assert error < (tolerance or TOLERANCE[dtype]), f"{error:.2e} of the largest element"


TOLERANCE: dict[Any, float] = {
    DType.float32: 2e-6,
    DType.float64: 1e-14,
    DType.float16: 4e-3,
    DType.bfloat16: 3e-2,
}
