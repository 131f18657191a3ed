"""Tensors of quantized numbers, to and from real ones."""

from __future__ import annotations

from typing import Any

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, elementwise, reshape
from weft.opset.microsoft.domain import op
from weft.opset.quantization import centered, dequantize_linear, quantize, quantize_linear


@op("DequantizeLinear")
def dequantize_linear_(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    result: Tensor = dequantize_linear(x, scale, zero_point, axis=axis)
    return result


@op("QuantizeLinear")
def quantize_linear_(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    result: Tensor = quantize_linear(x, scale, zero_point, axis=axis)
    return result


def dequantized(x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """(x - zero_point) * scale, in the scale's dtype; scale and zero point broadcast against x."""

    def element(v: Element, s: Element, *zero: Element) -> Any:
        return cast(cast(centered(v, zero[0] if zero else None), DType.float32) * cast(s, DType.float32), s.dtype)

    return elementwise(element, x, single(scale), *(() if zero_point is None else (single(zero_point),)))


def quantized(x: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """x / scale + zero_point, rounded and kept within the bounds of `dtype`."""

    def element(v: Element, s: Element, *zero: Element) -> Any:
        return quantize(v / s, zero[0] if zero else None, dtype)

    return elementwise(element, x, single(scale), *(() if zero_point is None else (single(zero_point),)))


def single(parameter: Tensor) -> Tensor:
    """A vector of one element as a scalar, so that it does not add a dimension to a scalar."""
    return reshape(parameter, ()) if parameter.shape == (1,) else parameter
