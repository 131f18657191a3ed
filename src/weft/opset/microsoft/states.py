"""Ops with a state that continues a sequence, for models with linear attention."""

from __future__ import annotations

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.convolution import add_bias
from weft.opset.functions import elementwise_wide, sigmoid, where
from weft.opset.language import (
    Tensor,
    assume_equal,
    build,
    concat,
    convolve,
    full,
    index,
    reshape,
    slice_axis,
    squeeze,
    stack,
    transpose,
)
from weft.opset.linear_attention import attend_linearly
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, require

LARGEST_WINDOW = 8  # states of a window


@op("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
    state_window: int = 0,
) -> tuple[Tensor, Tensor]:
    """Convolve each channel over past positions; the state holds the last positions of the input."""
    past_state = _take_last_state(past_state, state_window)
    if ndim != 1:
        raise UnsupportedModelError(f"a causal convolution over {ndim} dimensions", hint="only 1 is supported")
    require(activation in ("none", "silu", "swish"), f"activation is {activation!r}", "it must be none, silu or swish")
    shape = x.shape
    if channels_last:
        x, past_state = _channels_second(x), None if past_state is None else _channels_second(past_state)
    require(x.rank == 3 and weight.rank == 3, f"shapes {x.type} and {weight.type} must have rank 3")
    batch, channels, length = x.shape
    assume_equal(weight.shape[0], channels, "one kernel per channel")
    channels = weight.shape[0] if isinstance(weight.shape[0], int) else channels
    state_size = (weight.shape[2] - 1) * dilation
    past = full((batch, channels, state_size), 0, x.dtype) if past_state is None else past_state
    assume_equal(past.shape[2], state_size, "the state holds the positions that the kernel reaches back")
    with_past = concat([past, x], 2)
    result = convolve(
        with_past, weight, strides=(1,), dilations=(dilation,), pads=((0, 0),), groups=channels, spatial=(length,)
    )
    result = result if bias is None else add_bias(result, bias)
    if activation != "none":
        result = elementwise_wide(lambda v: v * sigmoid(v), result)
    windows = [_take_state(with_past, length, state_size, before) for before in reversed(range(state_window or 1))]
    if channels_last:
        result = reshape(transpose(result, (0, 2, 1)), shape)
        windows = [reshape(transpose(state, (0, 2, 1)), (batch, state_size, *shape[2:])) for state in windows]
    return result, stack(windows, 0) if state_window else windows[0]


def _take_state(with_past: Tensor, length: Dim, size: Dim, before: int) -> Tensor:
    """Take the state `before` positions before the end; it is 0 if that is not after a position of this call."""
    if not before:
        return slice_axis(with_past, 2, length, size)
    shape = (*with_past.shape[:2], size)
    return build(
        shape, lambda b, c, i: where(index(length) > before, with_past.at(b, c, i + index(length) - before), 0)
    )


def _channels_second(x: Tensor) -> Tensor:
    """Rearrange [batch, positions, *channels] as [batch, channels, positions]."""
    return transpose(reshape(x, (*x.shape[:2], dims.product(x.shape[2:]))), (0, 2, 1))


def _take_last_state(states: Tensor | None, window: int) -> Tensor | None:
    """Take the last of `window` states that are stacked first."""
    require(0 <= window <= LARGEST_WINDOW, f"state_window is {window}", f"it must be between 0 and {LARGEST_WINDOW}")
    if states is None or not window:
        return states
    assume_equal(states.shape[0], window, "a state for each position of state_window")
    return squeeze(slice_axis(states, 0, window - 1, 1), [0])


@op("LinearAttention")
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int = REQUIRED,
    q_num_heads: int = REQUIRED,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    heads = q_num_heads, kv_num_heads
    require(min(heads) > 0 and max(heads) % min(heads) == 0, f"{heads[0]} query heads cannot share {heads[1]} states")
    return attend_linearly(
        query,
        key,
        value,
        _take_last_state(past_state, state_window),
        decay,
        beta,
        kv_num_heads=kv_num_heads,
        q_num_heads=q_num_heads,
        scale=scale,
        update_rule=update_rule,
        state_window=state_window,
    )
