"""Products with lanes along the sums: for few rows or columns, where both operands have the sums as neighbours.

A block takes some rows; every row's vector of partial sums is combined across the lanes at the end, and the epilogue
is applied to single elements.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Put,
    Register,
    Repeat,
    Statement,
    block,
    lane,
    variable,
)
from weft.ir.scalar import loads
from weft.ir.target import Target
from weft.kernels.launch import Launch
from weft.kernels.layout import offset
from weft.kernels.lowering import Lowering
from weft.kernels.merge import flatten_loads, operand_views
from weft.kernels.parameters import Parameters
from weft.kernels.tiles import BLOCK_WORK, Product, Walk, accumulator_type, merge_walks, split_index

HEIGHT = 8  # rows at a time


def dot_kernel(
    name: str, product: Product, grid: tuple[Walk, ...], columns: tuple[Walk, ...], lanes: int, target: Target
) -> Launch:
    """Buffers as `product_kernel`'s; the grid and the columns are given apart, with strides into both operands."""
    return _Builder(name, product, grid, columns, lanes, target).launch()


class _Builder:
    def __init__(
        self, name: str, product: Product, grid: tuple[Walk, ...], columns: tuple[Walk, ...], lanes: int, target: Target
    ) -> None:
        self.name, self.product, self.grid, self.columns = name, product, grid, columns
        self.lanes, self.target = lanes, target
        self.type = accumulator_type(product.left)
        self.parameters = Parameters()
        self.sums = merge_walks(product.sums, product.result, None, 0)
        self.operands = (product.result, *(product.epilogue.operands if product.epilogue else ()))
        expression = product.epilogue.expression if product.epilogue else None
        self.expression = None if expression is None else flatten_loads(expression, self.operands)
        self.spans = (*grid, *columns, *product.rows)

    def launch(self) -> Launch:
        size = self.parameters.size
        rows = dims.product(span.size for span in self.product.rows)
        depth = dims.product(span.size for span in self.sums)
        wanted = dims.maximum(dims.floordiv(BLOCK_WORK, 16 * depth + 1), HEIGHT)
        each = dims.minimum(wanted, dims.maximum(rows, 1))
        chunks = dims.ceildiv(rows, each)
        outer = [*self.grid, *self.columns]
        places = split_index(block(), [*(size(span.size) for span in outer), size(chunks)])
        statements: list[Statement] = []
        for number, place in enumerate(places):
            statements.append(Let(f"g{number}", place))
        first = variable(f"g{len(outer)}") * size(each)
        end = dims.minimum(first + size(each), size(rows))
        middle = first + dims.floordiv(end - first, HEIGHT) * HEIGHT
        statements.append(Repeat("row", first, middle, HEIGHT, self.rows(HEIGHT)))
        statements.append(Repeat("row", middle, end, 1, self.rows(1)))
        buffers = [Buffer("left", self.product.left, False), Buffer("right", self.product.right, False)]
        buffers += [Buffer(f"in{n}", t.dtype, False) for n, t in enumerate(self.operands) if n]
        buffers.append(Buffer("out", self.product.result.dtype, True))
        kernel = Kernel(self.name, tuple(buffers), tuple(self.parameters.values), self.lanes, tuple(statements))
        blocks = dims.product(span.size for span in outer) * chunks
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def rows(self, height: int) -> tuple[Statement, ...]:
        """Some rows' products with one column."""
        size = self.parameters.size
        outer = [variable(f"g{number}") for number in range(len(self.grid) + len(self.columns))]
        sizes = [size(span.size) for span in self.product.rows]
        places = [[*outer, *split_index(variable("row") + number, sizes)] for number in range(height)]
        lefts = [size(span.left) for span in self.spans]
        statements: list[Statement] = [
            Let("right", offset([size(span.right) for span in self.spans], [*outer, *([0] * len(sizes))]))
        ]
        for number, place in enumerate(places):
            statements.append(Let(f"left{number}", offset(lefts, place)))
            statements.append(Define(f"sum{number}", Number(0, self.type), True))
        statements.extend(self.reduce(height))
        for number, place in enumerate(places):
            statements.append(Define(f"dot{number}", Across("sum", Register(f"sum{number}", self.type, True)), False))
            statements.append(self.write(Register(f"dot{number}", self.type, False), place))
        return tuple(statements)

    def reduce(self, height: int) -> tuple[Statement, ...]:
        size = self.parameters.size
        last = len(self.sums) - 1
        places: list[Dim] = [variable(f"k{number}") for number in range(last)]
        position = variable(f"k{last}") + lane(self.lanes)
        left = offset([size(span.left) for span in self.sums], [*places, position])
        right = offset([size(span.right) for span in self.sums], [*places, position])
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
        vector = self.widened(Fetch("right", variable("right") + right, self.product.right, mask=mask))
        statements: list[Statement] = [Define("b", vector, True)]
        for number in range(height):
            place = variable(f"left{number}") + left
            element = self.widened(Fetch("left", place, self.product.left, mask=mask))
            total = Register(f"sum{number}", self.type, True)
            product = (element, Register("b", self.type, True))
            if self.type.is_float and not self.target.fused_multiply_add:
                value = Call("add", (Call("multiply", product, self.type), total), self.type)
            else:
                value = Call("fma", (*product, total), self.type)
            statements.append(Assign(total.name, value))
        return tuple(statements)

    def widened(self, code: Code) -> Code:
        return code if code.dtype is self.type else Call("cast", (code,), self.type)

    def write(self, value: Code, place: Sequence[Dim]) -> Statement:
        size = self.parameters.size
        axes: dict[int, Dim] = dict.fromkeys(range(len(self.product.result.shape)), 0)
        for span, at in zip(self.spans, place):
            if span.axis is not None:
                axes[span.axis] = at
        value = self.narrowed(value)
        if self.expression is not None:
            views = operand_views(self.operands, self.parameters)
            replace = {0: value, len(self.operands): value}
            value = Lowering(views, axes, self.parameters, replace).code(self.expression)
        strides = [size(stride) for stride in self.product.result.strides]
        return Put("out", offset(strides, list(axes.values())), value)

    def narrowed(self, value: Code) -> Code:
        own = {len(self.operands), 0}
        taken = [load.dtype for load in loads(self.expression) if load.operand in own] if self.expression else []
        dtype = taken[0] if taken else self.product.result.dtype if self.expression is None else self.type
        return value if value.dtype is dtype else Call("cast", (value,), dtype)
