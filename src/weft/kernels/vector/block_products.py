"""Products with weights of 2, 4 or 8 bits, quantized in blocks along the sums: they stay so in memory.

Weights are packed as words that hold neighbours along the sums, a column a lane. Before the words of a block lie its
scales, and its zero points if it has some; numbers are made of the words in registers, multiplied and summed up, and
the sum of a block is scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Register, Statement, lane
from weft.ir.packing import Packing
from weft.ir.target import VectorTarget
from weft.ir.unpacking import BlockWeights, block_arrays
from weft.kernels.build.contraction import ContractOperand
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.multiply_add import multiply_add, number_of_code
from weft.kernels.lower.kernel_builder import assign, define, fetch, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.vector.panels import Panels, lanes_for
from weft.kernels.vector.register_tiles import ProductBuilder, RegisterTile, TiledProduct
from weft.records import dataclass

Array = np.ndarray[Any, Any]
WORD_BITS = 32
OTHER_REGISTERS = 6  # beside sums
CHAINS = 2  # of the sums of a block


@dataclass(frozen=True, slots=True)
class BlockPacking:
    """How weights lie in a packed operand."""

    bits: int
    words: int  # of a block
    has_zeros: bool

    @property
    def each(self) -> int:
        """Numbers of a word."""
        return WORD_BITS // self.bits

    @property
    def header(self) -> int:
        """Rows before the words of a block."""
        return 2 if self.has_zeros else 1


def block_product_work(
    left: ContractOperand,
    output: Sequence[int],
    column: int,
    weights: BlockWeights,
    constants: Sequence[Array],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: VectorTarget,
) -> Work:
    """A product over the last axis of `left`, which is row-major; `column` labels the columns of the weights.

    Operands are left, the weights' numbers (which are not read), then those of the epilogue.
    """
    form = BlockPacking(weights.bits, weights.block * weights.bits // WORD_BITS, weights.zero is not None)
    panels = Panels(weights.columns, lanes_for(target, DType.float32, weights.columns), 1)
    each, step = form.header + form.words, panels.step
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
        sums=(LoopAxis(blocks, weights.block, each * step), LoopAxis(form.words, form.each, step)),
        panels=panels,
        panel=blocks * each * step,
        padded=True,
        packed=True,
    )
    shape = panels.packed_shape(1, blocks * each)

    def pack(numbers: Array) -> Iterator[Array]:
        yield panels.pack(packed_rows(weights, form, [numbers, *constants[1:]])[np.newaxis])

    packing = Packing(constants[0], pack, shape, np.dtype(np.int32))
    launch = block_kernel(product, form, target)
    references = {LEFT: Reference("operand", 0), RIGHT: Reference("constant", 0)}
    return Work((launch.rebound(references),), constants=(packing,))


def packed_rows(weights: BlockWeights, form: BlockPacking, constants: Sequence[Array]) -> Array:
    """[rows, columns] of int32: for each block its scales, its zero points less half of the range, and its words."""
    words, scales, zeros = block_arrays(weights, constants)  # [columns, words], [columns, blocks] twice
    columns, blocks = scales.shape
    parts = [scales.astype(np.float32).view(np.int32)[:, :, np.newaxis]]
    if zeros is not None:
        parts.append((zeros - np.float32(2 ** (form.bits - 1))).astype(np.float32).view(np.int32)[:, :, np.newaxis])
    parts.append(words.view(np.int32).reshape(columns, blocks, form.words))
    return np.ascontiguousarray(np.concatenate(parts, axis=2).reshape(columns, -1).T)


@memoized
def block_kernel(product: TiledProduct, form: BlockPacking, target: VectorTarget) -> Launch:
    """Operands as those of `product_kernel`."""
    return _Builder(product, form, target).launch()


class _Builder(ProductBuilder):
    def __init__(self, product: TiledProduct, form: BlockPacking, target: VectorTarget) -> None:
        self.form = form
        super().__init__("unpack", product, target)

    def most_rows(self) -> int:
        """Rows whose sums, and those of a block, fit the registers."""
        return max(1, (self.target.vector_registers - OTHER_REGISTERS) // (1 + CHAINS))

    def reduce(self, tile: RegisterTile) -> tuple[Statement, ...]:
        """Block by block."""
        blocks, words = self.product.sums
        shape, form = tile.shape, self.form
        step = self.lanes * shape.width
        number, word = self.builder.variables("k", 2)
        views, sources = self.views(tile, number * blocks.left, number * ((form.header + form.words) * step))
        *rows, panels = sources
        count = shape.height * shape.width
        sums = self.builder.registers("block", count * CHAINS, self.type)
        body: list[Statement] = [*views, *(define(total, Number(0, self.type)) for total in sums)]

        def row(at: Dim) -> list[Code]:
            return [fetch(panels, at * step + column * self.lanes + lane(self.lanes)) for column in range(shape.width)]

        zeros: list[Register] = []
        for header in row(1) if form.has_zeros else ():
            defined, zero = self.builder.keep("zero", Call("bitcast", (header,), self.type))
            body.append(defined)
            zeros.append(zero)
        inner: list[Statement] = []
        kept: list[Register] = []
        for code in row(form.header + word):
            defined, held = self.builder.keep("word", code)
            inner.append(defined)
            kept.append(held)
        for position in range(form.each):
            inner += self.multiply_codes(shape.height, kept, zeros, rows, word * words.left + position, position, sums)
        body.append(repeat(word, 0, form.words, 1, inner, 2 if shape.height == 1 else 1))
        for column, header in enumerate(row(0)):
            defined, scale = self.builder.keep("scale", Call("bitcast", (header,), self.type))
            body.append(defined)
            for at in range(column, count, shape.width):
                total = Call("add", (sums[at], sums[at + count]), self.type)
                body.append(assign(tile.sums[at], multiply_add(self.target, total, scale, tile.sums[at])))
        return (repeat(number, 0, self.builder.named("blocks", blocks.size), 1, body),)

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
        """All rows times one number of each word."""
        statements: list[Statement] = []
        vectors: list[Register] = []
        for column, word in enumerate(words):
            number = number_of_code(self.target, word, self.form.bits, position)
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
