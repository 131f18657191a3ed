"""Sorting and the first few along any axis, with ties and NaN, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import run_work, tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Sort
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.sort import build_sort

DTYPES = (
    DType.float32,
    DType.float64,
    DType.float16,
    DType.bfloat16,
    DType.int32,
    DType.int64,
    DType.uint8,
    DType.bool,
)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("group", range(6))
def test_random_sorts(group: int, descending: bool, symbolic: bool) -> None:
    for seed in range(group * 8, group * 8 + 8):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        shape = tuple(int(size) for size in rng.integers(1, {1: 2000, 2: 100, 3: 30}[rank], rank))
        axis = int(rng.integers(rank))
        count = int(rng.choice([0, 1, 2, 5, 31, shape[axis] // 2, shape[axis], shape[axis]]))
        count = min(count, shape[axis])
        sizes = {f"n{number}": size for number, size in enumerate(shape)} | {"k": count}
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{number}") if symbolic and rng.random() < 0.6 else size for number, size in enumerate(shape)
        )
        number: Dim = dims.symbol("k", 0) if symbolic and rng.random() < 0.5 else count
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        array = rng.integers(0, int(rng.choice([2, 5, 100])), shape).astype(dtype.numpy)
        if dtype.is_float and rng.random() < 0.5:
            for value in (np.nan, np.inf, -np.inf):
                array[rng.random(shape) < 0.1] = value
        layouts = [
            row_major(rank) if rng.random() < 0.5 else Layout(tuple(int(a) for a in rng.permutation(rank)))
            for _ in range(3)
        ]
        result_shape = (*domain[:axis], number, *domain[axis + 1 :])
        results = [StoredTensor(dtype, result_shape, layouts[1]), StoredTensor(DType.int64, result_shape, layouts[2])]
        primitive = Sort(axis, number, descending)
        work = build_sort(primitive, tensor_of(array, layouts[0], domain), results[0], results[1])
        (values, positions), _ = run_work(work, [(array, layouts[0])], results, sizes)
        kinds = [TensorType(dtype, result_shape), TensorType(DType.int64, result_shape)]
        expected, expected_positions = evaluate(primitive, [array], kinds, sizes)
        message = f"seed {seed}: {primitive} of {dtype}{shape}"
        np.testing.assert_array_equal(positions, expected_positions, err_msg=message)
        np.testing.assert_array_equal(values.astype(np.float64), expected.astype(np.float64), err_msg=message)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("distinct", [2, 30, 100_000])
@pytest.mark.parametrize("count", [33, 64, 100, 333])
def test_many_of_a_long_row(count: int, distinct: int, descending: bool) -> None:
    """Sorted by a heap; of equal elements the first are selected, and keep their order."""
    rng = np.random.default_rng(count + distinct)
    array = rng.integers(0, distinct, (3, 1000)).astype(np.float32)
    array[0] = np.sort(array[0])[::-1]
    array[1, rng.random(1000) < 0.1] = np.nan
    array[2] = np.sort(array[2])
    result_shape: tuple[Dim, ...] = (3, count)
    results = [
        StoredTensor(DType.float32, result_shape, row_major(2)),
        StoredTensor(DType.int64, result_shape, row_major(2)),
    ]
    primitive = Sort(1, count, descending)
    work = build_sort(primitive, tensor_of(array, row_major(2), (3, 1000)), results[0], results[1])
    assert not work.workspaces
    (values, positions), _ = run_work(work, [(array, row_major(2))], results, {})
    kinds = [TensorType(DType.float32, result_shape), TensorType(DType.int64, result_shape)]
    expected, expected_positions = evaluate(primitive, [array], kinds, {})
    np.testing.assert_array_equal(positions, expected_positions)
    np.testing.assert_array_equal(values, expected)
