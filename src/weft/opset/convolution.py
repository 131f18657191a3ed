"""Convolution, transposed convolution, and causal convolution with a state."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.types import Shape
from weft.opset.functions import cast, sigmoid, wide_dtype
from weft.opset.language import Tensor, assume_equal, build, concat, convolve, elementwise, full, slice_axis
from weft.opset.registry import op, require
from weft.opset.windows import ConvAttributes, explicit_pads, is_same_padding, per_axis, resolve_windows, split_padding


@op("Conv")
def conv(
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
    return compute_conv(x, w, b, ConvAttributes(auto_pad, dilations, group, kernel_shape, pads, strides))


def compute_conv(x: Tensor, w: Tensor, b: Tensor | None, attributes: ConvAttributes) -> Tensor:
    """Convolve as the op Conv does."""
    auto_pad, dilations, group, kernel_shape, pads, strides = attributes
    _check_weights(x, w, group, kernel_shape)
    layout = resolve_windows(
        x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    result = convolve(
        x,
        w,
        strides=layout.strides,
        dilations=layout.dilations,
        pads=layout.pads,
        groups=group,
        spatial=layout.spatial,
    )
    return result if b is None else add_bias(result, b)


@op("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    _check_weights(x, w, group, kernel_shape)
    rank = x.rank - 2
    steps, spacings = per_axis("strides", strides, rank), per_axis("dilations", dilations, rank)
    extra = output_padding or (0,) * rank
    require(len(extra) == rank and min(extra, default=0) >= 0, f"output_padding {extra} does not fit {rank} axes")
    full_sizes = [
        stride * (size - 1) + more + dilation * (kernel - 1) + 1
        for size, stride, more, dilation, kernel in zip(x.shape[2:], steps, extra, spacings, w.shape[2:])
    ]
    spatial, crops = _resolve_transposed_windows(x.shape[2:], full_sizes, steps, auto_pad, output_shape, pads)
    result = convolve(x, w, strides=steps, dilations=spacings, pads=crops, groups=group, transposed_shape=spatial)
    return result if b is None else add_bias(result, b)


def _resolve_transposed_windows(
    sizes: Shape,
    full_sizes: Sequence[Dim],
    strides: Sequence[int],
    auto_pad: str,
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> tuple[list[Dim], list[tuple[Dim, Dim]]]:
    """Return the sizes of the result and how much is cropped from the full result at each end."""
    rank = len(sizes)
    same = is_same_padding(auto_pad)
    if output_shape or same:
        spatial: list[Dim] = [size * stride for size, stride in zip(sizes, strides)]
        if output_shape:
            spatial = list(output_shape[len(output_shape) - rank :])
        require(len(spatial) == rank, f"output_shape {output_shape} does not fit {rank} axes")
        return spatial, [
            split_padding(dims.maximum(full - size, 0), auto_pad) for full, size in zip(full_sizes, spatial)
        ]
    require(min(pads or (0,)) >= 0, f"pads {pads} may not be negative")
    edges: list[tuple[Dim, Dim]] = list(explicit_pads(pads, rank)) if auto_pad == "NOTSET" else [(0, 0)] * rank
    return [dims.maximum(size - before - after, 0) for size, (before, after) in zip(full_sizes, edges)], edges


@op("CausalConvWithState", since=27)
def causal_convolution_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    require(x.rank == 3 and weight.rank == 3, f"shapes {x.type} and {weight.type} must have rank 3")
    require(activation in ("none", "silu", "swish"), f"activation is {activation!r}")
    batch, channels, length = x.shape
    channels = weight.shape[0] if isinstance(weight.shape[0], int) else channels
    state_size = weight.shape[2] - 1
    if past_state is None:
        past_state = full((batch, channels, state_size), 0, x.dtype)
    assume_equal(past_state.shape[2], state_size, "the state holds one position less than the kernel")
    assume_equal(weight.shape[0], x.shape[1], "one kernel per channel")
    with_past = concat([past_state, x], 2)
    result = convolve(
        with_past, weight, strides=(1,), dilations=(1,), pads=((0, 0),), groups=channels, spatial=(length,)
    )
    if bias is not None:
        result = add_bias(result, bias)
    if activation != "none":
        wide = wide_dtype(x.dtype)
        result = elementwise(lambda v: cast(cast(v, wide) * sigmoid(cast(v, wide)), x.dtype), result)
    return result, slice_axis(with_past, 2, length, state_size)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add one number per channel."""
    assume_equal(bias.size, x.shape[1], "one bias per output channel")
    return build(x.shape, lambda *i: x.at(*i) + bias.at(i[1]))


def _check_weights(x: Tensor, w: Tensor, group: int, kernel_shape: Sequence[int] | None) -> None:
    require(x.rank >= 2 and x.rank == w.rank, f"input {x.type} and weights {w.type} must have the same rank")
    require(group > 0, f"group is {group}")
    assume_equal(dims.mod(w.shape[0], group), 0, f"{w.shape[0]} channels do not make {group} equal groups")
    if kernel_shape:
        require(len(kernel_shape) == w.rank - 2, f"kernel_shape {kernel_shape} does not fit weights {w.type}")
        for size, declared in zip(w.shape[2:], kernel_shape):
            assume_equal(size, declared, "kernel_shape must be that of the weights")
