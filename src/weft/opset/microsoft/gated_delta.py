"""Gated delta networks over packed sequences, and the convolutions before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import default_scale
from weft.opset.functions import cast, clamp, exp, minimum, not_equal, sigmoid, sqrt, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    check_range,
    concat,
    elementwise,
    full,
    index,
    observe,
    reduce,
    reshape,
    slice_axis,
    split,
    transpose,
)
from weft.opset.linear_attention import RULES, LinearStates, TokenSequences, scan_states
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.gates import softplus
from weft.opset.microsoft.padding import compute_lengths, find_owners
from weft.opset.registry import require
from weft.records import dataclass

FLOAT = DType.float32
NORM_EPSILON = 1e-6  # added to the squares of queries and keys
LARGEST_CAPACITY = 8  # transitions of a state update


@dataclass(frozen=True, slots=True)
class TokenPacking:
    """Where the tokens of `batch` sequences of up to `length` tokens are; None: all have as many tokens."""

    batch: Dim
    length: Dim
    starts: Tensor | None = None
    counts: Tensor | None = None
    owners: Tensor | None = None

    def spread(self, x: Tensor) -> Tensor:
        """Rearrange [tokens, ...] as [time, batch, ...], with 0 after the end of shorter sequences."""

        def element(t: Element, b: Element, *rest: Element) -> Any:
            if self.starts is None or self.counts is None:
                return x.at(b * self.length + t, *rest)
            return where(t < self.counts.at(b), x.at(t + self.starts.at(b), *rest), 0)

        return build((self.length, self.batch, *x.shape[1:]), element)

    def pack(self, x: Tensor, tokens: Dim) -> Tensor:
        """Rearrange [time, batch, ...] as [tokens, ...]."""

        def element(token: Element, *rest: Element) -> Any:
            if self.starts is None or self.owners is None:
                return x.at(token % self.length, token // self.length, *rest)
            owner = self.owners.at(token)
            return x.at(token - self.starts.at(owner), owner, *rest)

        return build((tokens, *x.shape[2:]), element)

    def count(self, batch: Element) -> Any:
        return index(self.length) if self.counts is None else self.counts.at(batch)


@op("GatedDeltaNet", outputs=(1, 3))
def gated_delta_net(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    capture_count: Tensor | None = None,
    state_update_active: Tensor | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    output_count: int = 1,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> list[Tensor | None]:
    require(update_rule in RULES, f"update_rule is {update_rule!r}", f"it must be one of {', '.join(RULES)}")
    require(gate_activation in ("none", "qwen"), f"gate_activation is {gate_activation!r}", "it must be none or qwen")
    require(beta_activation in ("none", "sigmoid"), f"beta_activation is {beta_activation!r}")
    _check_capture(state_update_capacity, capture_count)
    lead = query.shape[: query.rank - (1 if key is None else 2)]
    q, k, v = _split_heads(query, key, value, initial_state, lead)
    tokens = q.shape[0]
    packing = _find_packing(lead, tokens, cu_seqlens, initial_state)
    depth, (heads, width) = k.shape[2], v.shape[1:]
    if qk_l2_norm:
        q, k = _normalize_heads(q), _normalize_heads(k)
    retention = rate = None
    if update_rule.startswith("gated"):
        require(decay is not None, f"rule {update_rule!r} needs a decay")
        assert decay is not None
        per_key = decay.rank - len(lead) == 2
        gates = reshape(decay, (tokens, heads, depth) if per_key else (tokens, heads, 1))
        retention = _compute_retention(packing.spread(_activate_gate(gates, a_log, dt_bias, gate_activation)), depth)
    if update_rule.endswith("delta"):
        require(beta is not None, f"rule {update_rule!r} needs a beta")
        assert beta is not None
        rates = elementwise(lambda x: cast(x, FLOAT), reshape(beta, (tokens, heads)))
        rate = packing.spread(elementwise(sigmoid, rates) if beta_activation == "sigmoid" else rates)
    queries, keys = _repeat_heads(packing.spread(q), heads), _repeat_heads(packing.spread(k), heads)
    sequences = TokenSequences(
        reshape(queries, (*queries.shape[:3], 1, depth)), keys, packing.spread(v), retention, rate
    )
    state_shape = (packing.batch, heads, width, depth)
    if initial_state is None:
        start = full((packing.batch, heads, depth, width), 0.0, FLOAT)
    else:
        start = transpose(reshape(cast(initial_state, FLOAT), state_shape), (0, 1, 3, 2))
    has_updates = output_count > 2 and state_update_capacity > 0
    scanned = scan_states(sequences, start, has_updates=has_updates)
    factor = scale if scale != 0.0 else default_scale(depth, FLOAT)
    packed = packing.pack(scanned.results, tokens)
    result = build((tokens, heads, width), lambda t, h, j: cast(packed.at(t, h, 0, j) * factor, query.dtype))
    update = None
    if has_updates:
        factors = _StateFactors(retention, packing.spread(k), scanned)
        update = factors.capture(packing, capture_count, state_update_active, state_update_capacity)
    return [reshape(result, (*lead, heads, width)), transpose(scanned.states[0], (0, 1, 3, 2)), update]


def _check_capture(capacity: int, capture_count: Tensor | None) -> None:
    require(
        0 <= capacity <= LARGEST_CAPACITY,
        f"state_update_capacity is {capacity}",
        f"it must be between 0 and {LARGEST_CAPACITY}",
    )
    require((capacity > 0) == (capture_count is not None), "capture_count is for state updates, and needed for them")


def _split_heads(
    query: Tensor, key: Tensor | None, value: Tensor | None, state: Tensor | None, lead: Sequence[Dim]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each as float32 [tokens, heads, size], from three tensors or from one that holds them side by side."""
    tokens = dims.product(lead)
    if key is None:
        require(state is not None and value is None, "packed queries, keys and values need an initial_state")
        assert state is not None
        require(state.rank == 4, f"a state has four dimensions, not {state.type}")
        _, heads, width, depth = state.shape
        shared = dims.floordiv(query.shape[-1] - heads * width, depth * 2)
        flat = reshape(query, (tokens, query.shape[-1]))
        parts = split(flat, 1, (shared * depth, shared * depth, heads * width))
        sizes = [(shared, depth), (shared, depth), (heads, width)]
    else:
        require(value is not None, "keys without values")
        assert value is not None
        parts = [query, key, value]
        for part in parts:
            require(part.rank == len(lead) + 2, f"tokens, heads and sizes are needed, not {part.type}")
        sizes = [(part.shape[-2], part.shape[-1]) for part in parts]
        assume_equal(sizes[0][0], sizes[1][0], "as many query heads as key heads")
        assume_equal(sizes[0][1], sizes[1][1], "queries as large as keys")
    q, k, v = (reshape(cast(part, FLOAT), (tokens, *size)) for part, size in zip(parts, sizes))
    return q, k, v


def _find_packing(lead: Sequence[Dim], tokens: Dim, cumulated: Tensor | None, state: Tensor | None) -> TokenPacking:
    if cumulated is not None:
        require(len(lead) == 1, "sequences of different lengths are packed in one dimension")
        ends = check_range(cumulated, 0, tokens, "cu_seqlens")
        batch = cumulated.shape[0] - 1
        counts = compute_lengths(ends)
        (length,) = observe(reduce("maximum", counts, [0]), "tokens")
        return TokenPacking(batch, length, slice_axis(ends, 0, 0, batch), counts, find_owners(tokens, ends))
    if len(lead) == 2:
        return TokenPacking(lead[0], lead[1])
    require(state is not None, "the number of sequences follows from cu_seqlens or from initial_state")
    assert state is not None
    length = dims.floordiv(tokens, state.shape[0])
    assume_equal(length * state.shape[0], tokens, "sequences without cu_seqlens have one length")
    return TokenPacking(state.shape[0], length)


def _normalize_heads(x: Tensor) -> Tensor:
    """Divide each head by its length."""
    squares = reduce("sum", elementwise(lambda v: v * v, x), [2], keep=True)
    return elementwise(lambda v, s: v / sqrt(s + NORM_EPSILON), x, squares)


def _activate_gate(gates: Tensor, a_log: Tensor | None, bias: Tensor | None, activation: str) -> Tensor:
    """Compute the decay [tokens, heads, size or 1], in log space, from the input of that name."""
    gates = elementwise(lambda v: cast(v, FLOAT), gates)
    if activation == "none":
        return gates
    require(a_log is not None and bias is not None, "gate_activation qwen needs a_log and dt_bias")
    assert a_log is not None and bias is not None
    scales, biases = a_log, bias
    return build(gates.shape, lambda t, h, i: -exp(scales.at(h)) * softplus(gates.at(t, h, i) + biases.at(h)))


def _compute_retention(decay: Tensor, depth: Dim) -> Tensor:
    """Compute the factors of the state, [time, batch, heads, depth]."""
    last = decay.shape[3] - 1
    return build((*decay.shape[:3], depth), lambda t, b, h, i: exp(decay.at(t, b, h, minimum(i, last))))


def _repeat_heads(x: Tensor, heads: Dim) -> Tensor:
    """Repeat each head of [time, batch, heads, size] for the heads that share it."""
    repeats = dims.floordiv(heads, x.shape[2])
    assume_equal(repeats * x.shape[2], heads, "as many value heads share each key head")
    return build((*x.shape[:2], heads, x.shape[3]), lambda t, b, h, i: x.at(t, b, h // repeats, i))


@dataclass(frozen=True, slots=True)
class _StateFactors:
    """What each token does to the state: it multiplies it by a retention, and adds the product of key and update."""

    retention: Tensor | None
    keys: Tensor
    scanned: LinearStates

    def capture(self, packing: TokenPacking, counts: Tensor | None, active: Tensor | None, capacity: int) -> Tensor:
        """Return the factors of the first tokens of each sequence: all retentions, then all keys, then all updates."""
        assert counts is not None and self.scanned.updates is not None
        updates = self.scanned.updates
        if self.retention is None:
            decays = full((*updates.shape[:3], 1), 1.0, FLOAT)
        else:
            decays = slice_axis(self.retention, 3, 0, 1)

        def take(x: Tensor) -> Tensor:
            size = x.shape[3]

            def element(b: Element, i: Element) -> Any:
                step, rest = i // (x.shape[2] * size), i % (x.shape[2] * size)
                captured = clamp(cast(counts.at(b), DType.int64), 0, packing.count(b))
                is_captured = step < captured
                if active is not None:
                    is_captured = is_captured & not_equal(active.at(0), 0)
                return where(is_captured, x.at(step, b, rest // size, rest % size), 0.0)

            return build((packing.batch, x.shape[2] * size * capacity), element)

        return concat([take(decays), take(self.keys), take(updates)], 1)


@op("VarlenCausalConvWithState", outputs=(2, 3))
def varlen_causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    cumulative_sequence_length: Tensor,
    bias: Tensor | None,
    initial_state: Tensor,
    capture_count: Tensor | None = None,
    *,
    activation: str = "none",
    dilation: int = 1,
    state_update_capacity: int = 0,
) -> list[Tensor | None]:
    """Convolve each channel of packed sequences over past positions; the state holds the last ones of a sequence."""
    require(activation in ("none", "silu", "swish"), f"activation is {activation!r}", "it must be none, silu or swish")
    require(x.rank == 2 and weight.rank == 3, f"tokens {x.type} and kernels {weight.type} do not fit")
    require(dilation >= 1, f"dilation is {dilation}")
    _check_capture(state_update_capacity, capture_count)
    tokens, channels = x.shape
    taps = weight.shape[2]
    batch, size = cumulative_sequence_length.shape[0] - 1, (taps - 1) * dilation
    assume_equal(weight.shape[0], channels, "one kernel per channel")
    assume_equal(initial_state.shape[0], batch, "a state for each sequence")
    assume_equal(initial_state.shape[2], size, "the state holds the positions that the kernel reaches back")
    ends = check_range(cumulative_sequence_length, 0, tokens, "cumulative_sequence_length")
    counts, owners = compute_lengths(ends), find_owners(tokens, ends)

    def load(b: Element, c: Element, position: Any) -> Any:
        """Load the input at a position of a sequence, or the state before it."""
        return where(position < 0, initial_state.at(b, c, position + size), x.at(position + ends.at(b), c))

    def product(t: Element, c: Element, tap: Element) -> Any:
        owner = owners.at(t)
        tapped = load(owner, c, t - ends.at(owner) + (tap - (taps - 1)) * dilation)
        return cast(tapped, FLOAT) * cast(weight.at(c, 0, tap), FLOAT)

    def finish(total: Element, *addend: Element) -> Any:
        total = total + cast(addend[0], FLOAT) if addend else total
        return cast(total if activation == "none" else total * sigmoid(total), x.dtype)

    sums = reduce("sum", build((tokens, channels, taps), product), [2])
    result = elementwise(finish, sums, *([] if bias is None else [bias]))
    state = build((batch, channels, size), lambda b, c, i: load(b, c, i + counts.at(b) - size))
    if capture_count is None:
        return [result, state, None]

    def captured(b: Element, slot: Element, c: Element) -> Any:
        count = clamp(cast(capture_count.at(b), DType.int64), 0, counts.at(b))
        return where(slot < count, x.at(slot + ends.at(b), c), 0)

    return [result, state, build((batch, state_update_capacity, channels), captured)]
