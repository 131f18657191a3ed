"""Winograd tiles with outliers, against float64: values outside a pixel's window must not affect it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from kernels.epilogues import EpilogueCase, random_array
from kernels.products import build_transformed
from kernels.vector.works import TARGET, run_work, tensor_of

import weft
from weft.fuse import fuse
from weft.fuse.winograd import has_moderate_range
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve, TensorProgram
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.winograd import build_winograd

Array = np.ndarray[Any, Any]
F32 = DType.float32
EPS = 2.0**-23
KERNELS = ((3, 3), (1, 3), (3, 1), (3,))
TILES = (*((kernel, size) for kernel in KERNELS for size in (2, 4)), ((5, 5), 2), ((5,), 2), ((7, 1), 2))
MAX_ERROR = 64  # times eps and the norms of an output's window and of its weights; typical data reaches 4
HUGE = np.float32(3e38)


class Case:
    """A Winograd convolution with its exact result."""

    def __init__(
        self,
        x: Array,
        w: Array,
        size: int = 4,
        pads: Sequence[tuple[int, int]] | None = None,
        ending: str = "none",
        symbols: Sequence[str] = (),
        cache: int = TARGET.cache_bytes,
        threads: int = 2,
    ) -> None:
        kernel = w.shape[2:]
        ones, layout = (1,) * len(kernel), channels_last(x.ndim)
        pads = [(taps // 2, taps // 2) for taps in kernel] if pads is None else pads
        self.primitive = Convolve(ones, ones, tuple(pads), 1)
        self.x, self.w, self.pads = x, w, list(pads)
        self.shape = (len(x), len(w), *(n + sum(p) - taps + 1 for n, p, taps in zip(x.shape[2:], pads, kernel)))
        names: list[Dim] = [*x.shape]
        outputs: list[Dim] = [*self.shape]
        bound = {}
        for axis, name in zip((0, *range(2, x.ndim)), symbols):
            names[axis], bound[name] = dims.symbol(name, 1), x.shape[axis]
            outputs[axis] = names[axis] + self.shape[axis] - x.shape[axis]
        end = EpilogueCase(ending, F32, tuple(outputs), self.shape, 1, layout, 3)
        result, target = StoredTensor(F32, tuple(outputs), layout), replace(TARGET, cache_bytes=cache)
        work = build_transformed(
            build_winograd, self.primitive, tensor_of(x, layout, names), w, result, end.epilogue, target, size
        )
        assert work is not None
        self.apply = end.apply
        operands = [(x, layout), (w, row_major(w.ndim)), *end.arrays]
        (self.actual,), _ = run_work(work, operands, [result], bound, threads=threads)

    def sums(self, x: Array, w: Array) -> Array:
        axes = tuple(range(2, x.ndim))
        padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *self.pads])
        windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axes)
        summed_axes = [1, *range(x.ndim, windows.ndim)]
        with np.errstate(all="ignore"):
            actual = np.tensordot(windows, w.astype(np.float64), (summed_axes, [1, *axes]))
        return np.moveaxis(actual, -1, 1)

    def expected(self) -> Array:
        return self.sums(self.x, self.w)

    def scale(self) -> Array:
        """Return the norm of each output's own window times that of its weights."""
        windows = np.sqrt(self.sums(self.x.astype(np.float64) ** 2, np.ones_like(self.w[:1])))
        weights = np.sqrt((self.w.astype(np.float64) ** 2).sum((1, *range(2, self.w.ndim))))
        with np.errstate(all="ignore"):
            actual: Array = windows * weights.reshape(1, -1, *(1,) * (self.w.ndim - 2))
        return actual

    def sees(self, marked: Array) -> Array:
        """Return the outputs whose window contains a marked element."""
        actual: Array = self.sums(marked.astype(np.float64), np.ones_like(self.w[:1])) > 0
        return np.broadcast_to(actual, self.shape)

    def check(self, allowed: float = MAX_ERROR) -> None:
        """Check every output relative to the norm of its own window."""
        error = np.abs(self.actual - self.expected())
        worst = np.where(error > 0, error / (EPS * self.scale() + 1e-300), 0)
        assert np.isfinite(self.actual).all()
        assert worst.max() <= allowed, f"{worst.max():.0f} at {np.unravel_index(worst.argmax(), worst.shape)}"


def calm(seed: int, kernel: Sequence[int], batch: int, channels: int, features: int = 6) -> tuple[Array, Array]:
    sizes = (13, 10)[: len(kernel)]
    return random_array(seed, (batch, channels, *sizes), F32), random_array(
        seed + 1, (features, channels, *kernel), F32
    )


@pytest.mark.parametrize(("kernel", "size"), TILES)
def test_one_value_of_any_size(kernel: tuple[int, ...], size: int) -> None:
    """A value of 10^k somewhere in image k: errors stay bounded for every k, and outputs far from it are exact."""
    channels = 68 if kernel[0] == 3 else 5
    x, w = calm(channels + size, kernel, 38, channels)
    random = np.random.default_rng(channels)
    marked = np.zeros(x.shape, bool)
    for power in range(38):
        marked[(power, *(random.integers(extent) for extent in x.shape[1:]))] = True
    x[marked] = np.float32(10) ** np.arange(38) * random.choice([-1, 1], 38)
    case = Case(x, w / 16, size)
    case.check()
    calm_scale = np.abs(np.where(case.sees(marked), 0, case.actual)).max()
    assert calm_scale < 100


@pytest.mark.parametrize(("kernel", "size"), TILES)
def test_nan_and_infinity_stay_in_their_windows(kernel: tuple[int, ...], size: int) -> None:
    x, w = calm(size, kernel, 10, 19)
    w[0], w[1] = np.abs(w[0]), 0
    w[2] *= random_array(9, w[2].shape, F32) > 0  # taps that are 0
    random = np.random.default_rng(1)
    marked = np.zeros(x.shape, bool)
    for image in range(9):  # the last one is calm
        marked[(image, *(random.integers(extent) for extent in x.shape[1:]))] = True
    x[marked] = [np.nan, np.inf, -np.inf] * 3
    case = Case(x, w, size)
    sees = case.sees(marked)
    expected = case.expected()
    assert np.isfinite(case.actual[~sees]).all()
    np.testing.assert_array_equal(case.actual[sees], expected[sees].astype(np.float32))  # 0 times infinity is NaN
    assert (np.abs(case.actual[~sees] - expected[~sees]) <= MAX_ERROR * EPS * case.scale()[~sees]).all()


def test_an_infinity_of_each_sign_and_a_nan_in_one_tile() -> None:
    x, w = calm(2, (3, 3), 1, 16)
    x[0, 3, 5, 6], x[0, 4, 5, 7], x[0, 3, 11, 2] = np.inf, -np.inf, np.nan
    case = Case(x, w)
    expected = case.expected()
    sees = ~np.isfinite(expected)
    np.testing.assert_array_equal(case.actual[sees], expected[sees].astype(np.float32))
    assert np.isfinite(case.actual[~sees]).all()


PATTERNS = ("column", "channel", "half", "ramp", "impulse", "edge", "tiny", "subnormal", "few channels", "checks")


def apply_pattern(pattern: str, x: Array, image: int) -> None:
    """Make an image uneven, more so with a higher number."""
    strength = np.float32(10.0 ** (3 * image))
    match pattern:
        case "column":
            x[image, 2, ..., image % x.shape[-1]] *= strength
        case "channel":
            x[image, image % x.shape[1]] *= strength
        case "half":
            x[image, :, ..., x.shape[-1] // 2 + image % 4 :] *= strength
        case "ramp":
            x[image] *= strength ** (np.arange(x.shape[-1], dtype=np.float32) / x.shape[-1])
        case "impulse":
            x[image] = 0
            x[(image, 1, *(size // 2 + image % 3 for size in x.shape[2:]))] = strength
        case "edge":
            x[image, :, ..., -1] *= strength
        case "tiny":
            x[image] /= strength
        case "subnormal":
            x[image] *= np.float32(1e-38) / strength ** np.float32(0.2)
        case "few channels":
            x[image, :3] *= (np.arange(x.shape[-1]) % 5 == 0) * strength + 1
        case "checks":
            x[image, ..., ::2] = 0
            x[image, ..., 1::2] *= strength


@pytest.mark.parametrize(("kernel", "size"), [*TILES[:2], *TILES[6:]])
def test_uneven_data(kernel: tuple[int, ...], size: int) -> None:
    x, w = calm(5, kernel, 8 * len(PATTERNS), 24)
    for number, pattern in enumerate(PATTERNS):
        for image in range(8):
            apply_pattern(pattern, x[8 * number : 8 * number + 8], image)
    case = Case(x, w / 16, size)
    error = np.abs(case.actual - case.expected())
    least = 600 * 2.0**-150  # the error of products of subnormal numbers, however they are summed
    over = (error > MAX_ERROR * EPS * case.scale() + least).any(tuple(range(1, x.ndim)))
    assert not over.any(), [(PATTERNS[image // 8], image % 8) for image in np.flatnonzero(over)]


def test_values_that_overflow_in_the_transform_alone() -> None:
    x, w = calm(4, (3, 3), 3, 16)
    x[0] = HUGE
    x[1] *= 1e37
    x[2, :, 4:9, 3:] = -HUGE
    case = Case(x, w / 4096)
    case.check()


@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((2, 2), (2, 2)), ((2, 0), (0, 2)), ((3, 0), (1, 4))])
def test_tiles_partly_outside(pads: tuple[tuple[int, int], tuple[int, int]]) -> None:
    sizes = (3, 4) if pads[0][0] == 2 else (5, 10)
    random = np.random.default_rng(sum(sizes))
    x, w = random_array(1, (8, 20, *sizes), F32), random_array(2, (12, 20, 3, 3), F32)
    for image in range(8):
        x[(image, 7, *(random.integers(size) for size in sizes))] = 1e9
    Case(x, w, pads=pads, ending="none").check()


@pytest.mark.parametrize(("kind", "features"), [("none", 3), ("bias", 6), ("residual", 31), ("gelu", 48), ("none", 70)])
def test_endings_and_features(kind: str, features: int) -> None:
    """Panels, single and narrow vectors; dynamic sizes, strips and threads give the same bits."""
    x, w = calm(features, (3, 3), 3, 66, features)
    x[1, 5, 3, 4] = 1e6
    x[2, :, 6:, 5:] = 0
    symbols = ("n", "h", "w")
    actual = [
        Case(x, w, 4, ending=kind, symbols=names, cache=cache, threads=threads)
        for names, cache, threads in (((), 1024, 1), (symbols, 1 << 20, 3))
    ]
    assert actual[1].actual.tobytes() == actual[0].actual.tobytes()
    expected = actual[0].apply(actual[0].expected())
    calm_images = [0, 2]
    allowed = 1e-5 * np.abs(expected[calm_images]).max()
    assert np.abs(actual[0].actual - expected)[calm_images].max() <= allowed
    far = ~actual[0].sees(x == np.float32(1e6))
    assert np.abs(actual[0].actual - expected)[far].max() <= allowed
    assert np.abs(actual[0].actual - expected)[1].max() <= 1e-5 * np.abs(expected[1]).max()


# -- whole models ----------------------------------------------------------------------------------------------------


def layers(weights: Array, dynamic: bool = False) -> onnx.ModelProto:
    channels = weights.shape[1]
    shape = ["n", channels, "h", "w"] if dynamic else [1, channels, 24, 24]
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "w"], ["d"], pads=[1] * 4),
        node("MaxPool", ["d"], ["y"], kernel_shape=[1, 1]),
    ]
    return model(nodes, [value("x", shape)], [value("y", None)], [tensor("w", weights)])


def test_a_model_is_as_accurate_as_strict() -> None:
    weights = random_array(1, (32, 32, 3, 3), F32) / 32
    built = layers(weights, dynamic=True)
    quick, strict = (weft.load(built, device="cpu", precision=precision) for precision in ("float32", "strict"))
    x = random_array(2, (3, 32, 24, 24), F32)
    x[0, 3, 9, 10], x[1, 4, 0, 0], x[2, 30, 23, 13] = np.nan, np.inf, 1e12
    actual, expected = quick(x), strict(x)
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))
    far = np.isfinite(expected) & (np.abs(expected) < 1e3)
    assert far.mean() > 0.9
    assert np.abs(actual - expected)[far].max() < 1e-4
    assert (actual != expected)[far].any()  # the algorithms differ
    for row in range(3):
        np.testing.assert_array_equal(quick(x[row : row + 1])[0], actual[row])


def test_weights_that_are_not_tame_are_not_transformed() -> None:
    weights = random_array(3, (64, 64, 3, 3), F32)

    def is_transformed(array: Array) -> bool:
        program = weft.load(layers(array), device="reference").program
        assert isinstance(program, TensorProgram)
        assert has_moderate_range(array) == bool(fuse(program, TARGET).tiles)
        return has_moderate_range(array)

    assert is_transformed(weights)
    assert is_transformed(weights * (np.abs(weights) > 1))  # pruned
    assert is_transformed(np.float32(1e-3) * weights)
    for bad in (np.nan, np.inf, -np.inf, 1e8, 3e38):
        spoilt = weights.copy()
        spoilt[5, 6, 1, 2] = bad
        assert not is_transformed(spoilt)
    assert not is_transformed(weights * np.float32(1e20))
    assert not is_transformed(weights * np.float32(1e-20))
    assert not has_moderate_range(np.zeros((4, 4, 3, 3), np.float32))
