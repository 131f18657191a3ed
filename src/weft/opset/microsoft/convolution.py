"""Convolution and pooling, fused with activations, or with channels last."""

from __future__ import annotations

from weft.opset.convolution import compute_conv, conv_transpose
from weft.opset.language import Tensor, mean, transpose
from weft.opset.microsoft.activations import activate
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import dequantize_tensor, quantize_tensor
from weft.opset.pooling import average_pool, max_pool
from weft.opset.quantization import QuantizedConv
from weft.opset.registry import REQUIRED, Sizes, require
from weft.opset.windows import ConvAttributes


def channels_second(x: Tensor) -> Tensor:
    """Transpose [N, *S, C] to [N, C, *S]."""
    require(x.rank >= 2, f"a batch and channels are needed, not {x.type}")
    return transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """Transpose [N, C, *S] to [N, *S, C]."""
    return transpose(x, (0, *range(2, x.rank), 1))


@op("FusedConv")
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    attributes = ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides)
    return _compute_fused_conv(x, w, b, z, attributes, activation, activation_params)


def _compute_fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    z: Tensor | None,
    attributes: ConvAttributes,
    activation: str | None,
    activation_params: tuple[float, ...],
) -> Tensor:
    result = compute_conv(x, w, b, attributes)
    return activate(result if z is None else result + z, activation, activation_params)


@op("NhwcFusedConv")
def channels_last_fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    attributes = ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides)
    x, z = channels_second(x), None if z is None else channels_second(z)
    return channels_last(_compute_fused_conv(x, w, b, z, attributes, activation, activation_params))


@op("NhwcConv")
def channels_last_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    attributes = ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides)
    return channels_last(compute_conv(channels_second(x), w, b, attributes))


@op("NhwcMaxPool")
def channels_last_max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    (result,) = max_pool(
        channels_second(x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(result)


@op("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(
    x: Tensor,
    w: Tensor,
    pads: Sizes | None = None,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    return conv_transpose(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        pads=pads,  # type: ignore[arg-type]  # sizes that are known only at run time work, too
        strides=strides,
    )


@op("QLinearConv")
def quantized_conv_in_layout(
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
    channels_last: int = 0,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    quantized = QuantizedConv(x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point, bias)
    attributes = ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides)
    return _restore_layout(quantized.compute(channels_second(x) if channels_last else x, w, attributes), channels_last)


@op("QLinearAveragePool")
def quantized_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    average = average_pool(
        dequantize_tensor(channels_second(x) if channels_last else x, x_scale, x_zero_point),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _restore_layout(quantize_tensor(average, y_scale, y_zero_point, x.dtype), channels_last)


@op("QLinearGlobalAveragePool")
def quantized_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    channels_last: int = 0,
) -> Tensor:
    spatial = range(1, x.rank - 1) if channels_last else range(2, x.rank)
    average = mean(dequantize_tensor(x, x_scale, x_zero_point), spatial, keep=True)
    return quantize_tensor(average, y_scale, y_zero_point, x.dtype)


def _restore_layout(x: Tensor, last: int) -> Tensor:
    return channels_last(x) if last else x
