"""Packed weights in the order of fragments of tensor cores, and how lanes decode them to pairs of 16-bit floats.

Columns are in tiles of 16, and the sums in windows of 64. Of each tile and window, the words of a lane hold its
elements of four left fragments (see `MultiplyFragments`): lane 4 * g + q has columns g and g + 8, and of each 16 places
along the sums those from 4 * q to 4 * q + 3. Codes minus an integer zero point are exact in 16-bit floats.

Sums are in an order that depends on the weights alone: they are cut into ranges of whole units; in a range, the
products of a block of up to 256 places are added on tensor cores, then scaled and added in float32; then the ranges are
added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np

from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights, pack_block_weights, pack_block_words
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Register, Statement
from weft.ir.packing import Packing
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.records import dataclass

COLUMNS = 16  # of a tile
WINDOW = 64  # places along the sums
STEP = 16  # places along the sums of a fragment
LANES = 32
_LONGEST_BLOCK = 256  # places that are added on tensor cores at most
_TOGETHER = 1024  # columns that are packed at a time
_FLOAT_BITS = 16
_PLACES = {2: "u1", 4: "<u2", 8: "<u2", 16: "<u4"}  # the words of a lane's places, by bits of a code
_I32, _F32, _F16 = DType.int32, DType.float32, DType.float16


@dataclass(frozen=True, slots=True)
class FragmentFormat:
    """The packed form of weights [columns, depth], with a scale for each `block`; floats, of 16 bits, have none.

    Fragments have the type `element`. A float32 that is multiplied by weights is the sum of `planes` elements or, with
    one plane, rounded to float16.
    """

    columns: int
    depth: int
    bits: int
    block: int  # places whose products are added on tensor cores: a power of two from 16 to 256
    zeros: str  # "middle" of the range of codes, or "bytes"
    element: DType
    planes: int
    ranges: int

    @property
    def has_scales(self) -> bool:
        return self.bits < _FLOAT_BITS

    @property
    def tiles(self) -> int:
        return -(-self.columns // COLUMNS)

    @property
    def unit(self) -> int:
        """Places along the sums that are multiplied in one iteration."""
        return max(WINDOW, self.block)

    @property
    def unit_blocks(self) -> int:
        return self.unit // self.block

    @property
    def range_units(self) -> int:
        return count_units(self.depth, self.block, self.ranges)

    @property
    def units(self) -> int:
        """Units of a column; those after the last place are 0."""
        return self.ranges * self.range_units

    @property
    def windows(self) -> int:
        return self.units * self.unit // WINDOW

    @property
    def run(self) -> int:
        """Neighbouring words that a lane reads at once; it reads `bits` words of a window."""
        return min(self.bits, 4)

    @property
    def zero_words(self) -> int:
        """Words with the zero points of two columns and a unit."""
        return -(-2 * self.unit_blocks // 4) if self.has_scales and self.zeros == "bytes" else 0


def count_units(depth: int, block: int, ranges: int) -> int:
    """Return the number of units of a range."""
    return -(-depth // (ranges * max(WINDOW, block)))


def find_fragment_block(block: int) -> int:
    """Return the largest block of fragments that divides a block of weights; 0 if there is none."""
    divisor = gcd(block, _LONGEST_BLOCK)
    return divisor if divisor >= STEP else 0


# -- packing ---------------------------------------------------------------------------------------------------------


def pack_fragments(
    fragments: FragmentFormat, weights: BlockWeights, constants: Sequence[Array]
) -> tuple[Packing, Packing]:
    """Return the packed words, and the packed scales and zero points; `constants` as in `pack_block_weights`."""
    rest = constants[1:]
    tiles, units, blocks = fragments.tiles, fragments.units, fragments.unit_blocks

    def pack_words(numbers: Array) -> Iterator[Array]:
        words = pack_block_words(weights, numbers)
        for first in range(0, tiles * COLUMNS, _TOGETHER):
            yield _arrange_words(fragments, np.ascontiguousarray(words[first : first + _TOGETHER]).view(np.uint8))

    def pack_scales(numbers: Array) -> Iterator[Array]:
        _, scales, zeros = pack_block_weights(weights, [numbers, *rest])
        yield _arrange_scales(fragments, weights, scales.astype(np.float32)).view(np.int32)
        if zeros is not None:
            pairs = _arrange_scales(fragments, weights, zeros.astype(np.uint8)).reshape(-1, 2 * blocks)
            padded = np.zeros((len(pairs), 4 * fragments.zero_words), np.uint8)
            padded[:, : pairs.shape[1]] = pairs
            yield padded.view(np.int32)

    int32 = np.dtype(np.int32)
    scales_shape = (tiles * units, COLUMNS // 2 * (2 * blocks + fragments.zero_words))
    return Packing(constants[0], pack_words, _words_shape(fragments), int32), Packing(
        constants[0], pack_scales, scales_shape, int32
    )


def pack_float_fragments(fragments: FragmentFormat, constant: Array, *, is_deep: bool) -> Packing:
    """Pack a matrix [depth, columns] or, if `is_deep`, [columns, depth]."""

    def pack(array: Array) -> Iterator[Array]:
        weights = array if is_deep else array.T
        for first in range(0, fragments.columns, _TOGETHER):
            part = np.ascontiguousarray(weights[first : first + _TOGETHER])
            yield _arrange_words(fragments, part.view(np.uint8))

    return Packing(constant, pack, _words_shape(fragments), np.dtype(np.int32))


def _words_shape(fragments: FragmentFormat) -> tuple[int, int]:
    return fragments.tiles * fragments.windows, LANES * fragments.bits


def _arrange_words(fragments: FragmentFormat, codes: Array) -> Array:
    """Arrange the bytes of codes [columns, bytes] in words; columns and places are filled up with zeros.

    In a word, codes at even places are in the lower half and those at odd places in the upper half. In each half, codes
    of columns g and g + 8 take turns.
    """
    bits, windows, run = fragments.bits, fragments.windows, fragments.run
    tiles = -(-len(codes) // COLUMNS)
    padded = np.zeros((tiles * COLUMNS, windows * WINDOW * bits // 8), np.uint8)
    padded[: codes.shape[0], : codes.shape[1]] = codes
    # tile, upper half of the columns, g, window, step, q, and the lane's places of a step, in words of 2 or 4 codes
    places = padded.view(_PLACES[bits]).reshape(tiles, 2, 8, windows, 4, 4, -1)
    lower, upper = (_part_neighbours(places[:, half].astype(np.uint32), bits) for half in range(2))
    if bits == _FLOAT_BITS:
        words = np.stack((lower, upper), -1)
    else:
        words = lower | upper << np.uint32(bits)
    if bits == 2:  # two steps share a word
        words = words[:, :, :, 0::2] | words[:, :, :, 1::2] << np.uint32(8)
    # tile, g, window, step, q, word of the step
    lanes = words.reshape(*words.shape[:5], -1).transpose(0, 2, 1, 4, 3, 5)
    runs = lanes.reshape(tiles, windows, LANES, bits // run, run).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(runs).view(np.int32)


def _part_neighbours(places: Array, bits: int) -> Array:
    """Move codes at odd places to the upper halves of words; codes are two or four to a word."""
    if bits == _FLOAT_BITS:
        return places
    even = np.uint32(sum((2**bits - 1) << at for at in range(0, _FLOAT_BITS, 2 * bits)))
    parted: Array = (places & even) | (places & ~even) << np.uint32(_FLOAT_BITS - bits)
    return parted


def _arrange_scales(fragments: FragmentFormat, weights: BlockWeights, scales: Array) -> Array:
    """Arrange numbers of [columns, blocks] as [tiles, units, g, blocks of a unit, upper half of the columns]."""
    units, blocks = fragments.units, fragments.unit_blocks
    each = np.repeat(scales, weights.block // fragments.block, axis=1)
    padded = np.zeros((fragments.tiles * COLUMNS, units * blocks), scales.dtype)
    padded[: each.shape[0], : each.shape[1]] = each
    return np.ascontiguousarray(padded.reshape(fragments.tiles, 2, 8, units, blocks).transpose(0, 3, 2, 4, 1))


# -- decoding --------------------------------------------------------------------------------------------------------


class FragmentDecoder:
    """Decodes codes to pairs of 16-bit floats.

    A code becomes the lowest bits of a float whose lowest bit counts 1, from which that float and the zero point are
    subtracted. A code of 8 bits is longer than the fraction of a bfloat16: its highest bit is decoded apart.
    """

    def __init__(self, fragments: FragmentFormat, builder: KernelBuilder) -> None:
        self.format, self.builder = fragments, builder
        is_half = fragments.element is _F16
        self.function = "fma_float16x2" if is_half else "fma_bfloat16x2"
        self.is_split = fragments.bits == 8 and not is_half
        self.unit_bits, self.one = (0x6400, 0x3C00) if is_half else (0x4300, 0x3F80)

    def find_offset(self, zero: Code | None, statements: list[Statement]) -> Code:
        """Return what is added to floats for a zero point, twice in a word; None is the middle of the codes."""
        if not self.format.has_scales:
            return Number(0, _I32)
        if zero is None:
            middle = 2 ** (self.format.bits - 1)
            return _pair(0xC300 if self.is_split else 0x8000 | self.unit_bits | middle)
        if not self.is_split:
            both = Call("multiply", (zero, Number(0x10001, _I32)), _I32)
            return self._keep("offset", Call("bit_or", (both, _pair(0x8000 | self.unit_bits)), _I32), statements)
        number = Call("negate", (Call("cast", (zero,), _F32),), _F32)
        upper = Call("shift_right", (Call("bitcast", (number,), _I32), Number(16, _I32)), _I32)
        bits = Call("bit_and", (upper, Number(0xFFFF, _I32)), _I32)
        return self._keep("offset", Call("multiply", (bits, Number(0x10001, _I32)), _I32), statements)

    def decode(
        self, words: Sequence[Register], step: int, offsets: Sequence[Code], statements: list[Statement]
    ) -> list[Register]:
        """Return the four registers of a window's fragment; `offsets` are those of both columns."""
        if not self.format.has_scales:
            return [*words[4 * step : 4 * step + 4]]
        pairs = _FLOAT_BITS // self.format.bits
        registers: list[Register] = []
        for number in range(4 * step, 4 * step + 4):
            word: Code = words[number // pairs]
            if number % pairs:
                word = Call("shift_right", (word, Number(self.format.bits * (number % pairs), _I32)), _I32)
            registers.append(self._decode_pair(word, offsets[number % 2], statements))
        return registers

    def _decode_pair(self, word: Code, offset: Code, statements: list[Statement]) -> Register:
        bits = min(self.format.bits, 7) if self.is_split else self.format.bits
        code = self._keep("code", Call("and_or", (word, _pair(2**bits - 1), _pair(self.unit_bits)), _I32), statements)
        if self.is_split:  # 2.0 or 0.0, times 64
            shifted = Call("shift_left", (Call("bit_and", (word, _pair(0x80)), _I32), Number(7, _I32)), _I32)
            upper = self._keep("upper", shifted, statements)
            rest = self._keep("rest", self._fma(upper, _pair(0x4280), offset), statements)
            offset, code = rest, self._keep("code", self._fma(code, _pair(self.one), _pair(0xC300)), statements)
        return self._keep("weight", self._fma(code, _pair(self.one), offset), statements)

    def _fma(self, a: Code, b: Code, c: Code) -> Code:
        return Call(self.function, (a, b, c), _I32)

    def _keep(self, hint: str, value: Code, statements: list[Statement]) -> Register:
        definition, register = self.builder.keep(hint, value, varying=True)
        statements.append(definition)
        return register


def _pair(bits: int) -> Number:
    """Return a word with 16 bits twice."""
    word = bits * 0x10001
    return Number(word - (1 << 32) if word >= 1 << 31 else word, _I32)
