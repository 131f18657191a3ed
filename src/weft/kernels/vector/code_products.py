"""Products of rows and weights that are both quantized in blocks along the sums: integers, scaled block by block.

Rows are int8 codes with a scale for each block. Weights are unsigned codes of 2, 4 or 8 bits, a column per lane, packed
as words whose bits at the same place of all four bytes are neighbours along the sums. The scales of a block, and its
zero points if it has any, come before its words. The sum of a block is exact, so that every path has the same bits:

- For few rows, words are decoded in registers, and each is read once.
- For many rows, some blocks of a panel are decoded into local memory, and multiplied by all rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from weft.cost.blocks import OPERATIONS_PER_WEIGHT_BYTE
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, Number, Prefetch, Register, Statement, When, block, lane
from weft.ir.packing import Packing
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import ContractOperand
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes, unravel_index
from weft.kernels.build.multiply_add import dot_bytes, multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, put, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.blocking import PREFETCH_BYTES, count_blocks
from weft.kernels.vector.code_packing import WORD, CodePacking, pack_codes
from weft.records import dataclass

INT32, FLOAT32 = DType.int32, DType.float32
SOURCES = 3  # operands before those of the epilogue: codes, scales, and the weights, which are packed
PANEL_VECTORS = 2  # which share the broadcast codes of a row
FEW_ROWS = 24  # from this number of rows on, panels are decoded into local memory
FEW_HEIGHTS = (4, 2, 1)  # rows of tiles that decode words in registers
MANY_HEIGHTS = (6, 2, 1)  # rows of tiles with decoded panels: sums and block sums fit the registers
CHUNK_ROWS = 96  # of a block
DECODED_BYTES = 1 << 15
MANY_UNROLL = 4  # words of codes
FEW_UNROLL = 4  # words of codes


@dataclass(frozen=True, slots=True)
class CodeProduct:
    """Rows of codes times packed weights; `rows` are the axes of the result that the rows run along, in order."""

    rows: tuple[LoopAxis, ...]
    column_axis: int
    packing: CodePacking
    result: StoredTensor
    epilogue: Epilogue | None


def build_code_product(
    codes: ContractOperand,
    output: Sequence[int],
    column: int,
    weights: BlockWeights,
    constants: Sequence[Array],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: VectorTarget,
) -> Work:
    """Build a product over the last axis of `codes`, which is row-major; `column` labels the columns of the weights.

    Operands are codes, their scales, the quantized weights (which are not read), then those of the epilogue.
    """
    lanes = target.vector_bytes // WORD
    packing = CodePacking(
        weights.columns,
        weights.depth,
        weights.block,
        weights.bits,
        weights.zero is not None,
        lanes,
        1 if weights.columns <= lanes else PANEL_VECTORS,
    )
    rows = tuple(
        LoopAxis(codes.size(label), codes.stride(label), axis=output.index(label)) for label in codes.labels[:-1]
    )
    product = CodeProduct(rows, output.index(column), packing, result, epilogue)

    def pack(numbers: Array) -> Iterator[Array]:
        yield from pack_codes(weights, packing, [numbers, *constants[1:]])

    constant = Packing(constants[0], pack, (packing.panels, packing.panel_size), np.dtype(np.int32))
    count = dims.product(axis.size for axis in rows)
    launches: list[Launch] = []
    workspaces: list[Workspace] = []
    if not isinstance(count, int) or count >= FEW_ROWS:
        launches.append(_build_sums(count, packing, target))
        workspaces.append(Workspace(INT32, count * packing.blocks))
    launches.append(_build_product(product, bool(workspaces), target))
    return Work(tuple(launches), tuple(workspaces), constants=(constant,))


class _SumsBuilder:
    """Builds the launch that sums the codes of each block of each row; none run for few rows."""

    def __init__(self, rows: Dim, packing: CodePacking, target: VectorTarget) -> None:
        self.rows, self.packing, self.target = rows, packing, target

    def build_launch(self) -> Launch:
        builder = KernelBuilder("sum_codes")
        words = self.packing.block // WORD
        lanes = min(self.packing.lanes, words & -words)
        codes = builder.input("codes", INT32, Reference("operand", 0))
        sums = builder.output("sums", INT32, Reference("workspace", 0))
        count = self.packing.blocks
        number, word = builder.variable("number"), builder.variable("word")
        total = builder.register("total", INT32)
        start = (block() * builder.size(count) + number) * words
        body: list[Statement] = [
            define(total, Number(0, INT32)),
            repeat(
                word,
                0,
                words,
                lanes,
                [assign(total, dot_bytes(self.target, _ONES, fetch(codes, start + word + lane(lanes)), total))],
            ),
        ]
        defined, dot = builder.keep("dot", Across("sum", total))
        body += [defined, put(sums, block() * builder.size(count) + number, dot)]
        has_many = dims.minimum(dims.floordiv(self.rows, FEW_ROWS), 1)
        return builder.launch(lanes, [repeat(number, 0, builder.size(count), 1, body)], self.rows * has_many)


_ONES = Number(0x01010101, INT32)
_build_sums = memoize_launch(_SumsBuilder)


class _ProductBuilder:
    """Builds the launch of a `CodeProduct`. A block computes a chunk of rows with some panels."""

    def __init__(self, product: CodeProduct, has_sums: bool, target: VectorTarget) -> None:
        self.product, self.packing, self.target, self.has_sums = product, product.packing, target, has_sums
        self.builder = KernelBuilder("multiply_codes")
        self.codes = self.builder.input("codes", DType.int8, Reference("operand", 0))
        self.scales = self.builder.input("scales", FLOAT32, Reference("operand", 1))
        self.right = self.builder.input("right", INT32, Reference("constant", 0))
        if has_sums:
            self.sums = self.builder.input("sums", INT32, Reference("workspace", 0))
        self.epilogue_writer = EpilogueWriter(product.result, product.epilogue, self.builder, SOURCES)
        self.rows = merge_loop_axes(product.rows, self.epilogue_writer)
        self.depth = self.builder.parameter("depth", self.packing.depth, 1)
        self.blocks = self.builder.parameter("blocks", self.packing.blocks, 1)
        self.lanes, self.vectors, self.step = self.packing.lanes, self.packing.vectors, self.packing.step

    def build_launch(self) -> Launch:
        packing, parameter = self.packing, self.builder.parameter
        rows = dims.product(axis.size for axis in self.product.rows)
        row_chunks = dims.ceildiv(rows, CHUNK_ROWS)
        work = dims.floordiv(packing.depth * packing.step * dims.minimum(rows, CHUNK_ROWS), 2)
        work = work + round(packing.panel_size * WORD * OPERATIONS_PER_WEIGHT_BYTE)
        each = dims.ceildiv(packing.panels, dims.minimum(count_blocks(packing.panels * work), packing.panels))
        panel_chunks = dims.ceildiv(packing.panels, each)
        count, chunks = parameter("rows", rows, 0), parameter("row_chunks", row_chunks, 1)
        first_let, first = self.builder.let("first", dims.mod(block(), chunks) * CHUNK_ROWS)
        end_let, end = self.builder.let("end", dims.minimum(first + CHUNK_ROWS, count))
        panel = self.builder.variable("panel")
        size = parameter("panels_each", each, 1)
        chunk_let, chunk = self.builder.let("panel_chunk", dims.floordiv(block(), chunks) * size)
        stop = dims.minimum(chunk + size, parameter("panels", packing.panels, 1))
        statements: list[Statement] = [first_let, end_let, chunk_let]
        start = panel * parameter("panel_size", packing.panel_size, 1)
        if not self.has_sums:
            body = self.multiply_few(first, end, panel, start)
        else:
            tile = self.builder.local("tile", FLOAT32, CHUNK_ROWS * self.step)
            few, many = self.multiply_few(first, end, panel, start), self.multiply_many(first, end, panel, start, tile)
            body = [When(less(count, FEW_ROWS), tuple(few), tuple(many))]
        statements.append(repeat(panel, chunk, stop, 1, body))
        return self.builder.launch(self.lanes, statements, row_chunks * panel_chunks)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def split_rows(
        self, first: Dim, end: Dim, heights: Sequence[int], build_tile: Callable[[Dim, int], Iterable[Statement]]
    ) -> list[Statement]:
        """Build loops over tiles, the tallest first."""
        statements: list[Statement] = []
        for height in heights:
            row = self.builder.variable("row")
            stop_let, stop = self.builder.let("stop", first + dims.floordiv(end - first, height) * height)
            statements += [stop_let, repeat(row, first, stop, height, build_tile(row, height))]
            first = stop
        return statements

    def multiply_few(self, first: Dim, end: Dim, panel: Dim, start: Dim) -> list[Statement]:
        """Multiply few rows by a panel, whose words are decoded in registers."""

        def build_tile(row: Dim, height: int) -> list[Statement]:
            sums = self.builder.registers("sum", height * self.vectors, FLOAT32)
            number = self.builder.variable("number")
            statements: list[Statement] = [define(total, Number(0.0, FLOAT32)) for total in sums]
            statements.append(repeat(number, 0, self.blocks, 1, self.multiply_block_of_words(row, number, start, sums)))
            for index in range(height):
                values = sums[index * self.vectors : (index + 1) * self.vectors]
                statements += self.write(row + index, panel, values)
            return statements

        return self.split_rows(first, end, FEW_HEIGHTS, build_tile)

    def multiply_block_of_words(self, row: Dim, number: Dim, start: Dim, sums: Sequence[Register]) -> list[Statement]:
        packing, height = self.packing, len(sums) // self.vectors
        at = start + number * self.block_size
        statements, rows, words = self.build_views(row, height, number, at)
        statements.append(Prefetch(self.right.name, at + PREFETCH_BYTES // WORD, self.block_size * WORD))
        dots = self.builder.registers("dot", len(sums), INT32)
        totals = self.builder.registers("total", height, INT32)
        statements += [define(register, Number(0, INT32)) for register in (*dots, *totals)]

        def multiply_word(word: Dim) -> list[Statement]:
            body: list[Statement] = []
            loaded: list[Register] = []
            for vector in range(self.vectors):
                defined, register = self.builder.keep("word", self.fetch_row(words, packing.header_rows + word, vector))
                body.append(defined)
                loaded.append(register)
            for field in range(packing.fields):
                decoded: list[Register] = []
                for register in loaded:
                    defined, codes = self.builder.keep("b", self.decode(register, field))
                    body.append(defined)
                    decoded.append(codes)
                body += self.multiply(rows, word * packing.fields + field, decoded, dots, totals)
            return body

        word = self.builder.variable("word")
        unroll = max(1, min(packing.words, FEW_UNROLL // packing.fields))
        statements.append(repeat(word, 0, packing.words, 1, multiply_word(word), unroll))
        for index in range(height):
            if packing.has_zeros:
                continue
            correction = Call("multiply", (totals[index], Number(packing.middle, INT32)), INT32)
            for vector in range(self.vectors):
                dot = dots[index * self.vectors + vector]
                statements.append(assign(dot, Call("subtract", (dot, correction), INT32)))
        statements += self.scale_block(row, number, words, dots, totals, sums)
        return statements

    def multiply_many(self, first: Dim, end: Dim, panel: Dim, start: Dim, tile: Buffer) -> list[Statement]:
        """Multiply a chunk of rows by a panel: decode some blocks at a time, and keep the sums of rows in `tile`."""
        packing, step = self.packing, self.step
        blocks_at_once = max(1, DECODED_BYTES // (packing.block * step))
        index, stage, number = (self.builder.variable(name) for name in ("index", "stage", "number"))
        statements: list[Statement] = [
            repeat(
                index,
                0,
                (end - first) * self.vectors,
                1,
                [put(tile, index * self.lanes + lane(self.lanes), Number(0.0, FLOAT32))],
            )
        ]
        count_let, count = self.builder.let("count", dims.minimum(self.blocks - stage, blocks_at_once))
        body: list[Statement] = [count_let]
        decoded = self.right
        if packing.fields > 1:
            decoded = self.builder.local("decoded", INT32, blocks_at_once * packing.block // WORD * step)
            body.append(repeat(number, 0, count, 1, self.decode_block(number, start, stage, decoded)))

        def build_tile(row: Dim, height: int) -> list[Statement]:
            places = [
                ((row + index - first) * self.vectors + vector) * self.lanes + lane(self.lanes)
                for index in range(height)
                for vector in range(self.vectors)
            ]
            sums = self.builder.registers("sum", len(places), FLOAT32)
            inner = self.builder.variable("inner")
            multiplied = self.multiply_decoded_block(row, inner, stage, start, decoded, sums)
            return [
                *(define(total, fetch(tile, place)) for total, place in zip(sums, places)),
                repeat(inner, 0, count, 1, multiplied),
                *(put(tile, place, total) for total, place in zip(sums, places)),
            ]

        body += self.split_rows(first, end, MANY_HEIGHTS, build_tile)
        statements.append(repeat(stage, 0, self.blocks, blocks_at_once, body))
        row = self.builder.variable("row")
        values = [
            fetch(tile, ((row - first) * self.vectors + vector) * self.lanes + lane(self.lanes))
            for vector in range(self.vectors)
        ]
        statements.append(repeat(row, first, end, 1, self.write(row, panel, values)))
        return statements

    def decode_block(self, number: Dim, start: Dim, stage: Dim, decoded: Buffer) -> list[Statement]:
        """Decode the words of a block into local memory: one row of it for each field."""
        packing, word = self.packing, self.builder.variable("word")
        view, words = self.builder.view("words", self.right, start + (stage + number) * self.block_size)
        body: list[Statement] = []
        for vector in range(self.vectors):
            defined, register = self.builder.keep("word", self.fetch_row(words, packing.header_rows + word, vector))
            body.append(defined)
            for field in range(packing.fields):
                row = (number * packing.words + word) * packing.fields + field
                place = row * self.step + vector * self.lanes + lane(self.lanes)
                body.append(put(decoded, place, self.decode(register, field)))
        return [view, repeat(word, 0, packing.words, 1, body, 2)]

    def multiply_decoded_block(
        self, row: Dim, number: Dim, stage: Dim, start: Dim, decoded: Buffer, sums: Sequence[Register]
    ) -> list[Statement]:
        packing, height = self.packing, len(sums) // self.vectors
        place = start + (stage + number) * self.block_size
        statements, rows, words = self.build_views(row, height, stage + number, place)
        dots = self.builder.registers("dot", len(sums), INT32)
        totals: list[Register] = []
        for index in range(height):
            total: Code = fetch(self.sums, (row + index) * self.blocks + stage + number)
            defined, register = self.builder.keep("total", total)
            statements.append(defined)
            totals.append(register)
            begin: Code = Number(0, INT32)
            if not packing.has_zeros:
                begin = Call("multiply", (register, Number(-packing.middle, INT32)), INT32)
            for vector in range(self.vectors):
                statements.append(define(dots[index * self.vectors + vector], begin))
        steps = packing.block // WORD
        if packing.fields > 1:
            view, source = self.builder.view("panel", decoded, number * (steps * self.step))
            statements.append(view)
            first_row = 0
        else:
            source, first_row = words, packing.header_rows
        word = self.builder.variable("word")
        body: list[Statement] = []
        vectors: list[Register] = []
        for vector in range(self.vectors):
            defined, register = self.builder.keep("b", self.fetch_row(source, first_row + word, vector))
            body.append(defined)
            vectors.append(register)
        body += self.multiply(rows, word, vectors, dots, [])
        statements.append(repeat(word, 0, steps, 1, body, min(steps, MANY_UNROLL)))
        statements += self.scale_block(row, stage + number, words, dots, totals, sums)
        return statements

    # -- parts of a block --------------------------------------------------------------------------------------------

    @property
    def block_size(self) -> int:
        return self.packing.block_rows * self.step

    def build_views(
        self, row: Dim, height: int, number: Dim, start: Dim
    ) -> tuple[list[Statement], list[Buffer], Buffer]:
        """Return views of words of the rows' codes, and of the weights, in a block."""
        views: list[Statement] = []
        rows: list[Buffer] = []
        for index in range(height):
            at = (row + index) * self.depth + number * self.packing.block
            view, buffer = self.builder.view(f"row{index}", self.codes, at, INT32)
            views.append(view)
            rows.append(buffer)
        view, words = self.builder.view("words", self.right, start)
        return [*views, view], rows, words

    def fetch_row(self, words: Buffer, row: Dim, vector: int) -> Code:
        return fetch(words, row * self.step + vector * self.lanes + lane(self.lanes))

    def decode(self, word: Code, field: int) -> Code:
        """Decode one field of all bytes of a word to bytes."""
        bits = self.packing.bits
        if bits == 8:
            return word
        shifted = Call("shift_right", (word, Number(bits * field, INT32)), INT32) if field else word
        return Call("bit_and", (shifted, Number((2**bits - 1) * 0x01010101, INT32)), INT32)

    def multiply(
        self,
        rows: Sequence[Buffer],
        word: Dim,
        vectors: Sequence[Register],
        dots: Sequence[Register],
        totals: Sequence[Register],
    ) -> list[Statement]:
        """Multiply one word of each row by vectors; `totals` are sums of the rows' codes alone, if any."""
        statements: list[Statement] = []
        for index, row in enumerate(rows):
            defined, codes = self.builder.keep("a", fetch(row, word))
            statements.append(defined)
            if totals:
                statements.append(assign(totals[index], dot_bytes(self.target, _ONES, codes, totals[index])))
            for vector, weights in enumerate(vectors):
                dot = dots[index * self.vectors + vector]
                statements.append(assign(dot, dot_bytes(self.target, weights, codes, dot)))
        return statements

    def scale_block(
        self,
        row: Dim,
        number: Dim,
        words: Buffer,
        dots: Sequence[Register],
        totals: Sequence[Register],
        sums: Sequence[Register],
    ) -> list[Statement]:
        """Add the sums of a block, times both scales, to the sums; `totals` are those of the rows' codes."""
        statements: list[Statement] = []
        headers: list[list[Register]] = []
        for header_row in range(self.packing.header_rows):
            headers.append([])
            for vector in range(self.vectors):
                header = Call("bitcast", (self.fetch_row(words, header_row, vector),), FLOAT32)
                defined, register = self.builder.keep("header", header)
                statements.append(defined)
                headers[-1].append(register)
        for index in range(len(sums) // self.vectors):
            defined, scale = self.builder.keep("scale", fetch(self.scales, (row + index) * self.blocks + number))
            statements.append(defined)
            for vector in range(self.vectors):
                at = index * self.vectors + vector
                value: Code = Call("cast", (dots[at],), FLOAT32)
                if self.packing.has_zeros:
                    total = Call("negate", (Call("cast", (totals[index],), FLOAT32),), FLOAT32)
                    value = multiply_add(self.target, headers[1][vector], total, value)
                value = Call("multiply", (value, scale), FLOAT32)
                statements.append(assign(sums[at], multiply_add(self.target, value, headers[0][vector], sums[at])))
        return statements

    def write(self, row: Dim, panel: Dim, values: Sequence[Code]) -> list[Statement]:
        """Write the vectors of one row."""
        places = unravel_index(row, [self.builder.parameter(f"rows{n}", axis.size) for n, axis in enumerate(self.rows)])
        axes: dict[int, Dim] = {}
        for loop_axis, at in zip(self.rows, places):
            assert loop_axis.axis is not None
            axes[loop_axis.axis] = self.builder.size(loop_axis.factor) * at
        statements: list[Statement] = []
        columns = self.builder.parameter("columns", self.packing.columns, 1)
        for vector, value in enumerate(values):
            column = panel * self.step + vector * self.lanes + lane(self.lanes)
            mask = None if self.packing.columns % self.step == 0 else less(column, columns)
            statements += self.epilogue_writer.write(value, {**axes, self.product.column_axis: column}, mask)
        return statements


_build_product = memoize_launch(_ProductBuilder)
