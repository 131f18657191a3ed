"""Quantizing and dequantizing tensors."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, elementwise, reshape
from weft.opset.microsoft.domain import op
from weft.opset.quantization import dequantize_linear, quantize, quantize_linear, subtract_zero_point


@op("DequantizeLinear")
def dequantize_linear_(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return dequantize_linear(x, scale, zero_point, axis=axis)


@op("QuantizeLinear")
def quantize_linear_(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return quantize_linear(x, scale, zero_point, axis=axis)


def dequantize_tensor(x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """Compute (x - zero_point) * scale in the scale's dtype; scale and zero point broadcast against x."""

    def element(v: Element, s: Element, *zero: Element) -> Element:
        return cast(
            cast(subtract_zero_point(v, zero[0] if zero else None), DType.float32) * cast(s, DType.float32), s.dtype
        )

    return elementwise(
        element, x, squeeze_single(scale), *(() if zero_point is None else (squeeze_single(zero_point),))
    )


def quantize_tensor(x: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """Compute x / scale + zero_point, rounded and saturated to `dtype`."""

    def element(v: Element, s: Element, *zero: Element) -> Element:
        return quantize(v / s, zero[0] if zero else None, dtype)

    return elementwise(
        element, x, squeeze_single(scale), *(() if zero_point is None else (squeeze_single(zero_point),))
    )


def squeeze_single(parameter: Tensor) -> Tensor:
    """Reshape a vector of one element to a scalar, so that it does not add a dimension to a scalar."""
    return reshape(parameter, ()) if parameter.shape == (1,) else parameter
