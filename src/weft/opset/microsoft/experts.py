"""Mixtures of experts: a router gives each token to the few experts that suit it best.

All experts are computed and those not chosen weigh 0, so that the work does not depend on data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.activations import gelu_by_tanh
from weft.opset.functions import cast, clamp, maximum, minimum, sigmoid, wide_dtype
from weft.opset.language import Element, Tensor, build, contract, elementwise, full, reduce, reshape, scatter, sort
from weft.opset.microsoft.blocks import dequantized_blocks, unpacked
from weft.opset.microsoft.domain import op
from weft.opset.reductions import softmax
from weft.opset.registry import require
from weft.records import dataclass

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": gelu_by_tanh,
    "identity": lambda v: v,
    "relu": lambda v: maximum(v, 0.0),
    "silu": lambda v: v * sigmoid(v),
}


@dataclass(frozen=True, slots=True)
class Expert:
    """A layer of all experts: weights [experts, outputs, inputs] and biases [experts, outputs]."""

    weights: Tensor
    bias: Tensor | None

    def applied(self, tokens: Tensor) -> Tensor:
        """[tokens, experts, outputs]."""
        product = contract(tokens, self.weights, "tk", "enk", "ten")
        return product if self.bias is None else elementwise(_add, product, self.bias)


def _add(v: Element, b: Element) -> Any:
    return v + cast(b, v.dtype)


@dataclass(frozen=True, slots=True)
class Activation:
    """What comes between an expert's layers. `fusion` 1 and 2: gates and values interleaved, or side by side."""

    kind: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def applied(self, first: Tensor, third: Tensor | None) -> Tensor:
        if self.kind == "swiglu":
            return self._gated(first, third)
        require(self.kind in _ACTIVATIONS, f"activation_type is {self.kind!r}", f"weft has {', '.join(_ACTIVATIONS)}")
        function = _ACTIVATIONS[self.kind]
        if third is None:
            return elementwise(function, first)
        return elementwise(lambda v, w: function(v) * w, first, third)

    def _gated(self, first: Tensor, third: Tensor | None) -> Tensor:
        if third is not None and self.fusion == 0:
            return elementwise(self._swiglu, first, third)
        require(self.fusion in (1, 2), f"swiglu_fusion is {self.fusion} without weights for the values")
        width = dims.floordiv(first.shape[2], 2)
        stride, offset = (2, 1) if self.fusion == 1 else (1, width)

        def element(t: Element, e: Element, i: Element) -> Any:
            place = i * stride
            return self._swiglu(first.at(t, e, place), first.at(t, e, place + offset))

        return build((*first.shape[:2], width), element)

    def _swiglu(self, gate: Any, value: Any) -> Any:
        if self.limit is not None:
            gate, value = minimum(gate, self.limit), clamp(value, -self.limit, self.limit)
        return gate * sigmoid(gate * self.alpha) * (value + self.beta)


def _mixture(
    x: Tensor, shares: Tensor, first: Expert, second: Expert, third: Expert | None, activation: Activation
) -> Tensor:
    """The experts' results, weighed by `shares` [tokens, experts]."""
    wide = shares.dtype
    tokens = reshape(cast(x, wide), (dims.product(x.shape[:-1]), x.shape[-1]))
    inner = activation.applied(first.applied(tokens), None if third is None else third.applied(tokens))
    weighed = build(inner.shape, lambda t, e, i: inner.at(t, e, i) * shares.at(t, e))
    result = contract(weighed, second.weights, "tei", "ehi", "th")
    if second.bias is not None:
        result = result + contract(shares, cast(second.bias, wide), "te", "eh", "th")
    return reshape(cast(result, x.dtype), x.shape)


def _shares(scores: Tensor, weights: Tensor | None, count: int, *, normalized: bool) -> Tensor:
    """What each token gives to each expert: softmax scores of the best `count`, or their given weights, else 0."""
    wide = wide_dtype(scores.dtype)
    chances = softmax(cast(scores, wide), [1])
    tokens, experts = chances.shape
    best, places = sort(chances, 1, count=count, descending=True)
    if weights is not None:
        given = weights
        best = build(best.shape, lambda t, k: cast(given.at(t, places.at(t, k)), wide))
    if normalized:
        total = reduce("sum", best, [1], keep=True)
        best = elementwise(lambda v, s: v / s, best, total)
    nothing = full((tokens, experts), 0.0, wide)
    return scatter(nothing, (tokens, count), lambda t, k: ((t, places.at(t, k)), best.at(t, k)))


@op("MoE")
def mixture_of_experts(
    x: Tensor,
    router_probs: Tensor,
    fc1_weights: Tensor,
    fc1_bias: Tensor | None,
    fc2_weights: Tensor,
    fc2_bias: Tensor | None = None,
    fc3_weights: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
) -> Tensor:
    _refuse_sparse_mixer(use_sparse_mixer)
    wide = wide_dtype(x.dtype)

    def layer(weights: Tensor, bias: Tensor | None) -> Expert:
        return Expert(cast(weights, wide), bias)

    return _mixture(
        x,
        _shares(router_probs, None, k, normalized=bool(normalize_routing_weights)),
        layer(fc1_weights, fc1_bias),
        layer(fc2_weights, fc2_bias),
        None if fc3_weights is None else layer(fc3_weights, fc3_bias),
        Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion),
    )


def _refuse_sparse_mixer(use_sparse_mixer: int) -> None:
    if use_sparse_mixer:
        raise UnsupportedModelError("routing by a sparse mixer", hint="export with routing by softmax")


@op("QMoE")
def quantized_mixture_of_experts(
    x: Tensor,
    router_probs: Tensor,
    fc1_weights: Tensor,
    fc1_scales: Tensor | None,
    fc1_bias: Tensor | None,
    fc2_weights: Tensor,
    fc2_scales: Tensor | None,
    fc2_bias: Tensor | None = None,
    fc3_weights: Tensor | None = None,
    fc3_scales: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    fc1_zero_points: Tensor | None = None,
    fc2_zero_points: Tensor | None = None,
    fc3_zero_points: Tensor | None = None,
    router_weights: Tensor | None = None,
    *unused: Tensor | None,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Tensor:
    _refuse_sparse_mixer(use_sparse_mixer)
    if quant_type != "int":
        raise UnsupportedModelError(f"experts' weights of type {quant_type!r}", hint="export with integer weights")
    require(
        weights_prepacked != 1, "weights packed for one device cannot be read", "export the model without prepacking"
    )

    def layer(
        weights: Tensor, scales: Tensor | None, points: Tensor | None, bias: Tensor | None, bits: int | None
    ) -> Expert:
        require(scales is not None, "quantized weights need their scales")
        assert scales is not None
        return Expert(_unpacked_experts(weights, scales, points, bits or expert_weight_bits, block_size), bias)

    third = None
    if fc3_weights is not None:
        third = layer(fc3_weights, fc3_scales, fc3_zero_points, fc3_bias, fc3_expert_weight_bits)
    return _mixture(
        x,
        _shares(router_probs, router_weights, k, normalized=bool(normalize_routing_weights)),
        layer(fc1_weights, fc1_scales, fc1_zero_points, fc1_bias, fc1_expert_weight_bits),
        layer(fc2_weights, fc2_scales, fc2_zero_points, fc2_bias, fc2_expert_weight_bits),
        third,
        Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion),
    )


def _unpacked_experts(packed: Tensor, scales: Tensor, points: Tensor | None, bits: int, block_size: int) -> Tensor:
    """[experts, outputs, inputs] from packed rows with a scale each, or one per block of inputs."""
    require(bits in (2, 4, 8), f"weights have {bits} bits", "2, 4 and 8 are possible")
    experts, outputs, width = packed.shape
    inputs: Dim = width * (8 // bits)
    if points is not None and not block_size:
        points = _unpacked_points(points, outputs, bits, wide_dtype(scales.dtype))
    flat = dequantized_blocks(
        packed,
        scales,
        points,
        rows=experts * outputs,
        columns=inputs,
        block_size=block_size or inputs,
        bits=bits,
    )
    return reshape(flat, (experts, outputs, inputs))


def _unpacked_points(points: Tensor, outputs: Dim, bits: int, dtype: DType) -> Tensor:
    """Zero points that are packed along the outputs, one for each."""
    return build(
        (points.shape[0], outputs), lambda e, n: cast(unpacked(lambda byte: points.at(e, byte), n, bits), dtype)
    )
