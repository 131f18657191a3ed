"""Reductions with threads as lanes: any axes of any layout, long and short, against numpy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.reductions import build_reduction
from kernels.threads.works import Array, run_on_cpu, run_work, targets
from kernels.vector.test_reduce import DTYPES, TOLERANCE, numbers, plain, random_layout
from kernels.vector.works import tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import ELEMENT, Apply, Literal, Placeholder, Scalar
from weft.ir.target import ThreadTarget
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import Epilogue, StoredTensor

F32, I64, BOOL = DType.float32, DType.int64, DType.bool
KINDS = ("sum", "product", "maximum", "minimum")
LARGEST = {1: 40000, 2: 300, 3: 60, 4: 20}


def target_named(name: str) -> ThreadTarget:
    """Return a target of kernels.threads.works, or one of few threads that share memory."""
    return replace(targets()["sharing"], block_threads=16, most_block_threads=32) if name == "few" else targets()[name]


def check(actual: Array, array: Array, kind: str, axes: tuple[int, ...], dtype: DType, message: str) -> None:
    remaining = tuple(size for axis, size in enumerate(array.shape) if axis not in axes)
    if not dtype.is_float or kind in ("maximum", "minimum"):
        (expected,) = evaluate(Reduce(kind, axes), [array], [TensorType(dtype, remaining)], {})
        wide = np.float64 if dtype.is_float else expected.dtype
        np.testing.assert_array_equal(actual.astype(wide), expected.astype(wide), err_msg=message)
        return
    wide_array = array.astype(np.float64)
    expected = np.asarray({"sum": np.sum, "product": np.prod}[kind](wide_array, axis=axes))
    scale = np.abs(wide_array).sum(axes) if kind == "sum" else np.abs(expected)
    factors = array.size / max(expected.size, 1)  # each rounds once, in whatever order
    tolerance = TOLERANCE[dtype] + (np.finfo(np.float32).eps * factors**0.5 if kind == "product" else 0)
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), np.isnan(expected), err_msg=message)
    wrong = np.abs(actual.astype(np.float64) - expected) > tolerance * (scale + 1e-30)
    assert not np.any(wrong & np.isfinite(expected)), f"{message}: {actual} {expected}"


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_random_reductions(name: str, symbolic: bool) -> None:
    for seed in range(1000 * symbolic, 1000 * symbolic + 20):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 5))
        shape = tuple(int(size) for size in rng.integers(1, LARGEST[rank], rank))
        axes = tuple(sorted(int(axis) for axis in rng.permutation(rank)[: int(rng.integers(1, rank + 1))]))
        dtype, kind = DTYPES[int(rng.integers(len(DTYPES)))], KINDS[int(rng.integers(4))]
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}") if symbolic and rng.random() < 0.6 else size for axis, size in enumerate(shape)
        )
        array = numbers(rng, shape, dtype, kind)
        if dtype.is_float and rng.random() < 0.2:
            array.reshape(-1)[int(rng.integers(array.size))] = np.nan
        layout = random_layout(rng, rank)
        remaining = tuple(size for axis, size in enumerate(domain) if axis not in axes)
        result = StoredTensor(dtype, remaining, random_layout(rng, len(remaining)))
        tensor = tensor_of(array, layout, domain)
        work = build_reduction(Reduce(kind, axes), plain(domain, dtype), domain, [tensor], result, target_named(name))
        run = run_on_cpu if name == "few" else run_work
        (actual,), _ = run(work, [(array, layout)], [result], {f"n{axis}": size for axis, size in enumerate(shape)})
        message = f"seed {seed}: {kind} of {dtype}{domain} {shape} over {axes}, {layout} to {result.layout}"
        check(actual, array, kind, axes, dtype, message)


@pytest.mark.parametrize("name", ["software", "sharing", "few"])
def test_random_positions(name: str) -> None:
    """Few distinct numbers, so that there are ties; NaN, infinities and bools as well."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        shape = tuple(int(size) for size in rng.integers(1, {1: 3000, 2: 100, 3: 30}[rank], rank))
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        primitive = ArgReduce(["maximum", "minimum"][seed % 2], int(rng.integers(rank)), bool(rng.integers(2)))
        array = rng.integers(0, int(rng.choice([2, 4, 50])), shape).astype(dtype.numpy)
        if dtype.is_float and rng.random() < 0.5:
            for value in (np.nan, np.inf, -np.inf):
                array[rng.random(shape) < rng.choice([0, 0.02, 0.5])] = value
        if rng.random() < 0.1:
            array[...] = -np.inf if dtype.is_float else 0
        layout = random_layout(rng, rank)
        remaining = tuple(size for axis, size in enumerate(shape) if axis != primitive.axis)
        result = StoredTensor(I64, remaining, random_layout(rng, rank - 1))
        tensor = tensor_of(array, layout)
        work = build_reduction(primitive, plain(shape, dtype), shape, [tensor], result, target_named(name))
        (actual,), _ = (run_on_cpu if name == "few" else run_work)(work, [(array, layout)], [result])
        (expected,) = evaluate(primitive, [array], [TensorType(I64, remaining)], {})
        np.testing.assert_array_equal(actual, expected, err_msg=f"seed {seed}: {primitive} of {dtype}{shape} {layout}")


@pytest.mark.parametrize("name", ["software", "sharing"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1 << 20,), (0,)),
        ((3, 300001), (1,)),
        ((70001, 20), (0,)),
        ((40, 9, 2000), (0, 2)),
        ((8, 56, 56, 32), (1, 2)),
        ((5000, 6), (1,)),
    ],
)
def test_long_reductions(name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Rows in chunks, with a static and a symbolic size, and an epilogue that halves."""
    rng = np.random.default_rng(4)
    array = (rng.random(shape) + 1).astype(np.float32)
    for domain in (shape, (dims.symbol("n"), *shape[1:])):
        remaining = tuple(size for axis, size in enumerate(domain) if axis not in axes)
        result = StoredTensor(F32, remaining, row_major(len(remaining)))
        whole: Scalar = Placeholder(ELEMENT, F32)
        epilogue = Epilogue(Apply("multiply", (whole, Literal(0.5, F32)), F32), ())
        operands = [tensor_of(array, shape=domain)]
        target = target_named(name)
        work = build_reduction(Reduce("sum", axes), plain(domain, F32), domain, operands, result, target, epilogue)
        (actual,), _ = run_work(work, [(array, row_major(array.ndim))], [result], {"n": shape[0]})
        np.testing.assert_allclose(actual, array.sum(axis=axes, dtype=np.float64) / 2, 2e-6)


@pytest.mark.parametrize("last", [False, True])
def test_argmax_of_a_long_row(last: bool) -> None:
    array = np.random.default_rng(8).integers(0, 50000, (2, 300000)).astype(np.float32)
    result = StoredTensor(I64, (2,), row_major(1))
    primitive = ArgReduce("maximum", 1, last)
    (expected,) = evaluate(primitive, [array], [TensorType(I64, (2,))], {})
    for name in ("software", "sharing"):
        work = build_reduction(
            primitive, plain(array.shape, F32), array.shape, [tensor_of(array)], result, target_named(name)
        )
        (actual,), _ = run_work(work, [(array, row_major(2))], [result])
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [F32, DType.float16, DType.int32])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_positions_in_chunks_of_long_rows(kind: str, last: bool, dtype: DType) -> None:
    """Ties across chunks, rows of one value only, infinities and NaN, for any number of rows."""
    length, sign = 40000, 1 if kind == "maximum" else -1
    rng = np.random.default_rng(5)
    array = rng.integers(0, 900, (9, length)).astype(dtype.numpy)
    array[1] = 3
    array[2, [17, 8192, 39999]] = 1000 * sign
    if dtype.is_float:
        array[3], array[4] = -np.inf, np.inf
        array[5, [12345, 30000]] = np.nan
        array[6, 20000:] = -np.inf * sign
        array[7, 39999] = np.inf * sign
    result, target = StoredTensor(I64, (dims.symbol("n"),), row_major(1)), target_named("sharing")
    primitive = ArgReduce(kind, 1, last)
    domain = (dims.symbol("n"), length)
    negated = Epilogue(Apply("negate", (Placeholder(ELEMENT, I64),), I64), ())
    operands = [tensor_of(array, shape=domain)]
    work = build_reduction(primitive, plain(domain, dtype), domain, operands, result, target, negated)
    assert len(work.launches) == 2
    (expected,) = evaluate(primitive, [array], [TensorType(I64, (9,))], {})
    for rows in (array, array[5:6], array[:3]):
        (actual,), _ = run_work(work, [(rows, row_major(2))], [result], {"n": len(rows)})
        (expected,) = evaluate(primitive, [rows], [TensorType(I64, (len(rows),))], {})
        np.testing.assert_array_equal(actual, -expected)


def test_long_sums_in_a_fixed_order() -> None:
    """The bits of a row do not depend on the number of rows, whether that is static or not."""
    array = np.random.default_rng(6).normal(size=(130, 200000)).astype(np.float32)
    target = replace(target_named("sharing"), fixed_order=True)
    sums = []
    for rows in (1, 3, 130):
        domain = (rows, 200000)
        result = StoredTensor(F32, (rows,), row_major(1))
        operands = [tensor_of(array[:rows])]
        work = build_reduction(Reduce("sum", (1,)), plain(domain, F32), domain, operands, result, target)
        (actual,), _ = run_work(work, [(array[:rows], row_major(2))], [result])
        sums.append(actual)
    np.testing.assert_array_equal(sums[0], sums[2][:1])
    np.testing.assert_array_equal(sums[1], sums[2][:3])
    np.testing.assert_allclose(sums[2], array.sum(axis=1, dtype=np.float64), 1e-4, 1e-3)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 0, 4)])
def test_empty_reductions(shape: tuple[int, ...]) -> None:
    for dtype in (F32, DType.int32, BOOL):
        for kind in KINDS:
            array = np.zeros(shape, dtype.numpy)
            for axes in ((1,), tuple(range(len(shape)))):
                remaining = tuple(size for axis, size in enumerate(shape) if axis not in axes)
                result = StoredTensor(dtype, remaining, row_major(len(remaining)))
                work = build_reduction(
                    Reduce(kind, axes), plain(shape, dtype), shape, [tensor_of(array)], result, target_named("sharing")
                )
                (actual,), _ = run_work(work, [(array, row_major(array.ndim))], [result])
                if dtype is BOOL:
                    expected = np.full(remaining, kind in ("product", "minimum"))
                else:
                    (expected,) = evaluate(Reduce(kind, axes), [array], [TensorType(dtype, remaining)], {})
                np.testing.assert_array_equal(actual, expected)


def test_an_expression_of_two_tensors() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 6, 35, 18)).astype(np.float32)
    domain = (6, 35, 18)
    difference = Apply("subtract", (plain(domain, F32), plain(domain, F32, 1)), F32)
    element = Apply("multiply", (difference, difference), F32)
    result = StoredTensor(F32, (6, 18), row_major(2))
    expected = np.square(first.astype(np.float64) - second).sum(1)
    for layout in (row_major(3), Layout((0, 2, 1)), Layout((1, 2, 0))):
        tensors = [tensor_of(first, layout), tensor_of(second, layout)]
        for name in ("software", "sharing"):
            work = build_reduction(Reduce("sum", (1,)), element, domain, tensors, result, target_named(name))
            (actual,), _ = run_work(work, [(first, layout), (second, layout)], [result])
            np.testing.assert_allclose(actual, expected, 1e-5)


@pytest.mark.parametrize("dtype", [F32, DType.float16])
@pytest.mark.parametrize("sizes", [(32, 61, 59), (40, 31, 31), (33, 50, 3), (3, 40, 90), (130, 7, 7)], ids=str)
def test_means_over_space_of_any_batch(sizes: tuple[int, int, int], dtype: DType) -> None:
    """Channels are innermost. Results of an image have the same bits in any batch, static or dynamic."""
    rng = np.random.default_rng(11)
    arrays = rng.normal(1, 3, (5, *sizes)).astype(dtype.numpy)
    layout = Layout((0, 2, 3, 1))
    bits = []
    for batch, count in ((1, 1), (5, 5), (dims.symbol("n", 1), 1), (dims.symbol("n", 1), 5)):
        domain: tuple[Dim, ...] = (batch, *sizes)
        array = arrays[:count]
        result = StoredTensor(dtype, domain[:2], row_major(2))
        operands = [tensor_of(array, layout, domain)]
        work = build_reduction(
            Reduce("sum", (2, 3)), plain(domain, dtype), domain, operands, result, target_named("sharing")
        )
        (actual,), _ = run_work(work, [(array, layout)], [result], {"n": count})
        check(actual, array, "sum", (2, 3), dtype, f"seed 11: {dtype}{sizes} of {count}")
        bits.append(actual[0].tobytes())
    assert len(set(bits)) == 1
