"""Convolutions of all kinds at odd sizes against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.epilogues import KINDS, EpilogueCase, assert_close, random_array
from kernels.products import build_convolve
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.backends.reference.products import convolve
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.convolve import build_convolution

F32 = DType.float32
DTYPES = (F32, F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int32)
CHANNELS = (1, 1, 2, 3, 4, 5, 8, 13, 16, 17, 32, 33, 40)
SPATIAL = {1: (1, 2, 5, 9, 20, 33, 70), 2: (1, 2, 5, 7, 9, 14, 20), 3: (1, 2, 3, 4, 5)}


class Case:
    """A random convolution with its operands; with `symbolic`, batch and spatial sizes are symbols."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.dtype = DTYPES[random.integers(len(DTYPES))]
        rank = int(random.choice([1, 2, 2, 2, 3]))
        self.transposed = bool(random.random() < 0.3)
        kind = str(random.choice(["dense", "dense", "grouped", "depthwise"]))
        each, other = (int(random.choice(CHANNELS)) for _ in range(2))
        self.groups = 1 if kind == "dense" else int(random.integers(2, 5)) if kind == "grouped" else each * 3
        each, other = (1, 1) if kind == "depthwise" else (min(each, 13), min(other, 40))
        channels, features = each * self.groups, other * self.groups
        kernel = [int(x) for x in random.choice([1, 1, 2, 3, 3, 4, 5], rank)]
        strides = tuple(int(x) for x in random.choice([1, 1, 2, 3], rank))
        dilations = tuple(int(x) for x in random.choice([1, 1, 1, 2, 3], rank))
        spans = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations)]
        sizes = [int(random.choice(SPATIAL[rank])) for _ in range(rank)]
        pads = [[int(x) for x in random.integers(0, 3, 2)] for _ in range(rank)]
        if not self.transposed:
            sizes = [max(size, span - sum(pad)) for size, span, pad in zip(sizes, spans, pads)]
            outputs = [(n + sum(p) - span) // s + 1 for n, p, span, s in zip(sizes, pads, spans, strides)]
        else:
            full = [(n - 1) * s + span for n, s, span in zip(sizes, strides, spans)]
            pads = [pad if sum(pad) < size else [0, 0] for pad, size in zip(pads, full)]
            outputs = [size - sum(pad) + int(random.integers(0, s)) for size, pad, s in zip(full, pads, strides)]
        self.pads = [(before, after) for before, after in pads]
        batch = int(random.integers(1, 4))
        weights = (channels, other, *kernel) if self.transposed else (features, each, *kernel)
        self.x, self.w = (
            random_array(seed, (batch, channels, *sizes), self.dtype),
            random_array(seed + 1, weights, self.dtype),
        )
        self.primitive = Convolve(strides, dilations, tuple(self.pads), self.groups, self.transposed)
        self.layout = channels_last(rank + 2) if random.random() < 0.8 else row_major(rank + 2)
        self.constant = bool(random.random() < 0.5)
        self.shape = (batch, features, *outputs)
        names: list[Dim] = [batch, channels, *sizes]
        result: list[Dim] = list(self.shape)
        self.bound: dict[str, int] = {}
        if symbolic:
            for axis in (0, *range(2, rank + 2)):
                names[axis] = dims.symbol(f"n{axis}")
                self.bound[f"n{axis}"] = self.x.shape[axis]
            result[0] = names[0]
            for axis in range(rank):
                window = (strides[axis], spans[axis], sum(pads[axis]), names[axis + 2])
                result[axis + 2] = self.output(*window, outputs[axis] - self.output(*window[:3], sizes[axis], 0))
        self.x_tensor = tensor_of(self.x, self.layout, names)
        self.result = StoredTensor(self.dtype, tuple(result), self.layout)
        kinds = KINDS if self.dtype.is_float else KINDS[:4]
        self.ending = EpilogueCase(
            str(random.choice(kinds)), self.dtype, tuple(result), self.shape, 1, self.layout, seed
        )

    def output(self, stride: int, span: int, pad: int, size: Dim, more: Dim) -> Dim:
        if self.transposed:
            return (size - 1) * stride + span - pad + more
        return dims.floordiv(size + pad - span, stride) + 1 + more

    def work(self) -> Work:
        weights = tensor_of(self.w)
        constant = self.w if self.constant else None
        return build_convolve(
            build_convolution,
            self.primitive,
            self.x_tensor,
            weights,
            self.result,
            self.ending.epilogue,
            TARGET,
            constant_w=constant,
        )

    def expected(self) -> Array:
        wide = np.float64 if self.dtype.is_float else self.dtype.numpy
        x, w = self.x.astype(wide), self.w.astype(wide)
        return self.ending.apply(convolve(self.primitive, x, w, self.groups, self.pads, self.shape))

    def check(self, threads: int = 1, at_start: bool = False) -> None:
        operands = [(self.x, self.layout), (self.w, row_major(self.w.ndim)), *self.ending.arrays]
        (actual,), _ = run_work(self.work(), operands, [self.result], self.bound, threads=threads, at_start=at_start)
        assert_close(actual, self.expected(), self.dtype)


@pytest.mark.parametrize("seed", range(50))
def test_random_convolutions(seed: int) -> None:
    Case(seed).check(threads=1 + seed % 2, at_start=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_symbolic_sizes(seed: int) -> None:
    Case(seed, symbolic=True).check(at_start=seed % 3 == 0)


def plain(channels: int, features: int, sizes: tuple[Dim, ...], kernel: int, stride: int = 1, groups: int = 1) -> Work:
    pad = kernel // 2
    primitive = Convolve((stride,) * 2, (1, 1), ((pad, pad),) * 2, groups)
    outputs = [dims.floordiv(size + 2 * pad - kernel, stride) + 1 for size in sizes]
    x, result = (
        StoredTensor(F32, shape, channels_last(4)) for shape in ((1, channels, *sizes), (1, features, *outputs))
    )
    weights = np.ones((features, channels // groups, kernel, kernel), np.float32)
    return build_convolve(build_convolution, primitive, x, tensor_of(weights), result, None, TARGET, constant_w=weights)


def test_one_by_one_is_one_product() -> None:
    """The input is not copied, and all pixels are one axis."""
    launch, *others = plain(64, 96, (14, 14), 1).launches
    assert not others
    assert "rows1" not in launch.kernel.parameters


def test_few_kernels_for_many_shapes() -> None:
    shapes = [(c, m, size) for c in (64, 96) for m in (64, 128) for size in (28, 56, 40)]
    works = [plain(c, m, (size, size), 3) for c, m, size in shapes]
    assert len({launch.kernel for work in works for launch in work.launches}) <= 4  # padding and product


def test_transposed_with_dynamic_padding() -> None:
    size = dims.symbol("n")
    primitive = Convolve((2,), (1,), ((size, 0),), 1, True)
    layout = channels_last(3)
    x, w = random_array(1, (2, 5, 9), F32), random_array(2, (5, 7, 4), F32)
    result = StoredTensor(F32, (2, 7, 11), layout)
    tensor = tensor_of(x, layout, (2, 5, 9))
    for before in (0, 3, 4):
        work = build_convolve(build_convolution, primitive, tensor, tensor_of(w), result, None, TARGET, constant_w=w)
        (actual,), _ = run_work(work, [(x, layout), (w, row_major(3))], [result], {"n": before})
        exact = (a.astype(np.float64) for a in (x, w))
        assert_close(actual, convolve(primitive, *exact, 1, [(before, 0)], (2, 7, 11)), F32)


@pytest.mark.parametrize("groups", [1, 40])
def test_same_bits_for_any_number_of_threads(groups: int) -> None:
    work = plain(40, 40, (23, 19), 3, groups=groups)
    x = random_array(1, (1, 40, 23, 19), F32)
    weights = np.ones((40, 40 // groups, 3, 3), np.float32)
    operands, results = [(x, channels_last(4)), (weights, row_major(4))], [StoredTensor(F32, x.shape, channels_last(4))]
    runs = [run_work(work, operands, results, threads=threads)[0][0] for threads in (1, 2, 4)]
    assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F32, DType.float16])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_few_features_of_many_channels(kind: str, dtype: DType, transposed: bool, symbolic: bool) -> None:
    """Lanes run along the channels, and every phase of a transposed convolution writes its own pixels."""
    x, w = (
        random_array(1, (2, 37, 9, 13), dtype),
        random_array(2, (37, 3, 4, 4) if transposed else (3, 37, 3, 3), dtype),
    )
    step, pad = (2, 1) if transposed else (1, 1)
    primitive = Convolve((step, step), (1, 1), ((pad, pad), (pad, pad)), 1, transposed)
    shape, bound = (2, 3, 9 * step, 13 * step), {"h": 9}
    names: list[Dim] = [2, 37, dims.symbol("h", 1) if symbolic else 9, 13]
    outputs: tuple[Dim, ...] = (2, 3, names[2] * step, 13 * step)
    layout = channels_last(4)
    ending = EpilogueCase(kind, dtype, outputs, shape, 1, layout, 5)
    result = StoredTensor(dtype, outputs, layout)
    source = tensor_of(x, layout, names)
    work = build_convolve(
        build_convolution, primitive, source, tensor_of(w), result, ending.epilogue, TARGET, constant_w=w
    )
    operands = [(x, layout), (w, row_major(4)), *ending.arrays]
    (actual,), _ = run_work(work, operands, [result], bound, threads=2)
    expected = convolve(primitive, x.astype(np.float64), w.astype(np.float64), 1, [(pad, pad)] * 2, shape)
    assert_close(actual, ending.apply(expected), dtype)
    assert all("panel" not in name for launch in work.launches for name in launch.kernel.parameters)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(("features", "groups"), [(32, 1), (16, 1), (64, 2), (8, 1)])
@pytest.mark.parametrize(("dilation", "stride"), [(6, 1), (8, 1), (7, 2)])
def test_taps_outside_the_input_are_skipped(dilation: int, stride: int, features: int, groups: int, kind: str) -> None:
    """Wide windows in a small image: the result is split into regions that use the same taps, without padding."""
    x = random_array(1, (2, 6 * groups, 9, 13), F32)
    w = random_array(2, (features, 6, 3, 3), F32)
    pads = [(dilation, dilation), (dilation, dilation)]
    primitive = Convolve((stride,) * 2, (dilation,) * 2, tuple(pads), groups)
    shape = (2, features, *((size - 1) // stride + 1 for size in (9, 13)))
    layout = channels_last(4)
    ending = EpilogueCase(kind, F32, shape, shape, 1, layout, 5)
    result = StoredTensor(F32, shape, layout)
    source = tensor_of(x, layout)
    work = build_convolve(
        build_convolution, primitive, source, tensor_of(w), result, ending.epilogue, TARGET, constant_w=w
    )
    assert not work.workspaces
    assert len(work.launches) == 9
    assert len(work.constants) == 1
    operands = [(x, layout), (w, row_major(4)), *ending.arrays]
    (actual,), _ = run_work(work, operands, [result], threads=2)
    expected = convolve(primitive, x.astype(np.float64), w.astype(np.float64), groups, pads, shape)
    assert_close(actual, ending.apply(expected), F32)
