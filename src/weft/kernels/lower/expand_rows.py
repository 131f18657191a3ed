"""Expand products of rows in registers into plain statements (see expand_tiles.py).

Lanes exchange registers through a local buffer of float32. Elements of tiles come from a function.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    ACROSS_FUNCTIONS,
    Assign,
    Barrier,
    Call,
    Code,
    Define,
    Fetch,
    Put,
    Register,
    Repeat,
    Statement,
)
from weft.ir.row_products import MultiplyRows, ReduceRows
from weft.kernels.lower.operations import cast

EXCHANGE = "tile_exchange"  # the local buffer
_F32 = DType.float32
_WARP, _QUAD = 32, 4


def count_exchanged(statement: MultiplyRows | ReduceRows, lanes: int) -> int:
    """Return the elements of the local buffer that a statement takes."""
    match statement:
        case MultiplyRows(left=str()):
            return 0
        case MultiplyRows(left=left):
            return len(left) * lanes
        case ReduceRows(registers):
            return len(registers) * lanes


def place_of(number: int, lanes: int) -> tuple[Dim, Dim]:
    """Return the row and the column of a lane's register."""
    here = ir.lane(lanes)
    within = dims.mod(here, _WARP)
    fragment, part = divmod(number, 4)
    row = 16 * dims.floordiv(here, _WARP) + dims.floordiv(within, _QUAD) + part // 2 * 8
    return row, fragment * 8 + 2 * dims.mod(within, _QUAD) + part % 2


def expand_reduction(statement: ReduceRows, lanes: int) -> list[Statement]:
    """Combine the registers of four lanes in the order of butterfly exchanges."""
    here = ir.lane(lanes)
    first = here - dims.mod(here, _QUAD)
    statements: list[Statement] = [Barrier()]
    for number, name in enumerate(statement.registers):
        statements.append(Put(EXCHANGE, number * lanes + here, Register(name, _F32, True)))
    statements.append(Barrier())
    function = ACROSS_FUNCTIONS[statement.kind]
    for number, name in enumerate(statement.registers):
        values = [Fetch(EXCHANGE, number * lanes + first + lane, _F32) for lane in range(_QUAD)]
        pairs = [Call(function, (values[lane], values[lane + 2]), _F32) for lane in range(2)]
        statements.append(Assign(name, Call(function, tuple(pairs), _F32)))
    return statements


def expand_rows(
    statement: MultiplyRows,
    lanes: int,
    depth: int,
    element: DType,
    read: Callable[[str, Dim, Dim], Code],
    name: Callable[[str], str],
) -> list[Statement]:
    """Add the products of each lane's elements; `read` fetches an element of a tile with columns of type `element`."""
    variable = name("depth")
    at = ir.variable(variable, 0, depth - 1)
    statements: list[Statement] = []
    if not isinstance(statement.left, str):
        statements.append(Barrier())
        for number, register in enumerate(statement.left):
            row, column = place_of(number, lanes)
            rounded = cast(cast(Register(register, _F32, True), element), _F32)
            statements.append(Put(EXCHANGE, row * depth + column, rounded))
        statements.append(Barrier())
    body: list[Statement] = []
    registers: dict[Code, Register] = {}

    def load(code: Code) -> Register:
        if code not in registers:
            registers[code] = Register(name("element"), _F32, True)
            body.append(Define(registers[code].name, code, True))
        return registers[code]

    for number, total in enumerate(statement.sums):
        row, column = place_of(number, lanes)
        left = statement.left
        one = read(left, row, at) if isinstance(left, str) else Fetch(EXCHANGE, row * depth + at, _F32)
        values = load(one), load(read(statement.right, column, at))
        body.append(Assign(total, Call("fma", (*values, Register(total, _F32, True)), _F32)))
    return [*statements, Repeat(variable, 0, depth, 1, tuple(body))]
