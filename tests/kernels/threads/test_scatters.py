"""Scatters with threads as lanes, which iterate over points or sort them, and random numbers, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.threads.test_reductions import target_named
from kernels.threads.works import run_on_cpu, run_work
from kernels.vector.test_scatter import REDUCTIONS, random_layout, random_scatter
from kernels.vector.works import tensor_of

from weft.backends.reference.interpret import evaluate
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Random, Scatter
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import TensorType
from weft.kernels.common.random import build_random
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.scatter import build_scatter

F32, I64 = DType.float32, DType.int64


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_random_scatters(name: str, reduction: str) -> None:
    for seed in range(3 if name == "few" else 6):
        rng = np.random.default_rng(seed)
        primitive, arrays, shapes, sizes = random_scatter(rng, bool(seed % 2), reduction, bool(rng.integers(2)))
        layouts = [random_layout(rng, array.ndim) for array in arrays]
        tensors = [tensor_of(array, layout, shape) for array, layout, shape in zip(arrays, layouts, shapes)]
        result = StoredTensor(tensors[0].dtype, shapes[0], random_layout(rng, arrays[0].ndim))
        work = build_scatter(primitive, tensors, result, target_named(name))
        run = run_on_cpu if name == "few" else run_work
        (actual,), errors = run(work, list(zip(arrays, layouts)), [result], sizes)
        assert errors == 0
        (expected,) = evaluate(primitive, arrays, [TensorType(result.dtype, shapes[0])], sizes)
        message = f"seed {seed}: {primitive} {shapes} {layouts}"
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64), err_msg=message)


def slices(rows: int, points: Dim, width: int, reduction: str) -> Scatter:
    """Return rows of updates, and a table with the row of the data for each."""
    own = (Index(dims.axis(0, points)), Index(dims.axis(1, width)))
    return Scatter((points, width), (Load(1, own[:1], I64), own[1]), Load(2, own, F32), reduction)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(("rows", "points", "width"), [(300, 3000, 1), (7, 2000, 5), (4000, 1500, 16), (1, 700, 3)])
def test_many_points_with_equal_indices(rows: int, points: int, width: int, reduction: str) -> None:
    """They are sorted, and applied in order, bit for bit; their number is static or dynamic."""
    rng = np.random.default_rng(rows)
    data, update = (rng.normal(size=(size, width)).astype(np.float32) for size in (rows, points))
    table = rng.integers(0, rows, points)
    expected = data.copy()
    if reduction == "none":
        expected[table] = update
    else:
        np.add.at(expected, table, update)
    arrays = [data, table, update]
    for name in ("software", "sharing"):
        for size in (points, dims.symbol("m")):
            shapes: list[tuple[Dim, ...]] = [(rows, width), (size,), (size, width)]
            tensors = [tensor_of(array, shape=shape) for array, shape in zip(arrays, shapes)]
            work = build_scatter(slices(rows, size, width, reduction), tensors, tensors[0], target_named(name))
            pairs = [(array, row_major(array.ndim)) for array in arrays]
            (actual,), errors = run_work(work, pairs, [tensors[0]], {"m": points})
            assert errors == 0
            np.testing.assert_array_equal(actual, expected, err_msg=f"{name}, {size} points")


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_different_indices_in_every_row(reduction: str) -> None:
    """Sorted row by row, along two axes of points; some are out of range."""
    rng = np.random.default_rng(9)
    shape, domain = (5, 40), (5, 9, 30)
    own = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(domain))
    indices: tuple[Scalar, ...] = (own[0], Load(1, own, I64))
    primitive = Scatter(domain, indices, Load(2, own, F32), reduction, checked=False)
    data, update = rng.normal(size=shape).astype(np.float32), rng.normal(size=domain).astype(np.float32)
    table = rng.integers(-3, 43, domain)
    (expected,) = evaluate(primitive, [data, table, update], [TensorType(F32, shape)], {})
    for layout in (row_major(2), Layout((1, 0))):
        result = StoredTensor(F32, shape, layout)
        work = build_scatter(primitive, [tensor_of(a) for a in (data, table, update)], result, target_named("sharing"))
        assert any(launch.kernel.name == "scatter_sorted" for launch in work.launches)
        (actual,), errors = run_work(work, [(a, row_major(a.ndim)) for a in (data, table, update)], [result])
        assert errors == 0
        np.testing.assert_allclose(actual, expected, 1e-6, 1e-6)


@pytest.mark.parametrize("points", [40, 400])
@pytest.mark.parametrize("bad", [-1, 6])
def test_out_of_range_indices_are_reported(bad: int, points: int) -> None:
    data, update = np.zeros((6, 33), np.float32), np.ones((points, 33), np.float32)
    result = tensor_of(data)
    for name in ("software", "sharing"):
        table = np.arange(points) % 6
        tensors = [tensor_of(array) for array in (data, table, update)]
        work = build_scatter(slices(6, points, 33, "none"), tensors, result, target_named(name))
        for place in (None, 0, points - 1):
            bad_table = table.copy()
            if place is not None:
                bad_table[place] = bad
            pairs = [(data, row_major(2)), (bad_table, row_major(1)), (update, row_major(2))]
            _, errors = run_work(work, pairs, [result])
            assert errors == (place is not None)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_random_numbers(kind: str) -> None:
    for seed, shape in ((1, (1,)), (2**63 + 5, (7, 9)), (2**32 + 77, (3, 1500)), (3, (0, 4)), (12, ())):
        for dtype in (F32, DType.float16):
            result = StoredTensor(dtype, shape, row_major(len(shape)))
            work = build_random(Random(kind, seed), result, target_named("software"))
            for launch in work.launches:
                assert all(isinstance(value, int) and abs(value) < 2**31 for value in launch.values)
            (actual,), _ = run_work(work, [], [result])
            (expected,) = evaluate(Random(kind, seed), [], [TensorType(dtype, shape)], {})
            np.testing.assert_array_equal(
                actual.astype(np.float64), expected.astype(np.float64), err_msg=f"seed {seed}"
            )


def write_to_pool(points: Dim, *, distinct: bool) -> Scatter:
    """Return rows of several sequences, written into a pool of blocks of 4 places behind what is there."""
    own = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate((2, 3, points, 8)))
    position = Apply("add", (own[2], Load(3, own[:1], I64)), I64)
    block = Load(2, (own[0], Apply("divide", (position, Literal(4, I64)), I64)), I64)
    place = Apply("remainder", (position, Literal(4, I64)), I64)
    update = Apply("multiply", (Load(1, own, F32), Literal(0.5, F32)), F32)
    return Scatter((2, 3, points, 8), (block, own[1], place, own[3]), update, "none", False, True, distinct)


@pytest.mark.parametrize("points", [1, 6])
@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_distinct_points_are_stored_at_once(name: str, points: int) -> None:
    """One kernel stores them; a table entry that is no block is skipped, and no other element changes."""
    rng = np.random.default_rng(4)
    pool, new = (rng.normal(size=size).astype(np.float32) for size in ((7, 3, 4, 8), (2, 3, points, 8)))
    table, starts = np.array([[5, 0, 2], [7, 3, -1]]), np.array([3, 2])
    expected = pool.copy()
    for row, start in enumerate(starts):
        for point in range(points):
            block, place = table[row, (start + point) // 4], (start + point) % 4
            if 0 <= block < 7:
                expected[block, :, place] = new[row, :, point] / 2
    arrays = [pool, new, table, starts]
    for size in (points, dims.symbol("m")):
        shapes: list[tuple[Dim, ...]] = [pool.shape, (2, 3, size, 8), table.shape, starts.shape]
        tensors = [tensor_of(array, shape=shape) for array, shape in zip(arrays, shapes)]
        copied = replace(write_to_pool(size, distinct=True), in_place=False)
        work = build_scatter(copied, tensors, tensors[0], target_named(name))
        assert [launch.kernel.name for launch in work.launches] == ["map", "scatter"]
        run = run_on_cpu if name == "few" else run_work
        (actual,), errors = run(work, [(a, row_major(a.ndim)) for a in arrays], [tensors[0]], {"m": points})
        assert errors == 0
        np.testing.assert_array_equal(actual, expected)
        in_place = build_scatter(write_to_pool(size, distinct=True), tensors, tensors[0], target_named(name))
        assert [launch.kernel.name for launch in in_place.launches] == ["scatter"]


def test_the_reference_checks_that_points_are_distinct() -> None:
    pool, new, starts = np.zeros((7, 3, 4, 8), np.float32), np.ones((2, 3, 2, 8), np.float32), np.array([3, 3])
    for table, is_distinct in (([[5, 0], [6, 1]], True), ([[5, 0], [5, 1]], False), ([[9, 0], [9, 1]], True)):
        arrays = [pool.copy(), new, np.array(table), starts]
        types = [TensorType(F32, pool.shape)]
        evaluate(write_to_pool(2, distinct=False), arrays, types, {})
        if is_distinct:
            evaluate(write_to_pool(2, distinct=True), arrays, types, {})
        else:
            with pytest.raises(InternalError, match="two points"):
                evaluate(write_to_pool(2, distinct=True), arrays, types, {})
