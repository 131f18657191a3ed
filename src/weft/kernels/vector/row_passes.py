"""Sweeps: a domain is passed over row by row, each pass reducing rows to numbers that the next one may use.

A row is what the reduced axes span for fixed kept axes. Where a reduced axis is innermost in memory, lanes go along
it and are combined at the end of a pass; otherwise they go along a kept axis, and each lane has a row of its own.
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
from weft.kernels.build.checks import FaultReport, is_checked
from weft.kernels.build.loop_nest import Body, Span, choose_lanes, lane_loop, loops, spread
from weft.kernels.build.row_passes import STRETCH, RowCut, Single, Sweep, Write, read_operands
from weft.kernels.lower.expressions import Known, Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch, put, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.tensors import Launch, Reference

COSTLY = 12
MANY_REGISTERS = 32


@memoized
def sweep_launch(sweep: Sweep, target: VectorTarget, cut: RowCut | None = None) -> Launch:
    """Operands and results are those of the sweep."""
    return _Builder(sweep, target, cut).launch()


class _Builder:
    def __init__(self, sweep: Sweep, target: VectorTarget, cut: RowCut | None) -> None:
        self.sweep = sweep
        self.cut = cut
        self.builder = KernelBuilder("rows")
        expressions = [expression for part in sweep.passes for expression in part.expressions]
        strides = [result.strides for result in sweep.results if result.strides is not None]
        starts = () if cut is None else (cut.axis,)
        self.merged = merge_axes(expressions, sweep.operands, sweep.domain, sweep.order, strides, sweep.reduced, starts)
        inputs = operand_inputs(sweep.operands, self.builder, read_operands(sweep))
        self.views = operand_views(sweep.operands, inputs, self.builder)
        self.faults = FaultReport(self.builder)
        self.checked = is_checked(*expressions)
        self.moved = dict(zip(map(id, expressions), self.merged.expressions, strict=True))
        groups = range(len(self.merged.axes))
        self.reduced = [number for number in groups if self.merged.axes[number][0] in sweep.reduced]
        self.kept = [number for number in groups if number not in self.reduced]
        self.choose_lanes(target, expressions)
        self.outs = [
            self.builder.local(f"out{number}", result.dtype, self.local_size())
            if result.strides is None
            else self.builder.output(f"out{number}", result.dtype, Reference("result", number))
            for number, result in enumerate(sweep.results)
        ]

    def choose_lanes(self, target: VectorTarget, expressions: Iterable[Scalar]) -> None:
        """Lanes along the innermost axis, several vectors of them, unless a short reduction leaves them empty."""
        expressions = list(expressions)
        dtypes = [dtype for expression in expressions for dtype in computed_dtypes(expression)]
        lanes = choose_lanes(target, dtypes, widest=8)
        sizes = self.merged.sizes
        self.along_row = not self.kept or (bool(self.reduced) and self.reduced[-1] > self.kept[-1])
        self.length: Dim = 1
        if not self.merged.axes:
            self.lanes = 1
            return
        if self.along_row and self.kept and isinstance(sizes[self.reduced[-1]], int):
            short = estimate(sizes[self.reduced[-1]]) * 2 < lanes
            self.along_row = not (short and estimate(sizes[self.kept[-1]]) * 2 >= lanes)
        self.length = sizes[self.reduced[-1] if self.along_row else self.kept[-1]]
        crowded = max(map(cost, expressions), default=0) > COSTLY and target.vector_registers < MANY_REGISTERS
        self.lanes = lanes * (2 if crowded or not isinstance(self.length, int) else 4)
        while self.lanes > lanes and estimate(self.length) < self.lanes:
            self.lanes //= 2

    # -- the kernel --------------------------------------------------------------------------------------------------

    def launch(self) -> Launch:
        sizes = self.merged.sizes
        kept = [sizes[number] for number in self.kept]
        weight = dims.product(sizes[number] for number in self.reduced)
        if self.cut is not None:
            size = self.sweep.domain[self.cut.axis]
            kept.insert(0, dims.ceildiv(size, self.cut.length))
            weight = dims.floordiv(weight, size) * self.cut.length if isinstance(size, int) else self.cut.length
        step = 1 if self.along_row else self.lanes
        blocks, spans = spread(kept, self.builder, estimate(weight) * len(self.sweep.passes), step)
        if self.along_row or not spans:
            body = loops(self.builder, "o", spans, lambda places: self.row(places, None))
        else:
            body = loops(self.builder, "o", spans[:-1], lambda outer: self.columns(outer, spans[-1]))
        if self.checked:
            body = self.faults.around(body)
        return self.builder.launch(self.lanes, body, blocks)

    def columns(self, outer: list[Dim], span: Span) -> Body:
        exact = isinstance(self.length, int) and self.length % self.lanes == 0

        def rows(place: Dim, mask: Code | None) -> Body:
            return self.row([*outer, place], mask)

        return lane_loop(self.builder, "c", span, self.lanes, rows, exact=exact)

    def local_size(self) -> int:
        return row_length(self.merged.sizes[number] for number in self.reduced) * (1 if self.along_row else self.lanes)

    # -- one row, or one a lane --------------------------------------------------------------------------------------

    def row(self, places: list[Dim], mask: Code | None) -> Body:
        """All passes; `places` are those along the kept groups, after the piece of a cut row."""
        piece, kept = (places[0], places[1:]) if self.cut is not None else (None, places)
        statements: list[Statement] = []
        known: dict[Known, Code] = {}
        for number, part in enumerate(self.sweep.passes):
            if part.elements:
                statements += self.sweep_row(number, kept, piece, mask, known)
            statements += self.once(part.then, kept, piece, mask, known)
        return tuple(statements)

    def sweep_row(
        self, number: int, kept: list[Dim], piece: Dim | None, mask: Code | None, known: dict[Known, Code]
    ) -> list[Statement]:
        """Pass number `number`; what its folds come to is added to `known`."""
        lanes = self.lanes if self.along_row else None
        foldings = [Accumulators(fold, self.builder, lanes) for fold in self.sweep.passes[number].folds]
        spans = [self.reduced_span(group, piece) for group in self.reduced]

        def element(reduced: Sequence[Dim], inside: Code | None) -> Body:
            return self.element(number, foldings, kept, reduced, inside, known)

        if self.along_row and self.reduced:
            size = self.merged.sizes[self.reduced[-1]]
            exact = isinstance(size, int) and size % self.lanes == 0 and self.cut is None

            def vectors(outer: list[Dim]) -> Body:
                def vector(place: Dim, inside: Code | None) -> Body:
                    return element([*outer, place], inside)

                return lane_loop(self.builder, "i", spans[-1], self.lanes, vector, exact=exact)

            inner = loops(self.builder, "r", spans[:-1], vectors)
        else:
            inner = self.in_stretches(foldings, spans, lambda reduced: element(reduced, mask))
        start = [statement for folding in foldings for statement in folding.start()]
        finish: list[Statement] = []
        for folding in foldings:
            statements, known[folding.fold.key] = folding.finish()
            finish += statements
        return [*start, *inner, *finish]

    def in_stretches(
        self, foldings: Sequence[Accumulators], spans: Sequence[Span], element: Callable[[list[Dim]], Body]
    ) -> Body:
        """Loops over the reduced axes, the innermost one a stretch at a time where sums are to be exact."""
        begin = tuple(statement for folding in foldings for statement in folding.start_stretch())
        end = tuple(statement for folding in foldings for statement in folding.finish_stretch())
        if not spans or not begin:
            return (*begin, *loops(self.builder, "r", spans, element), *end)
        last = spans[-1]
        assert last.stop is not None
        first = self.builder.variable("stretch")
        part = Span(first, dims.minimum(first + STRETCH, last.stop))

        def stretches(outer: list[Dim]) -> Body:
            inner = loops(self.builder, f"r{len(outer)}_", [part], lambda place: element([*outer, *place]))
            return (repeat(first, last.start, last.stop or 0, STRETCH, (*begin, *inner, *end)),)

        return loops(self.builder, "r", spans[:-1], stretches)

    def reduced_span(self, group: int, piece: Dim | None) -> Span:
        end = self.builder.size(self.merged.sizes[group])
        if piece is None or self.cut is None or self.cut.axis not in self.merged.axes[group]:
            return Span(0, end)
        members = self.merged.axes[group]
        inner = dims.product(self.sweep.domain[axis] for axis in members[members.index(self.cut.axis) + 1 :])
        size = self.cut.length * inner
        factor = self.lanes if isinstance(size, int) and size % self.lanes == 0 else 1
        length = self.builder.size(size // factor) * factor
        return Span(piece * length, dims.minimum((piece + 1) * length, end))

    def element(
        self,
        number: int,
        foldings: Sequence[Accumulators],
        kept: Sequence[Dim],
        reduced: Sequence[Dim],
        mask: Code | None,
        known: dict[Known, Code],
    ) -> Body:
        """One vector of elements in pass number `number`: what is folded and what is written."""
        part = self.sweep.passes[number]
        groups = self.groups(kept, reduced)
        statements: list[Statement] = []
        again: dict[Known, Code] = {
            write.key: self.read_again(write, groups, mask)
            for earlier in self.sweep.passes[:number]
            for write in earlier.writes
            if write.key is not None
        }
        lowering = Lowering(self.views, self.merged.places(groups), self.builder, {**known, **again}, mask, statements)
        values = [lowering.code(self.moved[id(expression)]) for expression in part.elements]
        if len(part.writes) > 1:  # one may write where another reads
            values = [lowering.keep(value) for value in values]
        puts: list[Statement] = []
        for write, value in zip(part.writes, values[len(foldings) :], strict=True):
            puts.append(put(self.outs[write.result], self.offset(write.result, groups, None), value, mask=mask))
        folded: list[Statement] = []
        for folding, value in zip(foldings, values):
            folded += folding.take(value, mask if self.along_row else None, reduced)
        return (*statements, *self.faults.gather(lowering.checks), *folded, *puts)

    def once(
        self,
        actions: Sequence[Single | Write],
        kept: Sequence[Dim],
        piece: Dim | None,
        mask: Code | None,
        known: dict[Known, Code],
    ) -> list[Statement]:
        """What is done for a row as a whole."""
        groups = self.groups(kept, [0] * len(self.reduced))
        statements: list[Statement] = []
        lowering = Lowering(
            self.views,
            self.merged.places(groups),
            self.builder,
            known,
            None if self.along_row else mask,
            statements,
        )
        for action in actions:
            value = lowering.code(self.moved[id(action.value)])
            statements += self.faults.gather(lowering.checks)
            lowering.checks.clear()
            if isinstance(action, Write):
                place = self.offset(action.result, groups, piece)
                own = None if self.along_row else mask
                statements.append(put(self.outs[action.result], place, value, mask=own))
            else:
                defined, known[action.key] = self.builder.keep("v", value, varying=not self.along_row)
                statements.append(defined)
        return statements

    def read_again(self, write: Write, groups: Sequence[Dim], mask: Code | None) -> Code:
        return fetch(self.outs[write.result], self.offset(write.result, groups, None), mask=mask)

    # -- places ------------------------------------------------------------------------------------------------------

    def groups(self, kept: Sequence[Dim], reduced: Sequence[Dim]) -> list[Dim]:
        """Positions along all groups, in order."""
        positions: dict[int, Dim] = dict(zip(self.kept, kept, strict=True))
        positions.update(zip(self.reduced, reduced, strict=True))
        return [positions[number] for number in range(len(self.merged.axes))]

    def offset(self, result: int, groups: Sequence[Dim], piece: Dim | None) -> Dim:
        strides = self.sweep.results[result].strides
        place: Dim = 0
        if strides is None:
            for number in self.reduced:
                place = place * self.merged.sizes[number] + groups[number]
            return place if self.along_row else place * self.lanes + dims.symbol("lane", 0, self.lanes - 1)
        if piece is not None and self.cut is not None:
            place = piece * self.builder.size(self.cut.stride)
        for stride, position in zip(self.merged.strides(strides), groups, strict=True):
            place = place + self.builder.size(stride) * position
        return place


def row_length(sizes: Iterable[Dim]) -> int:
    """The number of elements of a row whose sizes are all known."""
    length = dims.product(sizes)
    assert isinstance(length, int)
    return length
