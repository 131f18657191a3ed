"""The updates of a scatter by threads: each has points of its own, and takes those that may meet in their order.

Where the axes on which no points meet give threads enough, a thread goes through all points of the others. Otherwise
points are sorted by the element that they fall on, and the thread of an element's first point takes in all of them;
where the last one wins, that one's does.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.occupancy import enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.access import axes_of
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, Integer, Number, Register, Repeat, Statement, When
from weft.ir.layout import offset
from weft.ir.program import Scatter
from weft.ir.scalar import Scalar, loads
from weft.ir.target import ThreadTarget
from weft.kernels.build.checks import FaultReport, is_checked
from weft.kernels.build.loop_nest import Body, Span, loops
from weft.kernels.build.scatter_points import all_indices, find_point, free_axes, neighbour_axis, own_axes
from weft.kernels.common.scatter import scatter_launches
from weft.kernels.lower.expressions import Lowering, both
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, put, repeat
from weft.kernels.lower.merge_axes import operand_inputs, operand_views
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.data_axes import with_number
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.maps import region_launch
from weft.kernels.threads.points import digits, divisor, each_point, lanes_for
from weft.kernels.threads.sorted_runs import Rows, sorted_runs, workspaces
from weft.records import dataclass

ENOUGH_THREADS = 64  # for each unit, of which no points of two can meet
FEW_POINTS = 64  # that a thread takes one by one
OUTSIDE = 2**31 - 1  # the key of a point that falls on no element
LONGEST_WALK = 1 << 18  # points for one thread: software counts the turns of a loop, and ends it at 2 ** 16
UNROLLED = 8
STEPS, TURNS = 16, 64  # points that a thread takes between two looks whether any has more left, and looks between looks
NUMBER = "number"  # the key of a point's number

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64


def scatter_work(
    primitive: Scatter, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> Work:
    """The copy, the updates, and for sums of narrow floats a rounding at the end."""
    return scatter_launches(primitive, operands, result, target, region_launch, _updates)


def _updates(
    primitive: Scatter,
    operands: Sequence[StoredTensor],
    copied: StoredTensor,
    target: ThreadTarget,
    place: Reference,
    spaces: int,
) -> tuple[list[Launch], tuple[Workspace, ...]]:
    """(launches, their workspaces, numbered from `spaces` on); `place` is the copy that they change."""
    free = free_axes(primitive)
    meeting = dims.product(size for axis, size in enumerate(primitive.domain) if axis not in free)
    threads = estimate(dims.product(primitive.domain[axis] for axis in free))
    few = isinstance(meeting, int) and meeting <= FEW_POINTS
    apart = (threads >= enough_threads(target.rates, ENOUGH_THREADS) or not shares(target)) and estimate(
        meeting
    ) <= LONGEST_WALK
    if few or apart:
        return [_Walking(primitive, operands, copied, target).launch(place)], ()
    sorting = _Sorting(primitive, operands, copied, target)
    return sorting.launches(place, spaces), workspaces(sorting.rows)


class _Updates:
    """What kernels of updates have in common."""

    def __init__(
        self, primitive: Scatter, operands: Sequence[StoredTensor], copied: StoredTensor, target: ThreadTarget
    ) -> None:
        self.primitive = primitive
        self.operands = operands
        self.copied = copied
        self.target = target
        self.domain = primitive.domain
        beside = neighbour_axis(primitive, copied)
        free = free_axes(primitive)
        self.free = [*(axis for axis in free if axis != beside), *(() if beside is None else (beside,))]
        self.steps = [axis for axis, size in enumerate(self.domain) if axis not in free and size != 1]
        self.single: dict[int, Dim] = {
            axis: 0 for axis, size in enumerate(self.domain) if axis not in free and size == 1
        }

    def sizes(self, axes: Sequence[int]) -> list[Dim]:
        return [self.domain[axis] for axis in axes]

    def strides(self, builder: KernelBuilder) -> list[Dim]:
        return [builder.size(stride) for stride in self.copied.strides]

    def combined(self, present: Code, value: Code) -> Code:
        """An element after an update."""
        dtype = self.copied.dtype
        value = value if value.dtype is dtype else Call("cast", (value,), dtype)
        return value if self.primitive.reduction == "none" else Call(self.primitive.reduction, (present, value), dtype)

    def kernel(self, name: str, expressions: Sequence[Scalar]) -> _UpdateKernel:
        """A kernel that reads what the expressions load from."""
        return _UpdateKernel(name, self.operands, expressions)


class _UpdateKernel:
    """A kernel in the making that reads some of the operands, and may report faults."""

    def __init__(self, name: str, operands: Sequence[StoredTensor], expressions: Sequence[Scalar]) -> None:
        self.builder = KernelBuilder(name)
        read = sorted({load.operand for expression in expressions for load in loads(expression)})
        inputs = operand_inputs(operands, self.builder, read)
        self.views = operand_views(operands, inputs, self.builder)
        self.faults = FaultReport(self.builder)

    def launch(self, lanes: int, body: tuple[Dim, Body], reports: bool) -> Launch:
        blocks, statements = body
        return self.builder.launch(lanes, self.faults.around(statements) if reports else statements, blocks)


class _Walking(_Updates):
    """A thread for each point along the free axes, which goes through all others."""

    def launch(self, place: Reference) -> Launch:
        expressions = (*self.primitive.indices, self.primitive.update)
        kernel = self.kernel("scatter", expressions)
        builder = kernel.builder
        out = builder.output("out", self.copied.dtype, place)
        count = dims.product(self.sizes(self.free))
        lanes = lanes_for(count, self.target)
        ends = [Span(0, builder.size(size)) for size in self.sizes(self.steps)]

        def points(number: Dim, mask: Code | None) -> Body:
            known = self.single | dict(zip(self.free, digits(number, self.sizes(self.free), builder)))
            if not ends:
                return point(known, mask)
            return loops(builder, "s", ends[:-1], lambda rest: line({**known, **dict(zip(self.steps, rest))}, mask))

        def line(known: dict[int, Dim], mask: Code | None) -> Body:
            """Points along the innermost axis, several in each turn of a loop."""
            end, axis = ends[-1].stop or 0, self.steps[-1]
            whole = dims.floordiv(end, UNROLLED) * UNROLLED
            first, last = builder.variable("i"), builder.variable("j")
            several = [point({**known, axis: first + n}, mask) for n in range(UNROLLED)]
            turn = tuple(statement for each in several for statement in each)
            rest = point({**known, axis: last}, mask)
            return repeat(first, 0, whole, UNROLLED, turn), repeat(last, whole, end, 1, rest)

        def point(places: dict[int, Dim], mask: Code | None) -> Body:
            statements: list[Statement] = []
            lowering = Lowering(kernel.views, places, builder, None, mask, statements)
            indices = all_indices(self.primitive, self.copied, self.strides(builder))
            found = find_point(indices, lowering, mask, self.primitive.checked)
            present = fetch(out, found.place, found.indirect, found.inside)
            value = self.combined(present, lowering.code(self.primitive.update))
            checks = kernel.faults.gather([*lowering.checks, *found.wrong])
            return (*statements, *checks, put(out, found.place, value, found.indirect, found.inside))

        reports = self.primitive.checked or is_checked(*expressions)
        return kernel.launch(lanes, each_point(count, lanes, builder, points), reports)


class _Sorting(_Updates):
    """Points sorted by the element that they fall on, as far as that depends on more than free axes."""

    def __init__(
        self, primitive: Scatter, operands: Sequence[StoredTensor], copied: StoredTensor, target: ThreadTarget
    ) -> None:
        super().__init__(primitive, operands, copied, target)
        self.is_own = [axis is not None for axis in own_axes(primitive)]
        others = [index for index, own in zip(primitive.indices, self.is_own) if not own]
        needed = {axis for index in others for axis in axes_of(index)}
        self.others = others
        self.row_axes = [axis for axis in self.free if axis in needed]
        self.beside = [axis for axis in self.free if axis not in needed]
        self.count = dims.product(self.sizes(self.steps))
        self.rows = Rows(dims.product(self.sizes(self.row_axes)), self.count, self.count, INT32)

    def launches(self, place: Reference, spaces: int) -> list[Launch]:
        spots = [Reference("workspace", spaces + number) for number in range(4)]
        runs, last = sorted_runs(self.rows, self.target, spots)
        return [self.keys(spots[2]), *runs, self.apply(place, spots, last)]

    def keys(self, place: Reference) -> Launch:
        """The element that each point falls on, but for what free axes decide."""
        kernel = self.kernel("scatter_keys", self.others)
        builder = kernel.builder
        keys = builder.output("keys", INT32, place)
        axes = [*self.row_axes, *self.steps]
        count = self.rows.rows * self.count
        lanes = lanes_for(count, self.target)
        indices = all_indices(self.primitive, self.copied, self.strides(builder))
        chosen = [entry for entry, own in zip(indices, self.is_own) if not own]

        def point(number: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            places = self.single | dict(zip(axes, digits(number, self.sizes(axes), builder)))
            lowering = Lowering(kernel.views, places, builder, None, mask, statements)
            found = find_point(chosen, lowering, mask, self.primitive.checked)
            key: Code = Call("cast", (Integer(found.place),), INT32)
            if found.indirect is not None:
                key = Call("add", (key, Call("cast", (found.indirect,), INT32)), INT32)
            if found.inside is not None:
                key = Call("select", (found.inside, key, Number(OUTSIDE, INT32)), INT32)
            checks = kernel.faults.gather([*lowering.checks, *found.wrong])
            return (*statements, *checks, put(keys, number, key, mask=mask))

        reports = self.primitive.checked or is_checked(*self.others)
        return kernel.launch(lanes, each_point(count, lanes, builder, point), reports)

    def apply(self, place: Reference, spots: Sequence[Reference], last: Dim) -> Launch:
        """Points in the order of their keys, each with all that belong to it along the other free axes."""
        update = with_number(self.primitive.update, self.steps, self.domain, NUMBER)
        kernel = self.kernel("scatter_sorted", [update])
        builder = kernel.builder
        hints = ("keys_even", "numbers_even", "keys_odd", "numbers_odd")
        keys, numbers, other_keys, other_numbers = (
            builder.input(hint, INT32, spot) for hint, spot in zip(hints, spots)
        )
        out = builder.output("out", self.copied.dtype, place)
        memory = _Sorted((keys, other_keys), (numbers, other_numbers), out)
        second = Call("equal", (Integer(builder.named("last", last)), Integer(1)), BOOL)
        sizes = [*self.sizes(self.row_axes), self.count, *self.sizes(self.beside)]
        count = dims.product(sizes)
        lanes = lanes_for(count, self.target)

        def point(number: Dim, mask: Code | None) -> Body:
            positions = digits(number, sizes, builder)
            rank = positions[len(self.row_axes)]
            axes = [*self.row_axes, *self.beside]
            places = self.single | dict(
                zip(axes, [*positions[: len(self.row_axes)], *positions[len(self.row_axes) + 1 :]])
            )
            row: Dim = 0
            for axis in self.row_axes:
                row = row * builder.size(self.domain[axis]) + places[axis]
            ranked = _Ranked(places, row * builder.size(self.count), rank, mask)
            return _Application(self, kernel, update, memory, ranked, second).body()

        return kernel.launch(lanes, each_point(count, lanes, builder, point), is_checked(update))


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Keys and numbers of points in order, in the first or the second buffer, and the elements that they change."""

    keys: tuple[Buffer, Buffer]
    numbers: tuple[Buffer, Buffer]
    out: Buffer


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Where a thread stands: place `rank` of the sorted points of a row, which begins at `start`."""

    places: dict[int, Dim]
    start: Dim
    rank: Dim
    mask: Code | None


class _Application:
    """What a thread does for the point that it stands at."""

    def __init__(
        self,
        sorting: _Sorting,
        kernel: _UpdateKernel,
        update: Scalar,
        memory: _Sorted,
        here: _Ranked,
        second: Code,
    ) -> None:
        self.sorting, self.kernel, self.update, self.memory, self.second = sorting, kernel, update, memory, second
        builder = self.builder = kernel.builder
        self.start, self.rank, self.mask = here.start, here.rank, here.mask
        self.places = places = here.places
        self.length = divisor(sorting.count, builder)
        self.dtype = sorting.copied.dtype
        free = [
            stride * places[axis]
            for stride, axis in zip(sorting.strides(builder), own_axes(sorting.primitive))
            if axis is not None
        ]
        self.base = offset([1] * len(free), free)

    def body(self) -> Body:
        begin, key = self.builder.keep("key", self.sorted(self.memory.keys, self.rank, self.mask), varying=True)
        inside = both(self.mask, Call("not_equal", (key, Number(OUTSIDE, INT32)), BOOL))
        if self.sorting.primitive.reduction == "none":
            return (begin, *self.last_wins(key, both(inside, self.is_alone(self.rank + 1, key))))
        return (begin, *self.all_in_order(key, both(inside, self.is_alone(self.rank - 1, key))))

    def sorted(self, pair: tuple[Buffer, Buffer], rank: Dim, mask: Code | None) -> Code:
        """The key or the number of the point at a place, from the one of two buffers where they are in order."""
        first = Call("logical_not", (self.second,), BOOL)
        one = fetch(pair[0], self.start + rank, mask=both(mask, first))
        other = fetch(pair[1], self.start + rank, mask=both(mask, self.second))
        return Call("select", (self.second, other, one), INT32)

    def is_alone(self, neighbour: Dim, key: Code) -> Code:
        """Whether the point at a neighbouring place has another key, or there is none."""
        there = self.exists(neighbour)
        other = self.sorted(self.memory.keys, neighbour, both(self.mask, there))
        alone = Call("logical_not", (there,), BOOL)
        return Call("logical_or", (alone, Call("not_equal", (other, key), BOOL)), BOOL)

    def exists(self, rank: Dim) -> Code:
        low = Call("greater_equal", (Integer(rank), Integer(0)), BOOL)
        return Call("logical_and", (low, Call("less", (Integer(rank), Integer(self.length)), BOOL)), BOOL)

    def last_wins(self, key: Register, wins: Code | None) -> Body:
        assert wins is not None
        begin, mask = self.builder.keep("wins", wins, varying=True)
        statements, value = self.value(self.rank, mask)
        place = Call("cast", (key,), INT64)
        write = put(self.memory.out, self.base, self.sorting.combined(value, value), place, mask)
        return (begin, *statements, write)

    def all_in_order(self, key: Register, first: Code | None) -> Body:
        """The first point of an element takes in all: a few, and more as long as any thread of the block has more."""
        assert first is not None
        begin_mine, mine = self.builder.keep("mine", first, varying=True)
        begin_active, active = self.builder.keep("active", mine)
        place = Call("cast", (key,), INT64)
        begin_total, total = self.builder.keep("total", fetch(self.memory.out, self.base, place, mine), varying=True)

        def some_in_order(ahead: Dim) -> Repeat:
            """The next points, from `ahead` places further on."""
            step = self.builder.variable("step")
            rank = self.rank + ahead + step
            here = both(active, self.exists(rank))
            same = both(here, Call("equal", (self.sorted(self.memory.keys, rank, here), key), BOOL))
            assert same is not None
            statements, value = self.value(rank, active)
            taken = Call("select", (active, self.sorting.combined(total, value), total), self.dtype)
            return repeat(step, 0, STEPS, 1, (assign(active, same), *statements, assign(total, taken)))

        look, turn = self.builder.variable("look"), self.builder.variable("turn")
        any_more = Across("maximum", active)
        turns = repeat(turn, 0, TURNS, 1, (When(any_more, (some_in_order((look * TURNS + turn + 1) * STEPS),)),))
        looks = repeat(look, 0, dims.ceildiv(self.length, STEPS * TURNS), 1, (When(any_more, (turns,)),))
        return (
            begin_mine,
            begin_active,
            begin_total,
            some_in_order(0),
            When(any_more, (looks,)),
            put(self.memory.out, self.base, total, place, mine),
        )

    def value(self, rank: Dim, mask: Code) -> tuple[Body, Code]:
        """The update of the point at a place."""
        found = Call("cast", (self.sorted(self.memory.numbers, rank, mask),), INT64)
        defined, number = self.builder.keep("number", found, varying=True)
        statements: list[Statement] = [defined]
        lowering = Lowering(self.kernel.views, self.places, self.builder, {NUMBER: number}, mask, statements)
        value = lowering.code(self.update)
        checks = self.kernel.faults.gather([Call("logical_and", (mask, check), BOOL) for check in lowering.checks])
        return (*statements, *checks), value
