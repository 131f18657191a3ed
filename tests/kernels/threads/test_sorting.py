"""Sorting and cumulative sums with threads as lanes: short and long rows, ties and NaN, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.threads.test_reductions import target_named
from kernels.threads.works import run_on_cpu, run_work
from kernels.vector.test_cumulate import DTYPES as SUMMED
from kernels.vector.test_sort import DTYPES
from kernels.vector.works import tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Cumulate, Sort
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.cumulate import build_cumulate
from weft.kernels.threads.sort import build_sort

F32, I64 = DType.float32, DType.int64
MORE = (*DTYPES, DType.uint32, DType.uint64, DType.int8, DType.uint16)


def random_layout(rng: np.random.Generator, rank: int) -> Layout:
    return row_major(rank) if rng.random() < 0.5 else Layout(tuple(int(axis) for axis in rng.permutation(rank)))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_random_sorts(name: str, symbolic: bool) -> None:
    for seed in range(1000 * symbolic, 1000 * symbolic + (6 if name == "few" else 16)):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        shape = tuple(int(size) for size in rng.integers(1, {1: 3000, 2: 200, 3: 30}[rank], rank))
        axis = int(rng.integers(rank))
        count = min(int(rng.choice([0, 1, 2, 31, shape[axis] // 2, shape[axis], shape[axis]])), shape[axis])
        sizes = {f"n{number}": size for number, size in enumerate(shape)} | {"k": count}
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{number}") if symbolic and rng.random() < 0.6 else size for number, size in enumerate(shape)
        )
        taken_count: Dim = dims.symbol("k", 0) if symbolic and rng.random() < 0.5 else count
        dtype = MORE[int(rng.integers(len(MORE)))]
        array = rng.integers(0, int(rng.choice([2, 5, 100])), shape).astype(dtype.numpy)
        if dtype.is_float and rng.random() < 0.7:
            array = -array if rng.random() < 0.5 else array
            for value in (np.nan, np.inf, -np.inf, -0.0, 0.0, -1.5):
                array[rng.random(shape) < 0.1] = value
        elif dtype in (DType.uint32, DType.uint64):
            array[rng.random(shape) < 0.2] = dtype.limits[1]
        layouts = [random_layout(rng, rank) for _ in range(3)]
        result_shape = (*domain[:axis], taken_count, *domain[axis + 1 :])
        results = [StoredTensor(dtype, result_shape, layouts[1]), StoredTensor(I64, result_shape, layouts[2])]
        primitive = Sort(axis, taken_count, bool(rng.integers(2)))
        work = build_sort(primitive, tensor_of(array, layouts[0], domain), *results, target_named(name))
        run = run_on_cpu if name == "few" else run_work
        (values, positions), _ = run(work, [(array, layouts[0])], results, sizes)
        expected, places = evaluate(
            primitive, [array], [TensorType(dtype, result_shape), TensorType(I64, result_shape)], sizes
        )
        message = f"seed {seed}: {primitive} of {dtype}{shape}"
        np.testing.assert_array_equal(positions, places, err_msg=message)
        wide = np.float64 if dtype.is_float else expected.dtype
        np.testing.assert_array_equal(values.astype(wide), expected.astype(wide), err_msg=message)


@pytest.mark.parametrize("name", ["software", "sharing"])
@pytest.mark.parametrize(
    ("shape", "count"), [((3, 2049), 2049), ((1, 40000), 40000), ((2, 70000), 100), ((300, 600), 3)]
)
def test_long_rows(name: str, shape: tuple[int, int], count: int) -> None:
    """Several merges; few distinct numbers, whose order is stable; static and dynamic sizes."""
    array = np.random.default_rng(1).integers(0, 1000, shape).astype(np.float32)
    expected = np.argsort(-array, axis=1, kind="stable")[:, :count]
    for domain in (shape, (shape[0], dims.symbol("n"))):
        result_shape = (shape[0], count)
        results = [StoredTensor(F32, result_shape, row_major(2)), StoredTensor(I64, result_shape, row_major(2))]
        work = build_sort(Sort(1, count, True), tensor_of(array, shape=domain), *results, target_named(name))
        (values, positions), _ = run_work(work, [(array, row_major(2))], results, {"n": shape[1]})
        np.testing.assert_array_equal(positions, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(array, expected, 1))


@pytest.mark.parametrize("kind", ["sum", "product"])
@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_random_cumulations(name: str, kind: str) -> None:
    for seed in range(8 if name == "few" else 16):
        rng = np.random.default_rng(seed)
        rank, symbolic = int(rng.integers(1, 4)), bool(seed % 2)
        shape = tuple(int(size) for size in rng.integers(0 if seed == 7 else 1, {1: 3000, 2: 90, 3: 24}[rank], rank))
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}", 0) if symbolic and rng.random() < 0.6 else size for axis, size in enumerate(shape)
        )
        dtype = SUMMED[int(rng.integers(len(SUMMED)))]
        array = rng.integers(0 if kind == "sum" else 1, 2, shape).astype(dtype.numpy)
        if dtype in (F32, DType.float64) and kind == "sum":
            array = rng.normal(size=shape).astype(dtype.numpy)
        primitive = Cumulate(kind, int(rng.integers(rank)), bool(rng.integers(2)), bool(rng.integers(2)))
        layouts = [random_layout(rng, rank) for _ in range(2)]
        result = StoredTensor(dtype, domain, layouts[1])
        work = build_cumulate(primitive, tensor_of(array, layouts[0], domain), result, target_named(name))
        sizes = {f"n{axis}": size for axis, size in enumerate(shape)}
        (actual,), _ = (run_on_cpu if name == "few" else run_work)(work, [(array, layouts[0])], [result], sizes)
        (expected,) = evaluate(primitive, [array], [TensorType(dtype, domain)], sizes)
        tolerance = {F32: 1e-5, DType.float64: 1e-12}.get(dtype, 0)
        message = f"seed {seed}: {primitive} of {dtype}{shape}, {layouts}"
        np.testing.assert_allclose(
            actual.astype(np.float64), expected.astype(np.float64), tolerance, tolerance * 20, err_msg=message
        )


@pytest.mark.parametrize("name", ["software", "sharing"])
@pytest.mark.parametrize("shape", [(1, 300000), (3, 70001), (5000, 9)])
def test_long_cumulations(name: str, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(2).random(shape).astype(np.float32)
    result = tensor_of(array)
    work = build_cumulate(Cumulate("sum", 1, False, False), result, result, target_named(name))
    (actual,), _ = run_work(work, [(array, row_major(2))], [result])
    np.testing.assert_allclose(actual, np.cumsum(array, 1, dtype=np.float64), 2e-4)
