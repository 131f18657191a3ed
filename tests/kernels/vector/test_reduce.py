"""Reduction kernels over any axes of any layout, with expressions before and after, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.reductions import build_reduction
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder, Scalar
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import Epilogue, StoredTensor

F32, I64, BOOL = DType.float32, DType.int64, DType.bool
DTYPES = (F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int32, I64, DType.uint8, DType.int8, BOOL)
KINDS = ("sum", "product", "maximum", "minimum")
TOLERANCE = {F32: 2e-5, DType.float64: 1e-12, DType.float16: 2e-3, DType.bfloat16: 1e-2}


def plain(shape: tuple[Dim, ...], dtype: DType, operand: int = 0) -> Load:
    return Load(operand, tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape)), dtype)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, kind: str) -> Array:
    if dtype is BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        return rng.integers(0, 100, shape).astype(dtype.numpy)
    values = rng.normal(0, 1, shape)
    if kind == "product":
        values = 1 + values * 1e-3
    return values.astype(np.float32).astype(dtype.numpy)


def assert_near(ours: Array, expected: Array, dtype: DType, scale: Array | float, message: str) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(ours, expected, err_msg=message)
        return
    ours, expected = ours.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected), err_msg=message)
    wrong = np.abs(ours - expected) > TOLERANCE[dtype] * (np.abs(scale) + 1e-30)
    assert not np.any(wrong & np.isfinite(expected)), f"{message}: {ours} {expected}"


def random_layout(rng: np.random.Generator, rank: int) -> Layout:
    return row_major(rank) if rng.random() < 0.5 else Layout(tuple(int(axis) for axis in rng.permutation(rank)))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("group", range(20))
def test_random_reductions(group: int, symbolic: bool) -> None:
    for seed in range(group * 8, group * 8 + 8):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 5))
        limit = {1: 40000, 2: 300, 3: 60, 4: 20}[rank]
        shape = tuple(int(size) for size in rng.integers(1, limit, rank))
        count = int(rng.integers(1, rank + 1))
        axes = tuple(sorted(int(axis) for axis in rng.permutation(rank)[:count]))
        dtype, kind = DTYPES[int(rng.integers(len(DTYPES)))], KINDS[int(rng.integers(4))]
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}") if symbolic and rng.random() < 0.6 else size for axis, size in enumerate(shape)
        )
        sizes = {f"n{axis}": size for axis, size in enumerate(shape)}
        array = numbers(rng, shape, dtype, kind)
        if dtype.is_float and rng.random() < 0.2:
            array.reshape(-1)[int(rng.integers(array.size))] = np.nan
        layout = random_layout(rng, rank)
        result_shape = tuple(size for axis, size in enumerate(domain) if axis not in axes)
        result = StoredTensor(dtype, result_shape, random_layout(rng, len(result_shape)))
        work = build_reduction(
            Reduce(kind, axes), plain(domain, dtype), domain, [tensor_of(array, layout, domain)], result, TARGET
        )
        (ours,), _ = run_work(work, [(array, layout)], [result], sizes, at_start=bool(seed % 2))
        message = f"seed {seed}: {kind} of {dtype}{domain} {shape} over {axes}, {layout} to {result.layout}"
        if dtype.is_float and kind in ("sum", "product"):
            expected = {"sum": np.sum, "product": np.prod}[kind](array.astype(np.float64), axis=axes)
            scale = np.sum(np.abs(array.astype(np.float64)), axis=axes) if kind == "sum" else expected
            assert_near(ours, np.asarray(expected), dtype, scale, message)
        else:
            (expected,) = evaluate(Reduce(kind, axes), [array], [TensorType(dtype, result_shape)], sizes)
            assert_near(ours, expected, dtype, 0.0, message)


@pytest.mark.parametrize("group", range(12))
def test_random_positions(group: int) -> None:
    """Few distinct numbers, so that there are ties; NaN, infinities and bools as well."""
    for seed in range(group * 8, group * 8 + 8):
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
        result_shape = tuple(size for axis, size in enumerate(shape) if axis != primitive.axis)
        result = StoredTensor(I64, result_shape, random_layout(rng, rank - 1))
        work = build_reduction(primitive, plain(shape, dtype), shape, [tensor_of(array, layout)], result, TARGET)
        (ours,), _ = run_work(work, [(array, layout)], [result])
        (expected,) = evaluate(primitive, [array], [TensorType(I64, result_shape)], {})
        np.testing.assert_array_equal(ours, expected, err_msg=f"seed {seed}: {primitive} of {dtype}{shape} {layout}")


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 0, 4)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F32, DType.int32, BOOL])
def test_empty_reductions(dtype: DType, kind: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype.numpy)
    for axes in ((1,), tuple(range(len(shape)))):
        result_shape = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        result = StoredTensor(dtype, result_shape, row_major(len(result_shape)))
        work = build_reduction(Reduce(kind, axes), plain(shape, dtype), shape, [tensor_of(array)], result, TARGET)
        (ours,), _ = run_work(work, [(array, row_major(array.ndim))], [result])
        if dtype is BOOL:
            expected = np.full(result_shape, kind in ("product", "minimum"))
        else:
            (expected,) = evaluate(Reduce(kind, axes), [array], [TensorType(dtype, result_shape)], {})
        np.testing.assert_array_equal(ours, expected)


def test_mean_of_squared_differences_with_epilogue() -> None:
    """The reduced element reads two tensors, the result is scaled, shifted by another and cast."""
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 6, 35, 18)).astype(np.float32)
    other = rng.normal(size=(18, 6)).astype(np.float32)
    domain = (6, 35, 18)
    difference = Apply("subtract", (plain(domain, F32), plain(domain, F32, 1)), F32)
    element = Apply("multiply", (difference, difference), F32)
    shift = Load(0, (Index(dims.axis(1, 18)), Index(dims.axis(0, 6))), F32)
    mean = Apply("divide", (Placeholder(ELEMENT, F32), Literal(35.0, F32)), F32)
    epilogue = Epilogue(Apply("add", (mean, shift), F32), (tensor_of(other),))
    result = StoredTensor(F32, (6, 18), row_major(2))
    expected = np.mean(np.square(first.astype(np.float64) - second), axis=1) + other.T
    for layout in (row_major(3), Layout((0, 2, 1)), Layout((1, 2, 0))):
        tensors = [tensor_of(first, layout), tensor_of(second, layout)]
        work = build_reduction(Reduce("sum", (1,)), element, domain, tensors, result, TARGET, epilogue)
        pairs = [(first, layout), (second, layout), (other, row_major(2))]
        (ours,), _ = run_work(work, pairs, [result])
        np.testing.assert_allclose(ours, expected, 1e-5)


@pytest.mark.parametrize(
    ("shape", "axes"), [((200000,), (0,)), ((3, 70001), (1,)), ((5000, 20), (0,)), ((9, 8000, 3), (0, 1))]
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_long_reductions_are_the_same_for_any_threads(
    shape: tuple[int, ...], axes: tuple[int, ...], symbolic: bool
) -> None:
    array = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    domain: tuple[Dim, ...] = (dims.symbol("n"), *shape[1:]) if symbolic else shape
    result_shape = tuple(size for axis, size in enumerate(domain) if axis not in axes)
    result = StoredTensor(F32, result_shape, row_major(len(result_shape)))
    halved: Scalar = Apply("multiply", (Placeholder(ELEMENT, F32), Literal(0.5, F32)), F32)
    work = build_reduction(
        Reduce("sum", axes),
        plain(domain, F32),
        domain,
        [tensor_of(array, shape=domain)],
        result,
        TARGET,
        Epilogue(halved, ()),
    )
    if not symbolic:
        assert len(work.launches) == 2
    runs = [
        run_work(work, [(array, row_major(array.ndim))], [result], {"n": shape[0]}, threads=n)[0][0] for n in (1, 2, 4)
    ]
    assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()
    np.testing.assert_allclose(runs[0], array.sum(axis=axes, dtype=np.float64) / 2, 1e-4, 1e-3)


def test_means_of_channels_last_images() -> None:
    array = np.random.default_rng(5).normal(size=(2, 100, 7, 7)).astype(np.float32)
    result = StoredTensor(F32, (2, 100), row_major(2))
    for layout in (channels_last(4), row_major(4)):
        work = build_reduction(
            Reduce("sum", (2, 3)), plain(array.shape, F32), array.shape, [tensor_of(array, layout)], result, TARGET
        )
        (ours,), _ = run_work(work, [(array, layout)], [result])
        np.testing.assert_allclose(ours, array.sum(axis=(2, 3), dtype=np.float64), 1e-4, 1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
def test_rounding_error_of_long_rows_side_by_side(symbolic: bool) -> None:
    """A lane with its own row sums it in chunks, so that the error does not grow with the row."""
    x = (np.random.default_rng(7).random((1, 24, 160, 170)) + 1).astype(np.float32)
    shape: tuple[Dim, ...] = (1, 24, dims.symbol("h"), dims.symbol("w")) if symbolic else x.shape
    tensor, result = StoredTensor(F32, shape, channels_last(4)), StoredTensor(F32, (1, 24), row_major(2))
    work = build_reduction(Reduce("sum", (2, 3)), plain(shape, F32), shape, [tensor], result, TARGET)
    (actual,), _ = run_work(work, [(x, channels_last(4))], [result], {"h": 160, "w": 170})
    np.testing.assert_allclose(actual, x.astype(np.float64).sum((2, 3)), rtol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
def test_rounding_error_of_equal_numbers_side_by_side(symbolic: bool) -> None:
    """Rounding errors of equal numbers add up, and models subtract such sums (the variance of padding)."""
    x = np.broadcast_to(np.random.default_rng(7).random((1, 1, 256)), (1, 512, 256)).astype(np.float32)
    shape: tuple[Dim, ...] = (1, dims.symbol("n"), 256) if symbolic else x.shape
    tensor, result = StoredTensor(F32, shape, row_major(3)), StoredTensor(F32, (1, 256), row_major(2))
    work = build_reduction(Reduce("sum", (1,)), plain(shape, F32), shape, [tensor], result, TARGET)
    (actual,), _ = run_work(work, [(x, row_major(3))], [result], {"n": 512})
    np.testing.assert_allclose(actual, x.astype(np.float64).sum(1), rtol=16 * 2.0**-24)
