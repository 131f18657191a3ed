"""Products with lanes along the sums: for few rows or columns, if the sums are contiguous in both operands.

A block computes some rows; every row's vector of partial sums is combined across lanes at the end, and the epilogue is
applied to single elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.blocks import BLOCK_WORK
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Across, Code, Number, Register, Statement, block, lane
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes, unravel_index
from weft.kernels.build.multiply_add import accumulate, convert_factor, sum_dtype
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import LEFT, RIGHT, Launch
from weft.kernels.vector.blocking import choose_part_size
from weft.kernels.vector.register_tiles import TiledProduct

MAX_ROWS = 8  # rows at a time


class _Builder:
    """Operands are those of `build_product_kernel`; grid and columns have strides into both."""

    def __init__(
        self,
        name: str,
        product: TiledProduct,
        grid: tuple[LoopAxis, ...],
        columns: tuple[LoopAxis, ...],
        lanes: int,
        target: VectorTarget,
    ) -> None:
        self.product, self.grid, self.columns = product, grid, columns
        self.lanes, self.target = lanes, target
        self.type = sum_dtype(product.words, product.left)
        self.builder = KernelBuilder(name)
        self.sums = merge_loop_axes(product.sums)
        self.left = self.builder.input("left", product.left, LEFT)
        self.right = self.builder.input("right", product.right, RIGHT)
        self.epilogue_writer = EpilogueWriter(product.result, product.epilogue, self.builder, 2)
        self.loop_axes = (*grid, *columns, *product.rows)

    def build_launch(self) -> Launch:
        size = self.builder.size
        rows = dims.product(loop_axis.size for loop_axis in self.product.rows)
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        each = choose_part_size(rows, dims.maximum(dims.floordiv(BLOCK_WORK, 16 * depth + 1), MAX_ROWS))
        chunks = dims.ceildiv(rows, each)
        outer = [*self.grid, *self.columns]
        places = unravel_index(block(), [*(size(loop_axis.size) for loop_axis in outer), size(chunks)])
        *self.outer, chunk = names = self.builder.variables("g", len(places))
        statements: list[Statement] = [let(name, place) for name, place in zip(names, places)]
        first = chunk * size(each)
        end = dims.minimum(first + size(each), size(rows))
        middle = first + dims.floordiv(end - first, MAX_ROWS) * MAX_ROWS
        statements += [self.rows(first, middle, MAX_ROWS), self.rows(middle, end, 1)]
        blocks = dims.product(loop_axis.size for loop_axis in outer) * chunks
        return self.builder.launch(self.lanes, statements, blocks)

    def rows(self, first: Dim, end: Dim, height: int) -> Statement:
        """Multiply rows with one column, `height` rows at a time."""
        size = self.builder.size
        row = self.builder.variable("row")
        sizes = [size(loop_axis.size) for loop_axis in self.product.rows]
        places = [[*self.outer, *unravel_index(row + number, sizes)] for number in range(height)]
        lefts = [size(loop_axis.left) for loop_axis in self.loop_axes]
        rights = [size(loop_axis.right) for loop_axis in self.loop_axes]
        begin, right = self.builder.let("right", offset(rights, [*self.outer, *([0] * len(sizes))]))
        base = self.builder.parameter("left_start", self.product.left_start) if self.product.left_start != 0 else 0
        statements: list[Statement] = [begin]
        starts = self.builder.variables("left", height)
        sums = self.builder.registers("sum", height, self.type)
        for start, total, place in zip(starts, sums, places):
            statements += [let(start, base + offset(lefts, place)), define(total, Number(0, self.type))]
        statements.extend(self.reduce(starts, right, sums))
        for total, place in zip(sums, places):
            defined, dot = self.builder.keep("dot", Across("sum", total))
            statements += [defined, *self.write(dot, place)]
        return repeat(row, first, end, height, statements)

    def reduce(self, starts: Sequence[Dim], start: Dim, sums: Sequence[Register]) -> tuple[Statement, ...]:
        """Sum the products of the rows that start at `starts` with the column that starts at `start`."""
        size = self.builder.size
        *places, last = self.builder.variables("k", len(self.sums))
        position = last + lane(self.lanes)
        left = offset([size(loop_axis.left) for loop_axis in self.sums], [*places, position])
        right = offset([size(loop_axis.right) for loop_axis in self.sums], [*places, position])
        count = size(self.sums[-1].size)
        end = dims.floordiv(count, self.lanes) * self.lanes
        mask = less(position, count)

        def multiply(mask: Code | None) -> list[Statement]:
            vector = convert_factor(self.product.words, fetch(self.right, start + right, mask=mask), self.type)
            defined, column = self.builder.keep("b", vector)
            statements: list[Statement] = [defined]
            for row, total in zip(starts, sums):
                element = convert_factor(self.product.words, fetch(self.left, row + left, mask=mask), self.type)
                added = accumulate(self.product.words, self.target, element, column, total)
                statements.append(assign(total, added))
            return statements

        body: tuple[Statement, ...] = (
            repeat(last, 0, end, self.lanes, multiply(None), unroll=2),
            repeat(last, end, count, self.lanes, multiply(mask)),
        )
        for place, loop_axis in reversed(list(zip(places, self.sums))):
            body = (repeat(place, 0, size(loop_axis.size), 1, body),)
        return body

    def write(self, value: Code, place: Sequence[Dim]) -> tuple[Statement, ...]:
        axes = {
            axis: self.builder.parameter(f"start{axis}", start) for axis, start in self.product.result_start.items()
        }
        for loop_axis, at in zip(self.loop_axes, place):
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * at
        return self.epilogue_writer.write(value, axes)


build_dot_kernel = memoize_launch(_Builder)
