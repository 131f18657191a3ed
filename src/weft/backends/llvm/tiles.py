"""Emit tile products for threads: sums in their registers, tiles in shared memory.

Sums are registers of the emitter, named `sums#number`. Warp groups multiply asynchronously (wgmma): the emitter tracks
sums that are not complete (`pending_sums`), and code that reads them waits first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, cast

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, tile_mma, tile_wgmma
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import (
    await_sums,
    broadcast_first_thread,
    copy_chunk,
    is_imprecise,
    shared_address,
)
from weft.backends.llvm.tile_layout import (
    CHUNK,
    DEPTH_STEP,
    FRAGMENT_ROWS,
    FRAGMENT_SUMS,
    WARP,
    WARP_GROUP,
    SumPartition,
    build_layout,
    split_sums,
)
from weft.backends.llvm.types import INT32, element_bytes, memory_type, register_type, vector
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    AddSums,
    Buffer,
    Fetch,
    FetchRun,
    MoveRun,
    MultiplyFragments,
    MultiplyTiles,
    PutSums,
    PutTile,
    ScaleSums,
    Statement,
    Sums,
    TileStatement,
)
from weft.ir.row_products import MultiplyRows, ReduceRows

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter
    from weft.backends.llvm.thread_lanes import ThreadLanes

_REGISTERS = 208  # of a thread, for sums, fragments and hoisted addresses
_FRAGMENTS = 64  # registers for the operands of mma.sync
_ROW_TEMPORARIES = 64  # registers for what is computed from rows in registers
_HOISTED = 3  # registers for the addresses of a copy
MMA_SYNC, WGMMA = "mma.sync", "wgmma"
_BYTE = ir.IntType(8)


def write(emitter: Emitter, statement: TileStatement) -> None:
    """Emit a statement about tiles other than a pipeline."""
    match statement:
        case Sums(name, dtype=dtype):
            emitter.sums[name] = statement
            zero = ir.Constant(register_type(dtype), 0)
            emitter.registers.update((register, zero) for register in register_names(emitter, name))
        case MultiplyTiles(name):
            multiply(emitter, statement)
            wait_for_sums(emitter, [name])
        case MultiplyFragments():
            tile_mma.multiply_registers(emitter, statement)
        case MultiplyRows():
            _multiply_rows(emitter, statement)
        case ReduceRows(names, kind):
            values = [_lanes(emitter).reduce_quads(emitter, kind, emitter.registers[name]) for name in names]
            emitter.registers.update(zip(names, values, strict=True))
        case AddSums(name, other):
            wait_for_sums(emitter, [name, other])
            dtype = emitter.sums[name].dtype
            for register, added in zip(register_names(emitter, name), register_names(emitter, other), strict=True):
                values = [emitter.registers[register], emitter.registers[added]]
                emitter.registers[register] = functions.apply(emitter.builder, "add", values, [dtype] * 2, dtype)
        case ScaleSums():
            wait_for_sums(emitter, [statement.sums])
            _scale(emitter, statement)
        case PutSums():
            wait_for_sums(emitter, [statement.sums])
            _put_sums(emitter, statement)
        case MoveRun():
            _copy_run(emitter, statement)
        case PutTile():
            _put_tile(emitter, statement)


def _lanes(emitter: Emitter) -> ThreadLanes:
    return cast("ThreadLanes", emitter.lanes)


def reserved_bytes(buffer: Buffer) -> int:
    """Return the bytes of shared memory of all stages of a tile."""
    assert buffer.tile is not None
    return build_layout(buffer.tile, element_bytes(buffer.dtype)).stage_bytes * buffer.tile.stages


# -- sums ------------------------------------------------------------------------------------------------------------


def _partition(emitter: Emitter, name: str) -> SumPartition:
    sums = emitter.sums[name]
    return split_sums(sums.rows, sums.columns, emitter.kernel.lanes, _lanes(emitter).tile_products == WGMMA)


def register_names(emitter: Emitter, name: str) -> list[str]:
    return [f"{name}#{number}" for number in range(_partition(emitter, name).count)]


def wait_for_sums(emitter: Emitter, names: Iterable[str] | None = None) -> None:
    """Wait for all products if any of these sums are pending; without names, if any sums are."""
    if not emitter.pending_sums or (names is not None and emitter.pending_sums.isdisjoint(names)):
        return
    registers = [register for name in sorted(emitter.pending_sums) for register in register_names(emitter, name)]
    values = await_sums(emitter.builder, [emitter.registers[register] for register in registers])
    emitter.registers.update(zip(registers, values, strict=True))
    emitter.pending_sums.clear()


def _origin(emitter: Emitter, partition: SumPartition) -> tuple[Value, Value]:
    """Compute the first row and column of the thread's team of warps."""
    builder = emitter.builder
    warp = builder.lshr(_lanes(emitter).thread(emitter), INT32(WARP.bit_length() - 1))
    team = builder.udiv(broadcast_first_thread(builder, warp), INT32(partition.team))
    row = builder.mul(builder.urem(team, INT32(partition.team_rows)), INT32(partition.rows))
    across = builder.urem(builder.udiv(team, INT32(partition.team_rows)), INT32(partition.team_columns))
    return row, builder.mul(across, INT32(partition.columns))


def _warp_origin(emitter: Emitter, partition: SumPartition) -> tuple[Value, Value]:
    """Compute the first row and column of the thread's warp."""
    builder = emitter.builder
    row, column = _origin(emitter, partition)
    warp = builder.lshr(_lanes(emitter).thread(emitter), INT32(WARP.bit_length() - 1))
    within = builder.urem(warp, INT32(partition.team))
    return builder.add(row, builder.mul(within, INT32(FRAGMENT_ROWS))), column


def _thread_origin(emitter: Emitter, partition: SumPartition) -> tuple[Value, Value]:
    """Compute the row and column of the thread's first sum."""
    builder = emitter.builder
    row, column = _warp_origin(emitter, partition)
    thread = builder.and_(_lanes(emitter).thread(emitter), INT32(WARP - 1))
    row = builder.add(row, builder.lshr(thread, INT32(2)))
    return row, builder.add(column, builder.mul(builder.and_(thread, INT32(3)), INT32(2)))


def multiply(emitter: Emitter, product: MultiplyTiles) -> None:
    """Start a product; its sums are pending if it is asynchronous."""
    partition, names = _partition(emitter, product.sums), register_names(emitter, product.sums)
    left, right = (find_buffer(emitter, name) for name in (product.left, product.right))
    sums = [emitter.registers[name] for name in names]
    if left.tile is None or right.tile is None or left.tile.depth * element_bytes(left.dtype) % DEPTH_STEP:
        raise InternalError(f"kernel {emitter.kernel.name}: {product.left} is not a tile, or not deep enough")
    if _uses_wgmma(emitter, product):
        is_rough = is_imprecise(left.dtype)
        if is_rough:
            wait_for_sums(emitter)
            sums = [emitter.registers[name] for name in names]
        results = tile_wgmma.multiply(emitter, left, right, partition, _origin(emitter, partition), sums)
        if not is_rough:
            emitter.pending_sums.add(product.sums)
    else:
        wait_for_sums(emitter, [product.sums])
        sums = [emitter.registers[name] for name in names]
        thread = _lanes(emitter).thread(emitter)
        results = tile_mma.multiply(emitter, left, right, partition, thread, _warp_origin(emitter, partition), sums)
    emitter.registers.update(zip(names, results, strict=True))


def _multiply_rows(emitter: Emitter, product: MultiplyRows) -> None:
    """Add a product to registers, which are complete afterwards."""
    lanes, names = emitter.kernel.lanes, product.sums
    wait_for_sums(emitter)
    right = find_buffer(emitter, product.right)
    is_grouped = _lanes(emitter).tile_products == WGMMA and lanes % WARP_GROUP == 0
    team = WARP_GROUP // WARP if is_grouped else 1
    partition = SumPartition(team, lanes // WARP // team, 1, 1, len(names) // FRAGMENT_SUMS)
    left: Buffer | list[Value]
    if isinstance(product.left, str):
        left = find_buffer(emitter, product.left)
    else:
        left = _pack_rows(emitter, [emitter.registers[name] for name in product.left], right.dtype)
    sums = [emitter.registers[name] for name in names]
    if is_grouped and tile_wgmma.can_multiply(left if isinstance(left, Buffer) else None, right, partition):
        results = tile_wgmma.multiply(emitter, left, right, partition, _origin(emitter, partition), sums)
        if isinstance(left, Buffer):
            results = await_sums(emitter.builder, results)
    else:
        partition = SumPartition(1, lanes // WARP, 1, 1, partition.column_tiles)
        thread = _lanes(emitter).thread(emitter)
        results = tile_mma.multiply(emitter, left, right, partition, thread, _warp_origin(emitter, partition), sums)
    emitter.registers.update(zip(names, results, strict=True))


def _pack_rows(emitter: Emitter, values: list[Value], dtype: DType) -> list[Value]:
    """Round sums to a 16-bit type, as the words of left fragments: four for each step along the depth."""
    builder, element = emitter.builder, memory_type(dtype)
    words: list[Value] = []
    for number in range(0, len(values), 2):
        pair: Value = ir.Constant(vector(element, 2), ir.Undefined)
        for position, value in enumerate(values[number : number + 2]):
            rounded = conversions.encode(builder, conversions.cast(builder, value, DType.float32, dtype), dtype)
            pair = builder.insert_element(pair, rounded, INT32(position))
        words.append(builder.bitcast(pair, INT32))
    return words


def _uses_wgmma(emitter: Emitter, product: MultiplyTiles) -> bool:
    if _lanes(emitter).tile_products != WGMMA:
        return False
    buffers = [find_buffer(emitter, name) for name in (product.left, product.right)]
    return tile_wgmma.can_multiply(buffers[0], buffers[1], _partition(emitter, product.sums))


def is_asynchronous(emitter: Emitter, product: MultiplyTiles) -> bool:
    """Tell whether a product runs while its threads do other work."""
    return _uses_wgmma(emitter, product) and not is_imprecise(find_buffer(emitter, product.left).dtype)


def _scale(emitter: Emitter, scale: ScaleSums) -> None:
    builder, sums = emitter.builder, emitter.sums[scale.sums]
    partition, names = _partition(emitter, scale.sums), register_names(emitter, scale.sums)
    source = emitter.dtypes[scale.buffer]
    row, _ = _thread_origin(emitter, partition)
    first = emitter.address(scale.buffer, scale.offset, None, source)
    factors: dict[int, Value] = {}
    for number, name in enumerate(names):
        fragment, part = divmod(number, FRAGMENT_SUMS)
        row_offset = partition.fragment(fragment)[0] + part // 2 * 8
        if row_offset not in factors:
            address = builder.gep(first, [builder.add(row, INT32(row_offset))], source_etype=memory_type(source))
            factors[row_offset] = conversions.cast(builder, emitter.load(address, source), source, sums.dtype)
        values = [emitter.registers[name], factors[row_offset]]
        emitter.registers[name] = functions.apply(builder, "multiply", values, [sums.dtype] * 2, sums.dtype)


def _put_sums(emitter: Emitter, put: PutSums) -> None:
    """Store sums, two neighbours at a time if they are aligned."""
    builder, sums = emitter.builder, emitter.sums[put.sums]
    partition, dtype = _partition(emitter, put.sums), emitter.dtypes[put.buffer]
    size, element = element_bytes(dtype), memory_type(dtype)
    row, column = _thread_origin(emitter, partition)
    index = builder.add(builder.mul(row, INT32(put.pitch)), column)
    first = builder.gep(emitter.address(put.buffer, put.offset, None, dtype), [index], source_etype=element)
    is_aligned = put.pitch % 2 == 0 and dims.mod(put.offset, 2) == 0 and put.buffer not in emitter.view_buffers
    values = [
        conversions.encode(builder, conversions.cast(builder, emitter.registers[name], sums.dtype, dtype), dtype)
        for name in register_names(emitter, put.sums)
    ]
    for number in range(0, len(values), 2):
        fragment, part = divmod(number, FRAGMENT_SUMS)
        row_offset, column_offset = partition.fragment(fragment)
        offset = (row_offset + part // 2 * 8) * put.pitch + column_offset
        address = builder.gep(first, [INT32(offset)], source_etype=element)
        if is_aligned:
            pair: Value = ir.Constant(vector(element, 2), ir.Undefined)
            for position in range(2):
                pair = builder.insert_element(pair, values[number + position], INT32(position))
            builder.store(pair, address, align=2 * size)
        else:
            builder.store(values[number], address, align=size)
            builder.store(values[number + 1], builder.gep(address, [INT32(1)], source_etype=element), align=size)


# -- tiles -----------------------------------------------------------------------------------------------------------


def find_buffer(emitter: Emitter, name: str) -> Buffer:
    home = emitter.view_buffers.get(name, name)
    return next(buffer for buffer in emitter.kernel.buffers if buffer.name == home)


def _element_address(emitter: Emitter, tile: str, line: Dim, first: Dim) -> Value:
    """Emit the address of an element of a line."""
    hoisted = emitter.hoisted_addresses.get((tile, line, first))
    offset = _element_offset(emitter, tile, line, first) if hoisted is None else hoisted
    return emitter.builder.gep(emitter.buffers[tile], [offset], source_etype=_BYTE)


def _element_offset(emitter: Emitter, tile: str, line: Dim, first: Dim) -> Value:
    """Emit the bytes from the start of a tile to an element."""
    buffer, builder = find_buffer(emitter, tile), emitter.builder
    if buffer.tile is None:
        raise InternalError(f"buffer {tile} is not a tile")
    layout = build_layout(buffer.tile, element_bytes(buffer.dtype))
    byte = first * layout.element
    plain = emitter.emit_index(line * layout.width + dims.mod(byte, layout.width))
    column = emitter.emit_index(dims.floordiv(byte, layout.width) * layout.column_bytes)
    kind = plain.type
    swizzle = builder.shl(builder.and_(builder.lshr(plain, kind(7)), kind(layout.swizzle_mask)), kind(4))
    return builder.add(builder.xor(plain, swizzle), column)


def hoist(emitter: Emitter, statements: Iterable[Statement], body: Sequence[Statement], changing: Set[str]) -> None:
    """Compute addresses of a pipeline's copies and loads that do not change from turn to turn, before its loop.

    Addresses for which there are not enough registers beside those of the products in the body are computed in each
    turn.
    """
    products = [statement for statement in body if isinstance(statement, MultiplyRows)]
    sides = [side for product in products for side in (product.sums, product.left) if isinstance(side, tuple)]
    row_registers = len({name for side in sides for name in side}) + (_ROW_TEMPORARIES if products else 0)
    sums_count = row_registers + sum(sums.rows * sums.columns for sums in emitter.sums.values()) // emitter.kernel.lanes
    uses_fragments = _lanes(emitter).tile_products == MMA_SYNC
    free_registers = _REGISTERS - sums_count - (_FRAGMENTS if uses_fragments else 0)
    for statement in statements:
        free_registers -= _HOISTED
        if free_registers < 0:
            return
        if isinstance(statement, (MoveRun, PutTile)):
            tile, line, first = statement.tile, statement.line, statement.first
            symbols = {symbol.name for value in (line, first) for symbol in dims.symbols(value)}
            if not symbols & changing:
                emitter.hoisted_addresses[tile, line, first] = _element_offset(emitter, tile, line, first)
        if isinstance(statement, (MoveRun, FetchRun)):
            buffer = statement.buffer
            invariant, _ = emitter.split_invariant(statement.offset, changing)
            if buffer in emitter.buffers and invariant != 0:
                address = emitter.invariant_address(buffer, invariant, emitter.dtypes[buffer])
                emitter.hoisted_addresses[buffer, invariant] = address


def _copy_run(emitter: Emitter, move: MoveRun) -> None:
    builder, dtype = emitter.builder, emitter.dtypes[move.buffer]
    if emitter.view_buffers.get(move.buffer, move.buffer) in _lanes(emitter).unaligned:
        values = [
            emitter.emit_code(Fetch(move.buffer, move.offset + number, dtype, mask=move.mask))
            for number in range(move.count)
        ]
        _store_run(emitter, move.tile, move.line, move.first, values)
        return
    to = shared_address(builder, _element_address(emitter, move.tile, move.line, move.first))
    source = emitter.address(move.buffer, move.offset, None, dtype)
    size: Value = INT32(CHUNK)
    if move.mask is not None:
        size = builder.select(emitter.emit_code(move.mask), size, INT32(0))
    copy_chunk(builder, to, source, size)


def _put_tile(emitter: Emitter, put: PutTile) -> None:
    values = [emitter.emit_code(value) for value in put.values]
    if put.mask is None:
        _store_run(emitter, put.tile, put.line, put.first, values)
        return
    mask, count = emitter.emit_code(put.mask), len(emitter.available)
    with emitter.builder.if_then(mask):
        _store_run(emitter, put.tile, put.line, put.first, values)
    emitter.drop_available(count)


def _store_run(emitter: Emitter, tile: str, line: Dim, first: Dim, values: list[Value]) -> None:
    """Store neighbours of a line, a chunk at a time if possible."""
    builder, dtype = emitter.builder, emitter.dtypes[tile]
    size, element = element_bytes(dtype), memory_type(dtype)
    stored = [conversions.encode(builder, value, dtype) for value in values]
    width = min(len(stored), CHUNK // size)
    if width & (width - 1) or len(stored) % width:
        width = 1
    for number in range(0, len(stored), width):
        address = _element_address(emitter, tile, line, first + number)
        run: Value = stored[number]
        if width > 1:
            run = ir.Constant(vector(element, width), ir.Undefined)
            for position in range(width):
                run = builder.insert_element(run, stored[number + position], INT32(position))
        builder.store(run, address, align=width * size)
