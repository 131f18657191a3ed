"""PagedAttention, against values that numpy computes in float64: onnxruntime has no kernel for the CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import Array, node_model, random_array

import weft
from weft.errors import WeftError

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
HEADS, SHARED, SIZE, BLOCK, BLOCKS = 4, 2, 16, 4, 12
COUNTS, PAST = [3, 1, 6, 1], [0, 5, 2, 9]
TABLE = np.array([[3, 0, 0], [7, 1, 0], [2, 9, 0], [4, 11, 6]], np.int32)
DEVICES = ["reference", "cpu", "webgpu:0"]


def _decode(cache: Array, scale: Array | None, bits: int) -> Array:
    """Convert a cache to float64."""
    if scale is None:
        return cache.astype(np.float64)
    if bits == 4:
        cache = np.stack([cache & 15, cache >> 4], -1).reshape(*cache.shape[:-1], -1).astype(np.int32) - 8
    return cache.astype(np.float64) * scale.astype(np.float64).reshape((1, 1) if scale.size == 1 else (SHARED, SIZE))


def _encode(rows: Array, scale: Array | None, bits: int, dtype: Any) -> Array:
    if scale is None:
        return rows.astype(dtype)
    steps = np.rint(rows.astype(np.float32) / scale.reshape((1, 1) if scale.size == 1 else (SHARED, SIZE)))
    if bits == 8:
        return np.clip(steps, -128, 127).astype(np.int8)
    codes = (np.clip(steps, -8, 7) + 8).astype(np.uint8)
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4)


def _rotate(x: Array, position: int, cosines: Array, sines: Array, offset: int, interleaved: int) -> Array:
    x, half = x.copy(), cosines.shape[1]
    part = x[..., offset : offset + 2 * half]
    first, second = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    cosine, sine = cosines[position].astype(np.float64), sines[position].astype(np.float64)
    first, second = first * cosine - second * sine, second * cosine + first * sine
    if interleaved:
        x[..., offset : offset + 2 * half : 2], x[..., offset + 1 : offset + 2 * half : 2] = first, second
    else:
        x[..., offset : offset + half], x[..., offset + half : offset + 2 * half] = first, second
    return x


def _attend(
    tokens: list[Array],
    caches: list[Array],
    *,
    table: Array = TABLE,
    slots: Array | None = None,
    rotation: tuple[Array, Array] | None = None,
    sink: Array | None = None,
    norms: tuple[Array, Array] | None = None,
    scales: tuple[Array | None, Array | None] = (None, None),
    bits: int = 8,
    latent: int = 0,
    shared: int = SHARED,
    **attributes: Any,
) -> list[Array]:
    """The result and the caches after it, token by token."""
    parts = [x.astype(np.float64).reshape(len(x), -1, SIZE) for x in tokens]
    q, k = parts[:2]
    if norms is not None:
        q, k = (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + attributes.get("qk_norm_epsilon", 1e-6)) * gain
            for x, gain in zip((q, k), norms)
        )
    caches = [cache.copy() for cache in caches]
    starts = np.cumsum([0, *COUNTS])
    positions = [past + n for past, count in zip(PAST, COUNTS) for n in range(count)]
    owners = [owner for owner, count in enumerate(COUNTS) for _ in range(count)]
    if rotation is not None:
        offset, interleaved = attributes.get("rotary_offset", 0), attributes.get("rotary_interleaved", 0)
        q, k = (
            np.stack([_rotate(row, p, *rotation, offset, interleaved) for row, p in zip(x, positions)]) for x in (q, k)
        )
    for number, (owner, position) in enumerate(zip(owners, positions)):
        slot = table[owner, position // BLOCK] * BLOCK + position % BLOCK if slots is None else slots[number]
        if slot >= 0:
            for cache, rows, scale in zip(caches, (k, *parts[2:]), scales):
                cache[slot // BLOCK, slot % BLOCK] = _encode(rows[number], scale, bits, cache.dtype)
    results = []
    for number, (owner, position) in enumerate(zip(owners, positions)):
        last = position if attributes.get("is_causal", 1) else PAST[owner] + COUNTS[owner] - 1
        window = attributes.get("local_window_size", -1)
        visible = range(max(0, position - window + 1) if window > 0 else 0, last + 1)
        rows = [(table[owner, p // BLOCK], p % BLOCK) for p in visible]
        keys = np.stack([_decode(caches[0][place], scales[0], bits) for place in rows])
        values = keys[..., :latent] if latent else np.stack([_decode(caches[1][p], scales[1], bits) for p in rows])
        heads = []
        for head in range(HEADS):
            group = head // (HEADS // shared)
            scores = keys[:, group] @ q[number, head] * attributes.get("scale", SIZE**-0.5)
            cap = attributes.get("softcap", 0.0)
            scores = np.tanh(scores / cap) * cap if cap else scores
            powers = np.exp(scores - scores.max())
            total = powers.sum() + (0 if sink is None else np.exp(float(sink[head]) - scores.max()))
            heads.append(powers @ values[:, group] / total)
        results.append(np.concatenate(heads))
    assert starts[-1] == len(results)
    return [np.stack(results), *caches]


def _check(
    inputs: list[Any], expected: list[Array], device: str, atol: float = 6e-3, outputs: int = 3, **attributes: Any
) -> None:
    for symbolic in (False, True):
        model = node_model(
            "PagedAttention", inputs, outputs=outputs, symbolic=symbolic, num_heads=HEADS, **attributes, **MICROSOFT
        )
        loaded = weft.load(model, device=device)
        results = list(loaded.run({f"x{n}": x for n, x in enumerate(inputs) if x is not None}).values())
        np.testing.assert_allclose(results[0].astype(np.float64), expected[0], atol=atol, rtol=1e-2)
        for actual, reference in zip(results[1:], expected[1:], strict=True):
            assert actual.dtype == reference.dtype
            if actual.dtype.kind in "iu":
                assert (actual != reference).mean() < 0.01  # numbers between two codes may be rounded either way
            np.testing.assert_allclose(
                actual.astype(np.float64), reference.astype(np.float64), atol=17 if actual.dtype.kind in "iu" else 2e-3
            )


def _tokens(dtype: Any = np.float16) -> list[Array]:
    return [random_array(n, (sum(COUNTS), heads * SIZE), dtype) for n, heads in enumerate((HEADS, SHARED, SHARED))]


def _caches(dtype: Any = np.float16, width: int = SIZE, low: float = -3, high: float = 3) -> list[Array]:
    return [random_array(n, (BLOCKS, BLOCK, SHARED, width), dtype, low, high) for n in (3, 4)]


def _lengths() -> list[Array]:
    return [np.cumsum([0, *COUNTS]).astype(np.int32), np.array(PAST, np.int32), TABLE]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"packed": True},
        {"rotary": SIZE // 2, "rotary_interleaved": 1},
        {"rotary": 4, "rotary_offset": 8},
        {"norms": True, "rotary": SIZE // 2, "qk_norm_epsilon": 1e-3},
        {"local_window_size": 3, "softcap": 2.0, "scale": 0.7},
        {"is_causal": 0, "local_window_size": 4},
        {"sink": True, "slots": True},
    ],
)
def test_paged_attention(attributes: dict[str, Any], device: str) -> None:
    attributes = dict(attributes)
    tokens, caches = _tokens(), _caches()
    half = attributes.pop("rotary", 0)
    rotation = tuple(random_array(n, (20, half), np.float16, -1, 1) for n in (5, 6)) if half else None
    sink = random_array(7, (HEADS,), np.float16) if attributes.pop("sink", False) else None
    norms = None
    if attributes.pop("norms", False):
        norms = random_array(8, (SIZE,), np.float16, 0.5, 1), random_array(9, (SIZE,), np.float16, 0.5, 1)
    slots = None
    if attributes.pop("slots", False):  # one token keeps what is in the cache, one goes to a block of its own
        slots = np.array([12, -1, 14, 5, 10, 11, 36, 37, 38, 39, 40], np.int32)
    packed = attributes.pop("packed", False)
    arguments = [np.concatenate(tokens, 1), None, None] if packed else tokens
    inputs = [*arguments, *caches, *_lengths(), *(rotation or (None, None)), slots, sink, *(norms or (None, None))]
    expected = _attend(tokens, caches, slots=slots, rotation=rotation, sink=sink, norms=norms, **attributes)
    _check(inputs, expected, device, kv_num_heads=SHARED, do_rotary=int(half > 0), **attributes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_paged_attention_with_quantized_caches(bits: int, kind: str, device: str) -> None:
    tokens = _tokens()
    caches = _caches(np.uint8, SIZE // 2, 0, 255) if bits == 4 else _caches(np.int8, SIZE, -100, 100)
    shape = (1,) if kind == "PER_TENSOR" else (SHARED, 1, SIZE)
    step = 0.4 if bits == 4 else 0.03
    scales = random_array(5, shape, low=step, high=2 * step), random_array(6, shape, low=step, high=2 * step)
    expected = _attend(tokens, caches, scales=scales, bits=bits)
    inputs = [*tokens, *caches, *_lengths(), *[None] * 6, *scales, np.array([8, 16], np.int32)]
    attributes = {"k_quant_type": kind, "v_quant_type": kind, "kv_num_heads": SHARED}
    attributes |= {"k_cache_dtype": "int4", "v_cache_dtype": "int4"} if bits == 4 else {}
    _check(inputs, expected, device, atol=1e-2, **attributes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_paged_attention_with_a_latent_cache(dtype: Any, device: str) -> None:
    query, key = (random_array(n, (sum(COUNTS), heads * SIZE), dtype) for n, heads in enumerate((HEADS, 1)))
    cache = random_array(3, (BLOCKS, BLOCK, 1, SIZE), dtype)
    attributes: dict[str, Any] = {"scale": 0.3, "v_head_size": 8, "kv_cache_layout": "LATENT", "kv_num_heads": 1}
    expected = _attend([query, key], [cache], latent=8, shared=1, scale=0.3)
    inputs = [query, key, None, cache, None, *_lengths()]
    _check(inputs, expected, device, outputs=2, atol=2e-2, **attributes)


def test_steps_have_the_bits_of_the_whole() -> None:
    """One sequence as a whole, in chunks, and beside others."""
    total, rng = 40, np.random.default_rng(0)
    tokens = [random_array(n, (total, heads * SIZE), np.float16) for n, heads in enumerate((HEADS, SHARED, SHARED))]
    tables = rng.permutation(30).reshape(3, 10).astype(np.int32)
    pool = [np.zeros((30, BLOCK, SHARED, SIZE), np.float16)] * 2
    attributes = {"num_heads": HEADS, "kv_num_heads": SHARED}

    def lengths(counts: list[int], past: list[int]) -> list[Array]:
        return [np.cumsum([0, *counts]).astype(np.int32), np.array(past, np.int32), tables[: len(counts)]]

    whole = [*tokens, *pool, *lengths([total], [0])]
    model = weft.load(
        node_model("PagedAttention", whole, outputs=3, symbolic=True, **attributes, **MICROSOFT), device="cpu"
    )

    def run(inputs: list[Any]) -> list[Array]:
        return list(model.run({f"x{n}": x for n, x in enumerate(inputs)}).values())

    expected = run(whole)[0]
    caches, start, results = pool, 0, []
    for count in (7, 1, 1, 20, 1, 10):
        step = [x[start : start + count] for x in tokens]
        result, *caches = run([*step, *caches, *lengths([count], [start])])
        results.append(result)
        start += count
    np.testing.assert_array_equal(np.concatenate(results), expected)
    others = [random_array(n, (9, x.shape[1]), np.float16) for n, x in enumerate(tokens, 10)]
    batch = [np.concatenate([x, other]) for x, other in zip(tokens, others)]
    result, *_ = run([*batch, *pool, *lengths([total, 4, 5], [0, 3, 0])])
    np.testing.assert_array_equal(result[:total], expected)


def test_a_table_that_is_too_short_is_refused() -> None:
    inputs = [*_tokens(), *_caches(), *_lengths()]
    inputs[6] = np.array([0, 5, 2, 12], np.int32)
    model = node_model("PagedAttention", inputs, outputs=3, num_heads=HEADS, kv_num_heads=SHARED, **MICROSOFT)
    with pytest.raises(WeftError, match=r"out of range|block_table"):
        weft.load(model).run({f"x{n}": x for n, x in enumerate(inputs)})
