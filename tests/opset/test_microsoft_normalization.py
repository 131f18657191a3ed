"""Fused normalisations of onnxruntime's domain, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("skip_shape", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize(("beta", "bias"), [(False, False), (True, False), (True, True), (False, True)])
def test_skip_layer_normalization(dtype: Any, skip_shape: tuple[int, ...], beta: bool, bias: bool) -> None:
    x, skip, gamma = (random_array(n, s, dtype) for n, s in enumerate([(2, 3, 8), skip_shape, (8,)]))
    inputs = [
        x,
        skip,
        gamma,
        random_array(3, (8,), dtype) if beta else None,
        random_array(4, (8,), dtype) if bias else None,
    ]
    rough = {"rtol": 1e-2, "atol": 2e-2} if dtype == np.float16 else {"atol": 1e-5}
    expected = None
    if skip_shape != (2, 3, 8):
        whole = [x, np.ascontiguousarray(np.broadcast_to(skip, x.shape)), *inputs[2:]]
        model = node_model("SkipLayerNormalization", whole, epsilon=1e-5, **MICROSOFT)
        expected = run_onnxruntime(model, whole)
    check("SkipLayerNormalization", inputs, expected=expected, epsilon=1e-5, constants=[1, 2], **rough, **MICROSOFT)


def test_skip_layer_normalization_gives_the_sum() -> None:
    inputs = [random_array(n, s) for n, s in enumerate([(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)])]
    total = inputs[0] + inputs[1] + inputs[4]
    average = total.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    normal = (total - average) * inverse * inputs[2] + inputs[3]
    expected = [normal, average, inverse, total]
    check("SkipLayerNormalization", inputs, expected=expected, outputs=4, epsilon=1e-5, atol=1e-5, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(dtype: Any, shape: tuple[int, ...], bias: bool) -> None:
    inputs = [random_array(n, s, dtype) for n, s in enumerate([shape, shape, (8,)])]
    inputs = [*inputs, random_array(3, (8,), dtype)] if bias else inputs
    rough = {"rtol": 1e-2, "atol": 2e-2} if dtype == np.float16 else {"atol": 1e-5}
    check("SkipSimplifiedLayerNormalization", inputs, epsilon=1e-5, **rough, **MICROSOFT)


@pytest.mark.parametrize("attributes", [{}, {"axis": 1}, {"epsilon": 0.1, "axis": -1}])
@pytest.mark.parametrize("opset", [11, 17, 21])
def test_simplified_layer_normalization(attributes: dict[str, Any], opset: int) -> None:
    shape = (3, 8) if attributes.get("axis") == 1 else (8,)
    inputs = [random_array(0, (2, 3, 8)), random_array(1, shape)]
    check("SimplifiedLayerNormalization", inputs, opset=opset, outputs=2, **attributes, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization_before_its_opset(bias: bool) -> None:
    inputs = [random_array(0, (2, 3, 8)), random_array(1, (8,)), *([random_array(2, (8,))] if bias else [])]
    check("LayerNormalization", inputs, opset=12, outputs=3, epsilon=1e-4, atol=1e-5)


def embedding_inputs(segments: bool, mask: bool, positions: bool) -> list[Any]:
    rng = np.random.default_rng(5)
    ids = lambda high: rng.integers(0, high, (2, 6)).astype(np.int32)  # noqa: E731
    masked = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
    return [
        ids(20),
        ids(2) if segments else None,
        random_array(0, (20, 8)),
        random_array(1, (10, 8)),
        random_array(2, (2, 8)) if segments else None,
        random_array(3, (8,)),
        random_array(4, (8,)),
        masked if mask else None,
        ids(10) if positions else None,
    ]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embed_layer_normalization(segments: bool, mask: bool, positions: bool) -> None:
    inputs = embedding_inputs(segments, mask, positions)
    check("EmbedLayerNormalization", inputs, outputs=3, epsilon=1e-5, atol=1e-5, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_embed_layer_normalization(dtype: Any) -> None:
    plain = embedding_inputs(True, True, False)
    low, high = (0, 255) if dtype == np.uint8 else (-128, 127)
    tables = [random_array(n, plain[n].shape, dtype, low, high) for n in (2, 3, 4, 5, 6)]
    scales = [np.array(0.01 * n, np.float32) for n in range(1, 6)]
    zeros = [np.array(n, dtype) for n in range(5)]
    inputs = [*plain[:2], *tables, plain[7], *scales, *zeros]
    check("QEmbedLayerNormalization", inputs, outputs=2, epsilon=1e-5, atol=1e-4, **MICROSOFT)


def group_norm(x: Any, gamma: Any, beta: Any, groups: int, epsilon: float, activation: int) -> Any:
    """[N, *S, C] in float64."""
    batch, channels = x.shape[0], x.shape[-1]
    grouped = x.astype(np.float64).reshape(batch, -1, groups, channels // groups)
    centred = grouped - grouped.mean((1, 3), keepdims=True)
    normal = centred / np.sqrt(grouped.var((1, 3), keepdims=True) + epsilon)
    result = normal.reshape(x.shape) * gamma + beta
    return result / (1 + np.exp(-result)) if activation else result


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_group_norm(activation: int, last: int, dtype: Any) -> None:
    x, gamma, beta = random_array(0, (2, 4, 5, 6), dtype), random_array(1, (6,)), random_array(2, (6,))
    expected = group_norm(x, gamma, beta, 3, 1e-3, activation).astype(dtype)
    arguments = x if last else x.transpose(0, 3, 1, 2)
    expected = expected if last else expected.transpose(0, 3, 1, 2)
    attributes = {"activation": activation, "groups": 3, "epsilon": 1e-3, "channels_last": last}
    rough = {"atol": 5e-3} if dtype == np.float16 else {"atol": 1e-5}
    check("GroupNorm", [arguments, gamma, beta], expected=[expected], **rough, **attributes, **MICROSOFT)


@pytest.mark.parametrize("skip_shape", [(2, 4, 5, 6), (2, 1, 1, 6), (2, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_group_norm(skip_shape: tuple[int, ...], bias: bool) -> None:
    x, gamma, beta = random_array(0, (2, 4, 5, 6)), random_array(1, (6,)), random_array(2, (6,))
    skip, extra = random_array(3, skip_shape), random_array(4, (6,))
    total = x + skip.reshape((2, 1, 1, 6) if len(skip_shape) == 2 else skip_shape) + (extra if bias else 0)
    expected = group_norm(total, gamma, beta, 2, 1e-5, 1).astype(np.float32)
    inputs = [x, gamma, beta, skip, extra if bias else None]
    check(
        "SkipGroupNorm",
        inputs,
        expected=[expected, total.astype(np.float32)],
        outputs=2,
        activation=1,
        groups=2,
        atol=1e-5,
        constants=[3],
        **MICROSOFT,
    )
