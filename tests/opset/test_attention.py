"""Attention and its relatives, against a plain numpy statement of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

Array = np.ndarray[Any, Any]


def attend(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array | bool = True,
    bias: Array | float = 0.0,
    softcap: float = 0.0,
    scale: float | None = None,
) -> Array:
    """Attention of [batch, heads, sequence, size] in float64; a query that may see nothing gives zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    scores = np.where(allowed, scores + bias, -np.inf)
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return (powers / np.where(total == 0, 1, total) @ v).astype(np.float32)


def qkv(queries: int = 4, keys: int = 6, heads: int = 4, shared: int = 2) -> tuple[Array, Array, Array]:
    return (
        random_array(1, (2, heads, queries, 8)),
        random_array(2, (2, shared, keys, 8)),
        random_array(3, (2, shared, keys, 5)),
    )


def merge(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def compare(inputs: list[Array | None], reference: list[Array | None], opset: int = 23, **options: Any) -> None:
    check("Attention", inputs, opset=opset, expected=reference, outputs=len(reference), rtol=1e-4, atol=1e-5, **options)


@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_heads(shared: int, scale: float | None, softcap: float) -> None:
    q, k, v = qkv(shared=shared)
    reference = attend(q, k, v, softcap=softcap, scale=scale)
    options: dict[str, Any] = {"softcap": softcap} | ({} if scale is None else {"scale": scale})
    compare([q, k, v], [reference], **options)
    packed = [merge(x) for x in (q, k, v)]
    compare([*packed], [merge(reference)], q_num_heads=4, kv_num_heads=shared, **options)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (1, 6), (4, 4, 6), (2, 1, 4, 6), (2, 4, 4, 6)], ids=str)
@pytest.mark.parametrize("dtype", [np.bool_, np.float32], ids=lambda d: d.__name__)
def test_masks(shape: tuple[int, ...], dtype: Any) -> None:
    q, k, v = qkv()
    mask = random_array(4, shape, dtype)
    reference = attend(q, k, v, mask) if dtype == np.bool_ else attend(q, k, v, bias=mask)
    compare([q, k, v, mask], [reference])


@pytest.mark.parametrize("dtype", [np.bool_, np.float32], ids=lambda d: d.__name__)
def test_short_mask_hides_the_rest(dtype: Any) -> None:
    q, k, v = qkv()
    mask = np.ones((4, 3), dtype)
    compare([q, k, v, mask], [attend(q, k, v, np.arange(6) < 3)], opset=24)


def test_causal_with_a_past() -> None:
    q, k, v = qkv(queries=3, keys=3)
    past_key, past_value = random_array(5, (2, 2, 4, 8)), random_array(6, (2, 2, 4, 5))
    key, value = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    allowed = np.arange(7) <= np.arange(3)[:, None] + 4
    compare([q, k, v, None, past_key, past_value], [attend(q, key, value, allowed), key, value], is_causal=1)


def test_padded_keys() -> None:
    q, k, v = qkv()
    lengths = np.array([6, 3], np.int64)
    keys = np.arange(6)
    padded = keys < lengths.reshape(2, 1, 1, 1)
    inputs = [q, k, v, None, None, None, lengths]
    compare(inputs, [attend(q, k, v, padded)], opset=24)
    offset = lengths.reshape(2, 1, 1, 1) - 4
    causal = padded & (keys <= np.arange(4)[:, None] + offset)
    assert not causal[1, 0, 0].any()
    compare(inputs, [attend(q, k, v, causal)], opset=24, is_causal=1)


@pytest.mark.parametrize(("left", "right"), [(2, 1), (0, 0), (-1, 1), (1, -1)])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(left: int, right: int, causal: int) -> None:
    q, k, v = qkv()
    query, key = np.arange(4)[:, None], np.arange(6)
    allowed = np.ones((4, 6), bool)
    allowed &= key >= query - left if left >= 0 else True
    allowed &= key <= query + right if right >= 0 else True
    allowed &= key <= query if causal else True
    options = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    compare([q, k, v], [attend(q, k, v, allowed)], opset=25, **options)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_shown_scores(mode: int) -> None:
    q, k, v = qkv(shared=4)
    bias = random_array(4, (4, 6))
    raw = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(8))
    capped = np.tanh(raw / 1.5) * np.float32(1.5)
    powers = np.exp(capped + bias)
    shown = [raw, capped, capped + bias, powers / powers.sum(-1, keepdims=True)][mode]
    options: dict[str, Any] = {"softcap": 1.5, "qk_matmul_output_mode": mode}
    compare([q, k, v, bias], [attend(q, k, v, bias=bias, softcap=1.5), k, v, shown], **options)


def test_narrow_floats_keep_their_type() -> None:
    q, k, v = (x.astype(np.float16) for x in qkv())
    reference = attend(q, k, v).astype(np.float16)
    check("Attention", [q, k, v], opset=23, expected=[reference], rtol=1e-2, atol=1e-3, softmax_precision=1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(interleaved: int, rotated: int, packed: bool, positions: bool) -> None:
    x = random_array(1, (2, 3, 5, 8))
    size = rotated or 8
    angles = random_array(2, (50, size // 2))
    ids = np.random.default_rng(3).integers(0, 50, (2, 5))
    cosine, sine = np.cos(angles)[ids][:, None], np.sin(angles)[ids][:, None]
    first, second = (
        (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(0, size // 2), slice(size // 2, size))
    )
    reference = x.copy()
    reference[..., first] = cosine * x[..., first] - sine * x[..., second]
    reference[..., second] = sine * x[..., first] + cosine * x[..., second]
    caches = [np.cos(angles), np.sin(angles), ids] if positions else [cosine[:, 0], sine[:, 0]]
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": rotated}
    if packed:
        x, reference, options = merge(x), merge(reference), {**options, "num_heads": 3}
    check("RotaryEmbedding", [x, *caches], opset=23, expected=[reference], rtol=1e-4, atol=1e-5, **options)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("per_depth", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, per_depth: bool, past: bool) -> None:
    batch, length, heads, shared, depth, width = 2, 5, 4, 2, 3, 6
    q, k = random_array(1, (batch, length, heads * depth)), random_array(2, (batch, length, shared * depth))
    v = random_array(3, (batch, length, shared * width))
    decay = random_array(4, (batch, length, shared * (depth if per_depth else 1)), low=-1, high=0)
    beta = random_array(5, (batch, length, shared if per_depth else 1), low=0, high=1)
    start = random_array(6, (batch, shared, depth, width))
    state = start.astype(np.float64) if past else np.zeros(start.shape)
    outputs = []
    for t in range(length):
        key, value = k[:, t].reshape(batch, shared, depth), v[:, t].reshape(batch, shared, width)
        if rule.startswith("gated"):
            state = state * np.exp(decay[:, t].reshape(batch, shared, -1))[..., None]
        if rule.endswith("delta"):
            value = (value - np.einsum("bhij,bhi->bhj", state, key)) * beta[:, t][..., None]
        state = state + key[..., None] * value[..., None, :]
        query = q[:, t].reshape(batch, shared, heads // shared, depth)
        outputs.append(np.einsum("bhgi,bhij->bhgj", query, state).reshape(batch, -1) * depth**-0.5)
    reference = [np.stack(outputs, 1).astype(np.float32), state.astype(np.float32)]
    inputs = [q, k, v, start if past else None]
    inputs += [decay if rule.startswith("gated") else None, beta if rule.endswith("delta") else None]
    while inputs[-1] is None:
        inputs.pop()
    options: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": shared, "update_rule": rule}
    check("LinearAttention", inputs, opset=27, outputs=2, expected=reference, rtol=1e-4, atol=1e-4, **options)


@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(length: int, past: bool, activation: str) -> None:
    x, w, bias = random_array(1, (2, 3, length)), random_array(2, (3, 1, 4)), random_array(3, (3,))
    state = random_array(4, (2, 3, 3)) if past else np.zeros((2, 3, 3), np.float32)
    whole = np.concatenate([state, x], 2)
    y = np.stack([(whole[:, :, t : t + 4] * w[:, 0]).sum(-1) for t in range(length)], -1) + bias[:, None]
    y = y / (1 + np.exp(-y)) if activation == "silu" else y
    inputs = [x, w, bias, *([state] if past else [])]
    reference = [y, whole[:, :, -3:]]
    check(
        "CausalConvWithState",
        inputs,
        opset=27,
        outputs=2,
        expected=reference,
        rtol=1e-4,
        atol=1e-5,
        activation=activation,
    )


@pytest.mark.parametrize(
    "attributes", [{"qk_matmul_output_mode": 7}, {"q_num_heads": 0}, {"softmax_precision": 8}], ids=str
)
def test_rejects(attributes: dict[str, Any]) -> None:
    inputs = [merge(x) for x in qkv()]
    heads = {"q_num_heads": 4, "kv_num_heads": 2, **attributes}
    with pytest.raises(WeftError):
        run_weft(node_model("Attention", inputs, opset=23, **heads), inputs)
