"""Verify the invariants of kernels before code is generated for them."""

from __future__ import annotations

from dataclasses import field, replace

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.half_weights import HALVES
from weft.ir.kernel import (
    BLOCK,
    LANE,
    AddSums,
    Assign,
    Buffer,
    Code,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Let,
    MoveRun,
    MultiplyFragments,
    MultiplyTiles,
    Prefetch,
    Put,
    PutRun,
    PutSums,
    PutTile,
    Register,
    Repeat,
    ScaleSums,
    Statement,
    Sums,
    TilePipeline,
    Transpose,
    View,
    When,
    dims_vary,
    indices,
    is_varying,
    statement_codes,
    walk_code,
)
from weft.ir.row_products import MultiplyRows, ReduceRows
from weft.records import dataclass

_MOVED_BYTES = 16  # of a MoveRun


def verify_kernel(kernel: Kernel) -> None:
    """Raise InternalError unless every name is introduced before its use and written buffers may be written."""
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    if len(buffers) != len(kernel.buffers):
        raise InternalError(f"kernel {kernel.name}: two buffers have the same name")
    for buffer in kernel.buffers:
        size = None if buffer.tile is None else buffer.tile.rows * buffer.tile.depth
        if size is not None and buffer.local_size != size:
            raise InternalError(f"kernel {kernel.name}: the tile {buffer.name} is not local memory of its size")
    _verify_body(kernel, kernel.body, _Scope(buffers, {*kernel.parameters, BLOCK, LANE}))


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that statements may use."""

    buffers: dict[str, Buffer]
    variables: set[str]
    registers: dict[str, bool] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    moving: bool = False  # inside the moves of a pipeline

    def inner(self, *variables: str) -> _Scope:
        return replace(
            self,
            buffers=dict(self.buffers),
            variables=self.variables | set(variables),
            registers=dict(self.registers),
            sums=dict(self.sums),
        )


def _verify_body(kernel: Kernel, body: tuple[Statement, ...], scope: _Scope) -> None:
    """Verify the statements of a body, and add what they introduce to the scope."""
    buffers, variables, registers = scope.buffers, scope.variables, scope.registers
    for statement in body:
        for index in indices(statement):
            _verify_index(kernel, index, variables)
        for code in statement_codes(statement):
            _verify_code(kernel, code, scope)
        match statement:
            case Define(name, value, varying):
                if is_varying(value) and not varying:
                    raise InternalError(f"kernel {kernel.name}: uniform register {name} has a varying value")
                registers[name] = varying
            case Assign(name, value):
                if name not in registers or (is_varying(value) and not registers[name]):
                    raise InternalError(
                        f"kernel {kernel.name}: register {name} is undefined, or uniform with a varying value"
                    )
            case Put(name) | PutRun(name):
                if name not in buffers or not (buffers[name].written or buffers[name].local_size is not None):
                    raise InternalError(f"kernel {kernel.name}: buffer {name} is undefined or read-only")
                _verify_plain(kernel, buffers[name])
            case FetchRun(names, name, _, dtype):
                if name not in buffers or buffers[name].dtype is not dtype:
                    raise InternalError(f"kernel {kernel.name}: no buffer {name} of {dtype}")
                _verify_plain(kernel, buffers[name])
                registers.update((register, True) for register in names)
            case Repeat(name, _, _, _, inner):
                _verify_body(kernel, inner, scope.inner(name))
            case When(condition, then, otherwise):
                if is_varying(condition):
                    raise InternalError(f"kernel {kernel.name}: a condition varies between lanes")
                _verify_body(kernel, then, scope.inner())
                _verify_body(kernel, otherwise, scope.inner())
            case Let(name, value):
                if dims_vary(value):
                    raise InternalError(f"kernel {kernel.name}: the value of {name} varies between lanes")
                variables.add(name)
            case View(name, buffer, offset):
                if buffer not in buffers or dims_vary(offset):
                    raise InternalError(f"kernel {kernel.name}: {name} is not a valid view of {buffer}")
                source = buffers[buffer]
                buffers[name] = source if statement.dtype is None else replace(source, dtype=statement.dtype)
            case Prefetch(name, offset):
                if name not in buffers or dims_vary(offset):
                    raise InternalError(f"kernel {kernel.name}: {name} cannot be prefetched")
            case Transpose(names):
                if len(set(names)) != kernel.lanes or not all(registers.get(name, False) for name in names):
                    raise InternalError(f"kernel {kernel.name}: a transposition takes a varying register for each lane")
            case Sums(name):
                scope.sums[name] = statement
            case MultiplyTiles() | AddSums() | ScaleSums() | PutSums() | MoveRun() | PutTile():
                _verify_tile_statement(kernel, statement, scope)
            case MultiplyFragments():
                _verify_fragments(kernel, statement, registers)
            case MultiplyRows():
                _verify_rows(kernel, statement, scope)
            case ReduceRows(names):
                if kernel.lanes % 32 or not all(registers.get(name, False) for name in names):
                    raise InternalError(f"kernel {kernel.name}: rows are reduced from varying registers")
            case TilePipeline(name, start, stop):
                if dims_vary(start) or dims_vary(stop):
                    raise InternalError(f"kernel {kernel.name}: the bounds of a pipeline vary between lanes")
                _verify_body(kernel, statement.moves, replace(scope.inner(name), moving=True))
                _verify_body(kernel, (*statement.fetches, *statement.puts), scope.inner(name))
                _verify_body(kernel, statement.body, scope.inner(name))


def _verify_fragments(kernel: Kernel, statement: MultiplyFragments, registers: dict[str, bool]) -> None:
    """Verify that registers vary, and that there is one for each element of a lane."""
    sums, left, right, steps = statement.sums, statement.left, statement.right, statement.steps
    names = [name for fragments in (sums, left, right) for fragment in fragments for name in fragment]
    fits = len(sums) == len(left) * len(right) and all(len(fragment) == 4 for fragment in sums)
    fits = fits and steps > 0 and all(len(fragment) == 4 * steps for fragment in left)
    fits = fits and all(len(fragment) == 2 * steps * statement.planes for fragment in right)
    if not fits or kernel.lanes % 32 or not all(registers.get(name, False) for name in names):
        raise InternalError(f"kernel {kernel.name}: fragments take varying registers for each element of a lane")


def _verify_rows(kernel: Kernel, statement: MultiplyRows, scope: _Scope) -> None:
    """Verify that tiles of 16-bit floats and registers have the rows, columns and depth of the product."""
    right = scope.buffers.get(statement.right)
    fits = right is not None and right.tile is not None and right.dtype in HALVES
    if right is not None and right.tile is not None:
        fits = fits and 2 * len(statement.sums) == right.tile.rows
        if isinstance(statement.left, str):
            left = scope.buffers.get(statement.left)
            form = None if left is None or left.dtype is not right.dtype else left.tile
            fits = fits and form is not None and (2 * form.rows, form.depth) == (kernel.lanes, right.tile.depth)
        else:
            fits = fits and 2 * len(statement.left) == right.tile.depth
    names = statement.sums if isinstance(statement.left, str) else (*statement.sums, *statement.left)
    if not fits or kernel.lanes % 32 or not all(scope.registers.get(name, False) for name in names):
        raise InternalError(f"kernel {kernel.name}: rows times {statement.right} are not added to registers")


def _verify_tile_statement(
    kernel: Kernel, statement: MultiplyTiles | AddSums | ScaleSums | PutSums | MoveRun | PutTile, scope: _Scope
) -> None:
    buffers, sums = scope.buffers, scope.sums
    match statement:
        case MultiplyTiles(name, left, right):
            tiles = [None if side not in buffers else buffers[side].tile for side in (left, right)]
            shape = [tile.rows for tile in tiles if tile is not None]
            accumulator = sums.get(name)
            fits = accumulator is not None and shape == [accumulator.rows, accumulator.columns]
            if not fits or len({tile.depth for tile in tiles if tile is not None}) != 1:
                raise InternalError(f"kernel {kernel.name}: {left} times {right} is not added to {name}")
        case AddSums(name, other):
            if name not in sums or other not in sums or replace(sums[other], name=name) != sums[name]:
                raise InternalError(f"kernel {kernel.name}: {other} is not added to {name}")
        case ScaleSums(name, buffer):
            if name not in sums or buffer not in buffers or dims_vary(statement.offset):
                raise InternalError(f"kernel {kernel.name}: {name} is not scaled by {buffer}")
        case PutSums(name, buffer, offset, pitch):
            accumulator, target = sums.get(name), buffers.get(buffer)
            if (
                accumulator is None
                or target is None
                or target.local_size is None
                or dims_vary(offset)
                or pitch < accumulator.columns
            ):
                raise InternalError(f"kernel {kernel.name}: {name} does not fit into {buffer}")
            _verify_plain(kernel, target)
        case MoveRun(tile, _, _, count, source):
            target, origin = buffers.get(tile), buffers.get(source)
            if (
                target is None
                or origin is None
                or target.tile is None
                or target.dtype is not origin.dtype
                or not scope.moving
                or count * origin.dtype.bits != 8 * _MOVED_BYTES
            ):
                raise InternalError(f"kernel {kernel.name}: {source} is not moved to {tile}")
        case PutTile(tile):
            if tile not in buffers or buffers[tile].tile is None:
                raise InternalError(f"kernel {kernel.name}: {tile} is not a tile")


def _verify_plain(kernel: Kernel, buffer: Buffer) -> None:
    if buffer.tile is not None:
        raise InternalError(f"kernel {kernel.name}: the order of elements in tile {buffer.name} depends on the device")


def _verify_code(kernel: Kernel, code: Code, scope: _Scope) -> None:
    for node in walk_code(code):
        match node:
            case Register(name, _, varying) if scope.registers.get(name) is not varying:
                raise InternalError(f"kernel {kernel.name}: register {name} is not defined with this type")
            case Fetch(name, offset, dtype):
                if name not in scope.buffers or scope.buffers[name].dtype is not dtype:
                    raise InternalError(f"kernel {kernel.name}: no buffer {name} of {dtype}")
                _verify_plain(kernel, scope.buffers[name])
                _verify_index(kernel, offset, scope.variables)
            case Integer(value):
                _verify_index(kernel, value, scope.variables)


def _verify_index(kernel: Kernel, value: Dim, variables: set[str]) -> None:
    missing = {symbol.name for symbol in dims.symbols(value)} - variables
    if missing:
        raise InternalError(f"kernel {kernel.name}: {', '.join(sorted(missing))} is not defined")
