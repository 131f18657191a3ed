"""Ops with a state that continues a sequence, for models with linear attention."""

from __future__ import annotations

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.opset.attention import linear_attention
from weft.opset.convolution import add_bias
from weft.opset.functions import elementwise_wide, sigmoid
from weft.opset.language import Tensor, assume_equal, concat, convolve, full, reshape, slice_axis, transpose
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, require


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
    _refuse_window(state_window)
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
    state = slice_axis(with_past, 2, length, state_size)
    if not channels_last:
        return result, state
    result, state = (transpose(tensor, (0, 2, 1)) for tensor in (result, state))
    return reshape(result, shape), reshape(state, (batch, state_size, *shape[2:]))


def _channels_second(x: Tensor) -> Tensor:
    """Rearrange [batch, positions, *channels] as [batch, channels, positions]."""
    return transpose(reshape(x, (*x.shape[:2], dims.product(x.shape[2:]))), (0, 2, 1))


def _refuse_window(state_window: int) -> None:
    if state_window:
        raise UnsupportedModelError("states of several positions", hint="export with state_window 0")


@op("LinearAttention")
def linear_attention_(
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
    _refuse_window(state_window)
    return linear_attention(
        query,
        key,
        value,
        past_state,
        decay,
        beta,
        kv_num_heads=kv_num_heads,
        q_num_heads=q_num_heads,
        scale=scale,
        update_rule=update_rule,
    )
