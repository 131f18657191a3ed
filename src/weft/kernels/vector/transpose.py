"""Maps that transpose: squares of elements are read along one axis, turned in registers and written along another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir import dims
from weft.ir.access import nonlinear_axes, stride_along
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Register, Statement, When, lane
from weft.ir.scalar import FlatLoad, Scalar, flat_loads
from weft.kernels.build.loop_nest import Body, loops, spread
from weft.kernels.lower.expressions import Known, Lowering, Operand
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, put, repeat, transpose
from weft.kernels.lower.merge_axes import Merged

Write = Callable[[Scalar, Sequence[Dim], "Code | None", "dict[Known, Code]"], Body]
MOST_LANES = 16
MOST_TURNED = 4  # loads that are worth a square each


def transposing_map(
    merged: Merged, views: Mapping[int, Operand], builder: KernelBuilder, lanes: int, write: Write
) -> tuple[Body, Dim, int] | None:
    """(body, blocks, lanes) where loads have their neighbours along another axis than the result.

    `write` gives the statements for one vector of the result, from positions, a mask and elements at hand.
    """
    lanes = min(lanes, MOST_LANES)
    across = _other_axis(merged, lanes)
    if across is None:
        return None
    squares = _Squares(merged, views, builder, lanes, across, write)
    last = len(merged.sizes) - 1
    others = [number for number in range(last) if number != across]
    counts = [dims.ceildiv(merged.sizes[number], lanes) for number in (across, last)]
    domain = [*(merged.sizes[number] for number in others), *counts]
    blocks, spans = spread(domain, builder, weight=lanes * lanes)

    def square(places: list[Dim]) -> Body:
        groups: list[Dim] = [0] * (last + 1)
        for number, place in zip(others, places):
            groups[number] = place
        return squares.body(groups, places[-2] * lanes, places[-1] * lanes)

    return loops(builder, "o", spans, square), blocks, lanes


def _other_axis(merged: Merged, lanes: int) -> int | None:
    """The group that turned loads run along; short axes are not worth it."""
    sizes = merged.sizes
    long = [not isinstance(size, int) or size * 2 >= lanes for size in sizes]
    if not long[-1]:
        return None
    found = {_runs_along(merged, value) for value in merged.offsets()}
    for number in reversed(range(len(sizes) - 1)):
        if number in found and long[number]:
            return number
    return None


def _runs_along(merged: Merged, value: Dim) -> int | None:
    """The group along which an offset steps by one, if it steps by more along the innermost."""
    last = merged.axes[-1][-1]
    nonlinear = nonlinear_axes(value)
    if last in nonlinear or stride_along(value, last) in (0, 1, -1):
        return None
    for number, group in enumerate(merged.axes[:-1]):
        if group[-1] not in nonlinear and stride_along(value, group[-1]) == 1:
            return number
    return None


class _Squares:
    def __init__(
        self,
        merged: Merged,
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
        self.turned = self._choose_turned()
        self.expression = merged.expressions[0]
        self.copies = self.expression in self.turned
        self.buffers = [
            builder.local(f"square{number}", load.dtype, lanes * lanes) for number, load in enumerate(self.turned)
        ]

    def _choose_turned(self) -> list[FlatLoad]:
        """Loads that run along the other axis, as many of them as are worth it, arguments before what takes them."""
        found = dict.fromkeys(reversed(flat_loads(self.merged.expressions[0])))
        return [load for load in found if _runs_along(self.merged, load.offset) == self.across][:MOST_TURNED]

    def body(self, groups: list[Dim], across: Dim, along: Dim) -> Body:
        """The square that starts there, whole or cut off by the end of the tensor."""
        sizes = self.merged.sizes[self.across], self.merged.sizes[-1]
        if all(isinstance(size, int) and size % self.lanes == 0 for size in sizes):
            return self.square(groups, across, along, None)
        ends = self.builder.size(sizes[0]), self.builder.size(sizes[1])
        fits = tuple(
            Call("less_equal", (Integer(place + self.lanes), Integer(end)), DType.bool)
            for place, end in zip((across, along), ends)
        )
        whole, cut = (self.square(groups, across, along, cut_at) for cut_at in (None, ends))
        return (When(Call("logical_and", fits, DType.bool), whole, cut),)

    def square(self, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None) -> Body:
        """Read, turn and write; `ends` are the sizes along the two axes, for a square that is cut off."""
        statements: list[Statement] = []
        rows: list[Register] = []  # of the only square that is turned, where it is copied on
        for number in range(len(self.turned)):
            turned, rows = self.turn(number, groups, across, along, ends)
            statements += turned
        columns = along + lane(self.lanes)
        if ends is None and self.copies:
            for number in range(self.lanes):
                known: dict[Known, Code] = {self.turned[0]: rows[number]}
                places = self.places(groups, across + number, columns)
                statements += self.write(self.expression, places, None, known)
            return tuple(statements)
        row = self.builder.variable("row")
        squares: dict[Known, Code] = {
            load: fetch(buffer, row * self.lanes + lane(self.lanes)) for load, buffer in zip(self.turned, self.buffers)
        }
        mask = None if ends is None else Call("less", (Integer(columns), Integer(ends[1])), DType.bool)
        stop = self.lanes if ends is None else dims.minimum(ends[0] - across, self.lanes)
        inner = self.write(self.expression, self.places(groups, across + row, columns), mask, squares)
        return (*statements, repeat(row, 0, stop, 1, inner))

    def turn(
        self, number: int, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None
    ) -> tuple[list[Statement], list[Register]]:
        """A square in registers, and in local memory unless it is only copied on."""
        load, lanes = self.turned[number], self.lanes
        rows = across + lane(lanes)
        mask = None if ends is None else Call("less", (Integer(rows), Integer(ends[0])), DType.bool)
        statements: list[Statement] = []
        registers = self.builder.registers("x", lanes, load.dtype)
        for column, register in enumerate(registers):
            inside = along + column if ends is None else dims.minimum(along + column, ends[1] - 1)
            places = self.merged.places(self.places(groups, rows, inside))
            lowering = Lowering(self.views, places, self.builder, mask=mask)
            element = lowering.fetch(self.views[load.operand], lowering.flat_offset(load.offset), None, None)
            statements.append(define(register, element))
        statements.append(transpose(registers))
        if ends is not None or not self.copies:
            at = lane(lanes)
            statements += [put(self.buffers[number], row * lanes + at, one) for row, one in enumerate(registers)]
        return statements, registers

    def places(self, groups: list[Dim], across: Dim, along: Dim) -> list[Dim]:
        places = list(groups)
        places[self.across], places[-1] = across, along
        return places
