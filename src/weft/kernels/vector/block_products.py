"""Products with weights of 2, 4 or 8 bits that are quantized in blocks along the sums and stay so in memory.

Weights are packed as words that hold neighbours along the sums, a column per lane. The scales of a block, and its zero
points if it has any, come before its words. Words are decoded in registers, multiplied and summed, and the sum of a
block is scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights, pack_block_weights
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Prefetch, Register, Statement, lane
from weft.ir.packing import Packing
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import ContractOperand
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.multiply_add import decode_quantized, multiply_add
from weft.kernels.lower.kernel_builder import assign, define, fetch, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import RIGHT, Epilogue, Reference, StoredTensor, Work
from weft.kernels.vector.blocking import PREFETCH_BYTES
from weft.kernels.vector.panels import Panels, choose_product_lanes
from weft.kernels.vector.register_tiles import ProductBuilder, RegisterTile, TiledProduct
from weft.records import dataclass

WORD_BITS = 32
WORD_BYTES = 4
PREFETCHING_HEIGHT = 4  # rows of tiles that wait for weights rather than for multipliers
OTHER_REGISTERS = 6  # besides sums
CHAINS = 2  # independent sums of a block


@dataclass(frozen=True, slots=True)
class BlockPacking:
    """The layout of a packed operand."""

    bits: int
    words: int  # per block
    has_zeros: bool

    @property
    def values_per_word(self) -> int:
        return WORD_BITS // self.bits

    @property
    def header_rows(self) -> int:
        """Rows of scales and zero points before the words of a block."""
        return 2 if self.has_zeros else 1


def build_block_product(
    left: ContractOperand,
    output: Sequence[int],
    column: int,
    weights: BlockWeights,
    constants: Sequence[Array],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: VectorTarget,
) -> Work:
    """Build a product over the last axis of `left`, which is row-major; `column` labels the columns of the weights.

    Operands are left, the quantized weights (which are not read), then those of the epilogue.
    """
    packing = BlockPacking(weights.bits, weights.block * weights.bits // WORD_BITS, weights.zero is not None)
    panels = Panels(weights.columns, choose_product_lanes(target, DType.float32, weights.columns), 1)
    rows_per_block, step = packing.header_rows + packing.words, panels.step
    rows = tuple(LoopAxis(left.size(label), left.stride(label), axis=output.index(label)) for label in left.labels[:-1])
    blocks = weights.depth // weights.block
    product = TiledProduct(
        left=DType.float32,
        right=DType.int32,
        result=result,
        epilogue=epilogue,
        grid=(),
        rows=rows,
        column=LoopAxis(weights.columns, axis=output.index(column)),
        sums=(
            LoopAxis(blocks, weights.block, rows_per_block * step),
            LoopAxis(packing.words, packing.values_per_word, step),
        ),
        panels=panels,
        panel=blocks * rows_per_block * step,
        padded=True,
        packed=True,
    )
    shape = panels.packed_shape(1, blocks * rows_per_block)

    def pack(numbers: Array) -> Iterator[Array]:
        yield panels.pack(arrange_rows(weights, packing, [numbers, *constants[1:]])[np.newaxis])

    constant = Packing(constants[0], pack, shape, np.dtype(np.int32))
    launch = build_block_kernel(product, packing, target)
    return Work((launch.rebound({RIGHT: Reference("constant", 0)}),), constants=(constant,))


def arrange_rows(weights: BlockWeights, packing: BlockPacking, constants: Sequence[Array]) -> Array:
    """Arrange weights as int32 [rows, columns]: per block scales, zero points less half of the range, and words."""
    words, scales, zeros = pack_block_weights(weights, constants)  # [columns, words], [columns, blocks] twice
    columns, blocks = scales.shape
    parts = [scales.astype(np.float32).view(np.int32)[:, :, np.newaxis]]
    if zeros is not None:
        parts.append((zeros - np.float32(2 ** (packing.bits - 1))).astype(np.float32).view(np.int32)[:, :, np.newaxis])
    parts.append(words.view(np.int32).reshape(columns, blocks, packing.words))
    return np.ascontiguousarray(np.concatenate(parts, axis=2).reshape(columns, -1).T)


class _Builder(ProductBuilder):
    """Builds a launch with the operands of `build_product_kernel`."""

    def __init__(self, product: TiledProduct, packing: BlockPacking, target: VectorTarget) -> None:
        self.packing = packing
        super().__init__("unpack", product, target)

    def choose_height(self) -> int:
        """Return how many rows have sums, and block sums, that fit the registers."""
        return max(1, (self.target.vector_registers - OTHER_REGISTERS) // (1 + CHAINS))

    def reduce(self, tile: RegisterTile) -> tuple[Statement, ...]:
        """Sum block by block."""
        blocks, words = self.product.sums
        shape, packing = tile.shape, self.packing
        step = self.lanes * shape.width
        block_size = (packing.header_rows + packing.words) * step
        number, word = self.builder.variables("k", 2)
        views, sources = self.build_views(tile, number * blocks.left, number * block_size)
        *rows, panels = sources
        count = shape.height * shape.width
        sums = self.builder.registers("block", count * CHAINS, self.type)
        body: list[Statement] = [*views, *(define(total, Number(0, self.type)) for total in sums)]
        if shape.height <= PREFETCHING_HEIGHT:
            body.append(Prefetch(panels.name, PREFETCH_BYTES // WORD_BYTES, block_size * WORD_BYTES))

        def row(at: Dim) -> list[Code]:
            return [fetch(panels, at * step + column * self.lanes + lane(self.lanes)) for column in range(shape.width)]

        zeros: list[Register] = []
        for header_rows in row(1) if packing.has_zeros else ():
            defined, zero = self.builder.keep("zero", Call("bitcast", (header_rows,), self.type))
            body.append(defined)
            zeros.append(zero)
        inner: list[Statement] = []
        word_registers: list[Register] = []
        for code in row(packing.header_rows + word):
            defined, register = self.builder.keep("word", code)
            inner.append(defined)
            word_registers.append(register)
        for position in range(packing.values_per_word):
            inner += self.multiply_codes(
                shape.height, word_registers, zeros, rows, word * words.left + position, position, sums
            )
        body.append(repeat(word, 0, packing.words, 1, inner, 2 if shape.height == 1 else 1))
        for column, header_rows in enumerate(row(0)):
            defined, scale = self.builder.keep("scale", Call("bitcast", (header_rows,), self.type))
            body.append(defined)
            for at in range(column, count, shape.width):
                total = Call("add", (sums[at], sums[at + count]), self.type)
                body.append(assign(tile.sums[at], multiply_add(self.target, total, scale, tile.sums[at])))
        return (repeat(number, 0, self.builder.parameter("blocks", blocks.size), 1, body),)

    def multiply_codes(
        self,
        height: int,
        words: Sequence[Register],
        zeros: Sequence[Register],
        rows: Sequence[Any],
        left: Dim,
        position: int,
        sums: Sequence[Register],
    ) -> list[Statement]:
        """Multiply all rows by one number of each word."""
        statements: list[Statement] = []
        vectors: list[Register] = []
        for column, word in enumerate(words):
            number = decode_quantized(self.target, word, self.packing.bits, position)
            if zeros:
                number = Call("subtract", (number, zeros[column]), self.type)
            defined, vector = self.builder.keep("b", number)
            statements.append(defined)
            vectors.append(vector)
        first = position % CHAINS * height * len(words)
        for row in range(height):
            defined, element = self.builder.keep("a", fetch(rows[row], left))
            statements.append(defined)
            for column, vector in enumerate(vectors):
                total = sums[first + row * len(words) + column]
                statements.append(assign(total, multiply_add(self.target, element, vector, total)))
        return statements


build_block_kernel = memoize_launch(_Builder)
