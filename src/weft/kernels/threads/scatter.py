"""The updates of a scatter by threads, applied in order to each element.

Axes along which no two points can collide are free. If they give enough threads, each thread applies all points along
the other axes one by one. Otherwise points are sorted by their element, and the thread of an element's first point
applies all of them; without a reduction, only the thread of the last point writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.occupancy import enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.access import find_axes
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, Integer, Number, Register, Repeat, Statement, When
from weft.ir.layout import offset
from weft.ir.program import Scatter
from weft.ir.scalar import Scalar, loads
from weft.ir.scatter_points import find_disjoint_axes, find_index_axes
from weft.ir.target import ThreadTarget
from weft.kernels.build.error_flag import ErrorFlag, has_checked_loads
from weft.kernels.build.loop_nest import Body, Span, build_loops
from weft.kernels.build.scatter_points import (
    find_contiguous_axis,
    list_indices,
    locate_point,
)
from weft.kernels.common.scatter import build_scatter_work
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, put, repeat
from weft.kernels.lower.merge_axes import operand_inputs, operand_views
from weft.kernels.lower.operations import and_masks
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.data_axes import substitute_axes
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.maps import build_map_launch
from weft.kernels.threads.merge_sort import SortRows, build_sort_launches, sort_workspaces
from weft.kernels.threads.points import build_point_body, choose_lanes, divisor, unravel
from weft.records import dataclass

MANY_THREADS = 64  # per unit, along free axes
FEW_POINTS = 64  # that a thread applies one by one on any device
OUTSIDE = 2**31 - 1  # the key of a point outside the result
MAX_THREAD_POINTS = 1 << 18  # for one thread: llvmpipe ends a loop after 2 ** 16 iterations
UNROLL = 8
STEPS, TESTS = 16, 64  # points between two tests whether any thread has more, and such tests per outer test
NUMBER = "number"  # the placeholder of a point's number

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64


def build_scatter(
    primitive: Scatter, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> Work:
    """Build the copy, the updates, and for sums of narrow floats a final rounding."""
    return build_scatter_work(primitive, operands, result, target, build_map_launch, _build_updates)


def _build_updates(
    primitive: Scatter,
    operands: Sequence[StoredTensor],
    copied: StoredTensor,
    target: ThreadTarget,
    place: Reference,
    first_workspace: int,
) -> tuple[list[Launch], tuple[Workspace, ...]]:
    """Build the launches that update the copy at `place`, and their workspaces, numbered from `first_workspace` on."""
    free = find_disjoint_axes(primitive)
    thread_points = dims.product(size for axis, size in enumerate(primitive.domain) if axis not in free)
    threads = estimate(dims.product(primitive.domain[axis] for axis in free))
    has_few_points = isinstance(thread_points, int) and thread_points <= FEW_POINTS
    has_many_threads = threads >= enough_threads(target.rates, MANY_THREADS) or not shares(target)
    if has_few_points or (has_many_threads and estimate(thread_points) <= MAX_THREAD_POINTS):
        return [_SequentialUpdates(primitive, operands, copied, target).launch(place)], ()
    sorting = _SortedUpdates(primitive, operands, copied, target)
    return sorting.launches(place, first_workspace), sort_workspaces(sorting.rows)


class _UpdateBuilder:
    """The base of builders of update kernels."""

    def __init__(
        self, primitive: Scatter, operands: Sequence[StoredTensor], copied: StoredTensor, target: ThreadTarget
    ) -> None:
        self.primitive = primitive
        self.operands = operands
        self.copied = copied
        self.target = target
        self.domain = primitive.domain
        innermost = find_contiguous_axis(primitive, copied)
        free = find_disjoint_axes(primitive)
        self.free = [*(axis for axis in free if axis != innermost), *(() if innermost is None else (innermost,))]
        self.steps = [axis for axis, size in enumerate(self.domain) if axis not in free and size != 1]
        self.single: dict[int, Dim] = {
            axis: 0 for axis, size in enumerate(self.domain) if axis not in free and size == 1
        }

    def sizes(self, axes: Sequence[int]) -> list[Dim]:
        return [self.domain[axis] for axis in axes]

    def strides(self, builder: KernelBuilder) -> list[Dim]:
        return [builder.size(stride) for stride in self.copied.strides]

    def combine(self, present: Code, value: Code) -> Code:
        """Combine an element with an update."""
        dtype = self.copied.dtype
        value = value if value.dtype is dtype else Call("cast", (value,), dtype)
        return value if self.primitive.reduction == "none" else Call(self.primitive.reduction, (present, value), dtype)

    def kernel(self, name: str, expressions: Sequence[Scalar]) -> _UpdateKernel:
        """Create a kernel that reads the operands that the expressions load."""
        return _UpdateKernel(name, self.operands, expressions)


class _UpdateKernel:
    """A kernel builder with the operands that are read, and an error flag."""

    def __init__(self, name: str, operands: Sequence[StoredTensor], expressions: Sequence[Scalar]) -> None:
        self.builder = KernelBuilder(name)
        read = sorted({load.operand for expression in expressions for load in loads(expression)})
        inputs = operand_inputs(operands, self.builder, read)
        self.views = operand_views(operands, inputs, self.builder)
        self.error_flag = ErrorFlag(self.builder)

    def launch(self, lanes: int, body: tuple[Dim, Body], reports: bool) -> Launch:
        blocks, statements = body
        return self.builder.launch(lanes, self.error_flag.wrap(statements) if reports else statements, blocks)


class _SequentialUpdates(_UpdateBuilder):
    """A thread for each point along the free axes, which applies all points along the others."""

    def launch(self, place: Reference) -> Launch:
        expressions = (*self.primitive.indices, self.primitive.update)
        kernel = self.kernel("scatter", expressions)
        builder = kernel.builder
        out = builder.output("out", self.copied.dtype, place)
        count = dims.product(self.sizes(self.free))
        lanes = choose_lanes(count, self.target)
        ends = [Span(0, builder.size(size)) for size in self.sizes(self.steps)]

        def points(number: Dim, mask: Code | None) -> Body:
            positions = self.single | dict(zip(self.free, unravel(number, self.sizes(self.free), builder)))
            if not ends:
                return point(positions, mask)
            return build_loops(
                builder, "s", ends[:-1], lambda outer: line({**positions, **dict(zip(self.steps, outer))}, mask)
            )

        def line(positions: dict[int, Dim], mask: Code | None) -> Body:
            """Apply points along the innermost axis, in an unrolled loop."""
            end, axis = ends[-1].stop or 0, self.steps[-1]
            unrolled_stop = dims.floordiv(end, UNROLL) * UNROLL
            first, last = builder.variable("i"), builder.variable("j")
            updates = [point({**positions, axis: first + n}, mask) for n in range(UNROLL)]
            body = tuple(statement for update in updates for statement in update)
            last_points = point({**positions, axis: last}, mask)
            return repeat(first, 0, unrolled_stop, UNROLL, body), repeat(last, unrolled_stop, end, 1, last_points)

        def point(places: dict[int, Dim], mask: Code | None) -> Body:
            statements: list[Statement] = []
            lowering = Lowering(kernel.views, places, builder, None, mask, statements)
            indices = list_indices(self.primitive, self.copied, self.strides(builder))
            element = locate_point(indices, lowering, mask, self.primitive.checked)
            present = fetch(out, element.place, element.indirect, element.inside)
            value = self.combine(present, lowering.code(self.primitive.update))
            checks = kernel.error_flag.collect([*lowering.checks, *element.wrong])
            return (*statements, *checks, put(out, element.place, value, element.indirect, element.inside))

        reports = self.primitive.checked or has_checked_loads(*expressions)
        return kernel.launch(lanes, build_point_body(count, lanes, builder, points), reports)


class _SortedUpdates(_UpdateBuilder):
    """Points sorted by the part of their element's offset that does not follow from free axes."""

    def __init__(
        self, primitive: Scatter, operands: Sequence[StoredTensor], copied: StoredTensor, target: ThreadTarget
    ) -> None:
        super().__init__(primitive, operands, copied, target)
        self.is_free_index = [axis is not None for axis in find_index_axes(primitive)]
        self.key_indices = [index for index, is_free in zip(primitive.indices, self.is_free_index) if not is_free]
        key_axes = {axis for index in self.key_indices for axis in find_axes(index)}
        self.row_axes = [axis for axis in self.free if axis in key_axes]
        self.inner_axes = [axis for axis in self.free if axis not in key_axes]
        self.count = dims.product(self.sizes(self.steps))
        self.rows = SortRows(dims.product(self.sizes(self.row_axes)), self.count, self.count, INT32)

    def launches(self, place: Reference, first_workspace: int) -> list[Launch]:
        buffers = [Reference("workspace", first_workspace + number) for number in range(4)]
        runs, last = build_sort_launches(self.rows, self.target, buffers)
        return [self.build_keys(buffers[2]), *runs, self.apply(place, buffers, last)]

    def build_keys(self, place: Reference) -> Launch:
        """Write the key of each point: its element's offset without the part from free axes."""
        kernel = self.kernel("scatter_keys", self.key_indices)
        builder = kernel.builder
        keys = builder.output("keys", INT32, place)
        axes = [*self.row_axes, *self.steps]
        count = self.rows.rows * self.count
        lanes = choose_lanes(count, self.target)
        indices = list_indices(self.primitive, self.copied, self.strides(builder))
        key_indices = [index for index, is_free in zip(indices, self.is_free_index) if not is_free]

        def point(number: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            places = self.single | dict(zip(axes, unravel(number, self.sizes(axes), builder)))
            lowering = Lowering(kernel.views, places, builder, None, mask, statements)
            element = locate_point(key_indices, lowering, mask, self.primitive.checked)
            key: Code = Call("cast", (Integer(element.place),), INT32)
            if element.indirect is not None:
                key = Call("add", (key, Call("cast", (element.indirect,), INT32)), INT32)
            if element.inside is not None:
                key = Call("select", (element.inside, key, Number(OUTSIDE, INT32)), INT32)
            checks = kernel.error_flag.collect([*lowering.checks, *element.wrong])
            return (*statements, *checks, put(keys, number, key, mask=mask))

        reports = self.primitive.checked or has_checked_loads(*self.key_indices)
        return kernel.launch(lanes, build_point_body(count, lanes, builder, point), reports)

    def apply(self, place: Reference, buffers: Sequence[Reference], last: Dim) -> Launch:
        """Apply points in the order of their keys, with a thread for each of them along the other free axes."""
        update = substitute_axes(self.primitive.update, self.steps, self.domain, NUMBER)
        kernel = self.kernel("scatter_sorted", [update])
        builder = kernel.builder
        hints = ("keys_even", "numbers_even", "keys_odd", "numbers_odd")
        keys, numbers, other_keys, other_numbers = (
            builder.input(hint, INT32, spot) for hint, spot in zip(hints, buffers)
        )
        out = builder.output("out", self.copied.dtype, place)
        memory = _SortedPoints((keys, other_keys), (numbers, other_numbers), out)
        second = Call("equal", (Integer(builder.parameter("last", last)), Integer(1)), BOOL)
        sizes = [*self.sizes(self.row_axes), self.count, *self.sizes(self.inner_axes)]
        count = dims.product(sizes)
        lanes = choose_lanes(count, self.target)

        def point(number: Dim, mask: Code | None) -> Body:
            positions = unravel(number, sizes, builder)
            rank = positions[len(self.row_axes)]
            axes = [*self.row_axes, *self.inner_axes]
            places = self.single | dict(
                zip(axes, [*positions[: len(self.row_axes)], *positions[len(self.row_axes) + 1 :]])
            )
            row: Dim = 0
            for axis in self.row_axes:
                row = row * builder.size(self.domain[axis]) + places[axis]
            thread_point = _ThreadPoint(places, row * builder.size(self.count), rank, mask)
            return _SortedUpdate(self, kernel, update, memory, thread_point, second).body()

        return kernel.launch(lanes, build_point_body(count, lanes, builder, point), has_checked_loads(update))


@dataclass(frozen=True, slots=True)
class _SortedPoints:
    """Keys and numbers of sorted points, in the first or the second buffer, and the elements that they update."""

    keys: tuple[Buffer, Buffer]
    numbers: tuple[Buffer, Buffer]
    out: Buffer


@dataclass(frozen=True, slots=True)
class _ThreadPoint:
    """A thread's point: number `rank` of the sorted points of a row, which begins at `start`."""

    places: dict[int, Dim]
    start: Dim
    rank: Dim
    mask: Code | None


class _SortedUpdate:
    """The code of a thread, for its point."""

    def __init__(
        self,
        sorting: _SortedUpdates,
        kernel: _UpdateKernel,
        update: Scalar,
        memory: _SortedPoints,
        point: _ThreadPoint,
        second: Code,
    ) -> None:
        self.sorting, self.kernel, self.update, self.memory, self.second = sorting, kernel, update, memory, second
        builder = self.builder = kernel.builder
        self.start, self.rank, self.mask = point.start, point.rank, point.mask
        self.places = places = point.places
        self.length = divisor(sorting.count, builder)
        self.dtype = sorting.copied.dtype
        free = [
            stride * places[axis]
            for stride, axis in zip(sorting.strides(builder), find_index_axes(sorting.primitive))
            if axis is not None
        ]
        self.base = offset([1] * len(free), free)

    def body(self) -> Body:
        begin, key = self.builder.keep("key", self.fetch_sorted(self.memory.keys, self.rank, self.mask), varying=True)
        inside = and_masks(self.mask, Call("not_equal", (key, Number(OUTSIDE, INT32)), BOOL))
        if self.sorting.primitive.reduction == "none":
            return (begin, *self.write_last(key, and_masks(inside, self.is_boundary(self.rank + 1, key))))
        return (begin, *self.reduce_in_order(key, and_masks(inside, self.is_boundary(self.rank - 1, key))))

    def fetch_sorted(self, pair: tuple[Buffer, Buffer], rank: Dim, mask: Code | None) -> Code:
        """Fetch the key or the number of the point with a rank, from the buffer that holds the sorted ones."""
        first = Call("logical_not", (self.second,), BOOL)
        one = fetch(pair[0], self.start + rank, mask=and_masks(mask, first))
        other = fetch(pair[1], self.start + rank, mask=and_masks(mask, self.second))
        return Call("select", (self.second, other, one), INT32)

    def is_boundary(self, neighbour: Dim, key: Code) -> Code:
        """Whether the neighbouring point has another key, or does not exist."""
        exists = self.exists(neighbour)
        neighbour_key = self.fetch_sorted(self.memory.keys, neighbour, and_masks(self.mask, exists))
        is_end = Call("logical_not", (exists,), BOOL)
        return Call("logical_or", (is_end, Call("not_equal", (neighbour_key, key), BOOL)), BOOL)

    def exists(self, rank: Dim) -> Code:
        low = Call("greater_equal", (Integer(rank), Integer(0)), BOOL)
        return Call("logical_and", (low, Call("less", (Integer(rank), Integer(self.length)), BOOL)), BOOL)

    def write_last(self, key: Register, wins: Code | None) -> Body:
        assert wins is not None
        begin, mask = self.builder.keep("wins", wins, varying=True)
        statements, value = self.value(self.rank, mask)
        place = Call("cast", (key,), INT64)
        write = put(self.memory.out, self.base, self.sorting.combine(value, value), place, mask)
        return (begin, *statements, write)

    def reduce_in_order(self, key: Register, first: Code | None) -> Body:
        """Let the first point of an element apply all: a few, then more while any thread of the block has more."""
        assert first is not None
        begin_mine, mine = self.builder.keep("mine", first, varying=True)
        begin_active, active = self.builder.keep("active", mine)
        place = Call("cast", (key,), INT64)
        begin_total, total = self.builder.keep("total", fetch(self.memory.out, self.base, place, mine), varying=True)

        def take_steps(ahead: Dim) -> Repeat:
            """Apply the next points, from `ahead` ranks after this one."""
            step = self.builder.variable("step")
            rank = self.rank + ahead + step
            here = and_masks(active, self.exists(rank))
            same = and_masks(here, Call("equal", (self.fetch_sorted(self.memory.keys, rank, here), key), BOOL))
            assert same is not None
            statements, value = self.value(rank, active)
            new_total = Call("select", (active, self.sorting.combine(total, value), total), self.dtype)
            return repeat(step, 0, STEPS, 1, (assign(active, same), *statements, assign(total, new_total)))

        outer, inner = self.builder.variable("outer"), self.builder.variable("inner")
        any_more = Across("maximum", active)
        inner_loop = repeat(inner, 0, TESTS, 1, (When(any_more, (take_steps((outer * TESTS + inner + 1) * STEPS),)),))
        outer_loop = repeat(outer, 0, dims.ceildiv(self.length, STEPS * TESTS), 1, (When(any_more, (inner_loop,)),))
        return (
            begin_mine,
            begin_active,
            begin_total,
            take_steps(0),
            When(any_more, (outer_loop,)),
            put(self.memory.out, self.base, total, place, mine),
        )

    def value(self, rank: Dim, mask: Code) -> tuple[Body, Code]:
        """Compute the update of the point with a rank."""
        fetched = Call("cast", (self.fetch_sorted(self.memory.numbers, rank, mask),), INT64)
        definition, number = self.builder.keep("number", fetched, varying=True)
        statements: list[Statement] = [definition]
        lowering = Lowering(self.kernel.views, self.places, self.builder, {NUMBER: number}, mask, statements)
        value = lowering.code(self.update)
        checks = self.kernel.error_flag.collect([Call("logical_and", (mask, check), BOOL) for check in lowering.checks])
        return (*statements, *checks), value
