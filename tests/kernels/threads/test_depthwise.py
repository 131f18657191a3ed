"""Convolutions with small groups and threads as lanes, at odd sizes, against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from kernels.epilogues import KINDS, EpilogueCase, assert_close, random_array
from kernels.products import build_convolve
from kernels.threads.works import Array, run_on_cpu, run_work, targets
from kernels.vector.works import tensor_of
from peers import onnxruntime_run

import weft
from weft.backends.reference.products import convolve
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.threads.depthwise import build_depthwise, is_depthwise

F32 = DType.float32
DTYPES = (F32, F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int32)
SPATIAL = {1: (1, 2, 5, 9, 20, 33, 70), 2: (1, 2, 5, 7, 9, 14, 20), 3: (1, 2, 3, 4, 5)}
KINDS_OF_GROUPS = ("alone", "alone", "multiplied", "small", "fours")


class Case:
    """A convolution with its operands; with `symbolic`, batch and spatial sizes are symbols."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.dtype = DTYPES[random.integers(len(DTYPES))]
        rank = int(random.choice([1, 2, 2, 2, 3]))
        transposed = bool(random.random() < 0.3)
        self.groups, channels, features = self.sizes_of_groups(random)
        kernel = [int(x) for x in random.choice([1, 1, 2, 3, 3, 4, 5, 9], rank)]
        strides = tuple(int(x) for x in random.choice([1, 1, 2, 3], rank))
        dilations = tuple(int(x) for x in random.choice([1, 1, 1, 2, 3], rank))
        spans = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations)]
        sizes = [int(random.choice(SPATIAL[rank])) for _ in range(rank)]
        pads = [(int(random.integers(0, 3)), int(random.integers(0, 3))) for _ in range(rank)]
        if not transposed:
            sizes = [max(size, span - sum(pad)) for size, span, pad in zip(sizes, spans, pads)]
            outputs = [(n + sum(p) - span) // s + 1 for n, p, span, s in zip(sizes, pads, spans, strides)]
        else:
            full = [(n - 1) * s + span for n, s, span in zip(sizes, strides, spans)]
            pads = [pad if sum(pad) < size else (0, 0) for pad, size in zip(pads, full)]
            outputs = [size - sum(pad) + int(random.integers(0, s)) for size, pad, s in zip(full, pads, strides)]
        batch = int(random.integers(1, 4))
        shape = (batch, channels * self.groups, *sizes)
        weights = (shape[1], features) if transposed else (features * self.groups, channels)
        self.x = random_array(seed, shape, self.dtype)
        self.w = random_array(seed + 1, (*weights, *kernel), self.dtype)
        self.primitive = Convolve(strides, dilations, tuple(pads), self.groups, transposed)
        self.layout = channels_last(rank + 2) if random.random() < 0.8 else row_major(rank + 2)
        self.constant = bool(random.random() < 0.5)
        self.shape = (batch, features * self.groups, *outputs)
        names: list[Dim] = list(shape)
        result: list[Dim] = list(self.shape)
        self.bound: dict[str, int] = {}
        if symbolic:
            for axis in (0, *range(2, rank + 2)):
                names[axis] = dims.symbol(f"n{axis}")
                self.bound[f"n{axis}"] = shape[axis]
            result[0] = names[0]
            for axis, (stride, span, pad) in enumerate(zip(strides, spans, pads)):
                size = names[axis + 2]
                plain = dims.floordiv(size + sum(pad) - span, stride) + 1
                size_formula = (size - 1) * stride + span - sum(pad) if transposed else plain
                more = outputs[axis] - dims.evaluate(size_formula, self.bound)
                result[axis + 2] = size_formula + more
        self.x_tensor = tensor_of(self.x, self.layout, names)
        self.result = StoredTensor(self.dtype, tuple(result), self.layout)
        kinds = KINDS if self.dtype.is_float else KINDS[:4]
        self.ending = EpilogueCase(
            str(random.choice(kinds)), self.dtype, tuple(result), self.shape, 1, self.layout, seed
        )

    @staticmethod
    def sizes_of_groups(random: np.random.Generator) -> tuple[int, int, int]:
        """Return the number of groups, and the channels and features of each."""
        match KINDS_OF_GROUPS[int(random.integers(len(KINDS_OF_GROUPS)))]:
            case "alone":
                return int(random.choice([2, 3, 8, 24, 33, 40])), 1, 1
            case "multiplied":
                return int(random.choice([2, 3, 8])), 1, int(random.choice([2, 3, 4, 8]))
            case "small":
                return int(random.choice([2, 3, 5])), int(random.integers(2, 8)), int(random.integers(1, 8))
            case _:
                return int(random.choice([2, 3, 8])), int(random.choice([4, 8, 16])), int(random.choice([4, 8, 12]))

    def work(self, target: ThreadTarget) -> Work:
        w = tensor_of(self.w)
        assert is_depthwise(Convolution(self.primitive, self.x_tensor, w, self.result))
        constant = self.w if self.constant else None
        ends = (self.result, self.ending.epilogue, target)
        return build_convolve(build_depthwise, self.primitive, self.x_tensor, w, *ends, constant_w=constant)

    def expected(self) -> Array:
        wide = np.float64 if self.dtype.is_float else self.dtype.numpy
        x, w = self.x.astype(wide), self.w.astype(wide)
        return self.ending.apply(convolve(self.primitive, x, w, self.groups, self.primitive.pads, self.shape))

    def check(self, seed: int) -> None:
        operands = [(self.x, self.layout), (self.w, row_major(self.w.ndim)), *self.ending.arrays]
        expected = self.expected()
        about = f"seed {seed}: {self.primitive} of {self.dtype}{self.x.shape} with {self.w.shape}"
        print(about)
        for name in ("software", "sharing"):
            (actual,), _ = run_work(self.work(targets()[name]), operands, [self.result], self.bound)
            assert_close(actual, expected, self.dtype)
        work = self.work(targets()["vectors"])
        (actual,), _ = run_on_cpu(work, operands, [self.result], self.bound, at_start=bool(seed % 2))
        assert_close(actual, expected, self.dtype)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("group", range(4))
def test_random_convolutions(group: int, symbolic: bool) -> None:
    for seed in range(1000 * symbolic + group * 4, 1000 * symbolic + group * 4 + 4):
        Case(seed, symbolic).check(seed)


@pytest.mark.parametrize(("kernel", "strides"), [((3, 1), (1, 2)), ((2, 2), (3, 2)), ((3, 3), (2, 2))])
def test_transposed_in_a_model(kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    """Some outputs have no tap at all; against onnxruntime."""
    random = np.random.default_rng(7)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 7, 9), (6, 1, *kernel)))
    transposed = node("ConvTranspose", ["x", "w"], ["y"], kernel_shape=kernel, strides=strides, group=6)
    built = model([transposed], [value("x", x.shape)], [value("y", None)], [tensor("w", w)])
    (expected,) = onnxruntime_run(built, {"x": x})
    actual = weft.load(built, device="webgpu:llvmpipe", cache=False).run({"x": x})["y"]
    assert_close(actual, expected.astype(np.float64), F32)


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_few_and_many_images(kernel: int, stride: int) -> None:
    """One work has a kernel for each; results have the same bits."""
    random = np.random.default_rng(9)
    channels, size, pads = 24, 19, ((kernel // 2, kernel // 2),) * 2
    primitive = Convolve((stride, stride), (1, 1), pads, channels)
    w = random.normal(size=(channels, 1, kernel, kernel)).astype(np.float16)
    images = random.normal(size=(100, channels, size, size)).astype(np.float16)
    batch, out = dims.symbol("n", 1), (size - 1) // stride + 1
    x = tensor_of(images, channels_last(4), (batch, channels, size, size))
    result = StoredTensor(DType.float16, (batch, channels, out, out), channels_last(4))
    work = build_convolve(build_depthwise, primitive, x, tensor_of(w), result, None, targets()["sharing"], constant_w=w)
    assert len(work.launches) == 2
    bits = []
    for count in (1, 3, 100):
        first_images = images[:count]
        bound = {"n": count}
        assert sorted(dims.evaluate(launch.blocks, bound) > 0 for launch in work.launches) == [False, True]
        (actual,), _ = run_work(work, [(first_images, channels_last(4)), (w, row_major(4))], [result], bound)
        wide = [array.astype(np.float64) for array in (first_images, w)]
        expected = convolve(primitive, *wide, channels, pads, (count, channels, out, out))
        assert_close(actual, expected, DType.float16)
        bits.append(actual[0].tobytes())
    assert len(set(bits)) == 1
