"""Row passes (see build/row_passes.py) by threads: a lane group does a row, from one lane to a whole block.

If a lane has few elements of its row, they stay in registers, and memory is read once for all passes; otherwise each
pass reads them again. Kernels for rows of dynamic length can do both.
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
from weft.kernels.build.error_flag import ErrorFlag, has_checked_loads
from weft.kernels.build.loop_nest import Body, Span, build_loops, build_masked
from weft.kernels.build.row_passes import SUM_CHUNK, Pass, RowValue, Sweep, Write, read_operands
from weft.kernels.lower.expressions import Lowering, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, let, put, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.operations import and_masks
from weft.kernels.lower.tensors import Launch, Reference
from weft.kernels.threads.lane_groups import LaneGroup, LaneGroupFolding, power_of_two, shares
from weft.kernels.threads.points import divisor, unravel
from weft.records import dataclass

MAX_SLOTS = 8  # elements of a row that a lane keeps in registers
MAX_NODES = 640  # of the expressions of all slots
UNROLL = 4  # loads in flight per lane
SHARING_UNROLL = 8  # loads in flight per lane, where lanes share rows
MAX_READ_AHEAD = 32  # elements that a lane reads before the first pass
SIDE_BY_SIDE = 32  # rows of a block, where neighbours in memory belong to neighbouring rows
MANY_THREADS = 256  # per unit, to keep a device busy
WHOLE_BLOCK = 64  # lanes that are enough for a block
FEW_ELEMENTS = 32  # of a row for one lane, on devices where sharing does not pay
MAX_LANE_ELEMENTS = 1 << 17  # of a row for one lane: llvmpipe ends a loop after 2 ** 16 iterations
FEW_LANES = 16  # that share a longer row there


@dataclass(frozen=True, slots=True)
class RowChunks:
    """Rows in chunks of `length` elements, whose results are `stride` apart."""

    length: int
    stride: Dim


def choose_lane_group(
    rows: int, chunks: int, length: Dim, is_along_row: bool, is_single_pass: bool, max_slots: int, target: ThreadTarget
) -> LaneGroup:
    """Choose the lanes for an estimated number of rows and chunks, each of a given length.

    `is_along_row`: the elements of a row are contiguous. `is_single_pass`: they are read only once. In a fixed order,
    which the lanes of a row determine, they do not depend on the number of rows.
    """
    if not shares(target):
        return _choose_software_group(rows, length, is_along_row, target)
    threads, many = target.block_threads, enough_threads(target.rates, MANY_THREADS)
    if is_along_row:
        if not isinstance(length, int):
            return LaneGroup(1, threads)
        members = _clamp_members(-(-length // max_slots), target)
        if rows * chunks * members < many and not target.fixed_order:
            members = _clamp_members(-(-length // 2), target)
        elif is_single_pass:
            members = min(members, threads)  # no element has to stay in registers
        min_lanes = min(WHOLE_BLOCK, threads)
        if 2 * members >= min_lanes:
            return LaneGroup(1, max(members, min_lanes))
        return LaneGroup(max(min(threads // members, power_of_two(rows)), 1), members)
    return _choose_strided_group(rows, length, max_slots, target)


def _choose_strided_group(rows: int, length: Dim, max_slots: int, target: ThreadTarget) -> LaneGroup:
    """Choose the lanes for rows whose elements are strided.

    How many share a row depends on its length alone, and so do the bits of its result.
    """
    side_by_side = min(SIDE_BY_SIDE, target.block_threads)
    members = min(power_of_two(-(-estimate(length) // max_slots)), max_members(target))
    max_rows = max(side_by_side, target.block_threads // (2 * members))
    return LaneGroup(min(power_of_two(rows), max_rows), members, interleaved=True)


def max_members(target: ThreadTarget) -> int:
    """Return the number of lanes that may share a row whose elements are strided."""
    return max(_clamp_members(target.most_block_threads, target) // min(SIDE_BY_SIDE, target.block_threads), 1)


def _choose_software_group(rows: int, length: Dim, is_along_row: bool, target: ThreadTarget) -> LaneGroup:
    """Choose a lane per row where sharing does not pay, or several if there are few rows, and long ones."""
    known_length = length if isinstance(length, int) else 0
    if not is_along_row or known_length <= (FEW_ELEMENTS if rows < target.block_threads else MAX_LANE_ELEMENTS):
        return LaneGroup(min(target.block_threads, power_of_two(rows)), 1, interleaved=True)
    return LaneGroup(
        1,
        min(FEW_LANES, target.block_threads) if known_length <= FEW_LANES * MAX_LANE_ELEMENTS else target.block_threads,
    )


def _clamp_members(count: int, target: ThreadTarget) -> int:
    return min(power_of_two(count), 1 << (target.most_block_threads.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class _Row:
    """A lane's row: its positions along the groups of axes that are not reduced, and its chunk.

    `inside`: whether the row exists. `reads`: the mask of its loads; None where positions are clamped.
    """

    positions: tuple[Dim, ...]
    chunk: Dim | None
    inside: Code | None
    reads: Code | None
    values: dict[ValueKey, Code] = field(default_factory=dict)  # results of earlier passes


class _SweepKernel:
    """Operands and results are those of the sweep. No pass may read memory that another one writes."""

    def __init__(self, sweep: Sweep, target: ThreadTarget, chunks: RowChunks | None = None) -> None:
        self.sweep = sweep
        self.chunks = chunks
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
        self.error_flag = ErrorFlag(self.builder)
        self.checked = has_checked_loads(*expressions)
        self.lowered = dict(zip(map(id, expressions), self.merged.expressions, strict=True))
        groups = range(len(self.merged.axes))
        self.reduced = [number for number in groups if self.merged.axes[number][0] in sweep.reduced]
        self.row_groups = [number for number in groups if number not in self.reduced]
        self.is_along_row = not self.row_groups or (bool(self.reduced) and self.reduced[-1] > self.row_groups[-1])
        sizes = self.merged.sizes
        self.row_size = dims.product(sizes[number] for number in self.reduced)
        self.row_sizes = [sizes[number] for number in self.row_groups]
        self.length = self.row_size  # elements of a row, or of a chunk, for a lane group
        self.chunk_count: Dim = 1
        if chunks is not None:
            self.chunk_count = dims.ceildiv(self.row_size, chunks.length)
            self.length = chunks.length
        nodes = sum(1 for part in sweep.passes for element in part.elements for _ in walk(element))
        self.max_slots = max(min(MAX_SLOTS, MAX_NODES // max(nodes, 1)), 1)
        counts = estimate(dims.product(self.row_sizes)), estimate(self.chunk_count)
        is_single_pass = sum(bool(part.elements) for part in sweep.passes) <= 1
        self.lane_group = choose_lane_group(
            *counts, self.length, self.is_along_row, is_single_pass, self.max_slots, target
        )
        self.unroll = min(SHARING_UNROLL if self.shares else UNROLL, self.max_slots)
        # lanes without an element read that of another lane: a branch around the read would stall all lanes
        self.clamps = self.shares and isinstance(self.row_size, int) and self.row_size > 0
        side = self.lane_group.rows
        self.tiled = self.shares and not self.is_along_row and side > 1 and dims.is_at_least(self.row_sizes[-1], side)

    # -- the kernel --------------------------------------------------------------------------------------------------

    def build_launch(self) -> Launch:
        body = self.build_body()
        if self.checked:
            body = self.error_flag.wrap(body)
        blocks = self.blocks_of_rows()
        return self.builder.launch(self.lane_group.lanes, body, blocks * self.chunk_count)

    def blocks_of_rows(self) -> Dim:
        if self.tiled:
            tiles = dims.ceildiv(self.row_sizes[-1], self.lane_group.rows)
            return dims.product(self.row_sizes[:-1]) * tiles
        return dims.ceildiv(dims.product(self.row_sizes), self.lane_group.rows)

    def build_body(self) -> Body:
        """Locate a lane's row and run all passes over it."""
        statements: list[Statement] = []
        start: Dim = block()
        chunk: Dim | None = None
        if self.chunks is not None:
            row_blocks = divisor(self.blocks_of_rows(), self.builder)
            first, chunk = self.builder.let("piece", dims.floordiv(block(), row_blocks))
            second, start = self.builder.let("start", dims.mod(block(), row_blocks))
            statements += (first, second)
        locate = self.locate_row_in_tile if self.tiled else self.locate_row
        places, inside = locate(start, statements)
        reads = None if self.shares else inside
        return (*statements, *self.run_passes(_Row(tuple(places), chunk, inside, reads)))

    def locate_row(self, start: Dim, statements: list[Statement]) -> tuple[list[Dim], Code | None]:
        """Return a lane's row, and whether it exists; the rows of a block are consecutive over all axes."""
        total = dims.product(self.row_sizes)
        number = start * self.lane_group.rows + self.lane_group.row
        is_partial = dims_vary(number) and not (isinstance(total, int) and total % self.lane_group.rows == 0)
        last = self.builder.size(dims.maximum(total - 1, 0)) if is_partial and self.shares else None
        places = unravel(number if last is None else dims.minimum(number, last), self.row_sizes, self.builder)
        if is_partial:
            test = Call("less", (Integer(number), Integer(self.builder.size(total))), DType.bool)
            definition, inside = self.builder.keep("has_row", test, varying=True)
            statements.append(definition)
            return places, inside
        if dims_vary(number):
            return places, None
        names = self.builder.variables("o", len(places))
        statements += [let(name, place) for name, place in zip(names, places)]
        return [*names], None

    def locate_row_in_tile(self, start: Dim, statements: list[Statement]) -> tuple[list[Dim], Code | None]:
        """Locate a lane's row like `locate_row`, where the rows of a block differ only along the innermost axis."""
        size, rows = self.row_sizes[-1], self.lane_group.rows
        tiles = divisor(dims.ceildiv(size, rows), self.builder)
        outer = unravel(dims.floordiv(start, tiles), self.row_sizes[:-1], self.builder)
        names = self.builder.variables("o", len(outer))
        statements += [let(name, place) for name, place in zip(names, outer)]
        first, tile = self.builder.let("tile", dims.mod(start, tiles) if outer else start)
        statements.append(first)
        number = tile * rows + self.lane_group.row
        if dims.mod(size, rows) == 0:
            return [*names, number], None
        test = Call("less", (Integer(number), Integer(self.builder.size(size))), DType.bool)
        definition, inside = self.builder.keep("has_row", test, varying=True)
        statements.append(definition)
        return [*names, dims.minimum(number, self.builder.size(size - 1))], inside

    def run_passes(self, row: _Row) -> Body:
        """Run all passes, with a lane's elements in registers where they fit."""
        members, max_slots = self.lane_group.members, self.max_slots
        if any(fold.position is not None for part in self.sweep.passes for fold in part.folds):
            return self.reread_elements(row)
        if isinstance(self.length, int) and self.length <= max_slots * members:
            return self.keep_in_registers(row, -(-self.length // members))
        has_several = sum(bool(part.elements) for part in self.sweep.passes) > 1
        if isinstance(self.length, int) or not has_several:
            return self.reread_elements(row)
        fits = Call("less_equal", (Integer(self.limit(row)), Integer(max_slots * members)), DType.bool)
        in_registers = self.keep_in_registers(_Row(row.positions, row.chunk, row.inside, row.reads), max_slots)
        return (When(fits, in_registers, self.reread_elements(row)),)

    def limit(self, row: _Row) -> Dim:
        """Return the number of elements of a row or of its chunk."""
        row_size = self.builder.size(self.row_size)
        if row.chunk is None or self.chunks is None:
            return row_size
        length = self.builder.size(self.chunks.length)
        return dims.minimum(length, row_size - row.chunk * length)

    # -- elements in registers ---------------------------------------------------------------------------------------

    def keep_in_registers(self, row: _Row, slots: int) -> Body:
        """Run all passes over `slots` elements per lane; values that several passes need are computed once."""
        statements: list[Statement] = []
        lowerings: list[Lowering] = []
        masks: list[Code | None] = []
        elements = [self.lowered[id(element)] for part in self.sweep.passes for element in part.elements]
        for slot in range(slots):
            position = slot * self.lane_group.members + self.lane_group.member
            inside, reads = row.inside, row.reads
            is_full = isinstance(self.length, int) and (slot + 1) * self.lane_group.members <= self.length
            if not is_full or row.chunk is not None:
                test = Call("less", (Integer(position), Integer(self.limit(row))), DType.bool)
                definition, inside = self.builder.keep("inside", and_masks(row.inside, test) or test, varying=True)
                statements.append(definition)
                position, reads = self.clamp_position(position, inside, row)
            masks.append(inside)
            places = self.merged.axis_positions(self.groups(row, self.flat(row, position)))
            lowerings.append(Lowering(self.views, places, self.builder, row.values, reads, statements))
            lowerings[-1].expect(elements)
        for load in self.read_ahead(slots):
            for lowering in lowerings:
                lowering.expect([load])  # counts as a second use, which keeps it in a register
                lowering.code(load)
        for part in self.sweep.passes:
            if part.elements:
                statements += self.run_pass_in_registers(part, row, lowerings, masks, statements)
            statements += self.finish_row(part.then, row)
        return tuple(statements)

    def read_ahead(self, slots: int) -> list[FlatLoad]:
        """List the loads to issue before the first pass, so that later passes do not wait for theirs."""
        first, *later = [part for part in self.sweep.passes if part.elements]
        first_loads = [load for element in first.elements for load in flat_loads(self.lowered[id(element)])]
        later_loads = [
            load for part in later for element in part.elements for load in flat_loads(self.lowered[id(element)])
        ]
        loads = list(dict.fromkeys([*first_loads, *later_loads]))
        return loads if later_loads and self.shares and slots * len(loads) <= MAX_READ_AHEAD else []

    def clamp_position(self, position: Dim, inside: Code | None, row: _Row) -> tuple[Dim, Code | None]:
        """Return the position to read at for one that may be past the end of a row, and the mask of the read."""
        return (dims.minimum(position, self.limit(row) - 1), None) if self.clamps else (position, inside)

    def run_pass_in_registers(
        self,
        part: Pass,
        row: _Row,
        lowerings: Sequence[Lowering],
        masks: Sequence[Code | None],
        statements: list[Statement],
    ) -> list[Statement]:
        """Append the values of a pass to `statements`, and return the statements that follow them."""
        foldings = self.foldings(part)
        for folding in foldings:
            statements += (*folding.start(), *folding.start_chunk())
        puts: list[Statement] = []
        for slot, (lowering, mask) in enumerate(zip(lowerings, masks)):
            values = [lowering.code(self.lowered[id(element)]) for element in part.elements]
            values = [value if isinstance(value, Register) else lowering.keep(value) for value in values]
            statements += self.error_flag.collect(lowering.checks)
            lowering.checks.clear()
            for folding, value in zip(foldings, values):
                statements += folding.accumulate(value, mask, [])
            groups = self.groups(row, self.flat(row, slot * self.lane_group.members + self.lane_group.member))
            for write, value in zip(part.writes, values[len(foldings) :], strict=True):
                puts.append(put(self.outs[write.result], self.offset(write.result, groups, row), value, mask=mask))
        return [*puts, *self.finish(foldings, row, in_chunk=True)]

    # -- elements read again in each pass ----------------------------------------------------------------------------

    def reread_elements(self, row: _Row) -> Body:
        statements: list[Statement] = []
        for part in self.sweep.passes:
            if part.elements:
                foldings = self.foldings(part)
                for folding in foldings:
                    statements += folding.start()
                statements += self.loop(part, foldings, row)
                statements += self.finish(foldings, row, in_chunk=False)
            statements += self.finish_row(part.then, row)
        return tuple(statements)

    def loop(self, part: Pass, foldings: Sequence[LaneGroupFolding], row: _Row) -> Body:
        """Run one pass over a row: along its innermost axis if that occupies all lanes, or over all axes flattened."""
        sizes = [self.merged.sizes[number] for number in self.reduced]
        is_nested = len(sizes) > 1 and row.chunk is None and estimate(sizes[-1]) >= self.lane_group.members * UNROLL
        if is_nested or (len(sizes) > 1 and self.lane_group.members == 1 and row.chunk is None):
            spans = [Span(0, self.builder.size(size)) for size in sizes[:-1]]
            limit = self.builder.size(sizes[-1])

            def along(outer: list[Dim]) -> Body:
                return self.loop_in_chunks(
                    foldings, limit, lambda at, mask: self.element(part, foldings, row, [*outer, at], mask)
                )

            return build_loops(self.builder, "r", spans, along)
        return self.loop_in_chunks(
            foldings, self.limit(row), lambda at, mask: self.element(part, foldings, row, self.flat(row, at), mask)
        )

    def loop_in_chunks(
        self, foldings: Sequence[LaneGroupFolding], limit: Dim, element: Callable[[Dim, Code | None], Body]
    ) -> Body:
        """Process a lane's elements below a limit, in chunks of SUM_CHUNK where folds have chunks."""
        begin = [statement for folding in foldings for statement in folding.start_chunk()]
        end = [statement for folding in foldings for statement in folding.finish_chunk()]
        slots = dims.ceildiv(limit, self.lane_group.members)
        if not begin or (isinstance(self.length, int) and self.length <= SUM_CHUNK * self.lane_group.members):
            return (*begin, *self.slots(0, slots, limit, element), *end)
        first = self.builder.variable("stretch")
        last = dims.minimum(first + SUM_CHUNK, slots)
        statements = self.slots(first, last, limit, element)
        return (repeat(first, 0, slots, SUM_CHUNK, (*begin, *statements, *end)),)

    def slots(self, first: Dim, last: Dim, limit: Dim, element: Callable[[Dim, Code | None], Body]) -> Body:
        """Process a lane's elements first..last-1, unrolled as long as all are below the limit."""
        members, member, unroll = self.lane_group.members, self.lane_group.member, self.unroll
        several, single = self.builder.variable("i"), self.builder.variable("j")
        last_position = single * members + member
        unrolled_stop = dims.maximum(dims.minimum(last, dims.floordiv(limit, members)), first)
        ahead = first + dims.floordiv(unrolled_stop - first, unroll) * unroll
        body: list[Statement] = []
        for number in range(unroll):
            body += element((several + number) * members + member, None)
        if self.clamps:
            return repeat(several, first, ahead, unroll, body), self.last_slots(ahead, last, limit, element)
        last_ones = build_masked(self.builder, last_position, limit, lambda mask: element(last_position, mask))
        return repeat(several, first, ahead, unroll, body), repeat(single, ahead, last, 1, last_ones)

    def last_slots(self, first: Dim, last: Dim, limit: Dim, element: Callable[[Dim, Code | None], Body]) -> Statement:
        """Process the elements that are too few for the unrolled loop, all at once."""
        members = self.lane_group.members
        definition, end = self.builder.let("end", dims.minimum(limit, last * members))
        body: list[Statement] = [definition]
        for number in range(self.unroll):
            position = (first + number) * members + self.lane_group.member
            read = dims.minimum(position, limit - 1)
            body += build_masked(self.builder, position, end, partial(element, read))
        return When(Call("less", (Integer(first), Integer(last)), DType.bool), tuple(body))

    def element(
        self,
        part: Pass,
        foldings: Sequence[LaneGroupFolding],
        row: _Row,
        reduced: Sequence[Dim],
        mask: Code | None,
    ) -> Body:
        """Process one element per lane: fold it and write it."""
        groups = self.groups(row, reduced)
        inside = and_masks(row.inside, mask)
        reads = row.reads if self.clamps else and_masks(row.reads, mask)
        statements: list[Statement] = []
        places = self.merged.axis_positions(groups)
        lowering = Lowering(self.views, places, self.builder, row.values, reads, statements)
        values = [lowering.code(self.lowered[id(element)]) for element in part.elements]
        if len(part.writes) > 1:  # a write may overwrite an element that another one reads
            values = [lowering.keep(value) for value in values]
        statements += self.error_flag.collect(lowering.checks)
        for folding, value in zip(foldings, values):
            statements += folding.accumulate(value, mask, reduced)
        for write, value in zip(part.writes, values[len(foldings) :], strict=True):
            place = self.offset(write.result, groups, row)
            statements.append(put(self.outs[write.result], place, value, mask=inside))
        return tuple(statements)

    # -- rows as a whole ---------------------------------------------------------------------------------------------

    def foldings(self, part: Pass) -> list[LaneGroupFolding]:
        return [LaneGroupFolding(fold, self.lane_group, self.builder) for fold in part.folds]

    def finish(self, foldings: Sequence[LaneGroupFolding], row: _Row, *, in_chunk: bool) -> list[Statement]:
        """Finish folds, and add their results to the row's values."""
        statements: list[Statement] = []
        for folding in foldings:
            statements += folding.finish_chunk() if in_chunk else []
            results, row.values[folding.fold.key] = folding.finish()
            statements += results
            if folding.fold.best is not None:
                row.values[folding.fold.best] = folding.best
        return statements

    def finish_row(self, actions: Sequence[RowValue | Write], row: _Row) -> list[Statement]:
        """Run the actions of a pass that happen once per row; the row's first lane writes."""
        groups = self.groups(row, [0] * len(self.reduced))
        statements: list[Statement] = []
        places = self.merged.axis_positions(groups)
        lowering = Lowering(self.views, places, self.builder, row.values, row.reads, statements)
        for action in actions:
            value = lowering.code(self.lowered[id(action.value)])
            statements += self.error_flag.collect(lowering.checks)
            lowering.checks.clear()
            if isinstance(action, Write):
                place = self.offset(action.result, groups, row)
                mask = row.inside
                if self.lane_group.rows > 1 and self.lane_group.members > 1:
                    first = Call("equal", (Integer(self.lane_group.member), Integer(0)), DType.bool)
                    mask = and_masks(mask, first)
                statements.append(put(self.outs[action.result], place, value, mask=mask))
            else:
                definition, row.values[action.key] = self.builder.keep("v", value)
                statements.append(definition)
        return statements

    # -- positions ---------------------------------------------------------------------------------------------------

    def flat(self, row: _Row, position: Dim) -> list[Dim]:
        """Return the positions along the reduced groups of axes, from a position in a row or its chunk."""
        if row.chunk is not None and self.chunks is not None:
            position = row.chunk * self.builder.size(self.chunks.length) + position
        return unravel(position, [self.merged.sizes[number] for number in self.reduced], self.builder)

    def groups(self, row: _Row, reduced: Sequence[Dim]) -> list[Dim]:
        """Return the positions along all groups of axes, in order."""
        positions: dict[int, Dim] = dict(zip(self.row_groups, row.positions, strict=True))
        positions.update(zip(self.reduced, reduced, strict=True))
        return [positions[number] for number in range(len(self.merged.axes))]

    def offset(self, result: int, groups: Sequence[Dim], row: _Row) -> Dim:
        strides = self.sweep.results[result].strides
        assert strides is not None
        place: Dim = 0
        if row.chunk is not None and self.chunks is not None:
            place = row.chunk * self.builder.size(self.chunks.stride)
        for stride, position in zip(self.merged.strides(strides), groups, strict=True):
            place = place + self.builder.size(stride) * position
        return place


build_sweep_launch = memoize_launch(_SweepKernel)
