"""Convolutions and pools fused with what follows them, or in the layout with channels last."""

from __future__ import annotations

from weft.opset.convolution import conv, conv_transpose
from weft.opset.language import Tensor, mean, transpose
from weft.opset.microsoft.activations import activate
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import dequantized, quantized
from weft.opset.pooling import average_pool, max_pool
from weft.opset.quantization import quantized_conv
from weft.opset.registry import REQUIRED, Sizes, require


def channels_second(x: Tensor) -> Tensor:
    """[N, *S, C] as [N, C, *S]."""
    require(x.rank >= 2, f"a batch and channels are needed, not {x.type}")
    return transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """[N, C, *S] as [N, *S, C]."""
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
    result: Tensor = conv(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    result = result if z is None else result + z
    return activate(result, activation, activation_params)


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
    result = fused_conv(
        channels_second(x),
        w,
        b,
        None if z is None else channels_second(z),
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(result)


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
    result = conv(
        channels_second(x),
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(result)


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
    result: Tensor = conv_transpose(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        pads=pads,
        strides=strides,
    )
    return result


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
    result = quantized_conv(
        channels_second(x) if channels_last else x,
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _restored(result, channels_last)


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
        dequantized(channels_second(x) if channels_last else x, x_scale, x_zero_point),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _restored(quantized(average, y_scale, y_zero_point, x.dtype), channels_last)


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
    average = mean(dequantized(x, x_scale, x_zero_point), spatial, keep=True)
    return quantized(average, y_scale, y_zero_point, x.dtype)


def _restored(x: Tensor, last: int) -> Tensor:
    return channels_last(x) if last else x
