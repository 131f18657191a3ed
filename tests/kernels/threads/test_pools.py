"""Pooling with threads as lanes: any rank, layout, padding, stride and dilation, against the reference in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from kernels.epilogues import EpilogueCase
from kernels.threads.works import Array, run_on_cpu, run_work, targets
from kernels.vector.works import tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.program import Pool
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.pool import build_pool

F32, I64 = DType.float32, DType.int64
DTYPES = (F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int8, DType.uint8)
LARGEST = {1: 100, 2: 30, 3: 10}


def random_layout(rng: np.random.Generator, rank: int) -> Layout:
    choices = [row_major(rank), channels_last(rank), Layout(tuple(int(axis) for axis in rng.permutation(rank)))]
    return choices[int(rng.choice(3, p=[0.3, 0.5, 0.2]))]


@dataclass
class Case:
    """A pool with random attributes and its operand."""

    primitive: Pool
    array: Array
    operand: StoredTensor
    result: StoredTensor
    sizes: dict[str, int]

    @property
    def about(self) -> str:
        source, target = self.operand.layout.order, self.result.layout.order
        return f"{self.primitive} of {self.operand.dtype}{self.array.shape}, {source} to {target}"

    def expected(self) -> Array:
        (output,) = evaluate(
            self.primitive, [self.array], [TensorType(self.result.dtype, self.result.shape)], self.sizes
        )
        return output


def random_case(seed: int, kind: str, symbolic: bool, dtype: DType | None = None) -> Case:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    window = tuple(int(k) for k in rng.integers(1, 6, rank))
    strides = tuple(int(s) for s in rng.integers(1, 4, rank))
    dilations = tuple(int(d) for d in rng.integers(1, 3, rank))
    pads = tuple((int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(rank))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, window)]
    spatial = [int(rng.integers(r, r + LARGEST[rank])) for r in reach]
    shape = (int(rng.integers(1, 3)), int(rng.choice([1, 3, 8, 20, 65])), *spatial)
    sizes = {f"n{axis}": size for axis, size in enumerate(shape)}
    domain: tuple[Dim, ...] = tuple(
        dims.symbol(f"n{axis}") if symbolic and rng.random() < 0.5 else size for axis, size in enumerate(shape)
    )
    more = int(rng.integers(0, 2))  # windows may lie beyond the end, as with ceil_mode
    counts = [
        dims.floordiv(size + before + after - r, stride) + 1 + more
        for size, (before, after), r, stride in zip(domain[2:], pads, reach, strides)
    ]
    dtype = dtype or DTYPES[int(rng.integers(len(DTYPES)))]
    array = rng.integers(-20, 20, shape).astype(np.int8).astype(dtype.numpy)
    if dtype.is_float and kind != "sum" and rng.random() < 0.3:
        array[rng.random(shape) < 0.05] = np.nan
    layout = random_layout(rng, rank + 2)
    result = StoredTensor(I64 if kind == "argmax" else dtype, (*domain[:2], *counts), random_layout(rng, rank + 2))
    return Case(Pool(kind, window, strides, dilations, pads), array, tensor_of(array, layout, domain), result, sizes)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("kind", ["maximum", "sum", "argmax"])
def test_random_pools(kind: str, symbolic: bool) -> None:
    for seed in range(100 * symbolic, 100 * symbolic + 12):
        case = random_case(seed, kind, symbolic)
        works = [build_pool(case.primitive, case.operand, case.result, targets()[n]) for n in ("software", "vectors")]
        expected = case.expected()
        operands = [(case.array, case.operand.layout)]
        on_gpu, _ = run_work(works[0], operands, [case.result], case.sizes)
        on_cpu, _ = run_on_cpu(works[1], operands, [case.result], case.sizes, at_start=bool(seed % 2))
        wide = np.float64 if case.array.dtype.kind in "fV" and kind != "argmax" else expected.dtype
        for actual in (*on_cpu, *on_gpu):
            message = f"seed {seed}: {case.about}"
            np.testing.assert_array_equal(actual.astype(wide), expected.astype(wide), err_msg=message)


@pytest.mark.parametrize("layout", [row_major(4), channels_last(4)], ids=["row major", "channels last"])
@pytest.mark.parametrize("ending", ["bias", "residual", "gelu"])
def test_epilogues(ending: str, layout: Layout) -> None:
    array = np.random.default_rng(0).normal(size=(2, 24, 9, 11)).astype(np.float32)
    shape = (2, 24, 4, 5)
    primitive = Pool("sum", (3, 3), (2, 2), (1, 1), ((0, 0), (0, 0)))
    result = StoredTensor(F32, shape, layout)
    end = EpilogueCase(ending, F32, shape, shape, 1, layout, 3)
    work = build_pool(primitive, tensor_of(array, layout), result, targets()["software"], end.epilogue)
    (actual,), _ = run_work(work, [(array, layout), *end.arrays], [result])
    (total,) = evaluate(primitive, [array.astype(np.float64)], [TensorType(DType.float64, shape)], {})
    np.testing.assert_allclose(actual, end.apply(total), 1e-5, 1e-5)


def test_large_windows() -> None:
    """Windows that become loops, and windows larger than the input."""
    array = np.random.default_rng(1).normal(size=(1, 8, 33, 40)).astype(np.float32)
    for kind in ("maximum", "sum"):
        primitive = Pool(kind, (33, 40), (1, 1), (1, 1), ((0, 0), (20, 20)))
        result = StoredTensor(F32, (1, 8, 1, 41), channels_last(4))
        work = build_pool(primitive, tensor_of(array, channels_last(4)), result, targets()["software"])
        (actual,), _ = run_work(work, [(array, channels_last(4))], [result])
        (expected,) = evaluate(primitive, [array.astype(np.float64)], [TensorType(DType.float64, result.shape)], {})
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-4)
