"""Products of tiles by groups of four warps (wgmma), which read both tiles from shared memory by descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import (
    await_sums,
    multiply_by_descriptors,
    of_first_thread,
    shared_address,
)
from weft.backends.llvm.tile_layout import (
    CHUNK,
    DEPTH_STEP,
    FRAGMENT_COLUMNS,
    FRAGMENT_SUMS,
    GROUP_ROWS,
    MOST_COLUMNS,
    GroupOperand,
    Shares,
    layout_of,
)
from weft.backends.llvm.types import INT32, INT64, element_bytes
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

_ADDRESS_BITS = (1 << 18) - 1  # of shared memory, in a descriptor
_APART_COLUMNS = 64  # of products whose sums are added to others; two are under way


def is_rough(dtype: DType) -> bool:
    """Whether products of a type keep some 13 bits of their sums only, so that those are added up apart from them."""
    return dtype.is_float and dtype.bits == 8


def is_for(left: Buffer, right: Buffer, shares: Shares) -> bool:
    """Whether groups of warps can multiply these tiles into sums that are shared so."""
    if shares.team == 1 or _columns(shares, left.dtype) is None:
        return False
    operands = [_operand(buffer) for buffer in (left, right)]
    if any(operand.layout.width < DEPTH_STEP for operand in operands):
        return False
    if any(operand.turned and operand.layout.element != 2 for operand in operands):
        return False
    wide = operands[1].layout.width // 2
    return not (left.tile and left.tile.turned and operands[0].layout.width < 2 * GROUP_ROWS) and not (
        operands[1].turned and (shares.columns % wide or (_columns(shares, left.dtype) or 0) % wide)
    )


def _operand(buffer: Buffer) -> GroupOperand:
    assert buffer.tile is not None
    return GroupOperand(layout_of(buffer.tile, element_bytes(buffer.dtype)), buffer.tile.turned)


def _columns(shares: Shares, dtype: DType) -> int | None:
    """Columns of one product."""
    step = 2 * FRAGMENT_COLUMNS if dtype.is_integer else FRAGMENT_COLUMNS
    most = _APART_COLUMNS if is_rough(dtype) else MOST_COLUMNS
    for parts in range(1, shares.column_tiles + 1):
        columns = shares.columns // parts
        if shares.columns % parts == 0 and columns <= most and columns % step == 0:
            return columns
    return None


def multiply(
    emitter: Emitter,
    left: Buffer,
    right: Buffer,
    shares: Shares,
    origin: tuple[Value, Value],
    sums: list[Value],
) -> list[Value]:
    """A thread's sums with the product added; `origin` is where its group's sums start.

    They have to be waited for, unless the product is rough.
    """
    assert left.tile is not None
    builder = emitter.builder
    operands = [_operand(buffer) for buffer in (left, right)]
    columns = _columns(shares, left.dtype)
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
    for number in range(0, shares.count, count):
        row, column = shares.fragment(number // FRAGMENT_SUMS)
        descriptors = [
            _descriptor(emitter, operand, start, operand.row_offset(rows))
            for operand, start, rows in zip(operands, starts, (row, column))
        ]
        products.append((descriptors[0], descriptors[1], steps, sums[number : number + count]))
    types, turned = (left.dtype, right.dtype), (operands[0].turned, operands[1].turned)
    if not is_rough(left.dtype):
        fresh = all(isinstance(value, ir.Constant) for value in sums)  # sums that are all 0 yet
        found = multiply_by_descriptors(builder, types, turned, products, fresh)
        return [value for part in found for value in part]
    parts = [multiply_by_descriptors(builder, types, turned, products[:1], True)[0]]
    total: list[Value] = []
    for number, product in enumerate(products):
        more = number + 1 < len(products)
        if more:
            parts += multiply_by_descriptors(builder, types, turned, products[number + 1 : number + 2], True)
        added = await_sums(builder, parts[number], int(more))
        total += [builder.fadd(value, part) for value, part in zip(product[3], added, strict=True)]
    return total


def _row_offset(emitter: Emitter, operand: GroupOperand, rows: Value) -> Value:
    """Bytes to a number of rows further on; of a turned tile they are whole columns."""
    builder, layout = emitter.builder, operand.layout
    if not operand.turned:
        return builder.mul(rows, INT32(layout.width))
    return builder.mul(builder.udiv(rows, INT32(layout.width // layout.element)), INT32(layout.column_bytes))


def _descriptor(emitter: Emitter, operand: GroupOperand, start: Value, offset: int) -> Value:
    builder = emitter.builder
    address = of_first_thread(builder, builder.add(start, INT32(offset)))
    units = builder.lshr(builder.and_(address, INT32(_ADDRESS_BITS)), INT32(4))
    whole = operand.descriptor
    fixed = INT64(whole - (1 << 64) if whole >> 63 else whole)
    return builder.or_(builder.zext(units, INT64), fixed)
