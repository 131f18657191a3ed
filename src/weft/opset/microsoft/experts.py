"""Mixtures of experts: a router assigns each token to a few experts.

For few tokens, only the chosen experts are computed, with weights read in place. Many tokens choose nearly all experts:
these are computed as one product, and experts that are not chosen have a share of 0. The last bits of a token's result
depend on which of the two is used, but not on other tokens. Programs that hold a state always compute the chosen
experts, so that the bits of a sequence do not depend on how it is divided into runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.activations import gelu_by_tanh
from weft.opset.flow import branch
from weft.opset.functions import bit_and, cast, clamp, maximum, minimum, shift_right, sigmoid, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    contract,
    elementwise,
    full,
    holds_state,
    index,
    reduce,
    reshape,
    scatter,
    sort,
)
from weft.opset.microsoft.blocks import dequantize_blocks, unpack_element
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


Row = Callable[[Any], Any]  # the element of an input at a position


@dataclass(frozen=True, slots=True)
class Expert:
    """A layer of all experts, with weights [experts, outputs, inputs] (`build_weights`) and biases [experts, outputs].

    One output of one expert is the sum of `term(row, expert, output, position)` over the positions below `terms`.
    """

    shape: tuple[Dim, Dim, Dim]
    build_weights: Callable[[], Tensor]
    bias: Tensor | None
    terms: Dim
    term: Callable[[Row, Element, Element, Element], Any]

    def check(self, name: str, experts: Dim, outputs: Dim | None, inputs: Dim) -> None:
        """Require the sizes that the layer must have; `outputs` None: any."""
        assume_equal(self.shape[0], experts, f"{name} has weights for each expert of the router")
        assume_equal(self.shape[2], inputs, f"{name} has a weight for each of its inputs")
        if outputs is not None:
            assume_equal(self.shape[1], outputs, f"{name} has weights for each of its outputs")
        if self.bias is not None:
            require(self.bias.rank == 2, f"the bias of {name} has two dimensions, not {self.bias.type}")
            assume_equal(self.bias.shape[0], experts, f"{name} has biases for each expert")
            assume_equal(self.bias.shape[1], self.shape[1], f"{name} has a bias for each output")

    def apply_all(self, tokens: Tensor) -> Tensor:
        """Compute all experts of tokens [tokens, inputs]: [tokens, experts, outputs]."""
        product = contract(tokens, self.build_weights(), "tk", "enk", "ten")
        return product if self.bias is None else elementwise(_add, product, self.bias)

    def apply_chosen(self, inputs: Callable[[Element, Any], Any], experts: Tensor) -> Tensor:
        """Compute the experts [rows] of the rows that `inputs` returns element by element: [rows, outputs].

        Rows have one axis, so that the weights decide how the sum passes over memory.
        """

        def summand(row: Element, output: Element, position: Element) -> Any:
            return self.term(lambda i: inputs(row, i), experts.at(row), output, position)

        product = reduce("sum", build((experts.shape[0], self.shape[1], self.terms), summand), [2])
        if self.bias is None:
            return product
        bias = self.bias
        return build(product.shape, lambda row, n: _add(product.at(row, n), bias.at(experts.at(row), n)))


def _add(v: Element, b: Element) -> Element:
    return v + cast(b, v.dtype)


@dataclass(frozen=True, slots=True)
class Activation:
    """The activation between an expert's layers. `fusion` 1 and 2: gates and values interleaved, or side by side."""

    kind: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def width(self, first: Expert, third: Expert | None) -> Dim:
        """Return the size of the results."""
        is_fused = self.kind == "swiglu" and not (third is not None and self.fusion == 0)
        return dims.floordiv(first.shape[1], 2) if is_fused else first.shape[1]

    def apply(self, first: Tensor, third: Tensor | None) -> Tensor:
        if self.kind == "swiglu":
            return self._apply_swiglu(first, third)
        require(self.kind in _ACTIVATIONS, f"activation_type is {self.kind!r}", f"weft has {', '.join(_ACTIVATIONS)}")
        function = _ACTIVATIONS[self.kind]
        if third is None:
            return elementwise(function, first)
        return elementwise(lambda v, w: function(v) * w, first, third)

    def _apply_swiglu(self, first: Tensor, third: Tensor | None) -> Tensor:
        if third is not None and self.fusion == 0:
            return elementwise(self._swiglu, first, third)
        require(self.fusion in (1, 2), f"swiglu_fusion is {self.fusion} without weights for the values")
        width = dims.floordiv(first.shape[-1], 2)
        stride, offset = (2, 1) if self.fusion == 1 else (1, width)

        def element(*indices: Element) -> Any:
            *row, i = indices
            return self._swiglu(first.at(*row, i * stride), first.at(*row, i * stride + offset))

        return build((*first.shape[:-1], width), element)

    def _swiglu(self, gate: Any, value: Any) -> Any:
        if self.limit is not None:
            gate, value = minimum(gate, self.limit), clamp(value, -self.limit, self.limit)
        return gate * sigmoid(gate * self.alpha) * (value + self.beta)


@dataclass(frozen=True, slots=True)
class Routing:
    """The `experts` [tokens, k] that each token goes to, and the `shares` of their results, of `count` experts."""

    experts: Tensor
    shares: Tensor
    count: Dim

    def spread_shares(self) -> Tensor:
        """Return the shares of all experts [tokens, experts], 0 where an expert is not chosen."""
        tokens, k = self.shares.shape
        zeros = full((tokens, self.count), 0.0, self.shares.dtype)
        return scatter(zeros, (tokens, k), lambda t, s: ((t, self.experts.at(t, s)), self.shares.at(t, s)))


def _mix_experts(
    x: Tensor, routing: Routing, first: Expert, second: Expert, third: Expert | None, activation: Activation
) -> Tensor:
    """Compute the experts' results, weighed by their shares."""
    wide = routing.shares.dtype
    tokens = reshape(cast(x, wide), (dims.product(x.shape[:-1]), x.shape[-1]))
    layers = first, second, third, activation
    assume_equal(routing.shares.shape[0], tokens.shape[0], "the router has a row for each token")
    first.check("the first layer", routing.count, None, tokens.shape[1])
    second.check("the second layer", routing.count, tokens.shape[1], activation.width(first, third))
    if third is not None:
        third.check("the third layer", routing.count, first.shape[1], tokens.shape[1])

    def mix_chosen() -> list[Tensor]:
        return [_mix_chosen(tokens, routing, *layers)]

    def mix_all() -> list[Tensor]:
        return [_mix_all(tokens, routing, *layers)]

    slots = routing.shares.size
    if holds_state(x):
        (result,) = mix_chosen()
    elif isinstance(slots, int) and isinstance(routing.count, int):
        (result,) = mix_chosen() if slots <= routing.count else mix_all()
    else:
        (result,) = branch(build((), lambda: index(slots) <= index(routing.count)), mix_chosen, mix_all)
    return reshape(cast(result, x.dtype), x.shape)


def _mix_all(
    tokens: Tensor, routing: Routing, first: Expert, second: Expert, third: Expert | None, activation: Activation
) -> Tensor:
    """Compute all experts; those that are not chosen have a share of 0."""
    shares = routing.spread_shares()
    inner = activation.apply(first.apply_all(tokens), None if third is None else third.apply_all(tokens))
    weighed = build(inner.shape, lambda t, e, i: inner.at(t, e, i) * shares.at(t, e))
    result = contract(weighed, second.build_weights(), "tei", "ehi", "th")
    if second.bias is not None:
        result = result + contract(shares, cast(second.bias, shares.dtype), "te", "eh", "th")
    return result


def _mix_chosen(
    tokens: Tensor, routing: Routing, first: Expert, second: Expert, third: Expert | None, activation: Activation
) -> Tensor:
    """Compute the chosen experts of each token, reading their weights in place."""
    count, k = routing.experts.shape
    experts, shares = (reshape(tensor, (count * k,)) for tensor in (routing.experts, routing.shares))

    def token(row: Element, i: Any) -> Element:
        return tokens.at(row // k, i)

    value = None if third is None else third.apply_chosen(token, experts)
    inner = activation.apply(first.apply_chosen(token, experts), value)
    results = second.apply_chosen(inner.at, experts)
    weighed = build((count, k, results.shape[1]), lambda t, s, h: results.at(t * k + s, h) * shares.at(t * k + s))
    return reduce("sum", weighed, [1])


def _route(scores: Tensor, weights: Tensor | None, k: int, *, normalized: bool) -> Routing:
    """Choose the best `k` experts of each token by softmax scores; their shares are these, or the weights."""
    wide = wide_dtype(scores.dtype)
    chances = softmax(cast(scores, wide), [1])
    best, experts = sort(chances, 1, count=k, descending=True)
    if weights is not None:
        router = weights
        for size, router_size in zip(chances.shape, router.shape):
            assume_equal(router_size, size, "router_weights have the shape of router_probs")
        best = build(best.shape, lambda t, s: cast(router.at(t, experts.at(t, s)), wide))
    if normalized:
        total = reduce("sum", best, [1], keep=True)
        best = elementwise(lambda v, s: v / s, best, total)
    return Routing(experts, best, chances.shape[1])


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
        require(weights.rank == 3, f"the weights of experts have three dimensions, not {weights.type}")
        experts, outputs, inputs = weights.shape

        def term(row: Row, e: Element, n: Element, i: Element) -> Any:
            return row(i) * cast(weights.at(e, n, i), wide)

        return Expert((experts, outputs, inputs), lambda: cast(weights, wide), bias, inputs, term)

    return _mix_experts(
        x,
        _route(router_probs, None, k, normalized=bool(normalize_routing_weights)),
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
    accuracy_level: int = 0,
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
        return _quantized_expert(weights, scales, points, bias, bits or expert_weight_bits, block_size)

    third = None
    if fc3_weights is not None:
        third = layer(fc3_weights, fc3_scales, fc3_zero_points, fc3_bias, fc3_expert_weight_bits)
    return _mix_experts(
        x,
        _route(router_probs, router_weights, k, normalized=bool(normalize_routing_weights)),
        layer(fc1_weights, fc1_scales, fc1_zero_points, fc1_bias, fc1_expert_weight_bits),
        layer(fc2_weights, fc2_scales, fc2_zero_points, fc2_bias, fc2_expert_weight_bits),
        third,
        Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion),
    )


def _quantized_expert(
    packed: Tensor, scales: Tensor, points: Tensor | None, bias: Tensor | None, bits: int, block_size: int
) -> Expert:
    """Build a layer from rows packed along the inputs, with a scale each, or one per block of inputs."""
    require(bits in (2, 4, 8), f"weights have {bits} bits", "2, 4 and 8 are possible")
    require(packed.rank == 3, f"the weights of experts have three dimensions, not {packed.type}")
    experts, outputs, width = packed.shape
    per_byte = 8 // bits
    inputs: Dim = width * per_byte
    block = block_size or inputs
    blocks, block_bytes = dims.ceildiv(inputs, block), dims.floordiv(block, per_byte)
    wide = wide_dtype(scales.dtype)
    if points is not None and not block_size:
        points = _unpack_zero_points(reshape(points, (experts, dims.ceildiv(outputs * bits, 8))), outputs, bits, wide)
    elif points is not None:
        packing = bits if points.dtype is DType.uint8 else 8
        points = reshape(points, (experts, outputs, dims.ceildiv(blocks * packing, 8)))

    def build_weights() -> Tensor:
        flat = dequantize_blocks(
            packed, scales, points, rows=experts * outputs, columns=inputs, block_size=block, bits=bits
        )
        return reshape(flat, (experts, outputs, inputs))

    steps = reshape(scales, (experts, outputs, blocks))

    def zero(e: Element, n: Element, block: Element) -> Any:
        if points is None:
            return float(2 ** (bits - 1))
        if points.rank == 2:
            return points.at(e, n)
        if points.dtype is DType.uint8:
            return cast(unpack_element(lambda byte: points.at(e, n, byte), block, bits), wide)
        return cast(points.at(e, n, block), wide)

    def term(row: Row, e: Element, n: Element, byte: Element) -> Any:
        """Sum the products of the weights that share a byte."""
        block, codes = byte // block_bytes, packed.at(e, n, byte)
        total: Any = 0.0
        for number in range(per_byte):
            code = bit_and(shift_right(codes, number * bits), 2**bits - 1) if bits < 8 else codes
            total = total + row(byte * per_byte + number) * (cast(code, wide) - zero(e, n, block))
        return total * cast(steps.at(e, n, block), wide)

    return Expert((experts, outputs, inputs), build_weights, bias, width, term)


def _unpack_zero_points(points: Tensor, outputs: Dim, bits: int, dtype: DType) -> Tensor:
    """Unpack zero points that are packed along the outputs, one for each."""
    return build(
        (points.shape[0], outputs), lambda e, n: cast(unpack_element(lambda byte: points.at(e, byte), n, bits), dtype)
    )
