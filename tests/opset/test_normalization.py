"""Normalisations, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, random_array

Array = np.ndarray[Any, Any]


def _statistics(channels: int, dtype: Any = np.float32) -> list[Array]:
    return [
        random_array(2, (channels,), dtype),
        random_array(3, (channels,), dtype),
        random_array(4, (channels,), dtype),
        random_array(5, (channels,), dtype, low=0.5),
    ]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2), (0, 3, 2)], ids=str)
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(shape: tuple[int, ...], opset: int) -> None:
    check("BatchNormalization", [random_array(1, shape), *_statistics(3)], opset=opset, rtol=1e-4, epsilon=1e-3)


def test_batch_normalization_per_activation() -> None:
    x = random_array(1, (2, 3, 4))
    scale, bias, mean, variance = (random_array(n, (3, 4), low=0.5) for n in range(2, 6))
    reference = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    check("BatchNormalization", [x, scale, bias, mean, variance], opset=7, expected=[reference], rtol=1e-4, spatial=0)


@pytest.mark.parametrize(("opset", "outputs"), [(9, 5), (14, 3), (15, 3)])
def test_batch_normalization_training(opset: int, outputs: int) -> None:
    x, (scale, bias, mean, variance) = random_array(1, (4, 3, 5)), _statistics(3)
    average, spread = x.mean((0, 2)), x.var((0, 2))
    column = lambda v: v.reshape(1, 3, 1)  # noqa: E731
    y = (x - column(average)) / np.sqrt(column(spread) + 1e-5) * column(scale) + column(bias)
    reference = [y, mean * 0.7 + average * 0.3, variance * 0.7 + spread * 0.3, average, spread][:outputs]
    options: dict[str, Any] = {"momentum": 0.7, **({"training_mode": 1} if opset >= 14 else {})}
    inputs = [x, scale, bias, mean, variance]
    check(
        "BatchNormalization", inputs, opset=opset, outputs=outputs, expected=reference, rtol=1e-4, atol=1e-5, **options
    )


def test_batch_normalization_of_mixed_types() -> None:
    x = random_array(1, (2, 3, 4), np.float16)
    scale, bias, mean, variance = _statistics(3)
    column = lambda v: v.reshape(1, 3, 1)  # noqa: E731
    wide = (x.astype(np.float32) - column(mean)) / np.sqrt(column(variance) + 1e-5) * column(scale) + column(bias)
    inputs = [x, scale.astype(np.float16), bias.astype(np.float16), mean, variance]
    check("BatchNormalization", inputs, opset=15, expected=[wide.astype(np.float16)], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2)], ids=str)
def test_instance_normalization(shape: tuple[int, ...]) -> None:
    inputs = [random_array(1, shape), random_array(2, (3,)), random_array(3, (3,))]
    check("InstanceNormalization", inputs, opset=7, rtol=1e-4, atol=1e-5, epsilon=0.01)


@pytest.mark.parametrize("axis", [-1, 1, -3, 0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_layer_normalization(axis: int, bias: bool, dtype: Any) -> None:
    x = random_array(1, (2, 3, 4), dtype)
    shape = x.shape[axis:]
    inputs = [x, random_array(2, shape, dtype), *([random_array(3, shape, dtype)] if bias else [])]
    check("LayerNormalization", inputs, opset=17, rtol=1e-4, atol=1e-5, axis=axis)


def test_layer_normalization_statistics() -> None:
    x = random_array(1, (2, 3, 4), ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    scale = np.ones(4, ml_dtypes.bfloat16)
    reference = [None, mean, 1 / np.sqrt(variance + 1e-5)]
    check("LayerNormalization", [x, scale], opset=17, outputs=3, expected=reference, rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_rms_normalization(axis: int) -> None:
    x = random_array(1, (2, 3, 4))
    scale = random_array(2, x.shape[axis:])
    axes = tuple(range(axis % 3, 3))
    reference = x / np.sqrt((x * x).mean(axes, keepdims=True) + 1e-5) * scale
    check("RMSNormalization", [x, scale], opset=23, expected=[reference], rtol=1e-4, axis=axis)


@pytest.mark.parametrize(("opset", "per"), [(18, 2), (21, 6)])
@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 6, 3, 3)], ids=str)
def test_group_normalization(opset: int, per: int, shape: tuple[int, ...]) -> None:
    x, scale, bias = random_array(1, shape), random_array(2, (per,)), random_array(3, (per,))
    grouped = x.reshape(2, 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    column = lambda v: np.repeat(v, 6 // per).reshape(1, 6, *(1,) * (len(shape) - 2))  # noqa: E731
    reference = normal.reshape(shape) * column(scale) + column(bias)
    check("GroupNormalization", [x, scale, bias], opset=opset, expected=[reference], rtol=1e-4, atol=1e-5, num_groups=2)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("beta", [0.6, 0.75])
def test_local_response_normalization(size: int, beta: float) -> None:
    x = random_array(1, (2, 5, 3, 2))
    check("LRN", [x], opset=13, rtol=1e-4, size=size, alpha=0.02, beta=beta, bias=1.5)


def test_local_response_normalization_by_negative_numbers() -> None:
    """Powers of negative numbers are NaN; of -infinity, infinity."""
    x = np.float32([[0.5, 1, 2, np.inf, 3]]).reshape(1, 5, 1)
    with np.errstate(all="ignore"):
        reference = x / (np.float32(0.25) - x * x) ** np.float32(0.75)
    check("LRN", [x], opset=13, expected=[reference], rtol=1e-4, size=1, alpha=-1.0, bias=0.25)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (1, 5, 2, 2, 2)], ids=str)
def test_local_response_normalization_of_any_rank(shape: tuple[int, ...]) -> None:
    x = random_array(1, shape)
    total = np.zeros_like(x)
    for channel in range(5):
        total[:, channel] = (x[:, max(channel - 1, 0) : channel + 3] ** 2).sum(1)
    check("LRN", [x], opset=13, expected=[x / (1 + 1e-1 / 4 * total) ** 0.75], rtol=1e-4, size=4, alpha=0.1)


def test_local_response_over_more_channels_than_there_are() -> None:
    """A window of 2**30 channels is not walked through."""
    x = np.random.default_rng(3).standard_normal((2, 5, 3)).astype(np.float32)
    total = (x.astype(np.float64) ** 2).sum(axis=1, keepdims=True)
    expected = (x / (2 + 1e9 / 2**30 * total) ** 0.75).astype(np.float32)
    check("LRN", [x], opset=13, expected=[expected], rtol=1e-4, size=2**30, alpha=1e9, bias=2.0)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_lp_normalization(p: int, axis: int) -> None:
    x = random_array(1, (2, 3, 4))
    x[0] = 0
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    reference = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    check("LpNormalization", [x], opset=22, expected=[reference], rtol=1e-4, p=p, axis=axis)


@pytest.mark.parametrize("axes", [None, [0, 2, 3], [1], [-1, 0]], ids=str)
@pytest.mark.parametrize("opset", [9, 13])
def test_mean_variance_normalization(axes: list[int] | None, opset: int) -> None:
    x = random_array(1, (2, 3, 4, 5))
    along = tuple(axes or (0, 2, 3))
    reference = (x - x.mean(along, keepdims=True)) / (x.std(along, keepdims=True) + 1e-9)
    options = {} if axes is None else {"axes": axes}
    check("MeanVarianceNormalization", [x], opset=opset, expected=[reference], rtol=1e-4, atol=1e-5, **options)
