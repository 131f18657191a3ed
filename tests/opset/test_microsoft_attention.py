"""Attention ops of onnxruntime's domain, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime, run_weft

import weft
from weft.errors import UnsupportedModelError, WeftError

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
BATCH, LENGTH, HEADS, SIZE, PAST = 2, 5, 3, 4, 3
HIDDEN = HEADS * SIZE


def ints(*rows: Any) -> Any:
    return np.array(rows, np.int32)


MASKS = {
    "none": None,
    "keys": ints([1, 1, 1, 0, 0], [1, 1, 1, 1, 1]),
    "left": ints([0, 0, 1, 1, 1], [0, 1, 1, 1, 1]),
    "pairs": np.tril(np.ones((BATCH, LENGTH, LENGTH), np.int32)),
    "ends": ints(3, 5),
    "bounds": ints(4, 5, 1, 0),
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_attention(mask: str, causal: int, bias: bool) -> None:
    inputs = [
        random_array(0, (BATCH, LENGTH, 7)),
        random_array(1, (7, 3 * HIDDEN), low=-1, high=1),
        random_array(2, (3 * HIDDEN,)),
        MASKS[mask],
        None,
        random_array(3, (1, HEADS, LENGTH, LENGTH)) if bias else None,
    ]
    check("Attention", inputs, num_heads=HEADS, unidirectional=causal, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_with_past(causal: int, mask: bool) -> None:
    total = LENGTH + PAST
    inputs = [
        random_array(0, (BATCH, LENGTH, 7)),
        random_array(1, (7, 3 * HIDDEN), low=-1, high=1),
        random_array(2, (3 * HIDDEN,)),
        ints(*([1] * (total - n) + [0] * n for n in (2, 0))) if mask else None,
        random_array(3, (2, BATCH, HEADS, PAST, SIZE)),
    ]
    check("Attention", inputs, outputs=2, num_heads=HEADS, unidirectional=causal, scale=0.3, **CLOSE, **MICROSOFT)


def test_attention_with_a_buffer() -> None:
    past = random_array(3, (2, BATCH, HEADS, PAST, SIZE))
    buffer = np.concatenate([past, np.zeros((2, BATCH, HEADS, 6, SIZE), np.float32)], 3)
    inputs = [
        random_array(0, (BATCH, LENGTH, 7)),
        random_array(1, (7, 3 * HIDDEN), low=-1, high=1),
        random_array(2, (3 * HIDDEN,)),
        None,
        past,
    ]
    attributes = {"num_heads": HEADS, "unidirectional": 1}
    reference, present = run_onnxruntime(node_model("Attention", inputs, outputs=2, **attributes, **MICROSOFT), inputs)
    grown = buffer.copy()
    grown[..., : PAST + LENGTH, :] = present
    shared = [*inputs[:4], buffer, None, np.array([PAST], np.int32)]
    attributes["past_present_share_buffer"] = 1
    check("Attention", shared, expected=[reference, grown], outputs=2, **attributes, **CLOSE, **MICROSOFT)


def test_attention_with_narrow_values() -> None:
    inputs = [
        random_array(0, (BATCH, LENGTH, 7)),
        random_array(1, (7, 2 * HIDDEN + 6)),
        random_array(2, (2 * HIDDEN + 6,)),
    ]
    check("Attention", inputs, num_heads=HEADS, qkv_hidden_sizes=[HIDDEN, HIDDEN, 6], **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("value_size", [2, 6])
def test_attention_has_no_present_of_keys_and_values_of_different_sizes(value_size: int) -> None:
    """The schema gives `present` one head size; what onnxruntime writes there overlaps."""
    sizes = [HIDDEN, HIDDEN, HEADS * value_size]
    inputs = [random_array(0, (BATCH, LENGTH, 7)), random_array(1, (7, sum(sizes))), random_array(2, (sum(sizes),))]
    attributes = {"num_heads": HEADS, "qkv_hidden_sizes": sizes}
    for symbolic in (False, True):
        model = node_model("Attention", inputs, outputs=2, symbolic=symbolic, **attributes, **MICROSOFT)
        with pytest.raises(UnsupportedModelError, match="present"):
            run_weft(model, inputs)


@pytest.mark.parametrize("value_size", [2, 6])
@pytest.mark.parametrize("past", [False, True])
def test_multi_head_attention_with_values_of_another_size(value_size: int, past: bool) -> None:
    inputs = [random_array(n, (BATCH, LENGTH, HIDDEN)) for n in (0, 1)]
    inputs.append(random_array(2, (BATCH, LENGTH, HEADS * value_size)))
    if not past:
        check("MultiHeadAttention", inputs, outputs=3, num_heads=HEADS, **CLOSE, **MICROSOFT)
        return
    caches = [random_array(3, (BATCH, HEADS, PAST, SIZE)), random_array(4, (BATCH, HEADS, PAST, value_size))]

    def heads(x: Any) -> Any:
        return x.reshape(BATCH, -1, HEADS, x.shape[2] // HEADS).transpose(0, 2, 1, 3)

    # onnxruntime refuses such a past
    key, value = (np.concatenate([c, heads(x)], 2).astype(np.float64) for c, x in zip(caches, inputs[1:]))
    powers = np.exp(heads(inputs[0]).astype(np.float64) @ key.swapaxes(2, 3) / SIZE**0.5)
    result = (powers / powers.sum(-1, keepdims=True)) @ value
    result = result.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, -1)
    expected = [part.astype(np.float32) for part in (result, key, value)]
    inputs = [*inputs, None, None, None, *caches]
    check("MultiHeadAttention", inputs, expected=expected, outputs=3, num_heads=HEADS, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("weight_type", [np.int8, np.uint8])
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_quantized_attention(weight_type: Any, extras: bool, causal: int) -> None:
    low, high = (0, 255) if weight_type == np.uint8 else (-128, 127)
    x = random_array(0, (BATCH, LENGTH, 8), np.uint8, 0, 255)
    w = random_array(1, (8, 3 * HIDDEN), weight_type, low, high)
    steps = [np.array(0.01, np.float32), np.array(0.005, np.float32)]
    zeros = [np.array(120, np.uint8), np.array(3, weight_type)] if extras else [None, None]
    past = random_array(4, (2, BATCH, HEADS, PAST, SIZE)) if extras else None
    mask = ints(3, 5) if not extras else None
    inputs = [x, w, random_array(2, (3 * HIDDEN,)), *steps, mask, *zeros, past]
    outputs = 2 if extras else 1
    check("QAttention", inputs, outputs=outputs, num_heads=HEADS, unidirectional=causal, **CLOSE, **MICROSOFT)


def test_packed_attention() -> None:
    lengths, length = [2, 4], 4
    x = random_array(0, (6, 7))
    weights, bias = random_array(1, (7, 3 * HIDDEN), low=-1, high=1), random_array(2, (3 * HIDDEN,))
    offsets = ints([0, 1, 4, 5], [6, 7, 2, 3])
    whole = np.zeros((2, length, 7), np.float32)
    whole.reshape(8, 7)[offsets.reshape(-1)[:6]] = x
    inputs = [whole, weights, bias, ints(*lengths)]
    model = node_model("Attention", inputs, num_heads=HEADS, **MICROSOFT)
    expected = run_onnxruntime(model, inputs)[0].reshape(8, -1)[offsets.reshape(-1)[:6]]
    check(
        "PackedAttention",
        [x, weights, bias, offsets, ints(0, 2, 6)],
        expected=[expected],
        num_heads=HEADS,
        **CLOSE,
        **MICROSOFT,
    )


@pytest.mark.parametrize("mask", ["none", "keys", "pairs", "ends"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scores", [None, (BATCH, HEADS), (1, HEADS), (BATCH, 1)])
def test_multi_head_attention(mask: str, causal: int, bias: bool, scores: Any) -> None:
    inputs = [
        *(random_array(n, (BATCH, LENGTH, HIDDEN)) for n in range(3)),
        random_array(3, (3 * HIDDEN,)) if bias else None,
        MASKS[mask],
        None if scores is None else random_array(4, (*scores, LENGTH, LENGTH)),
    ]
    check("MultiHeadAttention", inputs, num_heads=HEADS, unidirectional=causal, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["cross", "wide values", "heads", "packed kv", "packed qkv"])
def test_multi_head_attention_forms(form: str, bias: bool) -> None:
    keys, values = 7, HEADS * 6 if form == "wide values" else HIDDEN
    query: Any = random_array(0, (BATCH, LENGTH, HIDDEN))
    key: Any = random_array(1, (BATCH, keys, HIDDEN))
    value: Any = random_array(2, (BATCH, keys, values))
    expected = None
    if form == "heads":
        key, value = random_array(1, (BATCH, HEADS, keys, SIZE)), random_array(2, (BATCH, HEADS, keys, SIZE))
    inputs = [query, key, value, random_array(3, (2 * HIDDEN + values,)) if bias else None]
    if form.startswith("packed"):
        count = 2 if form == "packed kv" else 3
        packed = random_array(4, (BATCH, LENGTH, HEADS, count, SIZE))
        parts = [packed[..., n, :].reshape(BATCH, LENGTH, HIDDEN) for n in range(count)]
        plain = [*([query] if count == 2 else []), *parts, inputs[3]]
        expected = run_onnxruntime(node_model("MultiHeadAttention", plain, num_heads=HEADS, **MICROSOFT), plain)
        inputs = [query, packed, None, inputs[3]] if count == 2 else [packed, None, None, inputs[3]]
    check("MultiHeadAttention", inputs, expected=expected, num_heads=HEADS, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_multi_head_attention_with_past(causal: int, mask: bool) -> None:
    past = [random_array(n, (BATCH, HEADS, PAST, SIZE)) for n in (4, 5)]
    total = LENGTH + PAST
    padding = ints(*([1] * (total - n) + [0] * n for n in (2, 0))) if mask else None
    inputs = [*(random_array(n, (BATCH, LENGTH, HIDDEN)) for n in range(3)), None, padding, None, *past]
    check("MultiHeadAttention", inputs, outputs=3, num_heads=HEADS, unidirectional=causal, **CLOSE, **MICROSOFT)


def test_multi_head_attention_gives_its_scores() -> None:
    inputs = [*(random_array(n, (BATCH, LENGTH, HIDDEN)) for n in range(3)), None, ints(3, 5)]
    query, key, _ = (x.reshape(BATCH, LENGTH, HEADS, SIZE).transpose(0, 2, 1, 3) for x in inputs[:3])
    scores = query.astype(np.float64) @ key.transpose(0, 1, 3, 2) / np.sqrt(SIZE)
    scores = np.where(np.arange(LENGTH) < inputs[4][:, None, None, None], scores, scores - 10000)
    expected = [None, None, None, scores.astype(np.float32)]
    check("MultiHeadAttention", inputs, expected=expected, outputs=4, num_heads=HEADS, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("form", ["cross", "self", "packed", "buffer", "beams"])
def test_decoder_attention(form: str, mask: bool) -> None:
    room = 8
    query = random_array(0, (4, 1, HIDDEN))
    past = [random_array(n, (4, HEADS, room if form in ("buffer", "beams") else PAST, SIZE)) for n in (3, 4)]
    keys = 7 if form == "cross" else PAST + 1
    padding = ints(*([1] * (keys - n) + [0] * n for n in (1, 0, 2, 0))) if mask else None
    attributes: dict[str, Any] = {"num_heads": HEADS}
    outputs = 1 if form == "cross" else 3
    if form == "cross":
        cached = [random_array(n, (4, HEADS, keys, SIZE)) for n in (1, 2)]
        inputs = [query, *cached, padding]
    elif form == "packed":
        inputs = [random_array(0, (4, 1, 3 * HIDDEN)), None, None, padding, None, *past]
    else:
        new = [random_array(n, (4, 1, HIDDEN)) for n in (1, 2)]
        inputs = [query, *new, padding, None, *past]
    if form in ("buffer", "beams"):
        attributes["past_present_share_buffer"] = 1
        inputs = [*inputs, ints(PAST)]
    if form == "beams":
        origin = np.random.default_rng(0).integers(0, 2, (2, 2, room)).astype(np.int32)
        inputs = [*inputs, ints(2), origin]
    expected = None
    if form in ("self", "packed"):  # onnxruntime's CPU has them only with a buffer
        parts = np.split(inputs[0], 3, -1) if form == "packed" else inputs[:3]
        plain = [*parts, None, padding, None, *past]
        model = node_model("MultiHeadAttention", plain, outputs=3, num_heads=HEADS, **MICROSOFT)
        expected = run_onnxruntime(model, plain)
    op = "DecoderMaskedMultiHeadAttention"
    check(op, inputs, expected=expected, outputs=outputs, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("form", ["mask", "bias", "beams", "concatenated"])
def test_decoder_self_attention(form: str) -> None:
    """The same as DecoderMaskedMultiHeadAttention of projections, with keys in chunks of 16 bytes in the buffer."""
    batch, heads, size, room, length = 2, 3, 8, 7, 4
    hidden = heads * size
    x, weights, bias = (
        random_array(0, (batch, 1, 12)),
        random_array(1, (12, 3 * hidden)),
        random_array(2, (3 * hidden,)),
    )
    room = length if form == "concatenated" else room
    past = random_array(3, (2, batch, heads, room, size))
    mask = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], np.int32) if form == "mask" else None
    scores = random_array(4, (1, heads, 1, length + 1)) if form == "bias" else None
    beams = [None, None]
    if form == "beams":
        beams = [np.array([2], np.int32), random_array(5, (1, 2, room), np.int32, 0, 1)]
    lengths = np.array([length], np.int32)
    shared = {"num_heads": heads, "past_present_share_buffer": int(form != "concatenated")}
    projected = np.split((x @ weights + bias).astype(np.float32), 3, -1)
    plain = [*projected, mask, scores, *past, lengths, *beams]
    model = node_model("DecoderMaskedMultiHeadAttention", plain, outputs=3, **shared, **MICROSOFT)
    if form == "concatenated":  # for which it has no kernel
        plain = [*projected, None, None, None, *past]
        model = node_model("MultiHeadAttention", plain, outputs=3, num_heads=heads, **MICROSOFT)
    result, *caches = run_onnxruntime(model, plain)
    present = np.stack(caches)
    if form != "concatenated":
        for cache in (past, present):
            cache[0] = cache[0].reshape(batch, heads, room, 2, 4).transpose(0, 1, 3, 2, 4).reshape(cache[0].shape)
    inputs = [x, weights, bias, mask, past, scores, lengths, *beams]
    check("DecoderMaskedSelfAttention", inputs, expected=[result, present], outputs=2, **shared, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(interleaved: int, rank: int, partial: bool, offset: bool) -> None:
    size, rotated = 8, 4 if partial else 8
    x = random_array(0, (BATCH, LENGTH, HEADS * size) if rank == 3 else (BATCH, HEADS, LENGTH, size))
    positions = np.random.default_rng(1).integers(0, 10, (BATCH, LENGTH)).astype(np.int64)
    caches = [random_array(n, (20, rotated // 2), low=-1, high=1) for n in (1, 2)]
    inputs = [x, np.array([3], np.int64) if offset else positions, *caches]
    attributes = {"rotary_embedding_dim": rotated, "num_heads": HEADS} if partial else {}
    check("RotaryEmbedding", inputs, interleaved=interleaved, constants=[2, 3], **attributes, **CLOSE, **MICROSOFT)


def test_rotary_embedding_of_heads_that_only_the_caches_tell() -> None:
    inputs = [random_array(0, (BATCH, LENGTH, 24)), np.array([3], np.int64)]
    inputs += [random_array(n, (20, 4), low=-1, high=1) for n in (1, 2)]
    check("RotaryEmbedding", inputs, **CLOSE, **MICROSOFT)


def test_gemma_rotary_embedding() -> None:
    angles = random_array(0, (BATCH, LENGTH, SIZE))
    q, q_rotated, k, k_rotated = (random_array(n, (BATCH, HEADS, LENGTH, SIZE), np.float16) for n in range(1, 5))
    cosine, sine = (f(angles)[:, None].astype(np.float16).astype(np.float64) for f in (np.cos, np.sin))
    expected = [(x * cosine + r * sine).astype(np.float16) for x, r in ((q, q_rotated), (k, k_rotated))]
    inputs = [angles, q, q_rotated, k, k_rotated]
    check("GemmaRotaryEmbedding", inputs, expected=expected, outputs=2, atol=5e-3, **MICROSOFT)


def test_padding_removed_and_restored() -> None:
    x, counts = random_array(0, (3, 4, 5)), ints(2, 4, 1)
    real = np.arange(4) < counts[:, None]
    offsets = np.concatenate([np.nonzero(real.reshape(-1))[0], np.nonzero(~real.reshape(-1))[0]])
    offsets = offsets.astype(np.int32).reshape(3, 4)
    packed = x[real]
    expected = [packed, offsets, ints(0, 2, 6, 7), ints(4)]
    check("RemovePadding", [x, counts], expected=expected, outputs=4, **MICROSOFT)
    check("RestorePadding", [packed, offsets], expected=[np.where(real[..., None], x, 0)], **MICROSOFT)


KEY_HEADS, QUERY_HEADS, WIDTH = 2, 4, 16


def grouped_inputs(queries: int, lasts: list[int], total: int, room: int | None, packed: bool = False) -> list[Any]:
    batch = len(lasts)
    query = random_array(0, (batch, queries, QUERY_HEADS * WIDTH))
    key, value = (random_array(n, (batch, queries, KEY_HEADS * WIDTH)) for n in (1, 2))
    past = [None, None] if room is None else [random_array(n, (batch, KEY_HEADS, room, WIDTH)) for n in (3, 4)]
    arguments = [np.concatenate([query, key, value], -1), None, None] if packed else [query, key, value]
    return [*arguments, *past, np.array(lasts, np.int32), np.array(total, np.int32)]


PROMPT = (5, [4, 4], 5, None)
PADDED_PROMPT = (5, [2, 4], 5, None)
TOKEN = (1, [5, 5], 6, 5)
UNEVEN_TOKEN = (1, [2, 5], 6, 5)
BUFFER = (1, [2, 5], 6, 9)
CHUNK = (3, [6], 7, 4)
PROMPT_IN_BUFFER = (5, [4, 2], 5, 9)
FIRST_TOKEN = (1, [0, 0], 1, None)
CHUNK_IN_BUFFER = (3, [6], 7, 9)


@pytest.mark.parametrize("case", [PROMPT, PADDED_PROMPT, TOKEN, UNEVEN_TOKEN, BUFFER, CHUNK, CHUNK_IN_BUFFER])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"packed": True},
        {"rotary": True},
        {"rotary": True, "rotary_interleaved": 1, "packed": True},
        {"local_window_size": 2},
        {"softcap": 2.0, "scale": 0.7},
        {"smooth_softmax": 1},
        {"sink": True},
        {"bias": True},
        {"bias": True, "softcap": 1.5},
    ],
)
def test_group_query_attention(case: Any, attributes: dict[str, Any]) -> None:
    attributes = dict(attributes)
    queries, lasts, total, _ = case
    inputs = grouped_inputs(*case, packed=attributes.pop("packed", False))
    rotary = attributes.pop("rotary", False)
    caches = [random_array(n, (12, WIDTH // 2), low=-1, high=1) for n in (5, 6)] if rotary else [None, None]
    bias = random_array(7, (1, QUERY_HEADS, queries, total)) if attributes.pop("bias", False) else None
    sink = random_array(8, (QUERY_HEADS,)) if attributes.pop("sink", False) else None
    inputs = [*inputs, *caches, None, bias, sink]
    attributes.update(num_heads=QUERY_HEADS, kv_num_heads=KEY_HEADS, do_rotary=int(rotary))
    _check_grouped(inputs, lasts, **attributes)


def _check_grouped(inputs: list[Any], lasts: list[int], **attributes: Any) -> None:
    """Compare the results of tokens, and the whole present, with onnxruntime; the results of padding are undefined."""
    queries, total = inputs[0].shape[1], int(inputs[6])
    reference = _run_grouped_in_onnxruntime(inputs, **attributes)
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        results = run_weft(model, inputs)
        for actual, expected in zip(results, reference, strict=True):
            assert actual.shape == expected.shape
        for row, last in enumerate(lasts):
            first = 0 if queries == total else last + 1 - queries
            real = last + 1 - first
            np.testing.assert_allclose(results[0][row, :real], reference[0][row, :real], **CLOSE)
        for actual, expected in zip(results[1:], reference[1:]):
            np.testing.assert_allclose(actual, expected, **CLOSE)


def _run_grouped_in_onnxruntime(inputs: list[Any], **attributes: Any) -> list[Any]:
    """Run onnxruntime, with one buffer for past and present where the past has room, as the schema asks for."""
    model = node_model("GroupQueryAttention", inputs, outputs=3, **attributes, **MICROSOFT)
    if inputs[3] is None or inputs[3].shape[2] < inputs[6]:
        return run_onnxruntime(model, inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in enumerate(inputs) if x is not None}
    for number, value in values.items():
        binding.bind_ortvalue_input(f"x{number}", value)
    binding.bind_output("y0")
    binding.bind_ortvalue_output("y1", values[3])
    binding.bind_ortvalue_output("y2", values[4])
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]  # the buffers end with `values`


@pytest.mark.parametrize("case", [PROMPT, PROMPT_IN_BUFFER, FIRST_TOKEN, PADDED_PROMPT, TOKEN, BUFFER, CHUNK])
@pytest.mark.parametrize("bias", [False, True])
def test_group_query_attention_with_positions(case: Any, bias: bool) -> None:
    """In a first prompt only the first position counts, for all sequences, as the schema documents."""
    queries, lasts, total, _ = case
    inputs = grouped_inputs(*case)
    caches = [random_array(n, (16, WIDTH // 2), low=-1, high=1) for n in (5, 6)]
    positions = random_array(7, (len(lasts), queries), np.int64, 0, 10)
    positions[0, 0] = 3
    inputs = [*inputs, *caches, positions, random_array(8, (1, QUERY_HEADS, queries, total)) if bias else None]
    _check_grouped(inputs, lasts, num_heads=QUERY_HEADS, kv_num_heads=KEY_HEADS, do_rotary=1)


@pytest.mark.parametrize("positions", [[[3]], [[3], [4]], [3]])
def test_positions_of_another_shape_are_refused(positions: Any) -> None:
    caches = [random_array(n, (16, WIDTH // 2), low=-1, high=1) for n in (5, 6)]
    inputs = [*grouped_inputs(*PROMPT), *caches, np.array(positions, np.int64)]
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1}
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        with pytest.raises(WeftError, match="position_ids"):
            run_weft(model, inputs)


def test_a_past_that_is_too_short_is_refused() -> None:
    inputs = grouped_inputs(1, [2, 5], 6, 3)
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS}
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        with pytest.raises(WeftError, match="the past has a row"):
            run_weft(model, inputs)


@pytest.mark.parametrize("case", [BUFFER, PROMPT_IN_BUFFER])
@pytest.mark.parametrize("leftover", [np.nan, np.inf, 3.4e38])
def test_group_query_attention_ignores_what_is_behind_the_tokens(case: Any, leftover: float) -> None:
    """A buffer may be uninitialized memory."""
    inputs = grouped_inputs(*case)
    queries, lasts, total, _ = case
    for past in inputs[3:5]:
        for row, last in enumerate(lasts):
            past[row, :, 0 if queries == total else last :] = leftover
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS}
    reference = _run_grouped_in_onnxruntime(inputs, **attributes)
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        results = run_weft(model, inputs)
        for row, last in enumerate(lasts):
            real = last + 1 if queries == total else queries
            np.testing.assert_allclose(results[0][row, :real], reference[0][row, :real], **CLOSE)
            for actual, expected in zip(results[1:], reference[1:]):
                np.testing.assert_allclose(actual[row, :, : last + 1], expected[row, :, : last + 1], **CLOSE)


@pytest.mark.parametrize("mode", [1, 2])
def test_group_query_attention_gives_its_scores(mode: int) -> None:
    inputs = [*grouped_inputs(*TOKEN), *[None] * 5]
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "qk_output": mode}
    check("GroupQueryAttention", inputs, outputs=4, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("per_channel", [False, True])
def test_group_query_attention_with_an_8_bit_cache(per_channel: bool) -> None:
    inputs = grouped_inputs(*TOKEN)
    inputs[3:5] = [random_array(n, (2, KEY_HEADS, 5, WIDTH), np.int8, -100, 100) for n in (3, 4)]
    shape = (1, KEY_HEADS, 1, WIDTH) if per_channel else (1,)
    steps = [random_array(n, shape, low=0.02, high=0.04) for n in (5, 6)]
    kind = "PER_CHANNEL" if per_channel else "PER_TENSOR"
    attributes = {
        "num_heads": QUERY_HEADS,
        "kv_num_heads": KEY_HEADS,
        "k_quant_type": kind,
        "v_quant_type": kind,
        "kv_cache_bit_width": 8,
    }
    inputs = [*inputs, None, None, None, None, None, *steps]
    check("GroupQueryAttention", inputs, outputs=3, **attributes, atol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("outputs", [1, 2])
def test_group_query_attention_without_its_caches(outputs: int) -> None:
    inputs = grouped_inputs(*PROMPT)
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS}
    model = node_model("GroupQueryAttention", inputs, outputs=3, **attributes, **MICROSOFT)
    expected = run_onnxruntime(model, inputs)[:outputs]
    check("GroupQueryAttention", inputs, expected=expected, outputs=outputs, **attributes, **CLOSE, **MICROSOFT)


def test_group_query_attention_normalizes_heads() -> None:
    inputs = grouped_inputs(*PROMPT)
    gains = [random_array(n, (WIDTH,)) for n in (5, 6)]

    def normal(x: Any, gain: Any) -> Any:
        split = x.reshape(*x.shape[:2], -1, WIDTH).astype(np.float64)
        scaled = split / np.sqrt((split**2).mean(-1, keepdims=True) + 1e-6) * gain
        return scaled.reshape(x.shape).astype(np.float32)

    plain = [normal(inputs[0], gains[0]), normal(inputs[1], gains[1]), *inputs[2:]]
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS}
    expected = run_onnxruntime(node_model("GroupQueryAttention", plain, outputs=3, **attributes, **MICROSOFT), plain)
    inputs = [*inputs, *[None] * 7, *gains]
    check("GroupQueryAttention", inputs, expected=expected, outputs=3, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("case", [PROMPT, TOKEN, UNEVEN_TOKEN, BUFFER, CHUNK, CHUNK_IN_BUFFER])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_group_query_attention_with_quantized_caches(case: Any, bits: int, per_channel: bool) -> None:
    inputs = [*grouped_inputs(*case), *[None] * 5]
    dtype, width = (np.uint8, WIDTH // 2) if bits == 4 else (np.int8, WIDTH)
    low, high = (0, 255) if bits == 4 else (-100, 100)
    batch, room = len(case[1]), case[3] or 0
    inputs[3:5] = [random_array(n, (batch, KEY_HEADS, room, width), dtype, low, high) for n in (3, 4)]
    shape = (1, KEY_HEADS, 1, WIDTH) if per_channel else (1,)
    step = 0.4 if bits == 4 else 0.02
    inputs += [random_array(n, shape, low=step, high=2 * step) for n in (5, 6)]
    kind = "PER_CHANNEL" if per_channel else "PER_TENSOR"
    attributes = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    attributes |= {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS}
    reference = _run_grouped_in_onnxruntime(inputs, **attributes)
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        results = run_weft(model, inputs)
        np.testing.assert_allclose(results[0], reference[0], atol=2e-3, rtol=1e-3)
        for actual, expected in zip(results[1:], reference[1:]):
            np.testing.assert_array_equal(actual, expected)


def _count_resident(tokens: int, capacity: int, window: int) -> int:
    """The number of rows that the schema says a window's cache holds."""
    step = capacity - window + 1
    return tokens if tokens <= capacity else tokens - step * -(-(tokens - capacity) // step)


WINDOWS = [  # queries, last positions, tokens in all, capacity, window
    (5, [4, 4], 5, 8, 4),
    (1, [7, 7], 8, 8, 4),
    (1, [12, 9], 13, 8, 4),
    (1, [30, 2], 31, 6, 6),
    (3, [12], 13, 8, 4),
    (20, [19], 20, 6, 6),
    (9, [20], 21, 5, 3),
    (4, [9], 10, 4, 4),
]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize(
    "attributes", [{}, {"bias": True, "softcap": 2.0}, {"rotary": True, "sink": True}, {"bits": 8}]
)
def test_group_query_attention_with_a_window_of_a_cache(case: Any, attributes: dict[str, Any]) -> None:
    attributes = dict(attributes)
    queries, lasts, total, capacity, window = case
    inputs = grouped_inputs(queries, lasts, total, capacity)
    rotary, bits = attributes.pop("rotary", False), attributes.pop("bits", 0)
    caches = [random_array(n, (40, WIDTH // 2), low=-1, high=1) for n in (5, 6)] if rotary else [None, None]
    bias = random_array(7, (1, QUERY_HEADS, queries, total)) if attributes.pop("bias", False) else None
    sink = random_array(8, (QUERY_HEADS,)) if attributes.pop("sink", False) else None
    inputs = [*inputs, *caches, None, bias, sink]
    attributes.update(num_heads=QUERY_HEADS, kv_num_heads=KEY_HEADS, do_rotary=int(rotary))
    if bits:
        inputs[3:5] = [random_array(n, inputs[3].shape, np.int8, -100, 100) for n in (3, 4)]
        inputs += [np.array([0.03], np.float32)] * 2
        attributes.update(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8)
    attributes.update(local_window_size=window, sliding_window_cache=1)
    reference = _run_grouped_in_onnxruntime(inputs, **attributes)
    for symbolic in (False, True):
        model = node_model("GroupQueryAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        results = run_weft(model, inputs)
        np.testing.assert_allclose(results[0], reference[0], atol=2e-3 if bits else 2e-5, rtol=1e-4)
        for row, last in enumerate(lasts):
            count = _count_resident(last + 1, capacity, window)
            for actual, expected in zip(results[1:], reference[1:]):
                np.testing.assert_allclose(actual[row, :, :count], expected[row, :, :count], **CLOSE)


@pytest.mark.parametrize("chunks", [[1] * 40, [7, 13, 1, 19], [290, 1, 1, 7, 1, 200, 1], [255, 1, 1, 255, 1, 1]])
def test_chunks_with_a_window_of_a_cache_have_the_bits_of_the_whole(chunks: list[int]) -> None:
    total, capacity, window = sum(chunks), 12, 8
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "local_window_size": window}
    whole = grouped_inputs(total, [total - 1], total, capacity)
    attributes.update(sliding_window_cache=1)
    proto = node_model("GroupQueryAttention", whole, outputs=3, symbolic=True, **attributes, **MICROSOFT)
    model = weft.load(proto, device="cpu")
    expected, *cache = model.run({f"x{n}": x for n, x in enumerate(whole)}).values()
    past, results, start = whole[3:5], [], 0
    for count in chunks:
        end = start + count
        inputs = [*(x[:, start:end] for x in whole[:3]), *past, np.array([end - 1], np.int32), np.array(end, np.int32)]
        result, *past = model.run({f"x{n}": x for n, x in enumerate(inputs)}).values()
        results.append(result)
        start = end
    np.testing.assert_array_equal(np.concatenate(results, 1), expected)
    for actual, reference in zip(past, cache):
        np.testing.assert_array_equal(actual, reference)


def test_a_window_larger_than_its_cache_is_refused() -> None:
    inputs = grouped_inputs(1, [8], 9, 4)
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "local_window_size": 5}
    model = node_model("GroupQueryAttention", inputs, outputs=3, sliding_window_cache=1, **attributes, **MICROSOFT)
    with pytest.raises(WeftError, match="a row for each of its tokens"):
        run_weft(model, inputs)


LAYOUTS = np.array([[[1, 0, 0], [0, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 0, 1]]])


def _compress_mask(mask: Any) -> list[Any]:
    """The CSR form of a mask of blocks: rows and columns."""
    rows = np.concatenate([np.zeros((len(mask), 1), np.int32), mask.sum(-1).cumsum(-1)], 1).astype(np.int32)
    columns = np.full((len(mask), rows[:, -1].max()), -1, np.int32)
    for layout, blocks in enumerate(mask):
        columns[layout, : rows[layout, -1]] = np.nonzero(blocks)[1]
    return [rows, columns]


@pytest.mark.parametrize("layouts", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [None, 0, 1])
@pytest.mark.parametrize("case", [(40, [39, 39], 40), (1, [40, 40], 41)])
def test_sparse_attention(case: Any, layouts: int, packed: bool, rotary: int | None) -> None:
    queries, lasts, total = case
    inputs = grouped_inputs(queries, lasts, total, 48, packed=packed)
    lengths = [np.array(total, np.int32), np.array(lasts, np.int32) + 1]
    caches = [random_array(n, (64, WIDTH // 2), low=-1, high=1) for n in (5, 6)] if rotary is not None else [None, None]
    inputs = [*inputs[:5], *_compress_mask(LAYOUTS[:layouts]), *lengths, *caches]
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "sparse_block_size": 16}
    attributes |= {} if rotary is None else {"do_rotary": 1, "rotary_interleaved": rotary}
    model = node_model("SparseAttention", inputs, outputs=3, **attributes, **MICROSOFT)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in enumerate(inputs) if x is not None}
    for number, value in values.items():
        binding.bind_ortvalue_input(f"x{number}", value)
    binding.bind_output("y0")
    binding.bind_ortvalue_output("y1", values[3])
    binding.bind_ortvalue_output("y2", values[4])
    session.run_with_iobinding(binding)
    reference = [value.numpy().copy() for value in binding.get_outputs()]
    for symbolic in (False, True):
        model = node_model("SparseAttention", inputs, outputs=3, symbolic=symbolic, **attributes, **MICROSOFT)
        results = run_weft(model, inputs)
        for row, last in enumerate(lasts):
            real = last + 1 if queries == total else queries
            np.testing.assert_allclose(results[0][row, :real], reference[0][row, :real], **CLOSE)
            for actual, expected in zip(results[1:], reference[1:]):
                np.testing.assert_allclose(actual[row, :, : last + 1], expected[row, :, : last + 1], **CLOSE)


@pytest.mark.parametrize("case", [(40, [39, 20], 40), (1, [40, 33], 41)])
def test_sparse_attention_with_sequences_of_different_lengths(case: Any) -> None:
    """onnxruntime's results of shorter sequences fit no mask, so the oracle is numpy."""
    queries, lasts, total = case
    inputs = grouped_inputs(queries, lasts, total, 48)
    lengths = [np.array(total, np.int32), np.array(lasts, np.int32) + 1]
    inputs = [*inputs[:5], *_compress_mask(LAYOUTS), *lengths]
    attributes = {"num_heads": QUERY_HEADS, "kv_num_heads": KEY_HEADS, "sparse_block_size": 16}
    result, *caches = run_weft(node_model("SparseAttention", inputs, outputs=3, **attributes, **MICROSOFT), inputs)
    for row, last in enumerate(lasts):
        first = 0 if queries == total else last + 1 - queries
        for number in range(last + 1 - first):
            position = first + number
            for cache, past, new in zip(caches, inputs[3:5], inputs[1:3]):
                np.testing.assert_array_equal(cache[row, :, :first], past[row, :, :first])
                np.testing.assert_array_equal(cache[row, :, position].ravel(), new[row, number])
            for head in range(QUERY_HEADS):
                blocks = LAYOUTS[head % 2, position // 16]
                visible = [key for key in range(position + 1) if blocks[key // 16]]
                key, value = (cache[row, head // 2, visible].astype(np.float64) for cache in caches)
                query = inputs[0][row, number, head * WIDTH : (head + 1) * WIDTH]
                powers = np.exp(key @ query * WIDTH**-0.5)
                expected = powers @ value / powers.sum()
                actual = result[row, number, head * WIDTH : (head + 1) * WIDTH]
                np.testing.assert_allclose(actual, expected, **CLOSE)
