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
from weft.ir.kernel import (
    Across,
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    When,
    variable,
)
from weft.ir.layout import offset
from weft.ir.program import Scatter
from weft.ir.scalar import Scalar, loads
from weft.ir.target import ThreadTarget
from weft.kernels.build.checks import gather_errors, is_checked, report_errors
from weft.kernels.build.loop_nest import Body, Span, loops
from weft.kernels.build.scatter_points import all_indices, find_point, free_axes, neighbour_axis, own_axes
from weft.kernels.common.scatter import Launched, scatter_launches
from weft.kernels.lower.expressions import Lowering, both
from weft.kernels.lower.merge_axes import operand_views
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work, Workspace
from weft.kernels.threads.data_axes import with_number
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.maps import region_launch
from weft.kernels.threads.sorted_runs import Rows, sorted_runs, workspaces
from weft.kernels.threads.thread_points import digits, divisor, each_point, lanes_for

ENOUGH_THREADS = 64  # for each unit, of which no points of two can meet
FEW_POINTS = 64  # that a thread takes one by one
OUTSIDE = 2**31 - 1  # the key of a point that falls on no element
LONGEST_WALK = 1 << 18  # points for one thread: software counts the turns of a loop, and ends it at 2 ** 16
UNROLLED = 8
STEPS, TURNS = 16, 64  # points that a thread takes between two looks whether any has more left, and looks between looks
NUMBER = 1 << 19  # the operand that stands for the number of a point

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64


def scatter_work(primitive: Scatter, operands: Sequence[Tensor], result: Tensor, target: ThreadTarget) -> Work:
    """The copy, the updates, and for sums of narrow floats a rounding at the end."""
    return scatter_launches(primitive, operands, result, target, region_launch, _updates)


def _updates(
    primitive: Scatter, operands: Sequence[Tensor], copied: Tensor, target: ThreadTarget, place: Reference, spaces: int
) -> tuple[list[Launched], tuple[Workspace, ...]]:
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

    def __init__(self, primitive: Scatter, operands: Sequence[Tensor], copied: Tensor, target: ThreadTarget) -> None:
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

    def strides(self, parameters: Parameters) -> list[Dim]:
        return [parameters.size(stride) for stride in self.copied.strides]

    def combined(self, present: Code, value: Code) -> Code:
        """An element after an update."""
        dtype = self.copied.dtype
        value = value if value.dtype is dtype else Call("cast", (value,), dtype)
        return value if self.primitive.reduction == "none" else Call(self.primitive.reduction, (present, value), dtype)

    def made(
        self,
        name: str,
        parameters: Parameters,
        lanes: int,
        body: tuple[Dim, Body],
        expressions: Sequence[Scalar],
        others: Sequence[tuple[Buffer, Reference]],
        reports: bool,
    ) -> Launched:
        """A kernel that reads what the expressions load from, and other buffers."""
        read = sorted({load.operand for expression in expressions for load in loads(expression)} - {NUMBER})
        bound = [(Buffer(f"in{n}", self.operands[n].dtype, False), Reference("operand", n)) for n in read]
        bound += others
        blocks, statements = body
        if reports:
            bound.append((Buffer("errors", INT32, True), Reference("errors", 0)))
            statements = report_errors(statements)
        buffers, references = zip(*bound)
        kernel = Kernel(name, buffers, tuple(parameters.values), lanes, statements)
        return Launch(kernel, blocks, tuple(parameters.values.values())), references


class _Walking(_Updates):
    """A thread for each point along the free axes, which goes through all others."""

    def launch(self, place: Reference) -> Launched:
        parameters = Parameters()
        views = operand_views(self.operands, parameters)[: len(self.operands)]
        count = dims.product(self.sizes(self.free))
        lanes = lanes_for(count, self.target)
        ends = [Span(0, parameters.size(size)) for size in self.sizes(self.steps)]

        def points(number: Dim, mask: Code | None) -> Body:
            known = self.single | dict(zip(self.free, digits(number, self.sizes(self.free), parameters)))
            if not ends:
                return point(known, mask, 0)
            return loops(ends[:-1], "s", lambda rest: line({**known, **dict(zip(self.steps, rest))}, mask))

        def line(known: dict[int, Dim], mask: Code | None) -> Body:
            """Points along the innermost axis, several in each turn of a loop."""
            end, axis = ends[-1].stop or 0, self.steps[-1]
            whole = dims.floordiv(end, UNROLLED) * UNROLLED
            several = [point({**known, axis: variable("i") + n}, mask, n) for n in range(UNROLLED)]
            turn = tuple(statement for each in several for statement in each)
            rest = point({**known, axis: variable("j")}, mask, 0)
            return Repeat("i", 0, whole, UNROLLED, turn), Repeat("j", whole, end, 1, rest)

        def point(places: dict[int, Dim], mask: Code | None, copy: int) -> Body:
            statements: list[Statement] = []
            lowering = Lowering(views, places, parameters, None, mask, statements, f"t{copy}_")
            indices = all_indices(self.primitive, self.copied, self.strides(parameters))
            found = find_point(indices, lowering, mask, self.primitive.checked)
            present = Fetch("out", found.place, self.copied.dtype, found.indirect, found.inside)
            value = self.combined(present, lowering.code(self.primitive.update))
            checks = gather_errors([*lowering.checks, *found.wrong])
            return (*statements, *checks, Put("out", found.place, value, found.indirect, found.inside))

        expressions = (*self.primitive.indices, self.primitive.update)
        reports = self.primitive.checked or is_checked(*expressions)
        body = each_point(count, lanes, parameters, points)
        out = (Buffer("out", self.copied.dtype, True), place)
        return self.made("scatter", parameters, lanes, body, expressions, [out], reports)


class _Sorting(_Updates):
    """Points sorted by the element that they fall on, as far as that depends on more than free axes."""

    def __init__(self, primitive: Scatter, operands: Sequence[Tensor], copied: Tensor, target: ThreadTarget) -> None:
        super().__init__(primitive, operands, copied, target)
        self.is_own = [axis is not None for axis in own_axes(primitive)]
        others = [index for index, own in zip(primitive.indices, self.is_own) if not own]
        needed = {axis for index in others for axis in axes_of(index)}
        self.others = others
        self.row_axes = [axis for axis in self.free if axis in needed]
        self.beside = [axis for axis in self.free if axis not in needed]
        self.count = dims.product(self.sizes(self.steps))
        self.rows = Rows(dims.product(self.sizes(self.row_axes)), self.count, self.count, INT32)

    def launches(self, place: Reference, spaces: int) -> list[Launched]:
        spots = [Reference("workspace", spaces + number) for number in range(4)]
        runs, last = sorted_runs(self.rows, self.target, spots)
        return [self.keys(spots[2]), *runs, self.apply(place, spots, last)]

    def keys(self, place: Reference) -> Launched:
        """The element that each point falls on, but for what free axes decide."""
        parameters = Parameters()
        views = operand_views(self.operands, parameters)[: len(self.operands)]
        axes = [*self.row_axes, *self.steps]
        count = self.rows.rows * self.count
        lanes = lanes_for(count, self.target)
        indices = all_indices(self.primitive, self.copied, self.strides(parameters))
        chosen = [entry for entry, own in zip(indices, self.is_own) if not own]

        def point(number: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            places = self.single | dict(zip(axes, digits(number, self.sizes(axes), parameters)))
            lowering = Lowering(views, places, parameters, None, mask, statements)
            found = find_point(chosen, lowering, mask, self.primitive.checked)
            key: Code = Call("cast", (Integer(found.place),), INT32)
            if found.indirect is not None:
                key = Call("add", (key, Call("cast", (found.indirect,), INT32)), INT32)
            if found.inside is not None:
                key = Call("select", (found.inside, key, Number(OUTSIDE, INT32)), INT32)
            checks = gather_errors([*lowering.checks, *found.wrong])
            return (*statements, *checks, Put("keys", number, key, mask=mask))

        reports = self.primitive.checked or is_checked(*self.others)
        body = each_point(count, lanes, parameters, point)
        keys = (Buffer("keys", INT32, True), place)
        return self.made("scatter_keys", parameters, lanes, body, self.others, [keys], reports)

    def apply(self, place: Reference, spots: Sequence[Reference], last: Dim) -> Launched:
        """Points in the order of their keys, each with all that belong to it along the other free axes."""
        parameters = Parameters()
        second = Call("equal", (Integer(parameters.named("last", last)), Integer(1)), BOOL)
        sizes = [*self.sizes(self.row_axes), self.count, *self.sizes(self.beside)]
        count = dims.product(sizes)
        lanes = lanes_for(count, self.target)

        def point(number: Dim, mask: Code | None) -> Body:
            positions = digits(number, sizes, parameters)
            rank = positions[len(self.row_axes)]
            axes = [*self.row_axes, *self.beside]
            places = self.single | dict(
                zip(axes, [*positions[: len(self.row_axes)], *positions[len(self.row_axes) + 1 :]])
            )
            row: Dim = 0
            for axis in self.row_axes:
                row = row * parameters.size(self.domain[axis]) + places[axis]
            return _Application(self, parameters, places, row * parameters.size(self.count), rank, mask, second).body()

        names = ("keys_even", "numbers_even", "keys_odd", "numbers_odd")
        others = [(Buffer(name, INT32, False), spot) for name, spot in zip(names, spots)]
        others.append((Buffer("out", self.copied.dtype, True), place))
        expressions = [with_number(self.primitive.update, self.steps, self.domain, NUMBER)]
        body = each_point(count, lanes, parameters, point)
        reports = is_checked(*expressions)
        return self.made("scatter_sorted", parameters, lanes, body, expressions, others, reports)


class _Application:
    """What a thread does that stands at place `rank` of the sorted points of a row, which begins at `start`."""

    def __init__(
        self,
        sorting: _Sorting,
        parameters: Parameters,
        places: dict[int, Dim],
        start: Dim,
        rank: Dim,
        mask: Code | None,
        second: Code,
    ) -> None:
        self.sorting = sorting
        self.parameters = parameters
        self.views = operand_views(sorting.operands, parameters)[: len(sorting.operands)]
        self.update = with_number(sorting.primitive.update, sorting.steps, sorting.domain, NUMBER)
        self.places = places
        self.start = start
        self.rank = rank
        self.mask = mask
        self.second = second
        self.length = divisor(sorting.count, parameters)
        self.dtype = sorting.copied.dtype
        free = [
            stride * places[axis]
            for stride, axis in zip(sorting.strides(parameters), own_axes(sorting.primitive))
            if axis is not None
        ]
        self.base = offset([1] * len(free), free)

    def body(self) -> Body:
        key = Register("key", INT32, True)
        inside = both(self.mask, Call("not_equal", (key, Number(OUTSIDE, INT32)), BOOL))
        begin = (Define("key", self.sorted("keys", self.rank, self.mask), True),)
        if self.sorting.primitive.reduction == "none":
            return (*begin, *self.last_wins(both(inside, self.is_alone(self.rank + 1, key))))
        return (*begin, *self.all_in_order(both(inside, self.is_alone(self.rank - 1, key))))

    def sorted(self, name: str, rank: Dim, mask: Code | None) -> Code:
        """The key or the number of the point at a place, from the workspaces where they are in order."""
        first = Call("logical_not", (self.second,), BOOL)
        one = Fetch(f"{name}_even", self.start + rank, INT32, mask=both(mask, first))
        other = Fetch(f"{name}_odd", self.start + rank, INT32, mask=both(mask, self.second))
        return Call("select", (self.second, other, one), INT32)

    def is_alone(self, neighbour: Dim, key: Code) -> Code:
        """Whether the point at a neighbouring place has another key, or there is none."""
        there = self.exists(neighbour)
        other = self.sorted("keys", neighbour, both(self.mask, there))
        alone = Call("logical_not", (there,), BOOL)
        return Call("logical_or", (alone, Call("not_equal", (other, key), BOOL)), BOOL)

    def exists(self, rank: Dim) -> Code:
        low = Call("greater_equal", (Integer(rank), Integer(0)), BOOL)
        return Call("logical_and", (low, Call("less", (Integer(rank), Integer(self.length)), BOOL)), BOOL)

    def last_wins(self, wins: Code | None) -> Body:
        assert wins is not None
        mask = Register("wins", BOOL, True)
        value = self.value(self.rank, mask)
        place = Call("cast", (Register("key", INT32, True),), INT64)
        put = Put("out", self.base, self.sorting.combined(value[1], value[1]), place, mask)
        return (Define("wins", wins, True), *value[0], put)

    def all_in_order(self, first: Code | None) -> Body:
        """The first point of an element takes in all: a few, and more as long as any thread of the block has more."""
        assert first is not None
        active, total = Register("active", BOOL, True), Register("total", self.dtype, True)
        mine = Register("mine", BOOL, True)
        place = Call("cast", (Register("key", INT32, True),), INT64)
        more = (variable("look") * TURNS + variable("turn") + 1) * STEPS
        turn = When(Across("maximum", active), (self.some_in_order(more),))
        look = When(Across("maximum", active), (Repeat("turn", 0, TURNS, 1, (turn,)),))
        return (
            Define("mine", first, True),
            Define("active", mine, True),
            Define("total", Fetch("out", self.base, self.dtype, place, mine), True),
            self.some_in_order(0),
            When(Across("maximum", active), (Repeat("look", 0, dims.ceildiv(self.length, STEPS * TURNS), 1, (look,)),)),
            Put("out", self.base, total, place, mine),
        )

    def some_in_order(self, ahead: Dim) -> Repeat:
        """The next points, from `ahead` places further on."""
        active, total = Register("active", BOOL, True), Register("total", self.dtype, True)
        rank = self.rank + ahead + variable("step")
        here = both(active, self.exists(rank))
        same = both(here, Call("equal", (self.sorted("keys", rank, here), Register("key", INT32, True)), BOOL))
        assert same is not None
        statements, value = self.value(rank, active)
        taken = Call("select", (active, self.sorting.combined(total, value), total), self.dtype)
        return Repeat("step", 0, STEPS, 1, (Assign("active", same), *statements, Assign("total", taken)))

    def value(self, rank: Dim, mask: Code) -> tuple[Body, Code]:
        """The update of the point at a place."""
        number = Register("number", INT64, True)
        statements: list[Statement] = [
            Define(number.name, Call("cast", (self.sorted("numbers", rank, mask),), INT64), True)
        ]
        lowering = Lowering(self.views, self.places, self.parameters, {NUMBER: number}, mask, statements)
        value = lowering.code(self.update)
        checks = gather_errors([Call("logical_and", (mask, check), BOOL) for check in lowering.checks])
        return (*statements, *checks), value
