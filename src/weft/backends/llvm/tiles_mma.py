"""Products of tiles by warps (mma.sync): each warp loads fragments of both tiles and multiplies them into its sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import load_matrices, multiply_fragments, shared_address
from weft.backends.llvm.tile_layout import CHUNK, DEPTH_STEP, FRAGMENT_SUMS, Shares, TileLayout, layout_of
from weft.backends.llvm.types import INT32, element_bytes, memory_type
from weft.ir.kernel import Buffer, TileForm

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

_BYTE = ir.IntType(8)


def multiply(
    emitter: Emitter,
    left: Buffer,
    right: Buffer,
    shares: Shares,
    thread: Value,
    origin: tuple[Value, Value],
    sums: list[Value],
) -> list[Value]:
    """A thread's sums with the product added; `origin` is where its warp's sums start."""
    assert left.tile is not None
    assert right.tile is not None
    rows = [number * shares.row_step for number in range(shares.row_tiles)]
    columns = [number * 8 for number in range(shares.column_tiles)]
    one = _Operand(emitter, left, thread, origin[0], False)
    other = _Operand(emitter, right, thread, origin[1], True)
    sums = list(sums)
    for step in range(left.tile.depth * element_bytes(left.dtype) // DEPTH_STEP):
        lefts = [one.rows_of_16(row, step) for row in rows]
        for first in range(0, len(columns), 2):
            pair = columns[first : first + 2]
            rights = other.rows_of_8(pair[0], len(pair), step)
            for row, a in enumerate(lefts):
                for column, b in enumerate(rights):
                    at = (row * len(columns) + first + column) * FRAGMENT_SUMS
                    part = sums[at : at + FRAGMENT_SUMS]
                    sums[at : at + FRAGMENT_SUMS] = multiply_fragments(
                        emitter.builder, (left.dtype, right.dtype), a, b, part
                    )
    return sums


class _Operand:
    """Where a thread reads one of the tiles. Rows are counted from the warp's first one."""

    def __init__(self, emitter: Emitter, buffer: Buffer, thread: Value, origin: Value, right: bool) -> None:
        assert buffer.tile is not None
        self.emitter, self.builder = emitter, emitter.builder
        self.form: TileForm = buffer.tile
        self.element = element_bytes(buffer.dtype)
        self.memory = memory_type(buffer.dtype)
        self.layout: TileLayout = layout_of(self.form, self.element)
        self.pointer = emitter.buffers[buffer.name]
        self.address = shared_address(self.builder, self.pointer)
        self.origin, self.right = origin, right
        thread = self.bits(thread, 0, 5)
        low, middle, high = self.bits(thread, 0, 3), self.bits(thread, 3, 1), self.bits(thread, 4, 1)
        # which 8 lines, and which of two chunks, a thread gives the address of
        lines, self.chunk = (high, middle) if right != self.form.turned else (middle, high)
        self.line = self.add(low, self.times(lines, 8))
        self.low = low
        self.group, self.place = self.bits(thread, 2, 3), self.bits(thread, 0, 2)

    # -- small arithmetic --------------------------------------------------------------------------------------------

    def add(self, a: Value, b: Value | int) -> Value:
        return self.builder.add(a, INT32(b) if isinstance(b, int) else b)

    def times(self, a: Value, b: int) -> Value:
        return self.builder.mul(a, INT32(b))

    def bits(self, value: Value, first: int, count: int) -> Value:
        return self.builder.and_(self.builder.lshr(value, INT32(first)), INT32((1 << count) - 1))

    def mix(self, line: Value) -> Value:
        """What the number of a chunk is xored with."""
        shift = 7 - (self.layout.width.bit_length() - 1)
        return self.builder.and_(self.builder.lshr(line, INT32(shift)), INT32(self.layout.mixed))

    # -- fragments ---------------------------------------------------------------------------------------------------

    def rows_of_16(self, row: int, step: int) -> list[Value]:
        """The four words of a left fragment."""
        if self.form.turned and self.element != 2:
            return [self.word(row + 8 * (n % 2), step, n // 2) for n in range(4)]
        return load_matrices(self.builder, self.at(row, step), 4, self.form.turned)

    def rows_of_8(self, row: int, count: int, step: int) -> list[list[Value]]:
        """The two words of one or two right fragments, 8 rows each."""
        if self.form.turned and self.element != 2:
            return [[self.word(row + 8 * number, step, n) for n in range(2)] for number in range(count)]
        found = load_matrices(self.builder, self.at(row, step), 2 * count, self.form.turned)
        return [found[:2], found[2:]][:count]

    def at(self, row: int, step: int) -> Value:
        """The address of the line that a thread gives."""
        layout = self.layout
        if self.form.turned:
            byte = self.times(self.add(self.add(self.origin, row), self.times(self.chunk, 8)), self.element)
            shift = layout.width.bit_length() - 1
            column = self.builder.lshr(byte, INT32(shift))
            chunk = self.bits(byte, 4, shift - 4) if shift > 4 else INT32(0)
            place = self.times(self.builder.xor(chunk, self.mix(self.low)), CHUNK)
            fixed = self.add(self.times(self.line, layout.width), self.times(column, layout.column_bytes))
            moved = step * DEPTH_STEP // self.element * layout.width
        else:
            number, within = divmod(step * DEPTH_STEP, layout.width)
            if layout.width == CHUNK:  # both chunks are columns of their own
                place = self.times(self.chunk, layout.column_bytes)
            else:
                chunk = self.builder.or_(self.chunk, INT32(within // CHUNK))
                place = self.times(self.builder.xor(chunk, self.mix(self.low)), CHUNK)
            fixed = self.times(self.add(self.line, self.origin), layout.width)
            moved = number * layout.column_bytes + row * layout.width
        return self.add(self.add(self.add(self.address, fixed), place), moved)

    def word(self, row: int, step: int, half: int) -> Value:
        """A word of a fragment, put together from lines of a turned tile."""
        layout, count = self.layout, 4 // self.element
        byte = self.times(self.add(self.add(self.origin, row), self.group), self.element)
        shift = layout.width.bit_length() - 1
        column, within = self.builder.lshr(byte, INT32(shift)), self.bits(byte, 0, shift)
        first = (step * DEPTH_STEP + half * CHUNK) // self.element
        found: Value = INT32(0)
        for number in range(count):
            line = self.add(self.times(self.place, count), first + number)
            plain = self.add(self.times(line, layout.width), within)
            mixed = self.builder.xor(plain, self.builder.shl(self.mix(line), INT32(4)))
            offset = self.add(mixed, self.times(column, layout.column_bytes))
            place = self.builder.gep(self.pointer, [offset], source_etype=_BYTE)
            raw = self.builder.load(place, self.memory, align=self.element)
            if count == 1:
                return self.builder.bitcast(raw, INT32)
            part = self.builder.zext(raw, INT32)
            found = self.builder.or_(found, self.builder.shl(part, INT32(8 * self.element * number)))
        return found
