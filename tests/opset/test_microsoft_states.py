"""Linear attention, convolutions with a state, and other newer ops of onnxruntime's domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime

import weft

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"activation": "silu"}, {"dilation": 2}])
def test_causal_conv_with_state(last: int, past: bool, attributes: dict[str, Any]) -> None:
    state_size = 3 * attributes.get("dilation", 1)
    x, state = random_array(0, (2, 5, 7)), random_array(3, (2, 5, state_size))
    if last:
        x, state = x.transpose(0, 2, 1).copy(), state.transpose(0, 2, 1).copy()
    inputs = [x, random_array(1, (5, 1, 4)), random_array(2, (5,)), state if past else None]
    check("CausalConvWithState", inputs, outputs=2, channels_last=last, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, past: bool) -> None:
    batch, length, heads, shared, depth, width = 2, 4, 4, 2, 3, 5
    inputs = [
        random_array(0, (batch, length, heads * depth), low=-1, high=1),
        random_array(1, (batch, length, shared * depth), low=-1, high=1),
        random_array(2, (batch, length, shared * width), low=-1, high=1),
        random_array(3, (batch, shared, depth, width)) if past else None,
        random_array(4, (batch, length, shared), low=-1, high=0) if rule.startswith("gated") else None,
        random_array(5, (batch, length, shared), low=0, high=1) if rule.endswith("delta") else None,
    ]
    attributes = {"q_num_heads": heads, "kv_num_heads": shared, "update_rule": rule}
    check("LinearAttention", inputs, outputs=2, **attributes, **CLOSE, **MICROSOFT)


def run_windowed(
    op: str, inputs: list[Any], axis: int, sequences: list[int], window: int, **attributes: Any
) -> list[Any]:
    """Compute the states of a window with onnxruntime, which has no windows: each by a run of fewer positions."""
    length = inputs[0].shape[axis]
    inputs = list(inputs)
    if inputs[3] is not None:
        inputs[3] = inputs[3][window - 1]
    results, states = [], []
    for end in range(length - window + 1, length + 1):
        if end < 1:
            states.append(None)
            continue
        part = [x.take(range(end), axis) if n in sequences and x is not None else x for n, x in enumerate(inputs)]
        results = run_onnxruntime(node_model(op, part, outputs=2, **attributes, **MICROSOFT), part)
        states.append(results[1])
    return [results[0], np.stack([np.zeros_like(results[1]) if state is None else state for state in states])]


@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("last", [0, 1])
def test_causal_conv_with_a_window_of_states(length: int, past: bool, last: int) -> None:
    x, states = random_array(0, (2, 5, length)), random_array(3, (3, 2, 5, 6))
    if last:
        x, states = x.transpose(0, 2, 1).copy(), states.transpose(0, 1, 3, 2).copy()
    inputs = [x, random_array(1, (5, 1, 4)), None, states if past else None]
    attributes = {"dilation": 2, "channels_last": last}
    expected = run_windowed("CausalConvWithState", inputs, 1 if last else 2, [0], 3, **attributes)
    attributes |= {"state_window": 3}
    check("CausalConvWithState", inputs, expected=expected, outputs=2, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("heads", [(2, 2, 2), (2, 4, 4), (2, 4, 2), (4, 2, 2), (2, 6, 2)])
@pytest.mark.parametrize(("window", "length"), [(0, 4), (3, 1), (3, 2), (3, 5), (8, 3)])
def test_linear_attention_with_a_window_of_states(heads: tuple[int, int, int], window: int, length: int) -> None:
    """Query heads that share states, and states that share queries and keys."""
    queries, states, keys = heads
    depth, width = 3, 5
    past = (2, states, depth, width)
    inputs = [
        random_array(0, (2, length, queries * depth), low=-1, high=1),
        random_array(1, (2, length, keys * depth), low=-1, high=1),
        random_array(2, (2, length, states * width), low=-1, high=1),
        random_array(3, (window, *past) if window else past),
        random_array(4, (2, length, states), low=-1, high=0),
        random_array(5, (2, length, states), low=0, high=1),
    ]
    attributes = {"q_num_heads": queries, "kv_num_heads": states}
    expected = None
    if window:
        expected = run_windowed("LinearAttention", inputs, 1, [0, 1, 2, 4, 5], window, **attributes)
    attributes |= {"state_window": window}
    check("LinearAttention", inputs, expected=expected, outputs=2, **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_multimodal_rotary_embedding(layout: int, rank: int, interleaved: int) -> None:
    x = random_array(0, (2, 5, 3 * 16) if rank == 3 else (2, 3, 5, 16))
    positions = np.random.default_rng(1).integers(0, 10, (3, 2, 5)).astype(np.int64)
    caches = [random_array(n, (20, 8), low=-1, high=1) for n in (1, 2)]
    attributes = {"num_heads": 3, "mrope_section": [4, 2, 2], "mrope_layout": layout, "interleaved": interleaved}
    check("MRotaryEmbedding", [x, positions, *caches], constants=[2, 3], **attributes, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("packed", [False, True])
def test_packed_multi_head_attention(packed: bool) -> None:
    heads, size = 3, 4
    hidden = heads * size
    tokens = [random_array(n, (6, hidden)) for n in range(3)]
    bias = random_array(3, (3 * hidden,))
    offsets = np.array([[0, 1, 4, 5], [6, 7, 2, 3]], np.int32)
    places = offsets.reshape(-1)[:6]
    whole = []
    for part in tokens:
        spread = np.zeros((8, hidden), np.float32)
        spread[places] = part
        whole.append(spread.reshape(2, 4, hidden))
    plain = [*whole, bias, np.array([2, 4], np.int32)]
    reference = run_onnxruntime(node_model("MultiHeadAttention", plain, num_heads=heads, **MICROSOFT), plain)[0]
    arguments: list[Any] = list(tokens)
    if packed:
        arguments = [np.stack([part.reshape(6, heads, size) for part in tokens], 2), None, None]
    inputs = [*arguments, bias, offsets, np.array([0, 2, 6], np.int32)]
    expected = [reference.reshape(8, hidden)[places]]
    check("PackedMultiHeadAttention", inputs, expected=expected, num_heads=heads, **CLOSE, **MICROSOFT)


def test_integer_products() -> None:
    a, b = random_array(0, (2, 3, 4), np.int16, -900, 900), random_array(1, (4, 5), np.int16, -900, 900)
    check("MatMulInteger16", [a, b], **MICROSOFT)
    x, y = random_array(2, (3, 4), np.uint8, 0, 255), random_array(3, (4,), np.uint8, 0, 255)
    points = [np.array(7, np.uint8), np.array(200, np.uint8)]
    product = (x.astype(np.int32) - 7) * (y.astype(np.int32) - 200)
    check("MulInteger", [x, points[0], y, points[1]], expected=[product], constants=[2], **MICROSOFT)
    plain = x.astype(np.int32) * y.astype(np.int32)
    check("MulInteger", [x, None, y], expected=[plain], constants=[2], **MICROSOFT)


def test_embedding() -> None:
    table, indices = random_array(0, (6, 3)), np.array([[0, 5], [2, 2]], np.int64)
    check("TorchEmbedding", [table, indices, np.array(2, np.int64)], expected=[table[indices]], **MICROSOFT)


HALF = {"atol": 2e-2, "rtol": 1e-2}
SHORT = (2, 5, 12)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Gelu", [SHORT], {}),
        ("FastGelu", [SHORT, (12,)], {}),
        ("QuickGelu", [SHORT], {}),
        ("FusedMatMul", [SHORT, (12, 6)], {"alpha": 0.5}),
        ("FusedConv", [(1, 3, 6, 6), (4, 3, 3, 3), (4,)], {"activation": "Relu"}),
        ("Attention", [SHORT, (12, 36), (36,)], {"num_heads": 3, "unidirectional": 1}),
        ("MultiHeadAttention", [SHORT, SHORT, SHORT, (36,)], {"num_heads": 3}),
        ("MoE", [(5, 8), (5, 4), (4, 16, 8), (4, 16), (4, 8, 16), (4, 8)], {"k": 2, "activation_type": "gelu"}),
    ],
)
def test_half_precision(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    narrow = [random_array(n, shape, np.float16, -1, 1) for n, shape in enumerate(shapes)]
    wide = [value.astype(np.float32) for value in narrow]
    expected = run_onnxruntime(node_model(op, wide, **attributes, **MICROSOFT), wide)
    check(op, narrow, expected=[expected[0].astype(np.float16)], **attributes, **HALF, **MICROSOFT)


def test_grouped_attention_in_half_precision() -> None:
    query, key, value = (random_array(n, (2, 3, heads * 16), np.float16) for n, heads in enumerate((4, 2, 2)))
    lengths = [np.array([2, 2], np.int32), np.array(3, np.int32)]
    inputs = [query, key, value, None, None, *lengths]
    check("GroupQueryAttention", inputs, outputs=3, num_heads=4, kv_num_heads=2, **HALF, **MICROSOFT)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("FusedConv", [(1, 3, 6, 6), (4, 3, 3, 3)], {"activation": "Nonsense"}, "Nonsense"),
        ("Attention", [SHORT, (12, 36)], {"num_heads": 3, "do_rotary": 1}, "RotaryEmbedding"),
        ("Attention", [SHORT, (12, 36)], {}, "num_heads"),
        ("CDist", [(2, 3), (4, 3)], {"metric": "yule"}, "yule"),
        ("CDist", [(2, 3), (4, 5)], {}, "equally long"),
        ("MatMulNBits", [(2, 32), (3, 1, 16), (3, 1)], {"K": 32, "N": 3, "block_size": 32, "bits": 5}, "bits"),
        ("MoE", [(5, 8), (5, 4), (4, 16, 8), (4, 16), (4, 8, 16)], {"activation_type": "sine"}, "sine"),
        ("CausalConvWithState", [(2, 5, 7), (5, 1, 4)], {"ndim": 2}, "2 dimensions"),
        ("GroupNorm", [(1, 4, 4, 6), (6,), (6,)], {"groups": 3, "activation": 7}, "activation"),
    ],
)
def test_what_is_refused(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], message: str) -> None:
    inputs = [random_array(n, shape) for n, shape in enumerate(shapes)]
    if op == "MatMulNBits":
        inputs[1] = inputs[1].astype(np.uint8)
    with pytest.raises(weft.errors.ModelError, match=message):
        weft.load(node_model(op, inputs, **attributes, **MICROSOFT))
