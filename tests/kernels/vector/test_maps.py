"""Map kernels at odd sizes, in all layouts, with every kind of load, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.reductions import build_reduction
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.backends.host.machine import named
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.program import Map, Pool, Reduce
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import TensorType
from weft.kernels.common.maps import Region
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.maps import build_map
from weft.kernels.vector.pool import build_pool

F32, I64, BOOL = DType.float32, DType.int64, DType.bool
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 48)
DTYPES = (F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int32, I64, DType.uint8, DType.int8, BOOL)


class Maker:
    """A random map over a random domain, with its operands."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        rank = int(self.rng.integers(0, 5))
        limit = {0: 1, 1: 5000, 2: 120, 3: 49, 4: 18}[rank]
        self.shape = tuple(int(self.rng.choice([s for s in SIZES if s <= limit])) for _ in range(rank))
        if rank == 1:
            self.shape = (int(self.rng.integers(1, limit)),)
        self.sizes = {f"n{axis}": size for axis, size in enumerate(self.shape)}
        named = [symbolic and self.rng.random() < 0.6 for _ in self.shape]
        self.domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}") if is_named else size
            for axis, (size, is_named) in enumerate(zip(self.shape, named))
        )
        self.axes = [dims.axis(axis, size) for axis, size in enumerate(self.domain)]
        self.dtype = DTYPES[int(self.rng.integers(len(DTYPES)))]
        self.arrays: list[Array] = []
        self.layouts: list[Layout] = []
        self.shapes: list[tuple[Dim, ...]] = []

    def layout(self, rank: int) -> Layout:
        if self.rng.random() < 0.5:
            return row_major(rank)
        return Layout(tuple(int(axis) for axis in self.rng.permutation(rank)))

    def numbers(self, shape: tuple[int, ...], dtype: DType) -> Array:
        if dtype is BOOL:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.is_float:
            return self.rng.normal(0, 3, shape).astype(np.float32).astype(dtype.numpy)
        return self.rng.integers(0, 40, shape).astype(dtype.numpy)

    def operand(self, shape: tuple[Dim, ...], array: Array) -> int:
        self.arrays.append(array)
        self.shapes.append(shape)
        self.layouts.append(self.layout(array.ndim))
        return len(self.arrays) - 1

    def size(self, dim: Dim) -> int:
        return dims.evaluate(dim, self.sizes)

    def load(self) -> Scalar:
        """Load an operand with some of the domain's axes in some order, each with its own kind of index."""
        count = int(self.rng.integers(0, len(self.axes) + 1))
        chosen = [int(axis) for axis in self.rng.permutation(len(self.axes))[:count]]
        if self.rng.random() < 0.5:
            chosen = sorted(self.rng.permutation(len(self.axes)).tolist())
        shape: list[Dim] = []
        indices: list[Scalar] = []
        tests: list[Scalar] = []
        for axis in chosen:
            size, index, test = self.choose_index(self.domain[axis], self.axes[axis])
            shape.append(size)
            indices.append(index)
            tests += test
        array = self.numbers(tuple(map(self.size, shape)), self.dtype)
        value: Scalar = Load(self.operand(tuple(shape), array), tuple(indices), self.dtype)
        for test in tests:
            fill = Literal(True if self.dtype is BOOL else 3, self.dtype)
            value = Apply("select", (test, value, fill), self.dtype)
        return value

    def choose_index(self, size: Dim, axis: Dim) -> tuple[Dim, Scalar, list[Scalar]]:
        """Return (size of the operand, index into it, conditions that keep it inside) along one axis."""
        kind = self.rng.choice(
            ["plain"] * 8 + ["slice", "step", "reverse", "padded", "clamped", "gather", "checked", "halved", "wrapped"]
        )
        match kind:
            case "slice":
                return size + 3, Index(axis + 2), []
            case "step":
                step = int(self.rng.integers(2, 6))
                return size * step, Index(axis * step + 1), []
            case "reverse":
                return size, Index(size - 1 - axis), []
            case "padded":
                place = Index(axis - 2)
                tests: list[Scalar] = [
                    Apply("greater_equal", (place, Literal(0, I64)), BOOL),
                    Apply("less", (place, Index(size)), BOOL),
                ]
                if self.rng.random() < 0.5:
                    tests = [Apply("logical_and", tuple(tests), BOOL)]
                return size, place, tests
            case "clamped":
                return size, Index(axis * 2 - 3), []
            case "gather" | "checked":
                length = int(self.rng.integers(1, 9))
                low, high = (0, length) if kind == "checked" else (-3, length + 3)
                table = self.rng.integers(low, high, self.size(size)).astype(np.int64)
                number = self.operand((size,), table)
                return length, Load(number, (Index(axis),), I64), []
            case "halved":
                return size, Index(dims.floordiv(axis, 2)), []
            case "wrapped":
                return 3, Index(dims.mod(axis, 3)), []
            case _:
                return size, Index(axis), []

    def expression(self) -> Scalar:
        result = self.load()
        function = "logical_xor" if self.dtype is BOOL else "add"
        for _ in range(int(self.rng.integers(0, 3))):
            result = Apply(function, (result, self.load()), self.dtype)
        if self.rng.random() < 0.3:
            other = "logical_and" if self.dtype is BOOL else "multiply"
            result = Apply(other, (result, result), self.dtype)
        if self.rng.random() < 0.2 and self.axes:
            index: Scalar = Index(sum(self.axes, 0) + 1)
            cast = Apply("cast", (index,), self.dtype)
            result = Apply("logical_or" if self.dtype is BOOL else "maximum", (result, cast), self.dtype)
        return result

    def operands(self) -> list[StoredTensor]:
        return [
            tensor_of(array, layout, shape)
            for array, layout, shape in zip(self.arrays, self.layouts, self.shapes, strict=True)
        ]


def assert_same(ours: Array, expected: Array, message: str) -> None:
    wide = np.float64 if ours.dtype.kind in "fV" else ours.dtype
    np.testing.assert_array_equal(ours.astype(wide), expected.astype(wide), err_msg=message)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("group", range(20))
def test_random_maps(group: int, symbolic: bool) -> None:
    for seed in range(group * 10, group * 10 + 10):
        maker = Maker(seed, symbolic)
        expression = maker.expression()
        result = StoredTensor(maker.dtype, maker.domain, maker.layout(len(maker.domain)))
        work = build_map(expression, maker.operands(), result, TARGET)
        kinds = [TensorType(maker.dtype, maker.domain)]
        (expected,) = evaluate(Map(expression), maker.arrays, kinds, maker.sizes)
        for at_start in (False, True):
            pairs = list(zip(maker.arrays, maker.layouts, strict=True))
            (ours,), errors = run_work(work, pairs, [result], maker.sizes, at_start=at_start)
            assert_same(ours, expected, f"seed {seed}: {expression} over {maker.domain} as {result.layout}")
            assert errors == 0


def plain(shape: tuple[Dim, ...], operand: int = 0, dtype: DType = F32) -> Load:
    return Load(operand, tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape)), dtype)


@pytest.mark.parametrize("dtype", [F32, DType.float64, DType.uint8, DType.float16, BOOL])
@pytest.mark.parametrize("shape", [(1, 3, 17, 19), (2, 64, 7, 9), (1, 16, 16, 16), (3, 5, 1, 40), (2, 33, 31, 1)])
def test_layout_changes(shape: tuple[int, ...], dtype: DType) -> None:
    array = np.random.default_rng(0).integers(0, 2 if dtype is BOOL else 100, shape).astype(dtype.numpy)
    for source, target in (
        (row_major(4), channels_last(4)),
        (channels_last(4), row_major(4)),
        (Layout((3, 1, 0, 2)),) * 2,
    ):
        result = StoredTensor(dtype, shape, target)
        work = build_map(plain(shape, dtype=dtype), [tensor_of(array, source)], result, TARGET)
        (ours,), _ = run_work(work, [(array, source)], [result])
        assert_same(ours, array, f"{source} to {target}")


def test_transposing_with_arithmetic() -> None:
    """A transposed operand, one in the result's order, and a bias, in one kernel."""
    shape = (2, 37, 21, 18)
    rng = np.random.default_rng(1)
    first, second, bias = (rng.normal(size=s).astype(np.float32) for s in (shape, shape, (37,)))
    total = Apply("add", (plain(shape), plain(shape, 1)), F32)
    expression = Apply("add", (total, Load(2, (Index(dims.axis(1, 37)),), F32)), F32)
    layouts = [row_major(4), channels_last(4), row_major(1)]
    arrays = [first, second, bias]
    result = StoredTensor(F32, shape, channels_last(4))
    work = build_map(expression, list(map(tensor_of, arrays, layouts)), result, TARGET)
    (ours,), _ = run_work(work, list(zip(arrays, layouts)), [result])
    np.testing.assert_array_equal(ours, first + second + bias[:, None, None])


@pytest.mark.parametrize("outer", [1, 9, dims.symbol("n")], ids=str)
@pytest.mark.parametrize("inner", [(25, 2), (23, 3), (37, 1), (5, 7), (11, 5), (3, 43)], ids=str)
def test_short_axes_that_do_not_fill_vectors(outer: Dim, inner: tuple[int, int]) -> None:
    """Mirrored along one axis and transposed, so that only reading element by element is left."""
    long, short = inner
    shape = (3, outer, long, short)
    n, sizes = (outer, {}) if isinstance(outer, int) else (6, {"n": 6})
    array = np.random.default_rng(3).normal(size=(3, long, short, n)).astype(np.float32)
    a, b, c, d = (dims.axis(axis, size) for axis, size in enumerate(shape))
    mirrored = Load(0, tuple(map(Index, (a, dims.minimum(c, long - 1 - c), d, outer - 1 - b))), F32)
    expression = Apply("multiply", (mirrored, Apply("cast", (Index(c + d),), F32)), F32)
    result = StoredTensor(F32, shape, row_major(4))
    work = build_map(expression, [tensor_of(array, shape=(3, long, short, outer))], result, TARGET)
    (expected,) = evaluate(Map(expression), [array], [TensorType(F32, shape)], sizes)
    for at_start in (False, True):
        (ours,), _ = run_work(work, [(array, row_major(4))], [result], sizes, at_start=at_start)
        assert_same(ours, expected, f"{shape}")


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_checked_indices_are_reported(bad: int) -> None:
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    shape = (40, 3)
    gather = Load(0, (Load(1, (Index(dims.axis(0, 40)),), I64), Index(dims.axis(1, 3))), F32, checked=True)
    result = StoredTensor(F32, shape, row_major(2))
    indices = np.arange(40) % 5
    work = build_map(gather, [tensor_of(values), tensor_of(indices)], result, TARGET)
    for place in (None, 0, 17, 39):
        changed = indices.copy()
        if place is not None:
            changed[place] = bad
        pairs: list[Any] = [(values, row_major(2)), (changed, row_major(1))]
        (ours,), errors = run_work(work, pairs, [result])
        assert errors == (place is not None)
        assert_same(ours, values[np.clip(changed, 0, 4)], "gather")


def test_writing_into_a_region() -> None:
    rng = np.random.default_rng(2)
    for layout in (row_major(3), Layout((2, 0, 1)), Layout((0, 2, 1))):
        array = rng.normal(size=(4, 5, 33)).astype(np.float32)
        whole = StoredTensor(F32, (4, 11, 33), layout)
        work = build_map(
            plain(array.shape),
            [tensor_of(array)],
            StoredTensor(F32, array.shape, layout),
            TARGET,
            Region(whole, (0, 3, 0)),
        )
        (ours,), _ = run_work(work, [(array, row_major(3))], [whole])
        expected = np.full((4, 11, 33), 77, np.float32)
        expected[:, 3:8] = array
        assert_same(ours, expected, str(layout))


def test_empty_domains_and_operands() -> None:
    empty = np.zeros((0, 4), np.float32)
    result = StoredTensor(F32, (0, 4), row_major(2))
    (ours,), _ = run_work(
        build_map(plain((0, 4)), [tensor_of(empty)], result, TARGET), [(empty, row_major(2))], [result]
    )
    assert ours.shape == (0, 4)
    size = dims.symbol("n", 0)
    axis = dims.axis(0, 5)
    inside = Apply("less", (Index(axis), Index(size)), BOOL)
    expression = Apply("select", (inside, Load(0, (Index(axis),), F32), Literal(-1.0, F32)), F32)
    padded = StoredTensor(F32, (5,), row_major(1))
    nothing = np.zeros(0, np.float32)
    work = build_map(expression, [tensor_of(nothing, shape=(size,))], padded, TARGET)
    (ours,), _ = run_work(work, [(nothing, row_major(1))], [padded], {"n": 0})
    assert ours.tolist() == [-1.0] * 5


def test_shared_subexpressions_are_computed_once() -> None:
    """Repeated squares: as a tree the expression has a million leaves."""
    value: Scalar = plain((50,))
    for _ in range(20):
        value = Apply("multiply", (value, value), F32)
    array = np.linspace(0.9999999, 1.0000001, 50).astype(np.float32)
    result = StoredTensor(F32, (50,), row_major(1))
    (ours,), _ = run_work(build_map(value, [tensor_of(array)], result, TARGET), [(array, row_major(1))], [result])
    expected = array
    for _ in range(20):
        expected = expected * expected
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", "x86-64-v4", "cortex-a72", "apple-m1"])
def test_other_processors(processor: str) -> None:
    """LLVM compiles kernels for vectors of other lengths."""
    machine = named(processor)
    shape = (2, 24, 17, 19)
    image = StoredTensor(F32, shape, row_major(4))
    last = StoredTensor(F32, shape, channels_last(4))
    pool = Pool("maximum", (3, 3), (2, 2), (1, 1), ((1, 1), (1, 1)))
    pooled = StoredTensor(F32, (2, 24, 9, 10), row_major(4))
    means = StoredTensor(F32, (2, 24), row_major(2))
    works = [
        build_map(Apply("exp", (plain(shape),), F32), [image], image, machine.target),
        build_map(plain(shape), [image], last, machine.target),
        build_reduction(Reduce("sum", (2, 3)), plain(shape), shape, [image], means, machine.target),
        build_reduction(Reduce("maximum", (2, 3)), plain(shape), shape, [last], means, machine.target),
        build_pool(pool, image, pooled, machine.target),
    ]
    for work in works:
        for launch in work.launches:
            verify_kernel(launch.kernel)
            assert launch.kernel.name in assembly_text(llvm_text([launch.kernel], VECTOR_LANES), machine)


@pytest.mark.parametrize(
    ("dtype", "channels", "first", "start", "wide"),
    [
        (DType.uint8, 8, 8, 16, I64),
        (DType.int8, 12, 4, 8, DType.int32),
        (DType.uint8, 6, 2, 4, DType.int16),
        (DType.uint8, 8, 3, 16, DType.uint8),
        (DType.uint8, 7, 0, 0, DType.uint8),
        (DType.float16, 4, 0, 4, I64),
        (F32, 8, 0, 8, F32),
    ],
)
def test_short_runs_of_narrow_numbers_are_copied_as_wide_ones(
    dtype: DType, channels: int, first: int, start: int, wide: DType
) -> None:
    """Copy channels from `first` on, of every other pixel, into a part of a wider tensor."""
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 100, (2, channels + first, 5, 14)).astype(dtype.numpy)
    shape, whole_shape = (2, channels, 5, 7), (2, channels + start, 5, 7)
    layout = channels_last(4)
    axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
    places = [axes[0], axes[1] + first, axes[2], axes[3] * 2]
    whole = StoredTensor(dtype, whole_shape, layout)
    region = Region(whole, (0, start, 0, 0))
    part = StoredTensor(dtype, shape, layout)
    work = build_map(Load(0, tuple(map(Index, places)), dtype), [tensor_of(x, layout)], part, TARGET, region)
    assert {buffer.dtype for buffer in work.launches[0].kernel.buffers} == {wide}
    (actual,), _ = run_work(work, [(x, layout)], [whole])
    np.testing.assert_array_equal(actual[:, start:], x[:, first:, :, ::2])
