"""Maps that transpose: squares of elements are read along one axis, turned in registers and written along another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Put,
    Register,
    Repeat,
    Statement,
    Transpose,
    When,
    lane,
    variable,
)
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild
from weft.kernels.launch import Tensor
from weft.kernels.lowering import Lowering
from weft.kernels.merge import Merged, nonlinear_axes, operand_views, stride_along
from weft.kernels.nest import Body, loops, spread
from weft.kernels.parameters import Parameters

Write = Callable[[Scalar, Sequence[Dim], "Code | None", "dict[int, Code]"], Body]
MOST_LANES = 16
MOST_TURNED = 4  # loads that are worth a square each


def tiled_map(
    merged: Merged, operands: Sequence[Tensor], parameters: Parameters, lanes: int, write: Write
) -> tuple[Body, Dim, int, tuple[Buffer, ...]] | None:
    """(body, blocks, lanes, local buffers) where loads have their neighbours along another axis than the result.

    `write` gives the statements for one vector of the result, from positions, a mask and elements at hand.
    """
    lanes = min(lanes, MOST_LANES)
    across = _other_axis(merged, lanes)
    if across is None:
        return None
    tiles = _Tiles(merged, operands, parameters, lanes, across, write)
    last = len(merged.sizes) - 1
    others = [number for number in range(last) if number != across]
    counts = [dims.ceildiv(merged.sizes[number], lanes) for number in (across, last)]
    domain = [*(merged.sizes[number] for number in others), *counts]
    blocks, spans = spread(domain, parameters, weight=lanes * lanes)

    def tile(places: list[Dim]) -> Body:
        groups: list[Dim] = [0] * (last + 1)
        for number, place in zip(others, places):
            groups[number] = place
        return tiles.body(groups, places[-2] * lanes, places[-1] * lanes)

    return loops(spans, "o", tile), blocks, lanes, tiles.buffers


def _other_axis(merged: Merged, lanes: int) -> int | None:
    """The group that turned loads run along; short axes are not worth it."""
    sizes = merged.sizes
    long = [not isinstance(size, int) or size * 2 >= lanes for size in sizes]
    if not long[-1]:
        return None
    found = {_runs_along(merged, value) for value in merged.offsets()} - {None}
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


class _Tiles:
    def __init__(
        self,
        merged: Merged,
        operands: Sequence[Tensor],
        parameters: Parameters,
        lanes: int,
        across: int,
        write: Write,
    ) -> None:
        self.merged = merged
        self.parameters = parameters
        self.lanes = lanes
        self.across = across
        self.write = write
        self.views = operand_views(operands, parameters)
        self.turned: list[Load] = []
        self.first = 2 * merged.count
        self.expression = rebuild(merged.expressions[0], self._turn)
        self.buffers = tuple(
            Buffer(f"tile{number}", load.dtype, True, lanes * lanes) for number, load in enumerate(self.turned)
        )

    def _turn(self, load: Load) -> Scalar:
        if not self.merged.count <= load.operand < 2 * self.merged.count:
            return load
        (place,) = load.indices
        assert isinstance(place, Index)
        if _runs_along(self.merged, place.value) != self.across:
            return load
        if load not in self.turned:
            if len(self.turned) == MOST_TURNED:
                return load
            self.turned.append(load)
        return Load(self.first + self.turned.index(load), (), load.dtype)

    def body(self, groups: list[Dim], across: Dim, along: Dim) -> Body:
        """One square, whole or cut off by the end of the tensor."""
        height = self.parameters.size(self.merged.sizes[self.across])
        width = self.parameters.size(self.merged.sizes[-1])
        whole = Call(
            "logical_and",
            (
                Call("less_equal", (Integer(across + self.lanes), Integer(height)), DType.bool),
                Call("less_equal", (Integer(along + self.lanes), Integer(width)), DType.bool),
            ),
            DType.bool,
        )
        if all(
            isinstance(s, int) and s % self.lanes == 0 for s in (self.merged.sizes[self.across], self.merged.sizes[-1])
        ):
            return self.square(groups, across, along, None)
        return (
            When(whole, self.square(groups, across, along, None), self.square(groups, across, along, (height, width))),
        )

    def square(self, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None) -> Body:
        """Read and turn what `across` and `along` are the first places of; `ends` are the sizes, for a cut one."""
        statements: list[Statement] = []
        for number in range(len(self.turned)):
            statements += self.turn(number, groups, across, along, ends)
        row = variable("row")
        mask = None
        stop: Dim = self.lanes
        if ends is not None:
            mask = Call("less", (Integer(along + lane(self.lanes)), Integer(ends[1])), DType.bool)
            stop = dims.minimum(ends[0] - across, self.lanes)
        if ends is None and isinstance(self.expression, Load):
            for number in range(self.lanes):
                places = self.places(groups, across + number, along + lane(self.lanes))
                known: dict[int, Code] = {self.first: self.register(0, number)}
                statements += self.write(self.expression, places, None, known)
            return tuple(statements)
        places = self.places(groups, across + row, along + lane(self.lanes))
        tiles: dict[int, Code] = {
            self.first + number: Fetch(buffer.name, row * self.lanes + lane(self.lanes), buffer.dtype)
            for number, buffer in enumerate(self.buffers)
        }
        statements.append(Repeat("row", 0, stop, 1, self.write(self.expression, places, mask, tiles)))
        return tuple(statements)

    def turn(
        self, number: int, groups: list[Dim], across: Dim, along: Dim, ends: tuple[Dim, Dim] | None
    ) -> list[Statement]:
        """A square in registers, and in local memory unless it is only copied on."""
        load, lanes = self.turned[number], self.lanes
        (place,) = load.indices
        assert isinstance(place, Index)
        mask = None
        if ends is not None:
            mask = Call("less", (Integer(across + lane(lanes)), Integer(ends[0])), DType.bool)
        statements: list[Statement] = []
        for row in range(lanes):
            column = along + row if ends is None else dims.minimum(along + row, ends[1] - 1)
            places = self.places(groups, across + lane(lanes), column)
            lowering = Lowering(self.views, self.merged.places(places), self.parameters, mask=mask)
            fetch = lowering.fetch(self.views[load.operand], lowering.flat_offset(place.value), None, None)
            statements.append(Define(self.register(number, row).name, fetch, True))
        statements.append(Transpose(tuple(self.register(number, row).name for row in range(lanes))))
        if ends is not None or not isinstance(self.expression, Load):
            buffer = self.buffers[number].name
            statements += [Put(buffer, row * lanes + lane(lanes), self.register(number, row)) for row in range(lanes)]
        return statements

    def register(self, number: int, row: int) -> Register:
        return Register(f"x{number}_{row}", self.turned[number].dtype, True)

    def places(self, groups: list[Dim], across: Dim, along: Dim) -> list[Dim]:
        places = list(groups)
        places[self.across], places[-1] = across, along
        return places
