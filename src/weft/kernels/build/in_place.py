"""Where results may share memory with operands: an operand that is read only in the place that is written, and results
that are a stretch of an operand.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.access import nonlinear_axes, stride_along
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.layout import offset
from weft.ir.scalar import FlatLoad, Load, Scalar, walk
from weft.kernels.lower.merge_axes import flatten_loads
from weft.kernels.lower.tensors import Copy, StoredTensor


def overwritable(expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor) -> tuple[int, ...]:
    """The operands that an expression loads only from the place of the element that it gives."""
    size, own = dims.product(result.shape), own_place(result)
    found = []
    places: dict[int, list[Dim | None]] = {}
    for node in walk(flatten_loads(expression, operands)):
        if isinstance(node, (Load, FlatLoad)):
            places.setdefault(node.operand, []).append(node.offset if isinstance(node, FlatLoad) else None)
    for number, read in places.items():
        operand = operands[number]
        same_size = operand.dtype.numpy.itemsize == result.dtype.numpy.itemsize and dims.product(operand.shape) == size
        if same_size and all(place is not None and place == own for place in read):
            found.append(number)
    return tuple(sorted(found))


def own_place(result: StoredTensor) -> Dim:
    """Where the element at the axes of a tensor lies."""
    return offset(result.strides, [dims.axis(axis, size) for axis, size in enumerate(result.shape)])


def stretch(expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor) -> Copy | None:
    """The result as elements of an operand in the order in which they lie there; None where it is more than that."""
    flat = flatten_loads(expression, operands)
    if not isinstance(flat, FlatLoad) or flat.dtype is not result.dtype or nonlinear_axes(flat.offset):
        return None
    pieces: Dim = 1
    for axis, (size, step) in enumerate(zip(result.shape, result.strides)):
        if size != 1 and stride_along(flat.offset, axis) != step:
            pieces = pieces * size
    start = dims.substitute(flat.offset, _at_start)
    return Copy(0, flat.operand, start, 0, dims.product(result.shape), pieces)


def _at_start(atom: Symbol | Axis) -> Dim:
    return 0 if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)
