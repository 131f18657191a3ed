"""Ops on 8-bit tensors, which are dequantized, computed in float32 and quantized again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.dtypes import DType
from weft.opset.functions import cast, sigmoid, where
from weft.opset.language import Tensor, concat, elementwise, mean, reduce
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import dequantize_tensor, quantize_tensor
from weft.opset.reductions import softmax
from weft.opset.registry import REQUIRED, normalize_axes, normalize_axis, require


@op("QLinearAdd")
def quantized_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    total = dequantize_tensor(a, a_scale, a_zero_point) + dequantize_tensor(b, b_scale, b_zero_point)
    return quantize_tensor(total, c_scale, c_zero_point, a.dtype)


@op("QLinearMul")
def quantized_multiply(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    product = dequantize_tensor(a, a_scale, a_zero_point) * dequantize_tensor(b, b_scale, b_zero_point)
    return quantize_tensor(product, c_scale, c_zero_point, a.dtype)


@op("QLinearSigmoid")
def quantized_sigmoid(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None, y_scale: Tensor, y_zero_point: Tensor | None = None
) -> Tensor:
    return _apply_quantized(sigmoid, x, x_scale, x_zero_point, y_scale, y_zero_point)


@op("QLinearLeakyRelu")
def quantized_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    return _apply_quantized(lambda v: where(v < 0, v * alpha, v), x, x_scale, x_zero_point, y_scale, y_zero_point)


def _apply_quantized(
    function: Callable[[Any], Any],
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None,
) -> Tensor:
    return quantize_tensor(
        elementwise(function, dequantize_tensor(x, x_scale, x_zero_point)), y_scale, y_zero_point, x.dtype
    )


@op("QLinearSoftmax")
def quantized_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = -1,
    opset: int = REQUIRED,
) -> Tensor:
    """Compute softmax along `axis` from opset 13 on, before that over all dimensions from `axis` on."""
    axis = normalize_axis(axis, x.rank)
    axes = range(axis, axis + 1 if opset >= 13 else x.rank)
    return quantize_tensor(softmax(dequantize_tensor(x, x_scale, x_zero_point), axes), y_scale, y_zero_point, x.dtype)


@op("QLinearReduceMean")
def quantized_mean(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axes: tuple[int, ...] | None = None,
    keepdims: int = 1,
) -> Tensor:
    average = mean(dequantize_tensor(x, x_scale, x_zero_point), _resolve_axes(axes, x), keep=bool(keepdims))
    return quantize_tensor(average, y_scale, y_zero_point, x.dtype)


@op("ReduceSumInteger")
def integer_sum(x: Tensor, *, axes: tuple[int, ...] | None = None, keepdims: int = 1) -> Tensor:
    wide = DType.int32 if x.dtype.is_signed else DType.uint32
    return reduce("sum", cast(x, wide), _resolve_axes(axes, x), keep=bool(keepdims))


def _resolve_axes(axes: Sequence[int] | None, x: Tensor) -> Sequence[int]:
    return normalize_axes(axes, x.rank) if axes else range(x.rank)


@op("QLinearConcat")
def quantized_concat(y_scale: Tensor, y_zero_point: Tensor, *inputs: Tensor, axis: int = REQUIRED) -> Tensor:
    """Concatenate inputs that come in triples: tensor, scale, zero point."""
    require(len(inputs) > 0 and len(inputs) % 3 == 0, f"inputs must come in triples, not {len(inputs)}")
    parts = [dequantize_tensor(*inputs[start : start + 3]) for start in range(0, len(inputs), 3)]
    return quantize_tensor(concat(parts, axis), y_scale, y_zero_point, y_zero_point.dtype)


@op("QLinearWhere")
def quantized_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    chosen = where(condition, dequantize_tensor(x, x_scale, x_zero_point), dequantize_tensor(y, y_scale, y_zero_point))
    return quantize_tensor(chosen, z_scale, z_zero_point, z_zero_point.dtype)
