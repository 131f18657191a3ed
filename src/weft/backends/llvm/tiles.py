"""Tile products where lanes are threads: sums in their registers, tiles in shared memory.

Sums are registers of the emitter under names that no kernel has. Groups of warps multiply without waiting; the emitter
knows sums that are not there yet (`unsettled`), and whoever reads them waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, cast

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, tiles_mma, tiles_wgmma
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import (
    await_sums,
    copy_chunk,
    of_first_thread,
    shared_address,
)
from weft.backends.llvm.tile_layout import (
    CHUNK,
    DEPTH_STEP,
    FRAGMENT_ROWS,
    FRAGMENT_SUMS,
    WARP,
    Shares,
    layout_of,
    shares_of,
)
from weft.backends.llvm.types import INT32, element_bytes, memory_type, register_type, vector
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import (
    AddSums,
    Buffer,
    Fetch,
    FetchRun,
    MoveRun,
    MultiplyTiles,
    PutSums,
    PutTile,
    ScaleSums,
    Statement,
    Sums,
    TileStatement,
)

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter
    from weft.backends.llvm.thread_lanes import ThreadLanes

_REGISTERS = 208  # of a thread, for sums, fragments and what is hoisted
_FRAGMENTS = 64  # registers that operands of products by warps take
_HOISTED = 3  # registers for the addresses of a move
BY_WARPS, BY_GROUPS = "mma.sync", "wgmma"  # how tiles are multiplied
_BYTE = ir.IntType(8)


def write(emitter: Emitter, statement: TileStatement) -> None:
    """The code of a statement about tiles, other than a pipeline."""
    match statement:
        case Sums(name, dtype=dtype):
            emitter.sums[name] = statement
            zero = ir.Constant(register_type(dtype), 0)
            emitter.registers.update((register, zero) for register in register_names(emitter, name))
        case MultiplyTiles(name):
            multiply(emitter, statement)
            settle(emitter, [name])
        case AddSums(name, other):
            settle(emitter, [name, other])
            dtype = emitter.sums[name].dtype
            for register, added in zip(register_names(emitter, name), register_names(emitter, other), strict=True):
                values = [emitter.registers[register], emitter.registers[added]]
                emitter.registers[register] = functions.apply(emitter.builder, "add", values, [dtype] * 2, dtype)
        case ScaleSums():
            settle(emitter, [statement.sums])
            _scale(emitter, statement)
        case PutSums():
            settle(emitter, [statement.sums])
            _put_sums(emitter, statement)
        case MoveRun():
            _move(emitter, statement)
        case PutTile():
            _put_tile(emitter, statement)


def _lanes(emitter: Emitter) -> ThreadLanes:
    return cast("ThreadLanes", emitter.lanes)


def reserved_bytes(buffer: Buffer) -> int:
    """The shared memory that a tile takes, with all its stages."""
    assert buffer.tile is not None
    return layout_of(buffer.tile, element_bytes(buffer.dtype)).stage_bytes * buffer.tile.stages


# -- sums ------------------------------------------------------------------------------------------------------------


def _shares(emitter: Emitter, name: str) -> Shares:
    sums = emitter.sums[name]
    return shares_of(sums.rows, sums.columns, emitter.kernel.lanes, _lanes(emitter).tile_products == BY_GROUPS)


def register_names(emitter: Emitter, name: str) -> list[str]:
    return [f"{name}#{number}" for number in range(_shares(emitter, name).count)]


def settle(emitter: Emitter, names: Iterable[str] | None = None) -> None:
    """Wait for products whose sums are among these."""
    if not emitter.unsettled or (names is not None and emitter.unsettled.isdisjoint(names)):
        return
    registers = [register for name in sorted(emitter.unsettled) for register in register_names(emitter, name)]
    found = await_sums(emitter.builder, [emitter.registers[register] for register in registers])
    emitter.registers.update(zip(registers, found, strict=True))
    emitter.unsettled.clear()


def _origin(emitter: Emitter, shares: Shares) -> tuple[Value, Value]:
    """The first row and column of a thread's team of warps."""
    builder = emitter.builder
    warp = builder.lshr(_lanes(emitter).thread(emitter), INT32(WARP.bit_length() - 1))
    team = builder.udiv(of_first_thread(builder, warp), INT32(shares.team))
    row = builder.mul(builder.urem(team, INT32(shares.team_rows)), INT32(shares.rows))
    across = builder.urem(builder.udiv(team, INT32(shares.team_rows)), INT32(shares.team_columns))
    return row, builder.mul(across, INT32(shares.columns))


def _warp_origin(emitter: Emitter, shares: Shares) -> tuple[Value, Value]:
    """The same of a thread's warp."""
    builder = emitter.builder
    row, column = _origin(emitter, shares)
    warp = builder.lshr(_lanes(emitter).thread(emitter), INT32(WARP.bit_length() - 1))
    within = builder.urem(warp, INT32(shares.team))
    return builder.add(row, builder.mul(within, INT32(FRAGMENT_ROWS))), column


def _thread_origin(emitter: Emitter, shares: Shares) -> tuple[Value, Value]:
    """The row and the column of a thread's first sum."""
    builder = emitter.builder
    row, column = _warp_origin(emitter, shares)
    thread = builder.and_(_lanes(emitter).thread(emitter), INT32(WARP - 1))
    row = builder.add(row, builder.lshr(thread, INT32(2)))
    return row, builder.add(column, builder.mul(builder.and_(thread, INT32(3)), INT32(2)))


def multiply(emitter: Emitter, product: MultiplyTiles) -> None:
    """Start a product; what groups of warps do is not settled."""
    shares, names = _shares(emitter, product.sums), register_names(emitter, product.sums)
    left, right = (buffer_of(emitter, name) for name in (product.left, product.right))
    sums = [emitter.registers[name] for name in names]
    if left.tile is None or right.tile is None or left.tile.depth * element_bytes(left.dtype) % DEPTH_STEP:
        raise InternalError(f"kernel {emitter.kernel.name}: {product.left} is no tile, or not deep enough")
    if _by_groups(emitter, product):
        rough = tiles_wgmma.is_rough(left.dtype)
        if rough:
            settle(emitter)
            sums = [emitter.registers[name] for name in names]
        found = tiles_wgmma.multiply(emitter, left, right, shares, _origin(emitter, shares), sums)
        if not rough:
            emitter.unsettled.add(product.sums)
    else:
        settle(emitter, [product.sums])
        sums = [emitter.registers[name] for name in names]
        thread = _lanes(emitter).thread(emitter)
        found = tiles_mma.multiply(emitter, left, right, shares, thread, _warp_origin(emitter, shares), sums)
    emitter.registers.update(zip(names, found, strict=True))


def _by_groups(emitter: Emitter, product: MultiplyTiles) -> bool:
    if _lanes(emitter).tile_products != BY_GROUPS:
        return False
    buffers = [buffer_of(emitter, name) for name in (product.left, product.right)]
    return tiles_wgmma.is_for(buffers[0], buffers[1], _shares(emitter, product.sums))


def goes_on(emitter: Emitter, product: MultiplyTiles) -> bool:
    """Whether the product is computed while the threads do something else."""
    return _by_groups(emitter, product) and not tiles_wgmma.is_rough(buffer_of(emitter, product.left).dtype)


def _scale(emitter: Emitter, scale: ScaleSums) -> None:
    builder, sums = emitter.builder, emitter.sums[scale.sums]
    shares, names = _shares(emitter, scale.sums), register_names(emitter, scale.sums)
    source = emitter.dtypes[scale.buffer]
    row, _ = _thread_origin(emitter, shares)
    first = emitter.address(scale.buffer, scale.offset, None, source)
    factors: dict[int, Value] = {}
    for number, name in enumerate(names):
        fragment, part = divmod(number, FRAGMENT_SUMS)
        further = shares.fragment(fragment)[0] + part // 2 * 8
        if further not in factors:
            place = builder.gep(first, [builder.add(row, INT32(further))], source_etype=memory_type(source))
            factors[further] = conversions.cast(builder, emitter.load(place, source), source, sums.dtype)
        values = [emitter.registers[name], factors[further]]
        emitter.registers[name] = functions.apply(builder, "multiply", values, [sums.dtype] * 2, sums.dtype)


def _put_sums(emitter: Emitter, put: PutSums) -> None:
    """Two neighbours at once where their place allows."""
    builder, sums = emitter.builder, emitter.sums[put.sums]
    shares, dtype = _shares(emitter, put.sums), emitter.dtypes[put.buffer]
    size, element = element_bytes(dtype), memory_type(dtype)
    row, column = _thread_origin(emitter, shares)
    own = builder.add(builder.mul(row, INT32(put.pitch)), column)
    first = builder.gep(emitter.address(put.buffer, put.offset, None, dtype), [own], source_etype=element)
    paired = put.pitch % 2 == 0 and dims.mod(put.offset, 2) == 0 and put.buffer not in emitter.homes
    values = [
        conversions.stored(builder, conversions.cast(builder, emitter.registers[name], sums.dtype, dtype), dtype)
        for name in register_names(emitter, put.sums)
    ]
    for number in range(0, len(values), 2):
        fragment, part = divmod(number, FRAGMENT_SUMS)
        down, along = shares.fragment(fragment)
        place = builder.gep(first, [INT32((down + part // 2 * 8) * put.pitch + along)], source_etype=element)
        if paired:
            pair: Value = ir.Constant(vector(element, 2), ir.Undefined)
            for at in range(2):
                pair = builder.insert_element(pair, values[number + at], INT32(at))
            builder.store(pair, place, align=2 * size)
        else:
            builder.store(values[number], place, align=size)
            builder.store(values[number + 1], builder.gep(place, [INT32(1)], source_etype=element), align=size)


# -- tiles -----------------------------------------------------------------------------------------------------------


def buffer_of(emitter: Emitter, name: str) -> Buffer:
    home = emitter.homes.get(name, name)
    return next(buffer for buffer in emitter.kernel.buffers if buffer.name == home)


def _place(emitter: Emitter, tile: str, line: Dim, first: Dim) -> Value:
    """The address of an element of a line."""
    found = emitter.hoisted.get((tile, line, first))
    offset = _offset(emitter, tile, line, first) if found is None else found
    return emitter.builder.gep(emitter.buffers[tile], [offset], source_etype=_BYTE)


def _offset(emitter: Emitter, tile: str, line: Dim, first: Dim) -> Value:
    """Bytes from the start of a tile to an element."""
    buffer, builder = buffer_of(emitter, tile), emitter.builder
    if buffer.tile is None:
        raise InternalError(f"{tile} is no tile")
    layout = layout_of(buffer.tile, element_bytes(buffer.dtype))
    byte = first * layout.element
    plain = emitter.integer(line * layout.width + dims.mod(byte, layout.width))
    column = emitter.integer(dims.floordiv(byte, layout.width) * layout.column_bytes)
    kind = plain.type
    mix = builder.shl(builder.and_(builder.lshr(plain, kind(7)), kind(layout.mixed)), kind(4))
    return builder.add(builder.xor(plain, mix), column)


def hoist(emitter: Emitter, statements: Iterable[Statement], changing: Set[str]) -> None:
    """Compute now what moves and fetches of a pipeline need of addresses that its turns do not change.

    As far as there are registers for it: those that do not fit are computed anew in each turn.
    """
    held = sum(sums.rows * sums.columns for sums in emitter.sums.values()) // emitter.kernel.lanes
    by_warps = _lanes(emitter).tile_products == BY_WARPS
    room = _REGISTERS - held - (_FRAGMENTS if by_warps else 0)
    for statement in statements:
        room -= _HOISTED
        if room < 0:
            return
        match statement:
            case MoveRun(tile, line, first) | PutTile(tile, line, first):
                symbols = {symbol.name for value in (line, first) for symbol in dims.symbols(value)}
                if not symbols & changing:
                    emitter.hoisted[tile, line, first] = _offset(emitter, tile, line, first)
            case _:
                pass
        match statement:
            case MoveRun(buffer=buffer, offset=offset) | FetchRun(buffer=buffer, offset=offset):
                still, _ = emitter.split_moving(offset, changing)
                if buffer in emitter.buffers and still != 0:
                    emitter.hoisted[buffer, still] = emitter.still_address(buffer, still, emitter.dtypes[buffer])
            case _:
                pass


def _move(emitter: Emitter, move: MoveRun) -> None:
    builder, dtype = emitter.builder, emitter.dtypes[move.buffer]
    if emitter.homes.get(move.buffer, move.buffer) in _lanes(emitter).unaligned:
        values = [
            emitter.code(Fetch(move.buffer, move.offset + number, dtype, mask=move.mask))
            for number in range(move.count)
        ]
        _store_run(emitter, move.tile, move.line, move.first, values)
        return
    to = shared_address(builder, _place(emitter, move.tile, move.line, move.first))
    source = emitter.address(move.buffer, move.offset, None, dtype)
    size: Value = INT32(CHUNK)
    if move.mask is not None:
        size = builder.select(emitter.code(move.mask), size, INT32(0))
    copy_chunk(builder, to, source, size)


def _put_tile(emitter: Emitter, put: PutTile) -> None:
    values = [emitter.code(value) for value in put.values]
    if put.mask is None:
        _store_run(emitter, put.tile, put.line, put.first, values)
        return
    mask, known = emitter.code(put.mask), len(emitter.known)
    with emitter.builder.if_then(mask):
        _store_run(emitter, put.tile, put.line, put.first, values)
    emitter.forget(known)


def _store_run(emitter: Emitter, tile: str, line: Dim, first: Dim, values: list[Value]) -> None:
    """Neighbours of a line, as many at once as stay together."""
    builder, dtype = emitter.builder, emitter.dtypes[tile]
    size, element = element_bytes(dtype), memory_type(dtype)
    stored = [conversions.stored(builder, value, dtype) for value in values]
    width = min(len(stored), CHUNK // size)
    if width & (width - 1) or len(stored) % width:
        width = 1
    for number in range(0, len(stored), width):
        place = _place(emitter, tile, line, first + number)
        run: Value = stored[number]
        if width > 1:
            run = ir.Constant(vector(element, width), ir.Undefined)
            for at in range(width):
                run = builder.insert_element(run, stored[number + at], INT32(at))
        builder.store(run, place, align=width * size)
