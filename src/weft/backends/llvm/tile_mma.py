"""Multiply tiles by warps (mma.sync): each warp loads fragments of both tiles and adds their product to its sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import is_imprecise, load_matrices, multiply_fragments, shared_address
from weft.backends.llvm.tile_layout import CHUNK, DEPTH_STEP, FRAGMENT_SUMS, SumPartition, TileLayout, build_layout
from weft.backends.llvm.types import INT32, element_bytes, memory_type
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, MultiplyFragments, TileForm

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

_BYTE = ir.IntType(8)


def multiply(
    emitter: Emitter,
    left: Buffer | list[Value],
    right: Buffer,
    partition: SumPartition,
    thread: Value,
    origin: tuple[Value, Value],
    sums: list[Value],
) -> list[Value]:
    """Add a product to a thread's sums; `origin` is the first row and column of its warp.

    The left operand is a tile, or the words of one fragment for each step along the depth.
    """
    assert right.tile is not None
    rows = [number * partition.row_step for number in range(partition.row_tiles)]
    columns = [number * 8 for number in range(partition.column_tiles)]
    left_operand = _Fragments(emitter, left, thread, origin[0], False) if isinstance(left, Buffer) else _Words(left)
    right_operand = _Fragments(emitter, right, thread, origin[1], True)
    sums = list(sums)
    types = (left.dtype if isinstance(left, Buffer) else right.dtype), right.dtype
    for step in range(right.tile.depth * element_bytes(right.dtype) // DEPTH_STEP):
        lefts = [left_operand.rows_of_16(row, step) for row in rows]
        for first in range(0, len(columns), 2):
            pair = columns[first : first + 2]
            rights = right_operand.rows_of_8(pair[0], len(pair), step)
            for row, a in enumerate(lefts):
                for column, b in enumerate(rights):
                    at = (row * len(columns) + first + column) * FRAGMENT_SUMS
                    fragment = slice(at, at + FRAGMENT_SUMS)
                    sums[fragment] = _add_fragments(emitter, types, a, b, sums[fragment])
    return sums


def _add_fragments(
    emitter: Emitter, types: tuple[DType, DType], left: list[Value], right: list[Value], sums: list[Value]
) -> list[Value]:
    """Add the product of fragments to sums; products of imprecise types are added outside of the tensor cores."""
    builder = emitter.builder
    if not is_imprecise(types[0]):
        return multiply_fragments(builder, types, left, right, sums)
    zeros: list[Value] = [ir.Constant(value.type, 0) for value in sums]
    addends = multiply_fragments(builder, types, left, right, zeros)
    return [builder.fadd(value, addend) for value, addend in zip(sums, addends, strict=True)]


def multiply_registers(emitter: Emitter, product: MultiplyFragments) -> None:
    """Add the products of fragments in registers; products of different sums alternate, since each takes a while."""
    registers, types = emitter.registers, (product.dtype, product.dtype)
    for step in range(product.steps):
        for plane in range(product.planes):
            at = 2 * (step * product.planes + plane)
            for number, names in enumerate(product.sums):
                row, column = divmod(number, len(product.right))
                left = [registers[name] for name in product.left[row][4 * step : 4 * step + 4]]
                right = [registers[name] for name in product.right[column][at : at + 2]]
                sums = [registers[name] for name in names]
                registers.update(zip(names, multiply_fragments(emitter.builder, types, left, right, sums)))


class _Words:
    """A thread's left fragments, in registers: one for each step along the depth."""

    def __init__(self, words: list[Value]) -> None:
        self.words = words

    def rows_of_16(self, row: int, step: int) -> list[Value]:
        assert row == 0
        return self.words[4 * step : 4 * step + 4]


class _Fragments:
    """A thread's fragments of one of the tiles. Rows are relative to the warp's first one."""

    def __init__(self, emitter: Emitter, buffer: Buffer, thread: Value, origin: Value, right: bool) -> None:
        assert buffer.tile is not None
        self.emitter, self.builder = emitter, emitter.builder
        self.form: TileForm = buffer.tile
        self.element = element_bytes(buffer.dtype)
        self.memory = memory_type(buffer.dtype)
        self.layout: TileLayout = build_layout(self.form, self.element)
        self.pointer = emitter.buffers[buffer.name]
        self.address = shared_address(self.builder, self.pointer)
        self.origin, self.right = origin, right
        thread = self.bits(thread, 0, 5)
        low, middle, high = self.bits(thread, 0, 3), self.bits(thread, 3, 1), self.bits(thread, 4, 1)
        # which 8 lines, and which of two chunks, the thread provides the address of
        lines, self.chunk = (high, middle) if right != self.form.transposed else (middle, high)
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

    def swizzle(self, line: Value) -> Value:
        """Compute the swizzle of a line, which is xored with the number of a chunk."""
        shift = 7 - (self.layout.width.bit_length() - 1)
        return self.builder.and_(self.builder.lshr(line, INT32(shift)), INT32(self.layout.swizzle_mask))

    # -- fragments ---------------------------------------------------------------------------------------------------

    def rows_of_16(self, row: int, step: int) -> list[Value]:
        """Load the four words of a left fragment."""
        if self.form.transposed and self.element != 2:
            return [self.word(row + 8 * (n % 2), step, n // 2) for n in range(4)]
        return load_matrices(self.builder, self.at(row, step), 4, self.form.transposed)

    def rows_of_8(self, row: int, count: int, step: int) -> list[list[Value]]:
        """Load the two words of one or two right fragments, 8 rows each."""
        if self.form.transposed and self.element != 2:
            return [[self.word(row + 8 * number, step, n) for n in range(2)] for number in range(count)]
        words = load_matrices(self.builder, self.at(row, step), 2 * count, self.form.transposed)
        return [words[:2], words[2:]][:count]

    def at(self, row: int, step: int) -> Value:
        """Compute the address of the line that the thread provides to ldmatrix."""
        layout = self.layout
        if self.form.transposed:
            byte = self.times(self.add(self.add(self.origin, row), self.times(self.chunk, 8)), self.element)
            shift = layout.width.bit_length() - 1
            column = self.builder.lshr(byte, INT32(shift))
            chunk = self.bits(byte, 4, shift - 4) if shift > 4 else INT32(0)
            place = self.times(self.builder.xor(chunk, self.swizzle(self.low)), CHUNK)
            fixed = self.add(self.times(self.line, layout.width), self.times(column, layout.column_bytes))
            constant = step * DEPTH_STEP // self.element * layout.width
        else:
            number, within = divmod(step * DEPTH_STEP, layout.width)
            if layout.width == CHUNK:  # each chunk is a column
                place = self.times(self.chunk, layout.column_bytes)
            else:
                chunk = self.builder.or_(self.chunk, INT32(within // CHUNK))
                place = self.times(self.builder.xor(chunk, self.swizzle(self.low)), CHUNK)
            fixed = self.times(self.add(self.line, self.origin), layout.width)
            constant = number * layout.column_bytes + row * layout.width
        return self.add(self.add(self.add(self.address, fixed), place), constant)

    def word(self, row: int, step: int, half: int) -> Value:
        """Load a word of a fragment from several lines of a transposed tile."""
        layout, count = self.layout, 4 // self.element
        byte = self.times(self.add(self.add(self.origin, row), self.group), self.element)
        shift = layout.width.bit_length() - 1
        column, within = self.builder.lshr(byte, INT32(shift)), self.bits(byte, 0, shift)
        first = (step * DEPTH_STEP + half * CHUNK) // self.element
        word: Value = INT32(0)
        for number in range(count):
            line = self.add(self.times(self.place, count), first + number)
            plain = self.add(self.times(line, layout.width), within)
            swizzled = self.builder.xor(plain, self.builder.shl(self.swizzle(line), INT32(4)))
            offset = self.add(swizzled, self.times(column, layout.column_bytes))
            place = self.builder.gep(self.pointer, [offset], source_etype=_BYTE)
            raw = self.builder.load(place, self.memory, align=self.element)
            if count == 1:
                return self.builder.bitcast(raw, INT32)
            part = self.builder.zext(raw, INT32)
            word = self.builder.or_(word, self.builder.shl(part, INT32(8 * self.element * number)))
        return word
