"""Maps that transpose: read squares of elements along one axis, transpose them in registers, write along another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir import dims
from weft.ir.access import find_nonlinear_axes, stride_along
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Register, Statement, When, lane
from weft.ir.scalar import FlatLoad, Scalar, flat_loads
from weft.kernels.build.loop_nest import Body, build_loops, split_into_blocks
from weft.kernels.lower.expressions import Lowering, Operand, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, put, repeat, transpose
from weft.kernels.lower.merge_axes import MergedAxes
from weft.kernels.lower.operations import less

Write = Callable[[Scalar, Sequence[Dim], "Code | None", "dict[ValueKey, Code]"], Body]
MAX_LANES = 16
MAX_TRANSPOSED = 4  # loads with a square each


def build_transposing_map(
    merged: MergedAxes, views: Mapping[int, Operand], builder: KernelBuilder, lanes: int, write: Write
) -> tuple[Body, Dim, int] | None:
    """Return (body, blocks, lanes) if loads are contiguous along another axis than the result, else None.

    `write` builds one vector of the result from positions, a mask and values that were loaded.
    """
    lanes = min(lanes, MAX_LANES)
    across = _choose_axis(merged, lanes)
    if across is None:
        return None
    squares = _Squares(merged, views, builder, lanes, across, write)
    last = len(merged.sizes) - 1
    others = [number for number in range(last) if number != across]
    counts = [dims.ceildiv(merged.sizes[number], lanes) for number in (across, last)]
    domain = [*(merged.sizes[number] for number in others), *counts]
    blocks, spans = split_into_blocks(domain, builder, weight=lanes * lanes)

    def build_square(places: list[Dim]) -> Body:
        groups: list[Dim] = [0] * (last + 1)
        for number, place in zip(others, places):
            groups[number] = place
        return squares.body(groups, places[-2] * lanes, places[-1] * lanes)

    return build_loops(builder, "o", spans, build_square), blocks, lanes


def _choose_axis(merged: MergedAxes, lanes: int) -> int | None:
    """Choose the axis group that transposed loads are contiguous along; None if there is none that is long enough."""
    sizes = merged.sizes
    long = [not isinstance(size, int) or size * 2 >= lanes for size in sizes]
    if not long[-1]:
        return None
    unit_axes = {_find_unit_axis(merged, value) for value in merged.offsets()}
    for number in reversed(range(len(sizes) - 1)):
        if number in unit_axes and long[number]:
            return number
    return None


def _find_unit_axis(merged: MergedAxes, value: Dim) -> int | None:
    """Return the group along which an offset has stride 1, if its stride along the innermost group is larger."""
    last = merged.axes[-1][-1]
    nonlinear = find_nonlinear_axes(value)
    if last in nonlinear or stride_along(value, last) in (0, 1, -1):
        return None
    for number, group in enumerate(merged.axes[:-1]):
        if group[-1] not in nonlinear and stride_along(value, group[-1]) == 1:
            return number
    return None


class _Squares:
    def __init__(
        self,
        merged: MergedAxes,
        views: Mapping[int, Operand],
        builder: KernelBuilder,
        lanes: int,
        across: int,
        write: Write,
    ) -> None:
        self.merged = merged
        self.builder = builder
        self.lanes = lanes
        self.across = across
        self.write = write
        self.views = views
        self.transposed = self._choose_loads()
        self.expression = merged.expressions[0]
        self.is_copy = self.expression in self.transposed
        self.buffers = [
            builder.local(f"square{number}", load.dtype, lanes * lanes) for number, load in enumerate(self.transposed)
        ]

    def _choose_loads(self) -> list[FlatLoad]:
        """Choose the loads to transpose, arguments before their users."""
        loads = dict.fromkeys(reversed(flat_loads(self.merged.expressions[0])))
        return [load for load in loads if _find_unit_axis(self.merged, load.offset) == self.across][:MAX_TRANSPOSED]

    def body(self, groups: list[Dim], across: Dim, along: Dim) -> Body:
        """Build the square at a position, whole or clipped by the end of the tensor."""
        sizes = self.merged.sizes[self.across], self.merged.sizes[-1]
        if all(isinstance(size, int) and size % self.lanes == 0 for size in sizes):
            return self.build_square(groups, across, along, None)
        ends = self.builder.size(sizes[0]), self.builder.size(sizes[1])
        fits = tuple(
            Call("less_equal", (Integer(place + self.lanes), Integer(end)), DType.bool)
            for place, end in zip((across, along), ends)
        )
        whole, cut = (self.build_square(groups, across, along, cut_at) for cut_at in (None, ends))
        return (When(Call("logical_and", fits, DType.bool), whole, cut),)

    def build_square(self, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None) -> Body:
        """Read, transpose and write a square; `ends` are the sizes along the two axes if it is clipped."""
        statements: list[Statement] = []
        rows: list[Register] = []  # of the only square, if the map is a copy
        for number in range(len(self.transposed)):
            transposing, rows = self.build_transpose(number, groups, across, along, ends)
            statements += transposing
        columns = along + lane(self.lanes)
        if ends is None and self.is_copy:
            for number in range(self.lanes):
                values: dict[ValueKey, Code] = {self.transposed[0]: rows[number]}
                places = self.places(groups, across + number, columns)
                statements += self.write(self.expression, places, None, values)
            return tuple(statements)
        row = self.builder.variable("row")
        squares: dict[ValueKey, Code] = {
            load: fetch(buffer, row * self.lanes + lane(self.lanes))
            for load, buffer in zip(self.transposed, self.buffers)
        }
        mask = None if ends is None else less(columns, ends[1])
        stop = self.lanes if ends is None else dims.minimum(ends[0] - across, self.lanes)
        inner = self.write(self.expression, self.places(groups, across + row, columns), mask, squares)
        return (*statements, repeat(row, 0, stop, 1, inner))

    def build_transpose(
        self, number: int, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None
    ) -> tuple[list[Statement], list[Register]]:
        """Transpose a square in registers, and store it in local memory unless it is only copied."""
        load, lanes = self.transposed[number], self.lanes
        rows = across + lane(lanes)
        mask = None if ends is None else less(rows, ends[0])
        statements: list[Statement] = []
        registers = self.builder.registers("x", lanes, load.dtype)
        for column, register in enumerate(registers):
            inside = along + column if ends is None else dims.minimum(along + column, ends[1] - 1)
            places = self.merged.axis_positions(self.places(groups, rows, inside))
            lowering = Lowering(self.views, places, self.builder, mask=mask)
            element = lowering.fetch(self.views[load.operand], lowering.flat_offset(load.offset), None, None)
            statements.append(define(register, element))
        statements.append(transpose(registers))
        if ends is not None or not self.is_copy:
            at = lane(lanes)
            statements += [
                put(self.buffers[number], row * lanes + at, register) for row, register in enumerate(registers)
            ]
        return statements, registers

    def places(self, groups: list[Dim], across: Dim, along: Dim) -> list[Dim]:
        places = list(groups)
        places[self.across], places[-1] = across, along
        return places
