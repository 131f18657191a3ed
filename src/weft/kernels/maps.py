"""The generic loop kernel for a map: any expression, any layouts.

Axes are taken in the order of the result's layout, merged where possible, with lanes along the innermost one. A block
does some whole rows, or a piece of a long row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Kernel, Put, Repeat, Statement, block, lane, variable
from weft.ir.scalar import Scalar
from weft.kernels.launch import Launch, Tensor
from weft.kernels.lowering import Lowering, Operand
from weft.kernels.merge import Merged, merge_axes
from weft.kernels.parameters import Parameters

PIECE = 4096  # elements that a block does, about


def map_kernel(expression: Scalar, operands: Sequence[Tensor], result: Tensor, lanes: int) -> Launch:
    """result[...] = expression, with the operands in buffers in0, in1, ... and the result in out."""
    shapes = [operand.shape for operand in operands]
    strides = [operand.strides for operand in operands]
    merged = merge_axes(expression, shapes, strides, result.shape, result.layout.order, result.strides)
    parameters = Parameters()
    views = operand_views(operands, parameters)

    def element(places: Mapping[int, Dim], groups: Sequence[Dim], mask: Code | None) -> tuple[Statement, ...]:
        value = Lowering(views, places, parameters, mask=mask).code(merged.expression)
        place: Dim = 0
        for stride, position in zip(merged.result_strides, groups):
            place = place + parameters.size(stride) * position
        return (Put("out", place, value, mask=mask),)

    body, blocks = spread_rows(merged, parameters, lanes, element)
    buffers = (*(Buffer(f"in{n}", t.dtype, False) for n, t in enumerate(operands)), Buffer("out", result.dtype, True))
    kernel = Kernel("map", buffers, tuple(parameters.values), lanes, body)
    return Launch(kernel, blocks, tuple(parameters.values.values()))


def operand_views(operands: Sequence[Tensor], parameters: Parameters) -> list[Operand]:
    """The operands by index, then the same flat."""
    indexed = [
        Operand(f"in{number}", operand.dtype, operand.shape, tuple(parameters.size(s) for s in operand.strides))
        for number, operand in enumerate(operands)
    ]
    return indexed + [Operand(f"in{number}", t.dtype, (), (), flat=True) for number, t in enumerate(operands)]


Element = Callable[[Mapping[int, Dim], Sequence[Dim], "Code | None"], "tuple[Statement, ...]"]


def spread_rows(
    merged: Merged, parameters: Parameters, lanes: int, element: Element
) -> tuple[tuple[Statement, ...], Dim]:
    """Loops over the merged domain, and the number of blocks.

    `element` gives the statements for one vector of elements: it is called with the places of the domain's axes and
    of the merged ones, and with a mask for the last vector of a row.
    """
    if not merged.axes:
        return element({}, (), None), 1
    sizes = [parameters.size(size) for size in merged.sizes]
    row_length, rows = merged.sizes[-1], dims.product(merged.sizes[:-1])
    row = variable("row")
    outer: list[Dim] = []
    rest: Dim = row
    for number in reversed(range(len(sizes) - 1)):
        outer.insert(0, dims.mod(rest, sizes[number]) if number else rest)
        rest = dims.floordiv(rest, sizes[number])

    def along(start: Dim, stop: Dim) -> tuple[Statement, ...]:
        position = variable("i") + lane(lanes)
        groups = [*outer, position]
        places = _places(merged, groups)
        end = start + dims.floordiv(stop - start, lanes) * lanes
        mask = Call("less", (Integer(position), Integer(stop)), DType.bool)
        return (
            Repeat("i", start, end, lanes, element(places, groups, None)),
            Repeat("i", end, stop, lanes, element(places, groups, mask)),
        )

    if isinstance(row_length, int) and row_length > 2 * PIECE:
        pieces = -(-row_length // PIECE)
        number = parameters.size(pieces)
        start = dims.mod(block(), number) * PIECE
        first = dims.floordiv(block(), number)
        inner = along(start, dims.minimum(start + PIECE, sizes[-1]))
        return (Repeat("row", first, first + 1, 1, inner),), rows * pieces
    rows_each = dims.maximum(dims.floordiv(PIECE, row_length), 1)
    each, count = parameters.size(rows_each), parameters.size(rows)
    start = block() * each
    body = Repeat("row", start, dims.minimum(start + each, count), 1, along(0, sizes[-1]))
    return (body,), dims.ceildiv(rows, rows_each)


def _places(merged: Merged, groups: Sequence[Dim]) -> dict[int, Dim]:
    """The domain's axes: one that was merged into others stands at 0, and the last of its group for all."""
    places: dict[int, Dim] = {}
    for members, position in zip(merged.axes, groups):
        for axis in members:
            places[axis] = 0
        places[members[-1]] = position
    return places
