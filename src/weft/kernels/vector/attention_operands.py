"""Attention over keys and values that are packed into panels, or read in place from a paged cache.

Lanes are neighbouring keys in the first product, and columns of values in the second. Both products add in the order of
the depth, or of the keys, whatever the memory of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.access import find_axes, stride_along
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Register, Statement, When, lane
from weft.ir.scalar import FlatLoad, Index, Load, Scalar, walk
from weft.ir.target import VectorTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.build.multiply_add import PAIRS, accumulate
from weft.kernels.lower.kernel_builder import assign, define, fetch, put, repeat, transpose
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import Reference, StoredTensor
from weft.kernels.vector.attention import FLOAT, KEY_CHUNK, SCORE_ROW, STATISTICS, SUMS, VECTORS, float32
from weft.kernels.vector.attention_softmax import ChunkSoftmax, KeyChunk
from weft.kernels.vector.attention_tiles import TileRows
from weft.kernels.vector.key_panels import WORDS, outer_axes

UNROLL = 2  # steps of products
KEYS_PER_STEP = 8  # of values that are read in place, if a block of the cache is a multiple of it
FEWEST_SUMS = 8  # registers that hide the latency of multiply-adds

FetchVectors = Callable[[list[Statement]], Sequence[Code]]


class _Products(ChunkSoftmax):
    """Both products of a chunk; subclasses provide the vectors of keys and values."""

    def process_chunk(self, start: Dim) -> Body:
        panel = self.builder.variable("panel")
        view, columns = self.view_keys(start, panel)
        multiply = [
            self.loop_over_tiles(tiles, lambda rows: self.multiply_panel(rows, start, panel, columns))
            for tiles in self.tiles
        ]
        count = dims.minimum(self.keys - start, KEY_CHUNK)
        panels = self.guard_block(start + panel * self.panel, (*view, *multiply))
        body: Body = (
            repeat(panel, 0, dims.ceildiv(count, self.panel), 1, panels),
            *(self.loop_over_tiles(tiles, lambda rows: self.add_chunk(rows, start)) for tiles in self.tiles),
        )
        if self.block_begin is not None:
            body = (When(Call("less", (self.block_begin, Integer(start + KEY_CHUNK)), DType.bool), body),)
        return self.guard_block(start, body)

    def guard_block(self, key: Dim, body: Body) -> Body:
        """Run the body only if any row of the block sees a key, as far as that depends on data."""
        return body if self.block_end is None else KeyChunk(0, 0, self.block_end).guard(key, body)

    def multiply_panel(self, rows: TileRows, start: Dim, panel: Dim, columns: Buffer) -> Body:
        """Multiply the queries of a tile with a panel of keys, into its scores."""

        def multiply(keys: KeyChunk) -> Body:
            depth = self.attention.depth // self.per_word
            k = self.builder.variable("k")
            totals = [self.builder.registers(f"a{v}_", rows.height, FLOAT) for v in range(VECTORS)]
            first = panel * self.panel
            elements = [fetch(rows.query_words, row * depth + k) for row in range(rows.height)]

            def fetch_columns(_: list[Statement]) -> list[Code]:
                return [fetch(columns, k * self.panel + v * self.lanes + lane(self.lanes)) for v in range(VECTORS)]

            body: Body = (
                *(define(total, float32(0.0)) for vector in totals for total in vector),
                repeat(k, 0, depth, 1, self.accumulate_step(elements, fetch_columns, totals), UNROLL),
                *(
                    put(rows.scores, row * SCORE_ROW + first + v * self.lanes + lane(self.lanes), total)
                    for v, vector in enumerate(totals)
                    for row, total in enumerate(vector)
                ),
            )
            body = keys.guard(first, body)
            return (When(less(first, keys.count), body),) if self.attention.causal_bounds else body

        return self.when_visible(rows, start, multiply)

    def add_chunk(self, rows: TileRows, start: Dim) -> Body:
        """Turn a tile's products with a chunk of keys into weights, and add the chunk's weighted values."""

        def add(keys: KeyChunk) -> Body:
            return (
                self.loop_over_rows(rows, lambda number: self.find_row_maximum(rows, keys, number)),
                *self.update_largest(rows),
                self.loop_over_rows(rows, lambda number: self.compute_weights(rows, keys, number)),
                *self.add_totals(rows),
                *self.multiply_values(rows, keys),
            )

        return self.when_visible(rows, start, add)

    def accumulate_step(
        self, elements: Sequence[Code], fetch_vectors: FetchVectors, totals: Sequence[Sequence[Register]]
    ) -> Body:
        """Add each row's element times vectors to the row's totals."""
        statements: list[Statement] = []
        vectors: list[Register] = []
        for code in fetch_vectors(statements):
            defined, vector = self.builder.keep("b", code)
            statements.append(defined)
            vectors.append(vector)
        words = PAIRS if self.per_word > 1 else ""
        for row, element in enumerate(elements):
            for vector, sums in zip(vectors, totals):
                added = accumulate(words, self.target, element, vector, sums[row])
                statements.append(assign(sums[row], added))
        return tuple(statements)

    def merge_sums(self, rows: TileRows, column: Dim, totals: Sequence[Sequence[Register]]) -> list[Statement]:
        """Merge a chunk's sums of vectors from `column` on into those of the tile."""
        statements: list[Statement] = []
        for row in range(rows.height):
            for v, sums in enumerate(totals):
                at = row * self.width + column + v * self.lanes + lane(self.lanes)
                merged = self.merge(fetch(rows.sum, at), fetch(self.factors, row), sums[row], fetch(self.scales, row))
                statements.append(put(rows.sum, at, merged))
        return statements

    def view_keys(self, start: Dim, panel: Dim) -> tuple[Body, Buffer]:
        """Return a panel of keys [depth, lanes of all vectors], and the statements that bring it there."""
        raise NotImplementedError

    def multiply_values(self, rows: TileRows, keys: KeyChunk) -> Body:
        raise NotImplementedError


class _PackedAttention(_Products):
    def __init__(
        self,
        attention: Attention,
        operands: tuple[StoredTensor, ...],
        keys: StoredTensor,
        values: StoredTensor,
        result: StoredTensor,
        target: VectorTarget,
    ) -> None:
        super().__init__(attention, operands, result, target, in_place=False, pairs=keys.dtype is WORDS)
        self.packed_keys, self.packed_values = keys, values
        before = self.next_operand
        self.key_buffer = self.builder.input("keys", keys.dtype, Reference("operand", before))
        self.value_buffer = self.builder.input("values", values.dtype, Reference("operand", before + 1))

    def head(self, name: str, element: Scalar, packed: StoredTensor) -> Dim:
        """Return which of the packed heads a block reads."""
        place: Dim = 0
        for number, axis in enumerate(outer_axes(element, self.last)):
            place = place * self.builder.parameter(f"{name}{number}", packed.shape[number]) + self.blocks[axis]
        return place

    def view_keys(self, start: Dim, panel: Dim) -> tuple[Body, Buffer]:
        head = self.head("keys", self.attention.key, self.packed_keys)
        panels = self.builder.parameter("key_panels", self.packed_keys.shape[-3])
        place = head * panels + dims.floordiv(start, self.panel) + panel
        words = self.attention.depth // self.per_word
        view, columns = self.builder.view("columns", self.key_buffer, place * (words * self.panel))
        return (view,), columns

    def multiply_values(self, rows: TileRows, keys: KeyChunk) -> Body:
        head = self.head("values", self.attention.value, self.packed_values)
        panel, k = self.builder.variable("panel"), self.builder.variable("k")
        steps = self.builder.parameter("value_steps", self.packed_values.shape[-2])
        panels = self.width // self.panel
        start = (head * panels + panel) * steps + dims.floordiv(keys.start, self.per_word)
        view, columns = self.builder.view("columns", self.value_buffer, start * self.panel)
        body: list[Statement] = [view]
        weights = rows.weights
        if self.per_word > 1:
            words_view, weights = self.builder.view("weight_words", weights, 0, WORDS)
            body.append(words_view)
        totals = [self.builder.registers(f"a{v}_", rows.height, FLOAT) for v in range(VECTORS)]
        body += [define(total, float32(0.0)) for vector in totals for total in vector]
        elements = [fetch(weights, row * (SCORE_ROW // self.per_word) + k) for row in range(rows.height)]

        def fetch_columns(_: list[Statement]) -> list[Code]:
            return [fetch(columns, k * self.panel + v * self.lanes + lane(self.lanes)) for v in range(VECTORS)]

        added = self.accumulate_step(elements, fetch_columns, totals)
        body.append(repeat(k, 0, dims.ceildiv(keys.count, self.per_word), 1, added, UNROLL))
        body += self.merge_sums(rows, panel * self.panel, totals)
        return (repeat(panel, 0, panels, 1, body),)


class _PagedAttention(_Products):
    """Transposes keys in registers, a panel at a time; rows of values are vectors as they are."""

    def __init__(
        self, attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: VectorTarget
    ) -> None:
        super().__init__(attention, operands, result, target, in_place=True, pairs=False)
        self.key, self.value = self.key_value
        self.part_sums = self.builder.output("part_sums", FLOAT, SUMS)
        self.part_statistics = self.builder.output("part_statistics", FLOAT, STATISTICS)
        self.columns = self.builder.local("columns", FLOAT, attention.depth * self.panel)
        assert attention.block_size is not None
        self.block_size = attention.block_size

    def save(self, rows: TileRows, head: Dim, split: Dim) -> Body:
        every = self.builder.parameter("every_row", self.heads * self.axes.count)
        first = split * every + head * self.row_count + rows.row

        def save_row(number: Dim) -> Body:
            column = self.builder.variable("c")
            place = (first + number) * self.width + column + lane(self.lanes)
            copied = put(self.part_sums, place, fetch(rows.sum, number * self.width + column + lane(self.lanes)))
            body: Body = (
                put(self.part_statistics, 2 * (first + number), fetch(rows.largest, number)),
                put(self.part_statistics, 2 * (first + number) + 1, fetch(rows.total, number)),
                repeat(column, 0, self.width, self.lanes, (copied,)),
            )
            return body if self.is_exact else (When(less(rows.row + number, self.row_count), body),)

        return (self.loop_over_rows(rows, save_row),)

    # -- keys --------------------------------------------------------------------------------------------------------

    def head_places(self) -> dict[int, Dim]:
        return {axis: self.axes.position(axis, at, 0) for axis, at in self.blocks.items()}

    def view_keys(self, start: Dim, panel: Dim) -> tuple[Body, Buffer]:
        part = self.builder.variable("part")
        first = start + panel * self.panel + part * self.lanes
        if _runs_along(self.key, self.operands, self.last + 1):
            body = self.transpose_keys(first, part)
        else:
            d = self.builder.variable("d")
            statements: list[Statement] = []
            places = {**self.head_places(), self.last: self.clamp(first + lane(self.lanes)), self.last + 1: d}
            code = self.lowering(places, statements).code(self.key)
            stored = put(self.columns, d * self.panel + part * self.lanes + lane(self.lanes), code)
            body = [repeat(d, 0, self.attention.depth, 1, (*statements, stored))]
        return (repeat(part, 0, VECTORS, 1, body),), self.columns

    def clamp(self, key: Dim) -> Dim:
        """Return a key that exists, in the cache if not in the sequence."""
        return key if self.block_size % self.lanes == 0 else dims.minimum(key, self.keys - 1)

    def transpose_keys(self, first: Dim, part: Dim) -> list[Statement]:
        """Copy as many keys as lanes, transposed."""
        depth = self.attention.depth
        whole = depth // self.lanes * self.lanes

        def transpose_square(start: int, stop: int, count: int) -> Statement:
            d = self.builder.variable("d")
            statements: list[Statement] = []
            position = d + lane(self.lanes)
            mask = less(position, depth) if count < self.lanes else None
            registers = self.builder.registers("x", self.lanes, FLOAT)
            for number, register in enumerate(registers):
                places = {**self.head_places(), self.last: self.clamp(first + number), self.last + 1: position}
                statements.append(define(register, self.lowering(places, statements, mask).code(self.key)))
            statements.append(transpose(registers))
            for number in range(count):
                at = (d + number) * self.panel + part * self.lanes + lane(self.lanes)
                statements.append(put(self.columns, at, registers[number]))
            return repeat(d, start, stop, self.lanes, statements)

        squares = [transpose_square(0, whole, self.lanes)] if whole else []
        return squares + ([transpose_square(whole, depth, depth - whole)] if whole < depth else [])

    # -- values ------------------------------------------------------------------------------------------------------

    def multiply_values(self, rows: TileRows, keys: KeyChunk) -> Body:
        vectors = max(VECTORS, FEWEST_SUMS // rows.height)
        full = self.attention.width // self.lanes
        rest = -(-self.attention.width // self.lanes) - full // vectors * vectors
        statements: list[Statement] = []
        if full >= vectors:
            group = self.builder.variable("group")
            body = self.multiply_columns(rows, keys, group * (vectors * self.lanes), vectors)
            statements.append(repeat(group, 0, full // vectors, 1, body))
        if rest:
            statements += self.multiply_columns(rows, keys, full // vectors * vectors * self.lanes, rest)
        return tuple(statements)

    def multiply_columns(self, rows: TileRows, keys: KeyChunk, column: Dim, vectors: int) -> list[Statement]:
        """Add a chunk's weighted values in some vectors of columns to the sums of a tile."""
        totals = [self.builder.registers(f"a{v}_", rows.height, FLOAT) for v in range(vectors)]
        step = min(KEYS_PER_STEP, self.lanes)  # the weights of a vector exist if that of its first key does
        step = step if self.block_size % step == 0 else 1
        group, k = self.builder.variable("group"), self.builder.variable("k")
        whole = dims.floordiv(keys.count, step)
        grouped = [part for n in range(step) for part in self.add_key(rows, keys, group * step + n, column, totals)]
        single = self.add_key(rows, keys, k, column, totals)
        return [
            *(define(total, float32(0.0)) for vector in totals for total in vector),
            repeat(group, 0, whole, 1, keys.guard(group * step, tuple(grouped))),
            repeat(k, whole * step, keys.count, 1, keys.guard(k, single)),
            *self.merge_sums(rows, column, totals),
        ]

    def add_key(
        self, rows: TileRows, keys: KeyChunk, key: Dim, column: Dim, totals: Sequence[Sequence[Register]]
    ) -> Body:
        elements = [fetch(rows.weights, row * SCORE_ROW + key) for row in range(rows.height)]

        def fetch_values(statements: list[Statement]) -> list[Code]:
            codes: list[Code] = []
            for v in range(len(totals)):
                position = column + v * self.lanes + lane(self.lanes)
                inside = dims.is_at_least(self.attention.width - 1, column + (v + 1) * self.lanes - 1)
                fits = inside or self.attention.width % self.lanes == 0 or v < len(totals) - 1
                mask = None if fits else less(position, self.attention.width)
                places = {**self.head_places(), self.last: keys.start + key, self.last + 1: position}
                codes.append(self.lowering(places, statements, mask).code(self.value))
            return codes

        return self.accumulate_step(elements, fetch_values, totals)


def _runs_along(expression: Scalar, operands: Sequence[StoredTensor], axis: int) -> bool:
    """Whether all loads that depend on an axis are contiguous along it."""
    for node in walk(expression):
        stride: Dim = 0
        match node:
            case FlatLoad(_, offset):
                stride = stride_along(offset, axis)
            case Load(operand, indices):
                for index, step in zip(indices, operands[operand].strides):
                    if isinstance(index, Index):
                        stride = stride + step * stride_along(index.value, axis)
                    elif axis in find_axes(index):
                        return False
            case _:
                continue
        if stride not in (0, 1):
            return False
    return True


build_packed_attention = memoize_launch(_PackedAttention)
build_paged_attention = memoize_launch(_PagedAttention)
