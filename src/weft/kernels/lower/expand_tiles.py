"""Expand tile products into plain statements: Kernel -> Kernel, for devices without them and as their reference.

A tile is a plain local buffer of one stage with its lines one after another. Sums are registers: lane l has the
elements l, l + lanes, l + 2 * lanes, ... of the [rows, columns]. A pipeline is a loop with barriers. Fragments are
exchanged through a local buffer (see `expand_fragments.py`).
"""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InternalError
from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    AddSums,
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    FetchRun,
    Kernel,
    MoveRun,
    MultiplyFragments,
    MultiplyTiles,
    Number,
    Put,
    PutRun,
    PutSums,
    PutTile,
    Register,
    Repeat,
    ScaleSums,
    Statement,
    Sums,
    TileForm,
    TilePipeline,
    View,
    When,
)
from weft.ir.row_products import MultiplyRows, ReduceRows
from weft.kernels.lower.expand_fragments import WORDS, count_words, expand_pairs, expand_product
from weft.kernels.lower.expand_rows import EXCHANGE, count_exchanged, expand_reduction, expand_rows
from weft.kernels.lower.operations import cast, less

_TF32_MASK = ~0x1FFF  # the bits of a float32 that tf32 keeps


def expand_tiles(kernel: Kernel) -> Kernel:
    """Replace the tile statements of a kernel; `insert_barriers` still has to run on the result."""
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    expansion = _Expansion(kernel.lanes, buffers)
    body = expansion.body(kernel.body)
    plain = tuple(replace(buffer, tile=None, late=False) for buffer in kernel.buffers)
    if expansion.words:
        plain = (*plain, Buffer(WORDS, DType.int32, True, expansion.words))
    if expansion.exchanged:
        plain = (*plain, Buffer(EXCHANGE, DType.float32, True, expansion.exchanged))
    return kernel if body == kernel.body and plain == kernel.buffers else replace(kernel, buffers=plain, body=body)


class _Expansion:
    def __init__(self, lanes: int, buffers: dict[str, Buffer]) -> None:
        self.lanes = lanes
        self.buffers = buffers  # views included
        self.sums: dict[str, Sums] = {}
        self.used = 0  # number of names
        self.words = 0  # of the local buffer for fragments
        self.exchanged = 0  # elements of the local buffer for rows

    def body(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(plain for statement in statements for plain in self.statement(statement))

    def statement(self, statement: Statement) -> list[Statement]:
        match statement:
            case Sums(name, dtype=dtype):
                self.sums[name] = statement
                zero = Number(0.0 if dtype.is_float else 0, dtype)
                return [Define(register.name, zero, True) for register in self.registers(name)]
            case MultiplyTiles(name, left, right):
                return [self.product(name, left, right)]
            case MultiplyFragments():
                self.words = max(self.words, self.lanes * count_words(statement))
                return expand_product(statement, self.lanes, self.name)
            case MultiplyRows(right=right):
                self.exchanged = max(self.exchanged, count_exchanged(statement, self.lanes))
                depth, element = self.form(right).depth, self.buffers[right].dtype
                return expand_rows(statement, self.lanes, depth, element, self.read_element, self.name)
            case ReduceRows():
                self.exchanged = max(self.exchanged, count_exchanged(statement, self.lanes))
                return expand_reduction(statement, self.lanes)
            case Define(value=value) | Assign(value=value):
                return [replace(statement, value=expand_pairs(value))]
            case AddSums(name, other):
                pairs = zip(self.registers(name), self.registers(other), strict=True)
                return [Assign(to.name, Call("add", (to, added), to.dtype)) for to, added in pairs]
            case ScaleSums(name, buffer, offset):
                return [self.scale(element_position, *self.element_position(name, n), buffer, offset)
                        for n, element_position in enumerate(self.registers(name))]  # fmt: skip
            case PutSums():
                return self.put_sums(statement)
            case MoveRun(tile, line, first, count, buffer, offset, mask):
                dtype = self.buffers[buffer].dtype
                names = tuple(self.name("moved") for _ in range(count))
                values = tuple(Register(name, dtype, True) for name in names)
                return [FetchRun(names, buffer, offset, dtype, mask), self.put_line(tile, line, first, values, None)]
            case PutTile(tile, line, first, values, mask):
                return [self.put_line(tile, line, first, values, mask)]
            case TilePipeline():
                stage = (*statement.moves, *statement.fetches, *statement.puts)
                iteration = (*self.body(stage), Barrier(), *self.body(statement.body), Barrier())
                return [Barrier(), Repeat(statement.variable, statement.start, statement.stop, 1, iteration)]
            case Repeat():
                return [replace(statement, body=self.body(statement.body))]
            case When(condition, then, otherwise):
                return [When(condition, self.body(then), self.body(otherwise))]
            case View(name, buffer):
                self.buffers[name] = self.buffers[buffer]
                return [statement]
            case _:
                return [statement]

    def name(self, kind: str) -> str:
        self.used += 1
        return f"tile_{kind}_{self.used}"

    # -- tiles -------------------------------------------------------------------------------------------------------

    def form(self, tile: str) -> TileForm:
        form = self.buffers[tile].tile
        if form is None:
            raise InternalError(f"buffer {tile} is not a tile")
        return form

    def put_line(self, tile: str, line: Dim, first: Dim, values: tuple[Code, ...], mask: Code | None) -> Statement:
        return PutRun(tile, line * self.form(tile).line_length + first, values, mask)

    def read_element(self, tile: str, row: Dim, depth: Dim) -> Code:
        return self.element(tile, row, depth, DType.float32)

    def element(self, tile: str, row: Dim, depth: Dim, dtype: DType) -> Code:
        """Fetch an element in the dtype of the sums; float32 is truncated to tf32."""
        form, source = self.form(tile), self.buffers[tile].dtype
        offset = depth * form.rows + row if form.transposed else row * form.depth + depth
        element = Fetch(tile, offset, source)
        if source is DType.float32:
            bits = Call("bitcast", (element,), DType.int32)
            return Call("bitcast", (Call("bit_and", (bits, Number(_TF32_MASK, DType.int32)), DType.int32),), source)
        return cast(element, dtype)

    # -- sums --------------------------------------------------------------------------------------------------------

    def registers(self, name: str) -> list[Register]:
        sums = self.sums[name]
        count = -(-sums.rows * sums.columns // self.lanes)
        return [Register(f"{name}_{number}", sums.dtype, True) for number in range(count)]

    def element_position(self, name: str, number: int) -> tuple[Dim, Dim]:
        """Return the row and column of a lane's element; lanes beyond the end share the last."""
        sums = self.sums[name]
        element: Dim = ir.lane(self.lanes) + number * self.lanes
        if (number + 1) * self.lanes > sums.rows * sums.columns:
            element = dims.minimum(element, sums.rows * sums.columns - 1)
        return dims.floordiv(element, sums.columns), dims.mod(element, sums.columns)

    def product(self, name: str, left: str, right: str) -> Statement:
        dtype, depth = self.sums[name].dtype, self.form(left).depth
        variable = self.name("depth")
        at = ir.variable(variable, 0, depth - 1)
        body: list[Statement] = []
        registers: dict[Code, Register] = {}

        def load(element: Code) -> Register:
            if element not in registers:
                registers[element] = Register(self.name("element"), dtype, True)
                body.append(Define(registers[element].name, element, True))
            return registers[element]

        for number, total in enumerate(self.registers(name)):
            row, column = self.element_position(name, number)
            operands = load(self.element(left, row, at, dtype)), load(self.element(right, column, at, dtype))
            if dtype.is_float:
                value = Call("fma", (*operands, total), dtype)
            else:
                value = Call("add", (Call("multiply", operands, dtype), total), dtype)
            body.append(Assign(total.name, value))
        return Repeat(variable, 0, depth, 1, tuple(body))

    def scale(self, total: Register, row: Dim, _: Dim, buffer: str, offset: Dim) -> Statement:
        factor = cast(Fetch(buffer, offset + row, self.buffers[buffer].dtype), total.dtype)
        return Assign(total.name, Call("multiply", (total, factor), total.dtype))

    def put_sums(self, put: PutSums) -> list[Statement]:
        sums, dtype = self.sums[put.sums], self.buffers[put.buffer].dtype
        puts: list[Statement] = []
        for number, total in enumerate(self.registers(put.sums)):
            row, column = self.element_position(put.sums, number)
            left = sums.rows * sums.columns - number * self.lanes
            mask = None
            if left < self.lanes:
                mask = less(ir.lane(self.lanes), left)
            puts.append(Put(put.buffer, put.offset + row * put.pitch + column, cast(total, dtype), mask=mask))
        return puts
