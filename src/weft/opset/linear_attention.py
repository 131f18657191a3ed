"""Linear attention: a state per head that each token decays and updates, instead of keys and values of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import default_scale
from weft.opset.flow import scan
from weft.opset.functions import cast, exp, minimum, where, wide_dtype
from weft.opset.language import Element, Tensor, assume_equal, build, contract, full, index, reshape, stack
from weft.opset.registry import REQUIRED, op, require
from weft.records import dataclass

RULES = ("linear", "gated", "delta", "gated_delta")


@dataclass(frozen=True, slots=True)
class TokenSequences:
    """What each token adds, time first, for heads with a state each of [depth, width].

    `query` [time, batch, heads, group, depth], `key` [time, batch, heads, depth], `value` [time, batch, heads, width],
    `retention` [time, batch, heads, depth], the factor of the state, and `rate` [time, batch, heads], that of the
    difference of the value and what the state has for its key.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    retention: Tensor | None = None
    rate: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LinearStates:
    """The last states [batch, heads, depth, width], oldest first, and of each token the result and the update."""

    states: list[Tensor]
    results: Tensor
    updates: Tensor | None


def scan_states(tokens: TokenSequences, start: Tensor, *, window: int = 1, has_updates: bool = False) -> LinearStates:
    """Update a state with one token after the other; return the last `window` states (0 before the first token)."""
    gates = [gate for gate in (tokens.retention, tokens.rate) if gate is not None]

    def step(*inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        *earlier, state = inputs[:window]
        q, k, v, *rest = inputs[window:]
        if tokens.retention is not None:
            retention, *rest = rest
            before = build(state.shape, lambda b, h, i, j: state.at(b, h, i, j) * retention.at(b, h, i))
        else:
            before = state
        update = v
        if rest:
            predicted = contract(before, k, "bhij", "bhi", "bhj")
            update = build(v.shape, lambda b, h, j: (v.at(b, h, j) - predicted.at(b, h, j)) * rest[0].at(b, h))
        after = build(before.shape, lambda b, h, i, j: before.at(b, h, i, j) + k.at(b, h, i) * update.at(b, h, j))
        result = contract(q, after, "bhgi", "bhij", "bhgj")
        return [*earlier[1:], *([state] if earlier else []), after], [result, update] if has_updates else [result]

    zeros = [full(start.shape, 0.0, start.dtype) for _ in range(window - 1)]
    states, outputs = scan(step, [*zeros, start], [tokens.query, tokens.key, tokens.value, *gates])
    length = tokens.key.shape[0]
    for slot in range(window - 1):  # the state before the first token may be in one of them
        state = states[slot]
        states[slot] = build(state.shape, lambda *i, s=state, n=slot: where(index(length) >= window - n, s.at(*i), 0.0))
    return LinearStates(states, outputs[0], outputs[1] if has_updates else None)


@op("LinearAttention", since=27)
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
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    fits = q_num_heads > 0 and kv_num_heads > 0 and q_num_heads % kv_num_heads == 0
    require(fits, f"{q_num_heads} query heads cannot share {kv_num_heads} key heads")
    return attend_linearly(
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


def attend_linearly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float,
    update_rule: str,
    state_window: int = 0,
) -> tuple[Tensor, Tensor]:
    """Compute [batch, time, heads * width] and the state, or the last states, stacked first.

    Query heads share states, or, if there are fewer of them, states share query heads, and may share keys.
    """
    require(update_rule in RULES, f"update_rule is {update_rule!r}", f"it must be one of {', '.join(RULES)}")
    for tensor in (query, key, value):
        require(tensor.rank == 3, f"packed heads are needed, not {tensor.type}")
    wide = wide_dtype(query.dtype)
    batch, length, _ = query.shape
    group = max(q_num_heads // kv_num_heads, 1)
    depth, width = dims.floordiv(query.shape[2], q_num_heads), dims.floordiv(value.shape[2], kv_num_heads)
    heads = (batch, kv_num_heads)
    retention = rate = None
    if update_rule.startswith("gated"):
        require(decay is not None, f"rule {update_rule!r} needs a decay")
        retention = _compute_retention(decay, (length, *heads, depth), wide)  # type: ignore[arg-type]
    if update_rule.endswith("delta"):
        require(beta is not None, f"rule {update_rule!r} needs a beta")
        rate = _expand_rate(beta, (length, *heads), wide)  # type: ignore[arg-type]
    tokens = TokenSequences(
        _split_time_first(query, kv_num_heads * group, (kv_num_heads, group, depth), wide),
        _split_time_first(key, kv_num_heads, (kv_num_heads, depth), wide),
        _split_time_first(value, kv_num_heads, (kv_num_heads, width), wide),
        retention,
        rate,
    )
    shape = (*heads, depth, width)
    start = full(shape, 0.0, wide) if past_state is None else reshape(cast(past_state, wide), shape)
    scanned = scan_states(tokens, start, window=max(state_window, 1))
    factor = scale if scale != 0.0 else default_scale(depth, wide)
    scaled = build(
        (batch, length, kv_num_heads, group, width),
        lambda b, t, h, g, j: cast(scanned.results.at(t, b, h, g, j) * factor, query.dtype),
    )
    result = reshape(scaled, (batch, length, kv_num_heads * group * width))
    states = [cast(state, query.dtype if past_state is None else past_state.dtype) for state in scanned.states]
    return result, stack(states, 0) if state_window else states[0]


def _split_time_first(x: Tensor, heads: int, parts: Sequence[Dim], dtype: DType) -> Tensor:
    """Rearrange [batch, time, heads * size] as [time, batch, *parts]; fewer than `heads` heads are repeated."""
    batch, length, hidden = x.shape
    size = parts[-1]
    present = dims.floordiv(hidden, size)
    assume_equal(present * size, hidden, "heads of one size")
    if isinstance(present, int):
        fits = present == heads or (0 < present < heads and heads % present == 0)
        require(fits, f"{heads} heads cannot share {present}")
    else:
        assume_equal(present, heads, "one part for each head")
        present = heads
    repeats = heads // present

    def element(t: Element, b: Element, *rest: Element) -> Any:
        *place, i = rest
        head = place[0] if len(place) == 1 else place[0] * parts[1] + place[1]
        return cast(x.at(b, t, head // repeats * size + i), dtype)

    return build((length, batch, *parts), element)


def _compute_retention(decay: Tensor, shape: Sequence[Dim], dtype: DType) -> Tensor:
    """Compute the factor of the state, [time, batch, heads, depth], from one decay per head, or per head and depth."""
    per_head = dims.floordiv(decay.shape[2], shape[2])
    last = per_head - 1

    def element(t: Element, b: Element, h: Element, i: Element) -> Element:
        inner = index(0) if per_head == 1 else minimum(i, last)
        return exp(cast(decay.at(b, t, h * per_head + inner), dtype))

    return build(shape, element)


def _expand_rate(beta: Tensor, shape: Sequence[Dim], dtype: DType) -> Tensor:
    """Return the update rate, [time, batch, heads], from one per head, or one for all."""
    last = beta.shape[2] - 1

    def element(t: Element, b: Element, h: Element) -> Element:
        return cast(beta.at(b, t, minimum(h, last)), dtype)

    return build(shape, element)
