"""Block-quantized weights in the order in which threads read them, and how threads decode them.

Columns are in groups of 32. Of each column, 16 bytes of neighbours along the sums are a chunk, and the chunks of a
group of columns at one place along the sums are contiguous, so that neighbouring lanes read neighbouring chunks. Scales
and zero points are in a second constant, in the same order of columns.

Sums are in an order that no kernel changes, so that a row of the result has the same bits in all of them: the sums are
cut into ranges of whole chunks, the products of a range are added one after the other, then the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights, pack_block_weights
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Register, Statement
from weft.ir.packing import Packing
from weft.ir.scalar import Literal, Load, Scalar, walk
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run
from weft.kernels.lower.tensors import Reference
from weft.records import dataclass

GROUP = 32  # columns
CHUNK_WORDS = 4
_WORD_BITS, _HALF_BITS = 32, 16
_UNIT = 2.0**23  # the float32 whose lowest bit counts 1: its bits plus a small integer are the float32 of their sum
_UNIT_BITS = 0x4B000000
_I32, _F32 = DType.int32, DType.float32
WORDS, SCALES = Reference("constant", 0), Reference("constant", 1)

Values = Callable[[int, list[Statement]], Register]
"""Returns the value at a position as float32; appends the statements that compute it."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The packed form of weights [columns, depth]; `ranges` is the most ranges that sums are cut into."""

    columns: int
    depth: int
    bits: int
    block: int
    zeros: str  # "middle" of the range of codes, "bytes" or "floats"
    ranges: int

    @property
    def chunk(self) -> int:
        """Values of a chunk."""
        return CHUNK_WORDS * self.word

    @property
    def word(self) -> int:
        """Values of a word."""
        return _WORD_BITS // self.bits

    @property
    def chunks(self) -> int:
        """Chunks of a column."""
        return -(-self.depth // self.chunk)

    @property
    def range_chunks(self) -> int:
        """Chunks of a range; the last range may have fewer."""
        return -(-self.chunks // self.ranges)

    @property
    def groups(self) -> int:
        return -(-self.columns // GROUP)

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return self.depth // self.block

    def open_reader(self, builder: KernelBuilder) -> WordReader:
        return WordReader(self, builder)


def find_format(weights: BlockWeights, ranges: int) -> BlockFormat:
    """Find the packed form of weights."""
    zeros = "middle" if weights.zero is None else "bytes" if _is_byte(weights.zero) else "floats"
    return BlockFormat(weights.columns, weights.depth, weights.bits, weights.block, zeros, ranges)


def _is_byte(zero: Scalar) -> bool:
    """Whether all values of a zero point are integers that fit a byte, as codes without sign."""
    if isinstance(zero, Literal):
        return not isinstance(zero.value, (str, complex)) and zero.value in range(128)
    return all(node.dtype.is_integer and node.dtype.bits <= 8 for node in walk(zero) if isinstance(node, Load))


# -- packing ---------------------------------------------------------------------------------------------------------


def pack_format(
    block_format: BlockFormat, weights: BlockWeights, constants: Sequence[Array]
) -> tuple[Packing, Packing]:
    """Return the packed words, and the packed scales and zero points; `constants` as in `pack_block_weights`."""
    groups, chunks, blocks = block_format.groups, block_format.chunks, block_format.blocks
    rest = constants[1:]

    def pack_words(numbers: Array) -> Iterator[Array]:
        words, _, _ = pack_block_weights(weights, [numbers, *rest])
        for group in range(groups):
            lines = np.zeros((GROUP, chunks * CHUNK_WORDS), np.uint32)
            part = words[group * GROUP : (group + 1) * GROUP]
            lines[: part.shape[0], : part.shape[1]] = part
            yield lines.reshape(GROUP, chunks, CHUNK_WORDS).transpose(1, 0, 2).view(np.int32)

    def pack_scales(numbers: Array) -> Iterator[Array]:
        _, scales, zeros = pack_block_weights(weights, [numbers, *rest])
        yield _group_columns(scales.astype(np.float32), groups).view(np.int32)
        if zeros is not None:
            dtype = np.uint8 if block_format.zeros == "bytes" else np.float32
            yield np.ascontiguousarray(_group_columns(zeros.astype(dtype), groups)).view(np.int32)

    words_shape = (groups * chunks, GROUP * CHUNK_WORDS)
    zero_words = {"middle": 0, "bytes": GROUP // 4, "floats": GROUP}[block_format.zeros]
    scales_shape = (groups * blocks, GROUP + zero_words)
    int32 = np.dtype(np.int32)
    return Packing(constants[0], pack_words, words_shape, int32), Packing(
        constants[0], pack_scales, scales_shape, int32
    )


def _group_columns(array: Array, groups: int) -> Array:
    """Rearrange [columns, blocks] as [groups, blocks, columns of a group], filled up with zeros."""
    columns, blocks = array.shape
    padded = np.zeros((groups * GROUP, blocks), array.dtype)
    padded[:columns] = array
    return np.ascontiguousarray(padded.reshape(groups, GROUP, blocks).transpose(0, 2, 1))


# -- decoding --------------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes the words of one block of one column to float32, exactly as (code - zero) * scale.

    A code is masked out of its half word in place and put below the unit of a float32, which takes one logical
    operation. The factor that its place in the half word leaves, a power of two, is taken out of the scale.
    """

    def __init__(self, block_format: BlockFormat, scale: Code, zero: Code | None, builder: KernelBuilder) -> None:
        self.format, self.builder = block_format, builder
        self.statements: list[Statement] = []
        self.zero: Code | None = None
        self.offsets: list[Code]
        places = [2.0 ** (block_format.bits * place) for place in range(_HALF_BITS // block_format.bits)]
        if block_format.zeros == "floats":
            assert zero is not None
            self.zero, self.offsets, places = self._keep("zero", zero), [Number(_UNIT, _F32)], places[:1]
        elif zero is None:
            middle = 2.0 ** (block_format.bits - 1)
            self.offsets = [Number(_UNIT + middle * place, _F32) for place in places]
        else:
            zero = self._keep("zero", zero)
            self.offsets = [self._keep("offset", _fma(zero, place, _UNIT)) for place in places]
        scale = self._keep("scale", scale)
        self.scales = [scale, *(self._keep("scale", _multiply(scale, 1 / place)) for place in places[1:])]

    def decode(self, word: Code, position: int, statements: list[Statement]) -> Register:
        """Return the value at a position of a word."""
        bits = self.format.bits
        shift, place = divmod(position, len(self.scales))
        shift *= len(self.scales) * bits
        if shift:
            word = Call("shift_right", (word, Number(shift, _I32)), _I32)
        mask = (2**bits - 1) << (bits * place)
        code = Call("bit_or", (Call("bit_and", (word, Number(mask, _I32)), _I32), Number(_UNIT_BITS, _I32)), _I32)
        value: Code = Call("subtract", (Call("bitcast", (code,), _F32), self.offsets[place]), _F32)
        if self.zero is not None:
            value = Call("subtract", (value, self.zero), _F32)
        definition, register = self.builder.keep("weight", Call("multiply", (value, self.scales[place]), _F32), True)
        statements.append(definition)
        return register

    def _keep(self, hint: str, value: Code) -> Register:
        definition, register = self.builder.keep(hint, value, varying=True)
        self.statements.append(definition)
        return register


class ScaleReader:
    """Reads scales and zero points of columns; `start` is that of the zero points, after all scales."""

    def __init__(self, block_format: BlockFormat, buffer: Buffer, builder: KernelBuilder) -> None:
        self.format, self.buffer, self.builder = block_format, buffer, builder
        self.pitch = builder.parameter("blocks_column", block_format.blocks)
        size = block_format.groups * block_format.blocks * GROUP
        self.start = 0 if block_format.zeros == "middle" else builder.parameter("zeros", size)

    def open_decoder(self, group: Dim, column: Dim, block: Dim) -> Decoder:
        """Read the scale and zero point of a block of a column of a group."""
        if self.format.depth % self.format.chunk:  # the last chunk is longer than the last block
            block = dims.minimum(block, self.builder.parameter("last_block", self.format.blocks - 1))
        place = (group * self.pitch + block) * GROUP + column
        scale = Call("bitcast", (fetch(self.buffer, place),), _F32)
        zero: Code | None = None
        if self.format.zeros == "floats":
            zero = Call("bitcast", (fetch(self.buffer, self.start + place),), _F32)
        elif self.format.zeros == "bytes":
            word = fetch(self.buffer, self.start + dims.floordiv(place, 4))
            shift = Call("cast", (Integer(8 * dims.mod(column, 4)),), _I32)
            byte = Call("bit_and", (Call("shift_right", (word, shift), _I32), Number(255, _I32)), _I32)
            zero = Call("cast", (byte,), _F32)
        return Decoder(self.format, scale, zero, self.builder)


class WordReader:
    """Reads block-quantized weights: the words of a column, and their scales."""

    def __init__(self, block_format: BlockFormat, builder: KernelBuilder) -> None:
        self.format, self.builder = block_format, builder
        self.words = builder.input("words", _I32, WORDS)
        self.scale_reader = ScaleReader(block_format, builder.input("scales", _I32, SCALES), builder)

    def open_values(
        self, group: Dim, column: Dim, chunk: Dim, first: Dim, count: int, statements: list[Statement]
    ) -> Values:
        """Read `count` values of a chunk, from a multiple of `count` on, of a column of a group."""
        block_format, builder = self.format, self.builder
        chunks = builder.parameter("chunks", block_format.chunks)
        word = dims.floordiv(first, block_format.word)
        place = ((group * chunks + chunk) * GROUP + column) * CHUNK_WORDS + word
        words = builder.registers("word", max(count // block_format.word, 1), _I32)
        if len(words) == 1:
            code: Code = fetch(self.words, place)
            if count < block_format.word:  # part of a word
                bits = block_format.bits * dims.mod(first, block_format.word)
                code = Call("shift_right", (code, Call("cast", (Integer(bits),), _I32)), _I32)
            statements.append(define(words[0], code))
        else:
            statements.append(fetch_run(words, self.words, place))
        block_words = block_format.block // block_format.word
        is_apart = len(words) % block_words != 0 and block_words % len(words) != 0
        decoders: dict[int, Decoder] = {}

        def decode(position: int, body: list[Statement]) -> Register:
            number, within = divmod(position, block_format.word)
            start = number if is_apart else number // block_words * block_words
            if start not in decoders:
                at_block = dims.floordiv(chunk * CHUNK_WORDS + word + start, block_words)
                decoders[start] = self.scale_reader.open_decoder(group, column, at_block)
                body += decoders[start].statements
            return decoders[start].decode(words[number], within, body)

        return decode


def _fma(a: Code, b: float, c: float) -> Code:
    return Call("fma", (a, Number(b, _F32), Number(c, _F32)), _F32)


def _multiply(a: Code, b: float) -> Code:
    return Call("multiply", (a, Number(b, _F32)), _F32)
