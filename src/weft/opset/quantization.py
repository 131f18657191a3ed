"""Quantization, and the ops that compute on quantized numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.ir import dims
from weft.ir.dtypes import DType, from_number
from weft.opset.casting import convert
from weft.opset.convolution import add_bias, compute_conv
from weft.opset.functions import cast, clamp, equal, maximum, minimum, round_half_even, where
from weft.opset.language import Element, Tensor, assume_equal, build, elementwise, expand_dims, matmul, reduce, reshape
from weft.opset.registry import ElementType, normalize_axis, op, require
from weft.opset.windows import ConvAttributes

Pick = Callable[[Sequence[Element]], Element]


@op("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: ElementType = 0,
    precision: ElementType = 0,
) -> Tensor:
    usual = DType.uint8 if zero_point is None else zero_point.dtype
    dtype = from_number(output_dtype) if output_dtype else usual
    require(zero_point is None or dtype is usual, f"output_dtype {dtype} is not that of the zero point, {usual}")
    division = from_number(precision) if precision else _division_type(x.dtype, scale.dtype)
    pick_scale = make_picker(scale, x, axis, block_size)
    pick_zero = None if zero_point is None else make_picker(zero_point, x, axis, block_size)

    def element(*i: Element) -> Element:
        quotient = cast(x.at(*i), division) / cast(pick_scale(i), division)
        return quantize(quotient, None if pick_zero is None else pick_zero(i), dtype, bool(saturate))

    return build(x.shape, element)


def _division_type(x: DType, scale: DType) -> DType:
    """Return the type of the division: that of the scale, if it is a float of at least 16 bits."""
    if scale.is_float and scale.bits >= 16:
        return scale
    return x if x.is_float else DType.float32


def quantize(v: Element, zero: Element | None, dtype: DType, saturate: bool = True) -> Element:
    """Quantize a number that was divided by its scale: round to even, add the zero point, saturate."""
    if dtype.is_integer:
        rounded = cast(round_half_even(v), DType.float32)
        shifted = rounded if zero is None else rounded + cast(zero, DType.float32)
        return cast(clamp(shifted, *dtype.limits), dtype)
    return convert(v if zero is None else v + cast(zero, v.dtype), dtype, saturate)


@op("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: ElementType = 0,
) -> Tensor:
    require(
        zero_point is None or zero_point.dtype is x.dtype,
        f"the zero point must have the type of the dequantized tensor, {x.dtype}",
    )
    dtype = from_number(output_dtype) if output_dtype else scale.dtype
    require(dtype.is_float and dtype.bits >= 16, f"numbers cannot be dequantized to {dtype}", "set output_dtype")
    pick_scale = make_picker(scale, x, axis, block_size)
    pick_zero = None if zero_point is None else make_picker(zero_point, x, axis, block_size)

    def element(*i: Element) -> Element:
        centred = subtract_zero_point(x.at(*i), None if pick_zero is None else pick_zero(i))
        return cast(cast(centred, DType.float32) * cast(pick_scale(i), DType.float32), dtype)

    return build(x.shape, element)


def subtract_zero_point(v: Element, zero: Element | None) -> Element:
    """Subtract the zero point from a quantized number, as int32, or as float32 for quantized floats."""
    wide = DType.int32 if v.dtype.is_integer else DType.float32
    return cast(v, wide) if zero is None else cast(v, wide) - cast(zero, wide)


def make_picker(parameter: Tensor, x: Tensor, axis: int, block_size: int) -> Pick:
    """Return a function from indices of x to the scale or zero point there.

    A parameter has one element for the whole tensor, per index along `axis`, or per block of indices along it.
    """
    if parameter.rank == 0 or parameter.shape == (1,):
        single = reshape(parameter, ())
        return lambda _: single.at()
    if block_size:
        return _make_block_picker(parameter, x, normalize_axis(axis, x.rank), block_size)
    require(parameter.rank == 1, f"a scale or zero point {parameter.type} without blocks must be a scalar or a vector")
    axis = 0 if x.rank == 1 else normalize_axis(axis, x.rank)
    assume_equal(parameter.shape[0], x.shape[axis], f"one scale or zero point per index along axis {axis}")
    return lambda i: parameter.at(i[axis])


def _make_block_picker(parameter: Tensor, x: Tensor, axis: int, block_size: int) -> Pick:
    require(block_size > 0, f"block_size is {block_size}")
    require(
        parameter.rank == x.rank, f"blocks of {x.type} need scales and zero points of its rank, not {parameter.type}"
    )
    for position, (size, parameter_size) in enumerate(zip(x.shape, parameter.shape)):
        expected = dims.ceildiv(size, block_size) if position == axis else size
        assume_equal(parameter_size, expected, f"scales or zero points for blocks of {block_size} along axis {axis}")
    return lambda i: parameter.at(*i[:axis], i[axis] // block_size, *i[axis + 1 :])


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    axes = range(x.rank)
    low = elementwise(lambda v: minimum(v, 0), reduce("minimum", x, axes))
    high = elementwise(lambda v: maximum(v, 0), reduce("maximum", x, axes))
    scale = elementwise(lambda a, b: where(equal(a, b), 1, (b - a) / 255), low, high)
    zero_point = elementwise(lambda a, s: quantize(clamp(-a / s, 0, 255), None, DType.uint8), low, scale)
    y = elementwise(lambda v, s, z: quantize(v / s, z, DType.uint8), x, scale, zero_point)
    return y, scale, zero_point


@op("MatMulInteger", since=10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    return matmul(_center(a, _as_rows(a_zero_point, a)), _center(b, b_zero_point))


@op("QLinearMatMul", since=10)
def quantized_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    product = matmul(_center(a, _as_rows(a_zero_point, a)), _center(b, b_zero_point))
    rows, columns = _as_rows(a_scale, a), _as_parameter(b_scale)
    assert rows is not None
    return _requantize(product, rows, columns, _as_parameter(y_scale), _as_parameter(y_zero_point))


def _as_rows(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """Return a vector with one element per row of the matrix x as a column."""
    if parameter is None or parameter.rank != 1 or x.rank < 2:
        return parameter
    return expand_dims(parameter, [1]) if parameter.shape != (1,) else reshape(parameter, ())


def _as_parameter(parameter: Tensor) -> Tensor:
    return reshape(parameter, ()) if parameter.shape == (1,) else parameter


def _center(x: Tensor, zero_point: Tensor | None) -> Tensor:
    if zero_point is None:
        return elementwise(lambda v: subtract_zero_point(v, None), x)
    return elementwise(subtract_zero_point, x, _as_parameter(zero_point))


def _requantize(product: Tensor, left: Tensor, right: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Quantize a product of numbers whose scales are `left` and `right`."""

    def element(v: Element, a: Element, b: Element, s: Element, zero: Element) -> Element:
        factor = cast(a, DType.float32) * cast(b, DType.float32) / cast(s, DType.float32)
        return quantize(cast(v, DType.float32) * factor, zero, zero.dtype)

    return elementwise(element, product, left, right, scale, zero_point)


@op("ConvInteger", since=10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    attributes = ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides)
    return _compute_conv_integer(x, w, x_zero_point, w_zero_point, attributes)


def _compute_conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None, w_zero_point: Tensor | None, attributes: ConvAttributes
) -> Tensor:
    w_zero_point = None if w_zero_point is None else _per_channel(w_zero_point, 0, w.rank)
    return compute_conv(_center(x, x_zero_point), _center(w, w_zero_point), None, attributes)


@op("QLinearConv", since=10)
def quantized_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    quantized = QuantizedConv(x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point, bias)
    return quantized.compute(x, w, ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides))


class QuantizedConv(NamedTuple):
    """The quantization parameters and the bias of a quantized convolution."""

    x_scale: Tensor
    x_zero_point: Tensor
    w_scale: Tensor
    w_zero_point: Tensor
    y_scale: Tensor
    y_zero_point: Tensor
    bias: Tensor | None

    def compute(self, x: Tensor, w: Tensor, attributes: ConvAttributes) -> Tensor:
        """Convolve integers as the op QLinearConv does."""
        sums = _compute_conv_integer(x, w, self.x_zero_point, self.w_zero_point, attributes)
        sums = sums if self.bias is None else add_bias(sums, self.bias)
        channels = _per_channel(self.w_scale, 1, x.rank)
        scale, zero_point = _as_parameter(self.y_scale), _as_parameter(self.y_zero_point)
        return _requantize(sums, _as_parameter(self.x_scale), channels, scale, zero_point)


def _per_channel(parameter: Tensor, axis: int, rank: int) -> Tensor:
    """Reshape a vector to lie along `axis` of a tensor of `rank`; a single number applies everywhere."""
    if parameter.rank == 0 or parameter.shape == (1,):
        return reshape(parameter, ())
    require(parameter.rank == 1, f"scales and zero points of channels must be a vector, not {parameter.type}")
    return reshape(parameter, [parameter.shape[0] if position == axis else 1 for position in range(rank)])
