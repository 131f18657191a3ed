"""Random legal nodes of the attention ops and mixtures of experts of onnxruntime's domain."""

from __future__ import annotations

from typing import Any

import numpy as np
from attack.contrib_cases import EIGHT_BITS, Draw, Generator, NodeCase, float_type, pack

Array = np.ndarray[Any, Any]


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _mask(draw: Draw, batch: int, queries: int, keys: int) -> Array | None:
    """Draw a mask with at least one visible key in each row."""
    match draw.pick("none", "keys", "ends", "bounds", "pairs"):
        case "keys":
            return (np.arange(keys) < draw.ints((batch, 1), np.int64, 1, keys)).astype(np.int32)
        case "ends":
            return draw.ints((batch,), np.int32, 1, keys)
        case "bounds":
            return np.concatenate([np.full(batch, keys, np.int32), draw.ints((batch,), np.int32, 0, keys - 1)])
        case "pairs":
            return np.tril(np.ones((batch, queries, keys), np.int32), keys - queries)
    return None


def _bias(draw: Draw, batch: int, heads: int, queries: int, keys: int) -> Array | None:
    return draw.optional(draw.floats((draw.pick(1, batch), draw.pick(1, heads), queries, keys)), 0.3)


def attention(draw: Draw) -> NodeCase:
    batch, length, heads, size = (draw.size(least=1, most=4) for _ in range(4))
    width, hidden = draw.size(least=1), heads * size
    past = draw.size(most=3) if draw.chance() else None
    keys = length + (past or 0)
    value = hidden if past is not None or draw.chance(0.7) else heads * draw.size(least=1, most=4)
    inputs = [
        draw.floats((batch, length, width)),
        draw.floats((width, 2 * hidden + value), low=-1, high=1),
        draw.floats((2 * hidden + value,)),
        _mask(draw, batch, length, keys),
        None if past is None else draw.floats((2, batch, heads, past, size)),
        _bias(draw, batch, heads, length, keys),
    ]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw.pick(0, 1)}
    if value != hidden or draw.chance(0.3):
        attributes["qkv_hidden_sizes"] = [hidden, hidden, value]
    if draw.chance(0.3):
        attributes["scale"] = 0.7
    return NodeCase(inputs, attributes, 1 if value != hidden else 2)


def quantized_attention(draw: Draw) -> NodeCase:
    batch, length, heads, size = (draw.size(least=1, most=4) for _ in range(4))
    width, hidden, weight = draw.size(least=1), heads * size, draw.pick(*EIGHT_BITS)
    past = draw.size(most=3) if draw.chance() else None
    keys = length + (past or 0)
    inputs = [
        draw.ints((batch, length, width), np.uint8),
        draw.ints((width, 3 * hidden), weight),
        draw.floats((3 * hidden,)),
        draw.scale(),
        draw.scale(),
        _mask(draw, batch, length, keys),
        draw.optional(draw.ints((), np.uint8)),
        draw.optional(draw.ints((), weight)),
        None if past is None else draw.floats((2, batch, heads, past, size)),
    ]
    attributes = {"num_heads": heads, "unidirectional": draw.pick(0, 1)}
    return NodeCase(inputs, attributes, 2, tolerance=1e-3)


def multi_head_attention(draw: Draw) -> NodeCase:
    batch, queries, heads, size = (draw.size(least=1, most=4) for _ in range(4))
    hidden, causal = heads * size, draw.chance(0.3)
    form = draw.pick("plain", "plain", "values", "cross", "packed", "packed keys", "past")
    keys = draw.size(least=1, most=5) if form in ("cross", "packed keys") and not causal else queries
    value_size = draw.size(least=1, most=4) if form == "values" else size
    past = draw.size(most=3) if form == "past" else 0
    total = keys + past
    query: list[Array | None]
    match form:
        case "packed":
            query = [draw.floats((batch, queries, heads, 3, size)), None, None]
        case "packed keys":
            query = [draw.floats((batch, queries, hidden)), draw.floats((batch, keys, heads, 2, size)), None]
        case _:
            query = [draw.floats((batch, queries, hidden)), draw.floats((batch, keys, hidden))]
            query.append(draw.floats((batch, keys, heads * value_size)))
    bias = draw.floats((2 * hidden + heads * value_size,)) if not form.startswith("packed") and draw.chance() else None
    mask = draw.pick(
        None,
        (np.arange(total) < draw.ints((batch, 1), np.int64, 1, total)).astype(np.int32),
        draw.ints((batch,), np.int32, 1, total),
    )
    caches = [draw.floats((batch, heads, past, size)) for _ in range(2)] if form == "past" else [None, None]
    inputs = [*query, bias, mask, _bias(draw, batch, heads, queries, total), *caches]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(causal)}
    if draw.chance(0.3):
        attributes["scale"] = 0.7
    has_present = form == "past" or (form in ("plain", "values") and draw.chance())
    return NodeCase(inputs, attributes, 3 if has_present else 1)  # onnxruntime ignores a past without a present


def decoder_masked_multi_head_attention(draw: Draw) -> NodeCase:
    batch, heads, size = (draw.size(least=1, most=4) for _ in range(3))
    hidden, room = heads * size, draw.size(least=2, most=8)
    past = int(draw.random.integers(0, room))
    inputs = [
        *(draw.floats((batch, 1, hidden)) for _ in range(3)),
        draw.optional((np.arange(past + 1) < draw.ints((batch, 1), np.int64, 1, past + 1)).astype(np.int32)),
        None,
        *(draw.floats((batch, heads, room, size)) for _ in range(2)),
        np.array([past], np.int32),
    ]
    return NodeCase(inputs, {"num_heads": heads, "past_present_share_buffer": 1}, 3)


def group_query_attention(draw: Draw) -> NodeCase:
    """State attention in float64: onnxruntime zeroes a past with room, unless past and present share their memory."""
    shared, factor, size = draw.size(least=1, most=3), draw.size(least=1, most=3), draw.pick(8, 16)
    heads, form = shared * factor, draw.pick("prompt", "prompt", "token", "chunk")
    batch = 1 if form == "chunk" else draw.size(least=1, most=3)
    queries = 1 if form == "token" else draw.size(least=1, most=6)
    total = queries if form == "prompt" else queries + draw.size(least=1, most=5)
    ragged = form != "chunk" and draw.chance()
    lasts = (
        draw.ints((batch,), np.int32, queries - 1 if form == "token" else 0, total - 1)
        if ragged
        else np.full(batch, total - 1, np.int32)
    )
    room = draw.pick(total - queries, total, total + 3) if form != "prompt" else draw.pick(None, total, total + 3)
    dtype = float_type(draw)
    q, k, v = (draw.floats((batch, queries, n * size), dtype) for n in (heads, shared, shared))
    past = [None, None] if room is None else [draw.floats((batch, shared, room, size), dtype) for _ in range(2)]
    packed, rotary = draw.chance(0.3), draw.chance()
    limit = 2 * total + 16
    caches = [draw.floats((limit, size // 2), dtype, -1, 1) for _ in range(2)] if rotary else [None, None]
    positions = draw.ints((batch, queries), np.int64, 0, total) if rotary and draw.chance() else None
    bias = draw.optional(draw.floats((draw.pick(1, batch), draw.pick(1, heads), queries, total), dtype), 0.3)
    sink = draw.optional(draw.floats((heads,), dtype), 0.3)
    window = draw.pick(-1, -1, 1, 2, 4)
    softcap, scale = draw.pick(0.0, 0.0, 2.0), draw.pick(None, 0.7)
    smooth, interleaved = draw.pick(0, 0, 1), int(draw.chance(0.3))
    attributes: dict[str, Any] = {
        "num_heads": heads, "kv_num_heads": shared, "do_rotary": int(rotary), "local_window_size": window,
        "softcap": softcap, "smooth_softmax": smooth, "rotary_interleaved": interleaved,
    }  # fmt: skip
    if scale is not None:
        attributes["scale"] = scale
    operands = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    inputs = [*operands, *past, lasts, np.array([total], np.int32), *caches, positions, bias, sink]
    starts = np.zeros(batch, int) if form == "prompt" else lasts.astype(int) + 1 - queries
    rotated = [_split(x, n) for x, n in ((q, heads), (k, shared))]
    if rotary:
        if positions is None:
            places = starts[:, None] + np.arange(queries)
        else:
            places = (
                np.broadcast_to(positions[0, 0] + np.arange(queries), (batch, queries))
                if form == "prompt"
                else positions
            )
        rotated = [_rotate(x, *caches, places, bool(interleaved)) for x in rotated]
    present = [_write_rows(p, new, starts, total) for p, new in zip(past, (rotated[1], _split(v, shared)))]
    result = np.zeros((batch, queries, heads, size))
    defined = np.zeros((batch, queries, heads * size), bool)
    for b in range(batch):
        for s in range(queries):
            end = starts[b] + s + 1
            if end > lasts[b] + 1:
                continue  # padding
            first = max(0, end - window) if window > 0 else 0
            defined[b, s] = True
            for h in range(heads):
                scores = present[0][b, h // factor, first:end] @ rotated[0][b, h, s] * (scale or size**-0.5)
                scores = np.tanh(scores / softcap) * softcap if softcap else scores
                if bias is not None:
                    scores = scores + bias[b % bias.shape[0], h % bias.shape[1], s, first:end]
                extra = float(sink[h]) if sink is not None else 0.0 if smooth else -np.inf
                powers = np.exp(scores)
                result[b, s, h] = powers / (powers.sum() + np.exp(extra)) @ present[1][b, h // factor, first:end]
    expected = [part.astype(dtype) for part in (result.reshape(batch, queries, -1), *present)]
    return NodeCase(inputs, attributes, 3, expected, {0: defined})


def _split(x: Array, heads: int) -> Array:
    batch, length, width = x.shape
    return x.astype(np.float64).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _rotate(x: Array, cosines: Any, sines: Any, places: Array, interleaved: bool) -> Array:
    cosine, sine = (cache.astype(np.float64)[places][:, None] for cache in (cosines, sines))
    half = x.shape[-1] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = first * cosine - second * sine, first * sine + second * cosine
    return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)


def _write_rows(past: Any, new: Array, starts: Array, total: int) -> Array:
    batch, heads, count, size = new.shape
    room = total if past is None else max(past.shape[2], total)
    present = np.zeros((batch, heads, room, size))
    if past is not None and past.shape[2] >= total:
        present[:] = past
    for b, start in enumerate(starts):
        if past is not None:
            present[b, :, :start] = past[b, :, :start]
        present[b, :, start : start + count] = new[b]
    return present


def rotary_embedding(draw: Draw) -> NodeCase:
    batch, length, heads = draw.size(), draw.size(), draw.size(least=1, most=4)
    size, interleaved = draw.pick(2, 8), draw.pick(0, 1)
    partial = size == 8 and draw.chance(0.3)
    rotated = 4 if partial else size
    caches = [draw.floats((length + 9, rotated // 2), low=-1, high=1) for _ in range(2)]
    positions = np.array([draw.pick(0, 3)], np.int64) if draw.chance() else draw.ints((batch, length), np.int64, 0, 8)
    attributes: dict[str, Any] = {"interleaved": interleaved}
    four = draw.chance()
    if partial:
        attributes |= {"rotary_embedding_dim": rotated, "num_heads": heads}
    x = draw.floats((batch, heads, length, size) if four else (batch, length, heads * size))
    return NodeCase([x, positions, *caches], attributes)


def multimodal_rotary_embedding(draw: Draw) -> NodeCase:
    batch, length, heads = draw.size(least=1), draw.size(least=1), draw.size(least=1, most=4)
    section = [draw.pick(1, 2), draw.pick(1, 2), draw.pick(1, 2)]
    size = 2 * sum(section)
    caches = [draw.floats((9, size // 2), low=-1, high=1) for _ in range(2)]
    positions = draw.ints((3, batch, length), np.int64, 0, 8)
    attributes = {"mrope_section": section, "interleaved": draw.pick(0, 1), "num_heads": heads}
    return NodeCase([draw.floats((batch, length, heads * size)), positions, *caches], attributes)


def linear_attention(draw: Draw) -> NodeCase:
    batch, length, heads, size = (draw.size(least=1, most=4) for _ in range(4))
    rule = draw.pick("linear", "gated", "delta", "gated_delta")
    inputs = [
        *(draw.floats((batch, length, heads * size), low=-1, high=1) for _ in range(3)),
        draw.optional(draw.floats((batch, heads, size, size))),
        draw.floats((batch, length, heads), low=-1, high=0) if "gated" in rule else None,
        draw.floats((batch, length, heads), low=0, high=1) if "delta" in rule else None,
    ]
    attributes = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule, "scale": draw.pick(0.0, 0.5)}
    return NodeCase(inputs, attributes, 2, tolerance=1e-3)


# -- experts ---------------------------------------------------------------------------------------------------------


def mixture_of_experts(draw: Draw) -> NodeCase:
    tokens, experts, hidden, inner = (
        draw.size(least=1),
        draw.size(least=1, most=8),
        draw.size(least=1),
        draw.size(least=1),
    )
    kind = draw.pick("relu", "gelu", "silu", "identity", "swiglu")
    width, k = inner * 2 if kind == "swiglu" else inner, int(draw.random.integers(1, experts + 1))
    inputs = [
        draw.floats((tokens, hidden)),
        draw.floats((tokens, experts)),
        draw.floats((experts, width, hidden)),
        draw.optional(draw.floats((experts, width))),
        draw.floats((experts, hidden, inner)),
        draw.optional(draw.floats((experts, hidden))),
    ]
    attributes: dict[str, Any] = {"k": k, "normalize_routing_weights": draw.pick(0, 1), "activation_type": kind}
    if kind == "swiglu":
        attributes |= {"swiglu_fusion": 1, "swiglu_limit": 1.5, "activation_alpha": 1.7, "activation_beta": 1.0}
    return NodeCase(inputs, attributes, tolerance=1e-3)


def quantized_mixture_of_experts(draw: Draw) -> NodeCase:
    """State the mixture in float64: onnxruntime normalizes the weights of experts whatever the attribute says."""
    tokens, experts, bits, block = draw.size(least=1), draw.size(least=1, most=8), draw.pick(4, 8), draw.pick(0, 16)
    hidden, inner = 16 * draw.size(least=1, most=2), 16 * draw.size(least=1, most=2)
    k, normalize = int(draw.random.integers(1, experts + 1)), draw.pick(0, 1)

    def layer(rows: int, columns: int) -> tuple[Array, Array, Array]:
        codes = draw.ints((experts, rows, columns), np.uint8, 0, 2**bits - 1)
        scales = draw.floats((experts, rows, columns // block if block else 1), low=0.001, high=0.01)
        weights = (codes - 2.0 ** (bits - 1)) * np.repeat(scales, block or columns, -1)
        return pack(codes, bits), scales if block else scales[..., 0], weights

    first, second = layer(inner, hidden), layer(hidden, inner)
    x, router = draw.floats((tokens, hidden)), draw.floats((tokens, experts))
    chances = _softmax(router.astype(np.float64))
    order = np.argsort(-chances, axis=1, kind="stable")[:, :k]
    shares = np.zeros_like(chances)
    np.put_along_axis(shares, order, np.take_along_axis(chances, order, 1), 1)
    shares = shares / shares.sum(1, keepdims=True) if normalize else shares
    value = np.maximum(np.einsum("tk,eik->tei", x.astype(np.float64), first[2]), 0)
    expected = np.einsum("te,tei,ehi->th", shares, value, second[2]).astype(np.float32)
    inputs = [x, router, first[0], first[1], None, second[0], second[1]]
    attributes = {"k": k, "normalize_routing_weights": normalize, "activation_type": "relu", "expert_weight_bits": bits}
    attributes |= {"block_size": block} if block else {}
    return NodeCase(inputs, attributes, expected=[expected], constants=(2, 3, 5, 6))


ATTENTION_GENERATORS: dict[str, Generator] = {
    "Attention": attention,
    "DecoderMaskedMultiHeadAttention": decoder_masked_multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "LinearAttention": linear_attention,
    "MRotaryEmbedding": multimodal_rotary_embedding,
    "MoE": mixture_of_experts,
    "MultiHeadAttention": multi_head_attention,
    "QAttention": quantized_attention,
    "QMoE": quantized_mixture_of_experts,
    "RotaryEmbedding": rotary_embedding,
}
