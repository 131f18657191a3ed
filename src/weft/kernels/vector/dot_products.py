"""Products with lanes along the sums: for few rows or columns, where both operands have the sums as neighbours.

A block takes some rows; every row's vector of partial sums is combined across the lanes at the end, and the epilogue
is applied to single elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.blocks import BLOCK_WORK
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Register,
    Repeat,
    Statement,
    block,
    lane,
    variable,
)
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes, split_index
from weft.kernels.build.multiply_add import accumulate, accumulator_type, widened
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch
from weft.kernels.vector.blocking import even_part
from weft.kernels.vector.register_tiles import Product

HEIGHT = 8  # rows at a time


@memoized
def dot_kernel(
    name: str,
    product: Product,
    grid: tuple[LoopAxis, ...],
    columns: tuple[LoopAxis, ...],
    lanes: int,
    target: VectorTarget,
) -> Launch:
    """Buffers as `product_kernel`'s; the grid and the columns are given apart, with strides into both operands."""
    return _Builder(name, product, grid, columns, lanes, target).launch()


class _Builder:
    def __init__(
        self,
        name: str,
        product: Product,
        grid: tuple[LoopAxis, ...],
        columns: tuple[LoopAxis, ...],
        lanes: int,
        target: VectorTarget,
    ) -> None:
        self.name, self.product, self.grid, self.columns = name, product, grid, columns
        self.lanes, self.target = lanes, target
        self.type = accumulator_type(product.left)
        self.parameters = Parameters()
        self.sums = merge_loop_axes(product.sums)
        self.epilogue_writer = EpilogueWriter(product.result, product.epilogue, self.parameters)
        self.loop_axes = (*grid, *columns, *product.rows)

    def launch(self) -> Launch:
        size = self.parameters.size
        rows = dims.product(loop_axis.size for loop_axis in self.product.rows)
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        wanted = dims.maximum(dims.floordiv(BLOCK_WORK, 16 * depth + 1), HEIGHT)
        each = even_part(rows, wanted)
        chunks = dims.ceildiv(rows, each)
        outer = [*self.grid, *self.columns]
        places = split_index(block(), [*(size(loop_axis.size) for loop_axis in outer), size(chunks)])
        statements: list[Statement] = []
        for number, place in enumerate(places):
            statements.append(Let(f"g{number}", place))
        first = variable(f"g{len(outer)}") * size(each)
        end = dims.minimum(first + size(each), size(rows))
        middle = first + dims.floordiv(end - first, HEIGHT) * HEIGHT
        statements.append(Repeat("row", first, middle, HEIGHT, self.rows(HEIGHT)))
        statements.append(Repeat("row", middle, end, 1, self.rows(1)))
        buffers = [Buffer("left", self.product.left, False), Buffer("right", self.product.right, False)]
        buffers += self.epilogue_writer.buffers
        kernel = Kernel(self.name, tuple(buffers), tuple(self.parameters.values), self.lanes, tuple(statements))
        blocks = dims.product(loop_axis.size for loop_axis in outer) * chunks
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def rows(self, height: int) -> tuple[Statement, ...]:
        """Some rows' products with one column."""
        size = self.parameters.size
        outer = [variable(f"g{number}") for number in range(len(self.grid) + len(self.columns))]
        sizes = [size(loop_axis.size) for loop_axis in self.product.rows]
        places = [[*outer, *split_index(variable("row") + number, sizes)] for number in range(height)]
        lefts = [size(loop_axis.left) for loop_axis in self.loop_axes]
        statements: list[Statement] = [
            Let("right", offset([size(loop_axis.right) for loop_axis in self.loop_axes], [*outer, *([0] * len(sizes))]))
        ]
        for number, place in enumerate(places):
            statements.append(Let(f"left{number}", offset(lefts, place)))
            statements.append(Define(f"sum{number}", Number(0, self.type), True))
        statements.extend(self.reduce(height))
        for number, place in enumerate(places):
            statements.append(Define(f"dot{number}", Across("sum", Register(f"sum{number}", self.type, True)), False))
            statements.extend(self.write(Register(f"dot{number}", self.type, False), place, f"t{number}_"))
        return tuple(statements)

    def reduce(self, height: int) -> tuple[Statement, ...]:
        size = self.parameters.size
        last = len(self.sums) - 1
        places: list[Dim] = [variable(f"k{number}") for number in range(last)]
        position = variable(f"k{last}") + lane(self.lanes)
        left = offset([size(loop_axis.left) for loop_axis in self.sums], [*places, position])
        right = offset([size(loop_axis.right) for loop_axis in self.sums], [*places, position])
        count = size(self.sums[-1].size)
        end = dims.floordiv(count, self.lanes) * self.lanes
        mask = Call("less", (Integer(position), Integer(count)), DType.bool)
        whole = self.multiply(height, left, right, None)
        part = self.multiply(height, left, right, mask)
        body: tuple[Statement, ...] = (
            Repeat(f"k{last}", 0, end, self.lanes, whole, unroll=2),
            Repeat(f"k{last}", end, count, self.lanes, part),
        )
        for number in reversed(range(last)):
            body = (Repeat(f"k{number}", 0, size(self.sums[number].size), 1, body),)
        return body

    def multiply(self, height: int, left: Dim, right: Dim, mask: Code | None) -> tuple[Statement, ...]:
        vector = widened(Fetch("right", variable("right") + right, self.product.right, mask=mask), self.type)
        statements: list[Statement] = [Define("b", vector, True)]
        for number in range(height):
            place = variable(f"left{number}") + left
            element = widened(Fetch("left", place, self.product.left, mask=mask), self.type)
            total = Register(f"sum{number}", self.type, True)
            column = Register("b", self.type, True)
            statements.append(
                Assign(total.name, accumulate(self.product.unsigned, self.target, element, column, total))
            )
        return tuple(statements)

    def write(self, value: Code, place: Sequence[Dim], prefix: str) -> tuple[Statement, ...]:
        axes = {loop_axis.axis: at for loop_axis, at in zip(self.loop_axes, place) if loop_axis.axis is not None}
        return self.epilogue_writer.write(value, axes, prefix=prefix)
