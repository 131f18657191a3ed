"""Epilogues for the tests of templates, with their results in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernels.vector.works import Array, tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder, Scalar
from weft.kernels.lower.tensors import Epilogue

KINDS = ("none", "none", "bias", "residual", "gelu")


class EpilogueCase:
    """An epilogue for a result with its operands (sizes of the shape may be symbolic); `apply` computes it in numpy."""

    def __init__(
        self, kind: str, dtype: DType, shape: Sequence[Dim], sizes: Sequence[int], axis: int, layout: Layout, seed: int
    ) -> None:
        random = np.random.default_rng(seed)
        self.arrays: list[tuple[Array, Layout]] = []
        self.epilogue: Epilogue | None = None
        self.apply: Callable[[Array], Array] = lambda value: value
        if kind == "none" or not shape:
            return
        axes = [dims.axis(position, size) for position, size in enumerate(shape)]
        element = Placeholder(ELEMENT, dtype)
        wide = [1] * len(sizes)
        wide[axis] = sizes[axis]
        bias = _random_numbers(random, (sizes[axis],), dtype)
        bias_load: Scalar = Load(0, (Index(axes[axis]),), dtype)
        zero = Literal(0, dtype)
        if kind == "bias":
            self._set(
                _binary("maximum", _binary("add", element, bias_load), zero), [(bias, row_major(1), (shape[axis],))]
            )
            self.apply = lambda value: np.maximum(value + _wide(bias).reshape(wide), 0)
        elif kind == "residual":
            other = _random_numbers(random, tuple(sizes), dtype)
            residual = Load(1, tuple(map(Index, axes)), dtype)
            expression = _binary("maximum", _binary("add", _binary("add", element, bias_load), residual), zero)
            self._set(expression, [(bias, row_major(1), (shape[axis],)), (other, layout, tuple(shape))])
            self.apply = lambda value: np.maximum(value + _wide(bias).reshape(wide) + _wide(other), 0)
        else:
            biased = _binary("add", element, bias_load)
            scaled = _binary("multiply", biased, Literal(0.25, dtype))
            gate = Apply("tanh", (scaled,), dtype)
            self._set(_binary("multiply", biased, _binary("add", gate, scaled)), [(bias, row_major(1), (shape[axis],))])
            self.apply = lambda value: _gated(value + _wide(bias).reshape(wide))

    def _set(self, expression: Scalar, operands: list[tuple[Array, Layout, tuple[Dim, ...]]]) -> None:
        tensors = tuple(tensor_of(array, layout, shape) for array, layout, shape in operands)
        self.arrays = [(array, layout) for array, layout, _ in operands]
        self.epilogue = Epilogue(expression, tensors)


def _binary(function: str, left: Scalar, right: Scalar) -> Scalar:
    return Apply(function, (left, right), left.dtype)


def _gated(value: Array) -> Array:
    result: Array = value * (np.tanh(value * 0.25) + value * 0.25)
    return result


def _random_numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    return random.integers(0, 5, shape).astype(dtype.numpy)


def random_array(seed: int, shape: Sequence[int], dtype: DType) -> Array:
    return _random_numbers(np.random.default_rng(seed), tuple(shape), dtype)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def assert_close(actual: Array, expected: Array, dtype: DType, tolerance: float | None = None) -> None:
    """Compare integers exactly, and floats relative to the largest element."""
    if not dtype.is_float:
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype))
        return
    scale = float(np.abs(expected).max(initial=0.0)) + 1e-30
    error = float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0)) / scale
    assert error < (tolerance or TOLERANCE[dtype]), f"{error:.2e} of the largest element"


TOLERANCE: dict[Any, float] = {
    DType.float32: 2e-6,
    DType.float64: 1e-14,
    DType.float16: 4e-3,
    DType.bfloat16: 3e-2,
}
