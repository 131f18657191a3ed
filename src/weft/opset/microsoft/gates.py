"""Gates of recurrent layers and of hyper-connections, fused with the norms and sums around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, exp, log1p, maximum, sigmoid, sign, sqrt
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    elementwise,
    expand_dims,
    index,
    mean,
    reduce,
    reshape,
)
from weft.opset.microsoft.domain import op
from weft.opset.registry import require

FLOAT = DType.float32
SMALLEST_SCORE = 1e-6  # of EngramGate, below which the root is not taken


def softplus(v: Any) -> Any:
    """Compute log(1 + exp(v)) without overflow."""
    return maximum(v, 0.0) + log1p(exp(-absolute(v)))


@op("GatedAdd")
def gated_add(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Add y, multiplied by a gate per row and rounded, to x."""

    def element(v: Element, w: Element, g: Element) -> Element:
        product = cast(cast(w, FLOAT) * cast(g, FLOAT), x.dtype)
        return cast(cast(v, FLOAT) + cast(product, FLOAT), x.dtype)

    return elementwise(element, x, y, gate)


@op("ScaledSiLU")
def scaled_silu(x: Tensor, scale: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
    """Compute SiLU of the scaled input; all intermediate results are rounded to the type of x."""

    def element(v: Element, *factor: Element) -> Element:
        scaled = cast(cast(cast(v, FLOAT) * (cast(factor[0], FLOAT) if factor else alpha), x.dtype), FLOAT)
        return cast(scaled * cast(cast(sigmoid(scaled), x.dtype), FLOAT), x.dtype)

    return elementwise(element, x, *([] if scale is None else [reshape(scale, ())]))


@op("LinearAttentionGate", outputs=(1, 2))
def linear_attention_gate(
    a: Tensor, dt_bias: Tensor, decay_scale: Tensor, b: Tensor | None = None
) -> list[Tensor | None]:
    """Compute the decay and the update rate of LinearAttention from their projections."""

    def decay(v: Element, bias: Element, factor: Element) -> Any:
        return cast(softplus(cast(v, FLOAT) + cast(bias, FLOAT)) * cast(factor, FLOAT), a.dtype)

    beta = None if b is None else elementwise(lambda v: cast(sigmoid(cast(v, FLOAT)), a.dtype), b)
    return [elementwise(decay, a, dt_bias, decay_scale), beta]


@op("GatedRMSNorm")
def gated_rms_norm(
    x: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu", epsilon: float = 1e-5
) -> Tensor:
    """Divide each group of channels by its root mean square, and multiply by the scale and an activated gate."""
    activations = ("silu", "swish", "sigmoid")
    require(activation in activations, f"activation is {activation!r}", f"it must be one of {', '.join(activations)}")
    width = scale.size
    groups = dims.floordiv(x.shape[-1], width)
    assume_equal(groups * width, x.shape[-1], "the last dimension holds groups as wide as the scale")
    inverse = _invert_rms(reshape(x, (*x.shape[:-1], groups, width)), epsilon)

    def element(*i: Element) -> Any:
        *row, c = i
        g = cast(gate.at(*i), FLOAT)
        factor = sigmoid(g) if activation == "sigmoid" else g * sigmoid(g)
        normal = cast(x.at(*i), FLOAT) * inverse.at(*row, c // width, 0) * cast(scale.at(c % width), FLOAT)
        return cast(normal * factor, x.dtype)

    return build(x.shape, element)


def _invert_rms(x: Tensor, epsilon: float) -> Tensor:
    """Compute the reciprocal root mean square of each row."""
    squares = mean(elementwise(lambda v: cast(v, FLOAT) * cast(v, FLOAT), x), [x.rank - 1], keep=True)
    return elementwise(lambda v: 1.0 / sqrt(v + epsilon), squares)


def _normalize(x: Tensor, scale: Tensor | None, epsilon: float) -> Tensor:
    """Compute x / rms(x) * scale in float32."""
    scales = [] if scale is None else [scale]

    def element(v: Element, inverse: Element, *s: Element) -> Element:
        normal = cast(v, FLOAT) * inverse
        return normal * cast(s[0], FLOAT) if s else normal

    return elementwise(element, x, _invert_rms(x, epsilon), *scales)


@op("BranchwiseRMSNorm")
def branchwise_rms_norm(
    x: Tensor, scale: Tensor | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Tensor:
    """Divide each branch by its root mean square; the scale is for all branches, or for each."""
    grouped = _group_branches(x, num_branches)
    if scale is not None and scale.rank == 1 and scale.shape[0] != grouped.shape[-1]:
        scale = reshape(scale, grouped.shape[-2:])
    return reshape(elementwise(lambda v: cast(v, x.dtype), _normalize(grouped, scale, epsilon)), x.shape)


def _group_branches(x: Tensor, branches: int) -> Tensor:
    """Rearrange [..., branches * size] as [..., branches, size]; without a number of branches it is so already."""
    if not branches:
        require(x.rank >= 2, f"branches are the last dimension but one, which {x.type} has not")
        return x
    size = dims.floordiv(x.shape[-1], branches)
    assume_equal(size * branches, x.shape[-1], "branches of one size")
    return reshape(x, (*x.shape[:-1], branches, size))


def _group_gates(gates: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Rearrange gates of branches, or of all channels, as [..., branches, size or 1]."""
    if gates.rank == len(shape):
        return gates
    return expand_dims(gates, [gates.rank]) if gates.shape[-1] == shape[-2] else reshape(gates, shape)


@op("HyperConnectionPreMix")
def hyper_connection_pre_mix(
    streams: Tensor, pre_mix: Tensor, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Tensor:
    """Add up branches, multiplied by gates."""
    grouped = _group_branches(streams, num_branches)
    weighed = elementwise(lambda v, g: cast(v, FLOAT) * cast(g, FLOAT), grouped, _group_gates(pre_mix, grouped.shape))
    total = reduce("sum", weighed, [grouped.rank - 2])
    return elementwise(lambda v: cast(v * reduction_scale, streams.dtype), total)


@op("HyperConnectionPostMix")
def hyper_connection_post_mix(
    streams: Tensor, block_output: Tensor, post_mix: Tensor, stream_mix: Tensor | None = None, *, num_branches: int = 0
) -> Tensor:
    """Mix branches by a matrix, and add the output of a block to each, multiplied by gates."""
    grouped = _group_branches(streams, num_branches)
    mixed = elementwise(lambda v: cast(v, FLOAT), grouped)
    if stream_mix is not None:
        matrix, wide = stream_mix, mixed
        *lead, branches, size = grouped.shape
        shape = (*lead, branches, branches, size)

        def summand(*i: Element) -> Any:
            *row, k, c, h = i
            return cast(matrix.at(*row, c, k), FLOAT) * wide.at(*row, c, h)

        mixed = reduce("sum", build(shape, summand), [len(lead) + 1])
    addend = expand_dims(block_output, [block_output.rank - 1])
    result = elementwise(
        lambda v, g, w: cast(v + cast(g, FLOAT) * cast(w, FLOAT), streams.dtype),
        mixed,
        _group_gates(post_mix, grouped.shape),
        addend,
    )
    return reshape(result, streams.shape)


@op("EngramGate", outputs=(1, 2))
def engram_gate(
    key: Tensor,
    query: Tensor,
    value: Tensor,
    key_norm_scale: Tensor,
    query_norm_scale: Tensor,
    conv_norm_scale: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
) -> list[Tensor | None]:
    """Multiply a value by a gate per branch, the sigmoid of a signed root of the score of its key and query."""
    size = key.shape[-1]
    normals = _normalize(key, key_norm_scale, epsilon), _normalize(query, query_norm_scale, epsilon)
    scores = reduce("sum", elementwise(lambda k, q: k * q, *normals), [key.rank - 1], keep=True)

    def gate(score: Element, v: Element) -> Element:
        scaled = score / sqrt(cast(index(size), FLOAT))
        factor = sigmoid(sign(scaled) * sqrt(maximum(absolute(scaled), SMALLEST_SCORE)))
        return cast(factor * cast(v, FLOAT), value.dtype)

    gated = elementwise(gate, scores, expand_dims(value, [value.rank - 1]))
    if conv_norm_scale is None:
        return [gated, None]
    return [gated, elementwise(lambda v: cast(v, value.dtype), _normalize(gated, conv_norm_scale, epsilon))]
