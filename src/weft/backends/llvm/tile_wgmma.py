"""Multiply tiles by warp groups (wgmma), which read both tiles from shared memory through descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import (
    await_sums,
    broadcast_first_thread,
    is_imprecise,
    multiply_by_descriptors,
    multiply_by_registers,
    shared_address,
)
from weft.backends.llvm.tile_layout import (
    CHUNK,
    DEPTH_STEP,
    FRAGMENT_COLUMNS,
    FRAGMENT_SUMS,
    GROUP_ROWS,
    MOST_COLUMNS,
    SumPartition,
    WgmmaOperand,
    build_layout,
)
from weft.backends.llvm.types import INT32, INT64, element_bytes
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

_ADDRESS_MASK = (1 << 18) - 1  # of shared memory addresses in a descriptor
_IMPRECISE_COLUMNS = 64  # two imprecise products run at a time, each with its own sums in registers


def can_multiply(left: Buffer | None, right: Buffer, partition: SumPartition) -> bool:
    """Tell whether wgmma can multiply these tiles into sums with this partition; None is an operand in registers."""
    columns = _columns(partition, right.dtype if left is None else left.dtype)
    if partition.team == 1 or columns is None:
        return False
    operands = [_operand(buffer) for buffer in (left, right) if buffer is not None]
    if any(operand.layout.width < DEPTH_STEP for operand in operands):
        return False
    if any(operand.transposed and operand.layout.element != 2 for operand in operands):
        return False
    wide = operands[-1].layout.width // 2
    if operands[-1].transposed and (partition.columns % wide or columns % wide):
        return False
    return left is None or not (operands[0].transposed and operands[0].layout.width < 2 * GROUP_ROWS)


def _operand(buffer: Buffer) -> WgmmaOperand:
    assert buffer.tile is not None
    return WgmmaOperand(build_layout(buffer.tile, element_bytes(buffer.dtype)), buffer.tile.transposed)


def _columns(partition: SumPartition, dtype: DType) -> int | None:
    """Return the columns of one wgmma; None if the partition's columns cannot be divided."""
    step = 2 * FRAGMENT_COLUMNS if dtype.is_integer else FRAGMENT_COLUMNS
    max_columns = _IMPRECISE_COLUMNS if is_imprecise(dtype) else MOST_COLUMNS
    for parts in range(1, partition.column_tiles + 1):
        columns = partition.columns // parts
        if partition.columns % parts == 0 and columns <= max_columns and columns % step == 0:
            return columns
    return None


def multiply(
    emitter: Emitter,
    left: Buffer | list[Value],
    right: Buffer,
    partition: SumPartition,
    origin: tuple[Value, Value],
    sums: list[Value],
) -> list[Value]:
    """Add a product to a thread's sums; `origin` is the first row and column of its warp group.

    The result is asynchronous unless the type is imprecise, or the left operand is in registers: the words of one
    fragment for each step along the depth.
    """
    builder = emitter.builder
    if not isinstance(left, Buffer):
        return _multiply_registers(emitter, left, right, origin[1], sums)
    assert left.tile is not None
    operands = [_operand(buffer) for buffer in (left, right)]
    columns = _columns(partition, left.dtype)
    assert columns is not None
    starts = []
    for buffer, operand, first in zip((left, right), operands, origin):
        address = shared_address(builder, emitter.buffers[buffer.name])
        starts.append(builder.add(address, _row_offset(emitter, operand, first)))
    steps = [
        (operands[0].step_offset(step) // CHUNK, operands[1].step_offset(step) // CHUNK)
        for step in range(left.tile.depth * element_bytes(left.dtype) // DEPTH_STEP)
    ]
    count = columns // FRAGMENT_COLUMNS * FRAGMENT_SUMS
    products = []
    for number in range(0, partition.count, count):
        row, column = partition.fragment(number // FRAGMENT_SUMS)
        descriptors = [
            _descriptor(emitter, operand, start, operand.row_offset(rows))
            for operand, start, rows in zip(operands, starts, (row, column))
        ]
        products.append((descriptors[0], descriptors[1], steps, sums[number : number + count]))
    types, transposed = (left.dtype, right.dtype), (operands[0].transposed, operands[1].transposed)
    if not is_imprecise(left.dtype):
        fresh = all(isinstance(value, ir.Constant) for value in sums)  # all 0
        results = multiply_by_descriptors(builder, types, transposed, products, fresh)
        return [value for result in results for value in result]
    parts = [multiply_by_descriptors(builder, types, transposed, products[:1], True)[0]]
    total: list[Value] = []
    for number, product in enumerate(products):
        has_next = number + 1 < len(products)
        if has_next:
            parts += multiply_by_descriptors(builder, types, transposed, products[number + 1 : number + 2], True)
        addends = await_sums(builder, parts[number], int(has_next))
        total += [builder.fadd(value, addend) for value, addend in zip(product[3], addends, strict=True)]
    return total


def _multiply_registers(
    emitter: Emitter, left: list[Value], right: Buffer, column: Value, sums: list[Value]
) -> list[Value]:
    """Add the product of a fragment in registers and a tile to a thread's sums, and wait for it."""
    builder, operand = emitter.builder, _operand(right)
    address = shared_address(builder, emitter.buffers[right.name])
    start = builder.add(address, _row_offset(emitter, operand, column))
    steps = [operand.step_offset(step) // CHUNK for step in range(len(left) // 4)]
    descriptor = _descriptor(emitter, operand, start, 0)
    return multiply_by_registers(builder, right.dtype, operand.transposed, left, descriptor, steps, sums)


def _row_offset(emitter: Emitter, operand: WgmmaOperand, rows: Value) -> Value:
    """Compute the bytes to a row; in a transposed tile it starts a column."""
    builder, layout = emitter.builder, operand.layout
    if not operand.transposed:
        return builder.mul(rows, INT32(layout.width))
    return builder.mul(builder.udiv(rows, INT32(layout.width // layout.element)), INT32(layout.column_bytes))


def _descriptor(emitter: Emitter, operand: WgmmaOperand, start: Value, offset: int) -> Value:
    builder = emitter.builder
    address = broadcast_first_thread(builder, builder.add(start, INT32(offset)))
    units = builder.lshr(builder.and_(address, INT32(_ADDRESS_MASK)), INT32(4))
    descriptor = operand.descriptor
    fixed = INT64(descriptor - (1 << 64) if descriptor >> 63 else descriptor)
    return builder.or_(builder.zext(units, INT64), fixed)
