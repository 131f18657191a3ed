"""Row passes (see build/row_passes.py) by threads: each row by a group of lanes, one lane or up to a whole block.

Where the elements of a row that a lane has are few, they stay in registers, and memory is read once however many
passes there are; otherwise each pass reads them again. For rows of unknown length a kernel can do both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

from weft.cost.occupancy import enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Register, Statement, When, block, dims_vary
from weft.ir.scalar import FlatLoad, flat_loads, walk
from weft.ir.target import ThreadTarget
from weft.kernels.build.checks import FaultReport, is_checked
from weft.kernels.build.loop_nest import Body, Span, loops, masked
from weft.kernels.build.row_passes import STRETCH, Pass, Single, Sweep, Write, read_operands
from weft.kernels.lower.expressions import Known, Lowering, both
from weft.kernels.lower.kernel_builder import KernelBuilder, let, put, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.tensors import Launch, Reference
from weft.kernels.threads.lane_groups import Exchange, LaneGroup, LaneGroupFolding, power_of_two, shares
from weft.kernels.threads.points import digits, divisor
from weft.records import dataclass

MOST_SLOTS = 8  # elements of a row that a lane keeps
MOST_NODES = 640  # of the expressions for all of them
UNROLLED = 4  # elements that a lane loads before it waits for the first
MOST_AHEAD = 32  # elements that a lane reads before the first pass
UNROLLED_SHARING = 8  # the same, where lanes share rows
SIDE_BY_SIDE = 32  # rows of a block, where neighbours in memory belong to neighbouring rows
MANY_THREADS = 256  # for each unit, that keep a device busy
WHOLE_BLOCK = 64  # lanes that a block may well consist of
FEW_ELEMENTS = 32  # a row for one lane, where lanes do better apart
LONGEST_ALONE = 1 << 17  # elements for one lane: software counts the turns of a loop, and ends it at 2 ** 16
FEW_LANES = 16  # that share a row there


@dataclass(frozen=True, slots=True)
class Pieces:
    """Rows in pieces of `length` elements, whose results lie `stride` apart."""

    length: int
    stride: Dim


@memoized
def sweep_launch(sweep: Sweep, target: ThreadTarget, pieces: Pieces | None = None) -> Launch:
    """Operands and results are those of the sweep. No pass reads what another has written."""
    return _Builder(sweep, target, pieces).launch()


def choose_team(
    rows: int, pieces: int, length: Dim, along_row: bool, once: bool, most_slots: int, target: ThreadTarget
) -> LaneGroup:
    """Lanes for about so many rows, each in about so many pieces of a given length.

    `along_row`: the elements of a row are neighbours in memory. `once`: they are needed only once.
    """
    if not shares(target):
        return _apart(rows, length, along_row, target)
    threads, many = target.block_threads, enough_threads(target.rates, MANY_THREADS)
    if along_row:
        if not isinstance(length, int):
            return LaneGroup(1, threads)
        members = _members(-(-length // most_slots), target)
        if rows * pieces * members < many:
            members = _members(-(-length // 2), target)
        elif once:
            members = min(members, threads)  # nothing has to stay
        whole = min(WHOLE_BLOCK, threads)
        if 2 * members >= whole:
            return LaneGroup(1, max(members, whole))
        return LaneGroup(max(min(threads // members, power_of_two(rows)), 1), members)
    return _across(rows, length, most_slots, target)


def _across(rows: int, length: Dim, most_slots: int, target: ThreadTarget) -> LaneGroup:
    """Lanes for rows whose elements are far apart; how many share one, and so its bits, only its length decides."""
    together = min(SIDE_BY_SIDE, target.block_threads)
    members = min(power_of_two(-(-estimate(length) // most_slots)), most_members(target))
    beside = max(together, target.block_threads // (2 * members))
    return LaneGroup(min(power_of_two(rows), beside), members, interleaved=True)


def most_members(target: ThreadTarget) -> int:
    """Lanes that may share a row, where its neighbours in memory are other rows."""
    return max(_members(target.most_block_threads, target) // min(SIDE_BY_SIDE, target.block_threads), 1)


def _apart(rows: int, length: Dim, along_row: bool, target: ThreadTarget) -> LaneGroup:
    """Lanes that do better without each other, unless there are few rows, and long ones."""
    known = length if isinstance(length, int) else 0
    if not along_row or known <= (FEW_ELEMENTS if rows < target.block_threads else LONGEST_ALONE):
        return LaneGroup(min(target.block_threads, power_of_two(rows)), 1, interleaved=True)
    return LaneGroup(
        1, min(FEW_LANES, target.block_threads) if known <= FEW_LANES * LONGEST_ALONE else target.block_threads
    )


def _members(count: int, target: ThreadTarget) -> int:
    return min(power_of_two(count), 1 << (target.most_block_threads.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a lane's row is: positions along the kept groups, and the piece of it.

    `inside`: whether there is one; `reads`: the same where it matters to what is read, because the positions of a lane
    without a row are outside.
    """

    kept: tuple[Dim, ...]
    piece: Dim | None
    inside: Code | None
    reads: Code | None
    known: dict[Known, Code] = field(default_factory=dict)  # what passes before have found


class _Builder:
    def __init__(self, sweep: Sweep, target: ThreadTarget, pieces: Pieces | None) -> None:
        self.sweep = sweep
        self.pieces = pieces
        self.shares = shares(target)
        self.builder = KernelBuilder("rows")
        expressions = [expression for part in sweep.passes for expression in part.expressions]
        strides = [result.strides for result in sweep.results if result.strides is not None]
        self.merged = merge_axes(expressions, sweep.operands, sweep.domain, sweep.order, strides, sweep.reduced)
        inputs = operand_inputs(sweep.operands, self.builder, read_operands(sweep))
        self.views = operand_views(sweep.operands, inputs, self.builder)
        self.outs = [
            self.builder.output(f"out{number}", result.dtype, Reference("result", number))
            for number, result in enumerate(sweep.results)
        ]
        self.faults = FaultReport(self.builder)
        self.checked = is_checked(*expressions)
        self.moved = dict(zip(map(id, expressions), self.merged.expressions, strict=True))
        groups = range(len(self.merged.axes))
        self.reduced = [number for number in groups if self.merged.axes[number][0] in sweep.reduced]
        self.kept = [number for number in groups if number not in self.reduced]
        self.along_row = not self.kept or (bool(self.reduced) and self.reduced[-1] > self.kept[-1])
        sizes = self.merged.sizes
        self.row_size = dims.product(sizes[number] for number in self.reduced)
        self.row_sizes = [sizes[number] for number in self.kept]
        self.length = self.row_size  # elements of a row, or of a piece of it, that a lane group does
        self.number_of_pieces: Dim = 1
        if pieces is not None:
            self.number_of_pieces = dims.ceildiv(self.row_size, pieces.length)
            self.length = pieces.length
        nodes = sum(1 for part in sweep.passes for element in part.elements for _ in walk(element))
        self.most_slots = max(min(MOST_SLOTS, MOST_NODES // max(nodes, 1)), 1)
        about = estimate(dims.product(self.row_sizes)), estimate(self.number_of_pieces)
        once = sum(bool(part.elements) for part in sweep.passes) <= 1
        self.lane_group = choose_team(*about, self.length, self.along_row, once, self.most_slots, target)
        self.exchange = Exchange(self.lane_group, self.builder)
        self.unroll = min(UNROLLED_SHARING if self.shares else UNROLLED, self.most_slots)
        # lanes that have nothing to read do not jump over it, which all others would wait for: they read what others do
        self.clamps = self.shares and isinstance(self.row_size, int) and self.row_size > 0
        side = self.lane_group.rows
        self.tiled = self.shares and not self.along_row and side > 1 and dims.is_at_least(self.row_sizes[-1], side)

    # -- the kernel --------------------------------------------------------------------------------------------------

    def launch(self) -> Launch:
        body = self.body()
        if self.checked:
            body = self.faults.around(body)
        blocks = self.blocks_of_rows()
        return self.builder.launch(self.lane_group.lanes, body, blocks * self.number_of_pieces)

    def blocks_of_rows(self) -> Dim:
        if self.tiled:
            tiles = dims.ceildiv(self.row_sizes[-1], self.lane_group.rows)
            return dims.product(self.row_sizes[:-1]) * tiles
        return dims.ceildiv(dims.product(self.row_sizes), self.lane_group.rows)

    def body(self) -> Body:
        """The row of a lane, and all that is done to it."""
        statements: list[Statement] = []
        start: Dim = block()
        piece: Dim | None = None
        if self.pieces is not None:
            around = divisor(self.blocks_of_rows(), self.builder)
            first, piece = self.builder.let("piece", dims.floordiv(block(), around))
            second, start = self.builder.let("start", dims.mod(block(), around))
            statements += (first, second)
        find = self.tile_of_rows if self.tiled else self.any_rows
        places, inside = find(start, statements)
        reads = None if self.shares else inside
        return (*statements, *self.row(_Row(tuple(places), piece, inside, reads)))

    def any_rows(self, start: Dim, statements: list[Statement]) -> tuple[list[Dim], Code | None]:
        """A lane's row, and whether there is one: rows of a block follow each other along all axes."""
        total = dims.product(self.row_sizes)
        number = start * self.lane_group.rows + self.lane_group.row
        partly = dims_vary(number) and not (isinstance(total, int) and total % self.lane_group.rows == 0)
        last = self.builder.size(dims.maximum(total - 1, 0)) if partly and self.shares else None
        places = digits(number if last is None else dims.minimum(number, last), self.row_sizes, self.builder)
        if partly:
            test = Call("less", (Integer(number), Integer(self.builder.size(total))), DType.bool)
            defined, inside = self.builder.keep("has_row", test, varying=True)
            statements.append(defined)
            return places, inside
        if dims_vary(number):
            return places, None
        names = self.builder.variables("o", len(places))
        statements += [let(name, place) for name, place in zip(names, places)]
        return [*names], None

    def tile_of_rows(self, start: Dim, statements: list[Statement]) -> tuple[list[Dim], Code | None]:
        """The same where rows of a block are neighbours along the innermost axis: all else is the same for them."""
        size, rows = self.row_sizes[-1], self.lane_group.rows
        tiles = divisor(dims.ceildiv(size, rows), self.builder)
        outer = digits(dims.floordiv(start, tiles), self.row_sizes[:-1], self.builder)
        names = self.builder.variables("o", len(outer))
        statements += [let(name, place) for name, place in zip(names, outer)]
        first, tile = self.builder.let("tile", dims.mod(start, tiles) if outer else start)
        statements.append(first)
        number = tile * rows + self.lane_group.row
        if dims.mod(size, rows) == 0:
            return [*names, number], None
        test = Call("less", (Integer(number), Integer(self.builder.size(size))), DType.bool)
        defined, inside = self.builder.keep("has_row", test, varying=True)
        statements.append(defined)
        return [*names, dims.minimum(number, self.builder.size(size - 1))], inside

    def row(self, row: _Row) -> Body:
        """All passes, with a lane's elements in registers where that is possible."""
        members, most = self.lane_group.members, self.most_slots
        if any(fold.position is not None for part in self.sweep.passes for fold in part.folds):
            return self.rereading(row)
        if isinstance(self.length, int) and self.length <= most * members:
            return self.in_registers(row, -(-self.length // members))
        several = sum(bool(part.elements) for part in self.sweep.passes) > 1
        if isinstance(self.length, int) or not several:
            return self.rereading(row)
        fits = Call("less_equal", (Integer(self.limit(row)), Integer(most * members)), DType.bool)
        few = self.in_registers(_Row(row.kept, row.piece, row.inside, row.reads), most)
        return (When(fits, few, self.rereading(row)),)

    def limit(self, row: _Row) -> Dim:
        """The number of elements of a row or its piece."""
        whole = self.builder.size(self.row_size)
        if row.piece is None or self.pieces is None:
            return whole
        length = self.builder.size(self.pieces.length)
        return dims.minimum(length, whole - row.piece * length)

    # -- elements in registers ---------------------------------------------------------------------------------------

    def in_registers(self, row: _Row, slots: int) -> Body:
        """All passes over a number of elements in each lane: what two of them need is computed once."""
        statements: list[Statement] = []
        lowerings: list[Lowering] = []
        masks: list[Code | None] = []
        elements = [self.moved[id(element)] for part in self.sweep.passes for element in part.elements]
        for slot in range(slots):
            position = slot * self.lane_group.members + self.lane_group.member
            inside, reads = row.inside, row.reads
            exact = isinstance(self.length, int) and (slot + 1) * self.lane_group.members <= self.length
            if not exact or row.piece is not None:
                test = Call("less", (Integer(position), Integer(self.limit(row))), DType.bool)
                defined, inside = self.builder.keep("inside", both(row.inside, test) or test, varying=True)
                statements.append(defined)
                position, reads = self.readable(position, inside, row)
            masks.append(inside)
            places = self.merged.places(self.groups(row, self.flat(row, position)))
            lowerings.append(Lowering(self.views, places, self.builder, row.known, reads, statements))
            lowerings[-1].expect(elements)
        for load in self.read_ahead(slots):
            for lowering in lowerings:
                lowering.expect([load])  # a second use, so that it stays in a register
                lowering.code(load)
        for part in self.sweep.passes:
            if part.elements:
                statements += self.pass_in_registers(part, row, lowerings, masks, statements)
            statements += self.once(part.then, row)
        return tuple(statements)

    def read_ahead(self, slots: int) -> list[FlatLoad]:
        """What only later passes read, and is read before the first one, as nobody should wait for it in between."""
        first, *later = [part for part in self.sweep.passes if part.elements]
        known = [load for element in first.elements for load in flat_loads(self.moved[id(element)])]
        found = [load for part in later for element in part.elements for load in flat_loads(self.moved[id(element)])]
        all_of_them = list(dict.fromkeys([*known, *found]))
        return all_of_them if found and self.shares and slots * len(all_of_them) <= MOST_AHEAD else []

    def readable(self, position: Dim, inside: Code | None, row: _Row) -> tuple[Dim, Code | None]:
        """A position that may be behind the end of a row, as one to read at, and the mask for that."""
        return (dims.minimum(position, self.limit(row) - 1), None) if self.clamps else (position, inside)

    def pass_in_registers(
        self,
        part: Pass,
        row: _Row,
        lowerings: Sequence[Lowering],
        masks: Sequence[Code | None],
        statements: list[Statement],
    ) -> list[Statement]:
        """What follows the values of a pass, which are added to `statements`."""
        foldings = self.foldings(part)
        for folding in foldings:
            statements += (*folding.start(), *folding.start_stretch())
        puts: list[Statement] = []
        for slot, (lowering, mask) in enumerate(zip(lowerings, masks)):
            values = [lowering.code(self.moved[id(element)]) for element in part.elements]
            values = [value if isinstance(value, Register) else lowering.keep(value) for value in values]
            statements += self.faults.gather(lowering.checks)
            lowering.checks.clear()
            for folding, value in zip(foldings, values):
                statements += folding.take(value, mask, [])
            groups = self.groups(row, self.flat(row, slot * self.lane_group.members + self.lane_group.member))
            for write, value in zip(part.writes, values[len(foldings) :], strict=True):
                puts.append(put(self.outs[write.result], self.offset(write.result, groups, row), value, mask=mask))
        return [*puts, *self.finish(foldings, row, in_stretch=True)]

    # -- elements read again in each pass ----------------------------------------------------------------------------

    def rereading(self, row: _Row) -> Body:
        statements: list[Statement] = []
        for part in self.sweep.passes:
            if part.elements:
                foldings = self.foldings(part)
                for folding in foldings:
                    statements += folding.start()
                statements += self.loop(part, foldings, row)
                statements += self.finish(foldings, row, in_stretch=False)
            statements += self.once(part.then, row)
        return tuple(statements)

    def loop(self, part: Pass, foldings: Sequence[LaneGroupFolding], row: _Row) -> Body:
        """One pass over a row: along its innermost axis where that gives all members work, or over all as one."""
        sizes = [self.merged.sizes[number] for number in self.reduced]
        nested = len(sizes) > 1 and row.piece is None and estimate(sizes[-1]) >= self.lane_group.members * UNROLLED
        if nested or (len(sizes) > 1 and self.lane_group.members == 1 and row.piece is None):
            spans = [Span(0, self.builder.size(size)) for size in sizes[:-1]]
            limit = self.builder.size(sizes[-1])

            def along(outer: list[Dim]) -> Body:
                return self.in_stretches(
                    foldings, limit, lambda at, mask: self.element(part, foldings, row, [*outer, at], mask)
                )

            return loops(self.builder, "r", spans, along)
        return self.in_stretches(
            foldings, self.limit(row), lambda at, mask: self.element(part, foldings, row, self.flat(row, at), mask)
        )

    def in_stretches(
        self, foldings: Sequence[LaneGroupFolding], limit: Dim, element: Callable[[Dim, Code | None], Body]
    ) -> Body:
        """A lane's elements below a limit, a stretch at a time where sums are to be exact."""
        begin = [statement for folding in foldings for statement in folding.start_stretch()]
        end = [statement for folding in foldings for statement in folding.finish_stretch()]
        slots = dims.ceildiv(limit, self.lane_group.members)
        if not begin or (isinstance(self.length, int) and self.length <= STRETCH * self.lane_group.members):
            return (*begin, *self.slots(0, slots, limit, element), *end)
        first = self.builder.variable("stretch")
        last = dims.minimum(first + STRETCH, slots)
        inner = self.slots(first, last, limit, element)
        return (repeat(first, 0, slots, STRETCH, (*begin, *inner, *end)),)

    def slots(self, first: Dim, last: Dim, limit: Dim, element: Callable[[Dim, Code | None], Body]) -> Body:
        """A lane's elements number first..last-1, several at once as long as all are below the limit."""
        members, member, unroll = self.lane_group.members, self.lane_group.member, self.unroll
        several, single = self.builder.variable("i"), self.builder.variable("j")
        rest = single * members + member
        whole = dims.maximum(dims.minimum(last, dims.floordiv(limit, members)), first)
        ahead = first + dims.floordiv(whole - first, unroll) * unroll
        body: list[Statement] = []
        for number in range(unroll):
            body += element((several + number) * members + member, None)
        if self.clamps:
            return repeat(several, first, ahead, unroll, body), self.last_slots(ahead, last, limit, element)
        last_ones = masked(self.builder, rest, limit, lambda mask: element(rest, mask))
        return repeat(several, first, ahead, unroll, body), repeat(single, ahead, last, 1, last_ones)

    def last_slots(self, first: Dim, last: Dim, limit: Dim, element: Callable[[Dim, Code | None], Body]) -> Statement:
        """Elements that are too few for the loop, at once too."""
        members = self.lane_group.members
        defined, end = self.builder.let("end", dims.minimum(limit, last * members))
        body: list[Statement] = [defined]
        for number in range(self.unroll):
            position = (first + number) * members + self.lane_group.member
            read = dims.minimum(position, limit - 1)
            body += masked(self.builder, position, end, partial(element, read))
        return When(Call("less", (Integer(first), Integer(last)), DType.bool), tuple(body))

    def element(
        self,
        part: Pass,
        foldings: Sequence[LaneGroupFolding],
        row: _Row,
        reduced: Sequence[Dim],
        mask: Code | None,
    ) -> Body:
        """One element a lane: what is folded and what is written."""
        groups = self.groups(row, reduced)
        inside = both(row.inside, mask)
        reads = row.reads if self.clamps else both(row.reads, mask)
        statements: list[Statement] = []
        places = self.merged.places(groups)
        lowering = Lowering(self.views, places, self.builder, row.known, reads, statements)
        values = [lowering.code(self.moved[id(element)]) for element in part.elements]
        if len(part.writes) > 1:  # one may write where another reads
            values = [lowering.keep(value) for value in values]
        statements += self.faults.gather(lowering.checks)
        for folding, value in zip(foldings, values):
            statements += folding.take(value, mask, reduced)
        for write, value in zip(part.writes, values[len(foldings) :], strict=True):
            place = self.offset(write.result, groups, row)
            statements.append(put(self.outs[write.result], place, value, mask=inside))
        return tuple(statements)

    # -- rows as a whole ---------------------------------------------------------------------------------------------

    def foldings(self, part: Pass) -> list[LaneGroupFolding]:
        return [LaneGroupFolding(fold, self.exchange) for fold in part.folds]

    def finish(self, foldings: Sequence[LaneGroupFolding], row: _Row, *, in_stretch: bool) -> list[Statement]:
        """What folds come to, added to what is known of the row."""
        statements: list[Statement] = []
        for folding in foldings:
            statements += folding.finish_stretch() if in_stretch else []
            end, row.known[folding.fold.key] = folding.finish()
            statements += end
        return statements

    def once(self, actions: Sequence[Single | Write], row: _Row) -> list[Statement]:
        """What is done for a row as a whole: its first lane writes."""
        groups = self.groups(row, [0] * len(self.reduced))
        statements: list[Statement] = []
        places = self.merged.places(groups)
        lowering = Lowering(self.views, places, self.builder, row.known, row.reads, statements)
        for action in actions:
            value = lowering.code(self.moved[id(action.value)])
            statements += self.faults.gather(lowering.checks)
            lowering.checks.clear()
            if isinstance(action, Write):
                place = self.offset(action.result, groups, row)
                mask = row.inside
                if self.lane_group.rows > 1 and self.lane_group.members > 1:
                    first = Call("equal", (Integer(self.lane_group.member), Integer(0)), DType.bool)
                    mask = both(mask, first)
                statements.append(put(self.outs[action.result], place, value, mask=mask))
            else:
                defined, row.known[action.key] = self.builder.keep("v", value)
                statements.append(defined)
        return statements

    # -- places ------------------------------------------------------------------------------------------------------

    def flat(self, row: _Row, position: Dim) -> list[Dim]:
        """Positions along the reduced groups, from one in a row or its piece."""
        if row.piece is not None and self.pieces is not None:
            position = row.piece * self.builder.size(self.pieces.length) + position
        return digits(position, [self.merged.sizes[number] for number in self.reduced], self.builder)

    def groups(self, row: _Row, reduced: Sequence[Dim]) -> list[Dim]:
        """Positions along all groups, in order."""
        positions: dict[int, Dim] = dict(zip(self.kept, row.kept, strict=True))
        positions.update(zip(self.reduced, reduced, strict=True))
        return [positions[number] for number in range(len(self.merged.axes))]

    def offset(self, result: int, groups: Sequence[Dim], row: _Row) -> Dim:
        strides = self.sweep.results[result].strides
        assert strides is not None
        place: Dim = 0
        if row.piece is not None and self.pieces is not None:
            place = row.piece * self.builder.size(self.pieces.stride)
        for stride, position in zip(self.merged.strides(strides), groups, strict=True):
            place = place + self.builder.size(stride) * position
        return place
