"""Sweeps on vectors: passes over the rows of a domain, each reducing rows to values that the next one may use.

A row spans the reduced axes at fixed positions of the others. If a reduced axis is innermost in memory, lanes run along
it and are combined at the end of a pass; otherwise they run along another axis, and each lane has its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.cost.expressions import cost
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Code, Statement
from weft.ir.scalar import Scalar, computed_dtypes
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import Accumulators
from weft.kernels.build.error_flag import ErrorFlag, has_checked_loads
from weft.kernels.build.loop_nest import Body, Span, build_lane_loop, build_loops, choose_lanes, split_into_blocks
from weft.kernels.build.row_passes import SUM_CHUNK, RowChunks, RowValue, Sweep, Write, read_operands
from weft.kernels.lower.expressions import Lowering, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch, put, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.tensors import Launch, Reference

COSTLY_EXPRESSION = 12
MANY_REGISTERS = 32


class _Builder:
    """Builds a launch with the operands and results of a sweep, or with chunks of its rows."""

    def __init__(self, sweep: Sweep, target: VectorTarget, chunks: RowChunks | None = None) -> None:
        self.sweep = sweep
        self.chunks = chunks
        self.builder = KernelBuilder("rows")
        expressions = [expression for part in sweep.passes for expression in part.expressions]
        strides = [result.strides for result in sweep.results if result.strides is not None]
        starts = () if chunks is None else (chunks.axis,)
        self.merged = merge_axes(expressions, sweep.operands, sweep.domain, sweep.order, strides, sweep.reduced, starts)
        inputs = operand_inputs(sweep.operands, self.builder, read_operands(sweep))
        self.views = operand_views(sweep.operands, inputs, self.builder)
        self.error_flag = ErrorFlag(self.builder)
        self.checked = has_checked_loads(*expressions)
        self.merged_expressions = dict(zip(map(id, expressions), self.merged.expressions, strict=True))
        groups = range(len(self.merged.axes))
        self.reduced = [number for number in groups if self.merged.axes[number][0] in sweep.reduced]
        self.row_groups = [number for number in groups if number not in self.reduced]
        self.choose_lanes(target, expressions)
        self.outputs = [
            self.builder.local(f"out{number}", result.dtype, self.local_size())
            if result.strides is None
            else self.builder.output(f"out{number}", result.dtype, Reference("result", number))
            for number, result in enumerate(sweep.results)
        ]

    def choose_lanes(self, target: VectorTarget, expressions: Iterable[Scalar]) -> None:
        """Choose the axis of the lanes, the innermost unless a short reduction leaves them idle, and their number."""
        expressions = list(expressions)
        dtypes = [dtype for expression in expressions for dtype in computed_dtypes(expression)]
        lanes = choose_lanes(target, dtypes, widest=8)
        sizes = self.merged.sizes
        self.along_row = not self.row_groups or (bool(self.reduced) and self.reduced[-1] > self.row_groups[-1])
        self.length: Dim = 1
        if not self.merged.axes:
            self.lanes = 1
            return
        if self.along_row and self.row_groups and isinstance(sizes[self.reduced[-1]], int):
            short = estimate(sizes[self.reduced[-1]]) * 2 < lanes
            self.along_row = not (short and estimate(sizes[self.row_groups[-1]]) * 2 >= lanes)
        self.length = sizes[self.reduced[-1] if self.along_row else self.row_groups[-1]]
        crowded = (
            max(map(cost, expressions), default=0) > COSTLY_EXPRESSION and target.vector_registers < MANY_REGISTERS
        )
        self.lanes = lanes * (2 if crowded or not isinstance(self.length, int) else 4)
        while self.lanes > lanes and estimate(self.length) < self.lanes:
            self.lanes //= 2

    # -- the kernel --------------------------------------------------------------------------------------------------

    def build_launch(self) -> Launch:
        sizes = self.merged.sizes
        row_sizes = [sizes[number] for number in self.row_groups]
        weight = dims.product(sizes[number] for number in self.reduced)
        if self.chunks is not None:
            size = self.sweep.domain[self.chunks.axis]
            row_sizes.insert(0, dims.ceildiv(size, self.chunks.length))
            weight = dims.floordiv(weight, size) * self.chunks.length if isinstance(size, int) else self.chunks.length
        step = 1 if self.along_row else self.lanes
        blocks, spans = split_into_blocks(row_sizes, self.builder, estimate(weight) * len(self.sweep.passes), step)
        if self.along_row or not spans:
            body = build_loops(self.builder, "o", spans, lambda places: self.build_row(places, None))
        else:
            body = build_loops(self.builder, "o", spans[:-1], lambda outer: self.build_columns(outer, spans[-1]))
        if self.checked:
            body = self.error_flag.wrap(body)
        return self.builder.launch(self.lanes, body, blocks)

    def build_columns(self, outer: list[Dim], span: Span) -> Body:
        exact = isinstance(self.length, int) and self.length % self.lanes == 0

        def rows(place: Dim, mask: Code | None) -> Body:
            return self.build_row([*outer, place], mask)

        return build_lane_loop(self.builder, "c", span, self.lanes, rows, exact=exact)

    def local_size(self) -> int:
        return constant_product(self.merged.sizes[number] for number in self.reduced) * (
            1 if self.along_row else self.lanes
        )

    # -- one row, or one per lane ------------------------------------------------------------------------------------

    def build_row(self, places: list[Dim], mask: Code | None) -> Body:
        """Build all passes; `places` are the chunk of a split row, if any, and the positions along the row groups."""
        chunk, row_positions = (places[0], places[1:]) if self.chunks is not None else (None, places)
        statements: list[Statement] = []
        row_values: dict[ValueKey, Code] = {}
        for number, part in enumerate(self.sweep.passes):
            if part.elements:
                statements += self.build_pass(number, row_positions, chunk, mask, row_values)
            statements += self.build_row_actions(part.then, row_positions, chunk, mask, row_values)
        return tuple(statements)

    def build_pass(
        self,
        number: int,
        row_positions: list[Dim],
        chunk: Dim | None,
        mask: Code | None,
        row_values: dict[ValueKey, Code],
    ) -> list[Statement]:
        """Build pass `number`, and add the values of its folds to `row_values`."""
        lanes = self.lanes if self.along_row else None
        accumulators = [Accumulators(fold, self.builder, lanes) for fold in self.sweep.passes[number].folds]
        spans = [self.find_reduced_span(group, chunk) for group in self.reduced]

        def build_element(reduced: Sequence[Dim], inside: Code | None) -> Body:
            return self.build_element(number, accumulators, row_positions, reduced, inside, row_values)

        if self.along_row and self.reduced:
            size = self.merged.sizes[self.reduced[-1]]
            exact = isinstance(size, int) and size % self.lanes == 0 and self.chunks is None

            def vectors(outer: list[Dim]) -> Body:
                def vector(place: Dim, inside: Code | None) -> Body:
                    return build_element([*outer, place], inside)

                return build_lane_loop(self.builder, "i", spans[-1], self.lanes, vector, exact=exact)

            inner = build_loops(self.builder, "r", spans[:-1], vectors)
        else:
            inner = self.build_chunked_loops(accumulators, spans, lambda reduced: build_element(reduced, mask))
        start = [statement for accumulator in accumulators for statement in accumulator.start()]
        finish: list[Statement] = []
        for accumulator in accumulators:
            statements, row_values[accumulator.fold.key] = accumulator.finish()
            finish += statements
        return [*start, *inner, *finish]

    def build_chunked_loops(
        self, accumulators: Sequence[Accumulators], spans: Sequence[Span], element: Callable[[list[Dim]], Body]
    ) -> Body:
        """Build loops over the reduced axes, with the innermost one in chunks if sums are."""
        begin = tuple(statement for accumulator in accumulators for statement in accumulator.start_chunk())
        end = tuple(statement for accumulator in accumulators for statement in accumulator.finish_chunk())
        if not spans or not begin:
            return (*begin, *build_loops(self.builder, "r", spans, element), *end)
        last = spans[-1]
        assert last.stop is not None
        first = self.builder.variable("stretch")
        part = Span(first, dims.minimum(first + SUM_CHUNK, last.stop))

        def stretches(outer: list[Dim]) -> Body:
            inner = build_loops(self.builder, f"r{len(outer)}_", [part], lambda place: element([*outer, *place]))
            return (repeat(first, last.start, last.stop or 0, SUM_CHUNK, (*begin, *inner, *end)),)

        return build_loops(self.builder, "r", spans[:-1], stretches)

    def find_reduced_span(self, group: int, chunk: Dim | None) -> Span:
        end = self.builder.size(self.merged.sizes[group])
        if chunk is None or self.chunks is None or self.chunks.axis not in self.merged.axes[group]:
            return Span(0, end)
        members = self.merged.axes[group]
        inner = dims.product(self.sweep.domain[axis] for axis in members[members.index(self.chunks.axis) + 1 :])
        size = self.chunks.length * inner
        factor = self.lanes if isinstance(size, int) and size % self.lanes == 0 else 1
        length = self.builder.size(size // factor) * factor
        return Span(chunk * length, dims.minimum((chunk + 1) * length, end))

    def build_element(
        self,
        number: int,
        accumulators: Sequence[Accumulators],
        row_positions: Sequence[Dim],
        reduced: Sequence[Dim],
        mask: Code | None,
        row_values: dict[ValueKey, Code],
    ) -> Body:
        """Build one vector of elements in pass `number`: folds and writes."""
        part = self.sweep.passes[number]
        groups = self.group_positions(row_positions, reduced)
        statements: list[Statement] = []
        again: dict[ValueKey, Code] = {
            write.key: self.read_back(write, groups, mask)
            for earlier in self.sweep.passes[:number]
            for write in earlier.writes
            if write.key is not None
        }
        lowering = Lowering(
            self.views, self.merged.axis_positions(groups), self.builder, {**row_values, **again}, mask, statements
        )
        values = [lowering.code(self.merged_expressions[id(expression)]) for expression in part.elements]
        if len(part.writes) > 1:  # a write may overwrite an element that another one reads
            values = [lowering.keep(value) for value in values]
        puts: list[Statement] = []
        for write, value in zip(part.writes, values[len(accumulators) :], strict=True):
            puts.append(put(self.outputs[write.result], self.offset(write.result, groups, None), value, mask=mask))
        folded: list[Statement] = []
        for accumulator, value in zip(accumulators, values):
            folded += accumulator.accumulate(value, mask if self.along_row else None, reduced)
        return (*statements, *self.error_flag.collect(lowering.checks), *folded, *puts)

    def build_row_actions(
        self,
        actions: Sequence[RowValue | Write],
        row_positions: Sequence[Dim],
        chunk: Dim | None,
        mask: Code | None,
        row_values: dict[ValueKey, Code],
    ) -> list[Statement]:
        """Build the actions that run once per row."""
        groups = self.group_positions(row_positions, [0] * len(self.reduced))
        statements: list[Statement] = []
        lowering = Lowering(
            self.views,
            self.merged.axis_positions(groups),
            self.builder,
            row_values,
            None if self.along_row else mask,
            statements,
        )
        for action in actions:
            value = lowering.code(self.merged_expressions[id(action.value)])
            statements += self.error_flag.collect(lowering.checks)
            lowering.checks.clear()
            if isinstance(action, Write):
                place = self.offset(action.result, groups, chunk)
                lane_mask = None if self.along_row else mask
                statements.append(put(self.outputs[action.result], place, value, mask=lane_mask))
            else:
                defined, row_values[action.key] = self.builder.keep("v", value, varying=not self.along_row)
                statements.append(defined)
        return statements

    def read_back(self, write: Write, groups: Sequence[Dim], mask: Code | None) -> Code:
        return fetch(self.outputs[write.result], self.offset(write.result, groups, None), mask=mask)

    # -- positions ---------------------------------------------------------------------------------------------------

    def group_positions(self, row_positions: Sequence[Dim], reduced: Sequence[Dim]) -> list[Dim]:
        """Return the positions along all groups, in order."""
        positions: dict[int, Dim] = dict(zip(self.row_groups, row_positions, strict=True))
        positions.update(zip(self.reduced, reduced, strict=True))
        return [positions[number] for number in range(len(self.merged.axes))]

    def offset(self, result: int, groups: Sequence[Dim], chunk: Dim | None) -> Dim:
        strides = self.sweep.results[result].strides
        place: Dim = 0
        if strides is None:
            for number in self.reduced:
                place = place * self.merged.sizes[number] + groups[number]
            return place if self.along_row else place * self.lanes + dims.symbol("lane", 0, self.lanes - 1)
        if chunk is not None and self.chunks is not None:
            place = chunk * self.builder.size(self.chunks.stride)
        for stride, position in zip(self.merged.strides(strides), groups, strict=True):
            place = place + self.builder.size(stride) * position
        return place


build_sweep_launch = memoize_launch(_Builder)


def constant_product(sizes: Iterable[Dim]) -> int:
    """Return the product of sizes that are all known."""
    length = dims.product(sizes)
    assert isinstance(length, int)
    return length
