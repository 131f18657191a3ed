"""Results that may share memory with operands: operands read only where the result is written, and plain copies."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.access import find_nonlinear_axes, stride_along
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.layout import offset
from weft.ir.scalar import FlatLoad, Load, Scalar, walk
from weft.kernels.lower.merge_axes import flatten_loads
from weft.kernels.lower.tensors import Copy, StoredTensor


def find_overwritable(expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor) -> tuple[int, ...]:
    """Return the operands that are loaded only at the offset of the element that is written."""
    size = dims.product(result.shape)
    own_offset = offset(result.strides, [dims.axis(axis, size) for axis, size in enumerate(result.shape)])
    reads: dict[int, list[Dim | None]] = {}
    for node in walk(flatten_loads(expression, operands)):
        if isinstance(node, (Load, FlatLoad)):
            reads.setdefault(node.operand, []).append(node.offset if isinstance(node, FlatLoad) else None)
    numbers = []
    for number, offsets in reads.items():
        operand = operands[number]
        same_size = operand.dtype.numpy.itemsize == result.dtype.numpy.itemsize and dims.product(operand.shape) == size
        if same_size and all(at is not None and at == own_offset for at in offsets):
            numbers.append(number)
    return tuple(sorted(numbers))


def find_copy(expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor) -> Copy | None:
    """Return the expression as a copy of an operand's elements in memory order; None if it is anything else."""
    flat = flatten_loads(expression, operands)
    if not isinstance(flat, FlatLoad) or flat.dtype is not result.dtype or find_nonlinear_axes(flat.offset):
        return None
    pieces: Dim = 1
    for axis, (size, step) in enumerate(zip(result.shape, result.strides)):
        if size != 1 and stride_along(flat.offset, axis) != step:
            pieces = pieces * size
    start = dims.substitute(flat.offset, _at_start)
    return Copy(0, flat.operand, start, 0, dims.product(result.shape), pieces)


def _at_start(atom: Symbol | Axis) -> Dim:
    return 0 if isinstance(atom, Axis) else dims.from_atom(atom)
