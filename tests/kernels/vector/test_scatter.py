"""Scatters of elements and slices, with duplicates, reductions and bad indices, and concatenation."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Concat, Scatter
from weft.ir.scalar import Index, Load, Scalar
from weft.ir.types import TensorType
from weft.kernels.common.concat import build_concat
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.maps import build_map_launch
from weft.kernels.vector.scatter import build_scatter

I64 = DType.int64
DTYPES = (DType.float32, DType.float32, DType.float64, DType.float16, DType.bfloat16, DType.int32, DType.uint8)
REDUCTIONS = ("none", "add", "multiply", "minimum", "maximum")


def random_layout(rng: np.random.Generator, rank: int) -> Layout:
    return row_major(rank) if rng.random() < 0.5 else Layout(tuple(int(axis) for axis in rng.permutation(rank)))


def random_scatter(
    rng: np.random.Generator, symbolic: bool, reduction: str, checked: bool
) -> tuple[Scatter, list[Array], list[tuple[Dim, ...]], dict[str, int]]:
    """Make a scatter of elements along an axis, or of slices at the positions that the indices list."""
    rank = int(rng.integers(1, 4))
    shape = tuple(int(size) for size in rng.integers(1, {1: 60, 2: 30, 3: 20}[rank], rank))
    sizes = {f"n{axis}": size for axis, size in enumerate(shape)} | {"m": int(rng.integers(1, 40))}
    data_shape: tuple[Dim, ...] = tuple(
        dims.symbol(f"n{axis}") if symbolic and rng.random() < 0.5 else size for axis, size in enumerate(shape)
    )
    many: Dim = dims.symbol("m") if symbolic else sizes["m"]
    axis = int(rng.integers(rank))
    if rng.random() < 0.5:
        domain = (*data_shape[:axis], many, *data_shape[axis + 1 :])
        own = tuple(Index(dims.axis(number, size)) for number, size in enumerate(domain))
        indices: tuple[Scalar, ...] = (*own[:axis], Load(1, own, I64), *own[axis + 1 :])
        index_shape, low = domain, (axis,)
    else:
        depth = int(rng.integers(1, rank + 1))
        domain = (many, *data_shape[depth:])
        own = tuple(Index(dims.axis(number, size)) for number, size in enumerate(domain))
        indices = (*(Load(1, (own[0], Index(number)), I64) for number in range(depth)), *own[1:])
        index_shape, low = (many, depth), tuple(range(depth))
    count = tuple(dims.evaluate(size, sizes) for size in index_shape)
    slack = 0 if checked else 2
    if len(low) == 1 and index_shape == domain:
        table = rng.integers(-slack, shape[axis] + slack, count)
    else:
        table = np.stack([rng.integers(-slack, shape[d] + slack, count[0]) for d in low], axis=1)
    update_shape = tuple(dims.evaluate(size, sizes) for size in domain)
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    data, update = (rng.integers(1, 4, s).astype(dtype.numpy) for s in (shape, update_shape))
    primitive = Scatter(domain, indices, Load(2, own, dtype), reduction, checked)
    return primitive, [data, table.astype(np.int64), update], [data_shape, index_shape, domain], sizes


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_random_scatters(reduction: str, checked: bool, symbolic: bool) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        primitive, arrays, shapes, sizes = random_scatter(rng, symbolic, reduction, checked)
        layouts = [random_layout(rng, array.ndim) for array in arrays]
        tensors = [tensor_of(array, layout, shape) for array, layout, shape in zip(arrays, layouts, shapes)]
        result = StoredTensor(tensors[0].dtype, shapes[0], random_layout(rng, arrays[0].ndim))
        work = build_scatter(primitive, tensors, result, TARGET)
        (ours,), errors = run_work(work, list(zip(arrays, layouts)), [result], sizes, threads=1 + seed % 2)
        assert errors == 0
        (expected,) = evaluate(primitive, arrays, [TensorType(result.dtype, shapes[0])], sizes)
        np.testing.assert_array_equal(
            ours.astype(np.float64), expected.astype(np.float64), err_msg=f"seed {seed}: {primitive} {shapes} {layouts}"
        )


@pytest.mark.parametrize("bad", [-1, 6])
def test_out_of_range_indices_are_reported(bad: int) -> None:
    own = (Index(dims.axis(0, 40)), Index(dims.axis(1, 33)))
    primitive = Scatter((40, 33), (Load(1, (own[0],), I64), own[1]), Load(2, own, DType.float32), "none")
    data, update = np.zeros((6, 33), np.float32), np.ones((40, 33), np.float32)
    table = np.arange(40) % 6
    result = StoredTensor(DType.float32, (6, 33), row_major(2))
    work = build_scatter(primitive, [tensor_of(array) for array in (data, table, update)], result, TARGET)
    for place in (None, 0, 39):
        changed = table.copy()
        if place is not None:
            changed[place] = bad
        pairs = [(data, row_major(2)), (changed, row_major(1)), (update, row_major(2))]
        _, errors = run_work(work, pairs, [result])
        assert errors == (place is not None)


@pytest.mark.parametrize("symbolic", [False, True])
def test_random_concatenations(symbolic: bool) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 5))
        axis = int(rng.integers(rank))
        shape = [int(size) for size in rng.integers(1, {1: 90, 2: 40, 3: 20, 4: 9}[rank], rank)]
        lengths = [int(size) for size in rng.integers(0 if seed % 3 == 0 else 1, 20, int(rng.integers(1, 5)))]
        sizes = {f"n{a}": size for a, size in enumerate(shape)} | {f"m{k}": size for k, size in enumerate(lengths)}
        base: list[Dim] = [dims.symbol(f"n{a}") if symbolic else size for a, size in enumerate(shape)]
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        arrays, tensors, pairs = [], [], []
        total: Dim = 0
        for k, length in enumerate(lengths):
            size: Dim = dims.symbol(f"m{k}", 0) if symbolic else length
            total = total + size
            array = rng.integers(0, 100, [*shape[:axis], length, *shape[axis + 1 :]]).astype(dtype.numpy)
            layout = random_layout(rng, rank)
            arrays.append(array)
            tensors.append(tensor_of(array, layout, (*base[:axis], size, *base[axis + 1 :])))
            pairs.append((array, layout))
        result = StoredTensor(dtype, (*base[:axis], total, *base[axis + 1 :]), random_layout(rng, rank))
        work = build_concat(Concat(axis), tensors, result, TARGET, build_map_launch)
        (ours,), _ = run_work(work, pairs, [result], sizes)
        np.testing.assert_array_equal(
            ours.astype(np.float64), np.concatenate(arrays, axis).astype(np.float64), err_msg=f"seed {seed}"
        )
