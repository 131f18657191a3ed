"""Fourier transforms, windows and losses, against numpy in float64 or onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, random_array

Array = np.ndarray[Any, Any]


def pairs(z: Array, dtype: Any = np.float32) -> Array:
    return np.stack([z.real, z.imag], axis=-1).astype(dtype)


def spectrum(x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * (wide[..., 1] if x.shape[-1] == 2 else 0)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 12, 17, 60, 97, 128, 400, 512, 1517, 2048, 2310])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_dft(count: int, parts: int, inverse: int) -> None:
    x = random_array(count, (2, count, parts))
    z = spectrum(x)
    expected = np.fft.ifft(z, axis=1) if inverse else np.fft.fft(z, axis=1)
    options: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6 * max(float(np.abs(expected).max()), 1) + 1e-7}
    check("DFT", [x], opset=17, inverse=inverse, expected=[pairs(expected)], **options)


@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 6, 16])
@pytest.mark.parametrize("constants", [True, False])
def test_dft_length_and_axis(axis: int, length: int | None, constants: bool) -> None:
    x = random_array(1, (9, 10, 2))
    inputs = [x, None if length is None else np.array(length, np.int64), np.array(axis, np.int64)]
    stored = [number for number in (1, 2) if inputs[number] is not None] if constants else []
    expected = pairs(np.fft.fft(spectrum(x), n=length, axis=axis if axis >= 0 else axis + 1))
    check("DFT", inputs, opset=20, constants=stored, expected=[expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [7, 12, 15, 75, 100, 512, 2048, 37 * 41])
def test_real_dft_there_and_back(count: int) -> None:
    x = random_array(2, (3, count, 1))
    half = np.fft.rfft(x[..., 0].astype(np.float64), axis=1)
    check("DFT", [x], opset=17, onesided=1, expected=[pairs(half)], rtol=1e-4, atol=1e-4)
    length = np.array(count, np.int64)
    options: dict[str, Any] = {"inverse": 1, "onesided": 1, "constants": [1], "rtol": 1e-4, "atol": 1e-5}
    check("DFT", [pairs(half), length], opset=17, expected=[x], **options)


def test_dft_in_double_precision() -> None:
    x = random_array(3, (2, 210, 2), np.float64)
    expected = pairs(np.fft.fft(spectrum(x), axis=1), np.float64)
    check("DFT", [x], opset=17, expected=[expected], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(onesided: int, windowed: bool) -> None:
    x = random_array(4, (2, 64, 1))
    window = np.hanning(16).astype(np.float32) if windowed else None
    inputs = [x, np.array(8, np.int64), window, np.array(16, np.int64)]
    frames = np.stack([x[:, start : start + 16, 0] for start in range(0, 49, 8)], axis=1).astype(np.float64)
    frames = frames if window is None else frames * window
    expected = pairs(np.fft.rfft(frames) if onesided else np.fft.fft(frames))
    for constants in ([1, 3], []):
        check("STFT", inputs, opset=17, onesided=onesided, constants=constants, expected=[expected], atol=1e-5)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("kind", [1, 11])
def test_windows(op: str, periodic: int, kind: int) -> None:
    size = [np.array(10, np.int64)]
    check(op, size, opset=17, periodic=periodic, output_datatype=kind, atol=1e-6)
    check(op, size, opset=17, periodic=periodic, output_datatype=kind, atol=1e-6, constants=[0])


def test_mel_weight_matrix() -> None:
    numbers: list[Any] = [np.array(n, np.int64) for n in (8, 64, 8192)]
    edges = [np.array(f, np.float32) for f in (20.0, 4000.0)]
    check("MelWeightMatrix", [*numbers, *edges], opset=17)
    check("MelWeightMatrix", [*numbers, *edges], opset=17, constants=range(5))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -1])
@pytest.mark.parametrize("rest", [(), (2,), (2, 3)])
@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses(op: str, reduction: str, weighted: bool, ignore: int | None, rest: tuple[int, ...]) -> None:
    scores = random_array(5, (4, 5, *rest))
    target = random_array(6, (4, *rest), np.int64, 0, 4)
    target.reshape(-1)[1] = 0 if ignore is None else ignore
    weight = random_array(7, (5,), low=0.5, high=1) if weighted else None
    inputs = [scores, target, weight] if weighted else [scores, target]
    log = scores.astype(np.float64)
    if op.startswith("Softmax"):
        log = log - np.log(np.exp(log).sum(axis=1, keepdims=True))
    counted = target != ignore if ignore is not None else np.ones(target.shape, bool)
    place = np.where(counted, target, 0)
    factor = counted * (1.0 if weight is None else weight[place].astype(np.float64))
    losses = -np.take_along_axis(log, place[:, None], axis=1)[:, 0] * factor
    result = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / factor.sum()}[reduction]
    expected = [np.asarray(result, np.float32)]
    attributes = {} if ignore is None else {"ignore_index": ignore}
    check(op, inputs, opset=13, reduction=reduction, expected=expected, rtol=1e-4, atol=1e-5, **attributes)
