"""Lanes as the threads of an NVIDIA GPU: a varying value is each thread's own scalar, divergence a branch.

A kernel becomes an entry `name(buffers ..., parameters ...)`: global addresses of the buffers that are not local, then
int64, both in the kernel's order. A block of the kernel is a block of the grid (along x), with just as many threads as
the kernel has lanes. Local buffers lie in memory that the block shares; up to 48 KiB of it come with the module, more
of it has to be asked for by the launch (`shared_bytes`). All threads compute what is uniform, the first one writes it.
Barriers must be in the kernel already, where threads meet in memory.
"""

from __future__ import annotations

from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, tiles, tiles_pipeline
from weft.backends.llvm.emit import Emitter
from weft.backends.llvm.lanes import Lanes
from weft.backends.llvm.nvptx import GLOBAL, SHARED, WARP, NvptxBuilder
from weft.backends.llvm.tile_instructions import show_to_tensor_cores
from weft.backends.llvm.tile_layout import ALIGNMENT
from weft.backends.llvm.types import BIT, INT32, INT64, element_bytes, memory_type, vector
from weft.backends.short_indices import are_indices, fit, index_of, is_short
from weft.errors import InternalError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    ACROSS_FUNCTIONS,
    BLOCK,
    LANE,
    Across,
    Call,
    Code,
    Fetch,
    FetchRun,
    Kernel,
    Put,
    PutRun,
    TilePipeline,
    TileStatement,
    dims_vary,
    is_varying,
    walk_code,
)
from weft.ir.scalar import COMPARISONS
from weft.records import dataclass

Value = Any
LARGEST_ACCESS = 16  # bytes that a thread reads or writes at once
RUNS = (2, 4, 8, 16)  # elements of them


@dataclass(frozen=True, slots=True)
class ThreadLanes(Lanes):
    """Those of GPUs.

    `index_bits`: 32 where sizes, positions and offsets of all that a kernel is launched on fit; parameters are int64
    all the same. `unaligned`: buffers that may start anywhere, so that their runs are read and written one by one.
    `tile_products`: how tiles are multiplied: by warps ("mma.sync"), groups of them ("wgmma"), or not at all.
    """

    index_bits: int = 32
    unaligned: frozenset[str] = frozenset()
    tile_products: str = ""

    @property
    def index(self) -> ir.IntType:
        return INT32 if self.index_bits == 32 else INT64

    def declare(self, kernel: Kernel, module: ir.Module) -> ir.Function:
        buffers = [buffer for buffer in kernel.buffers if buffer.local_size is None]
        kinds = [*(ir.PointerType(GLOBAL) for _ in buffers), *(INT64 for _ in kernel.parameters)]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), kernel.name)
        function.convention = "ptx_kernel"
        function.attributes |= {"nounwind", f'"nvvm.reqntid"="{kernel.lanes}"'}
        return function

    def builder(self, block: ir.Block) -> ir.IRBuilder:
        return NvptxBuilder(block, recent=bool(self.tile_products))

    def run(self, emitter: Emitter) -> None:
        kernel, builder = emitter.kernel, emitter.builder
        arguments = iter(emitter.function.args)
        _reserve_tiles(emitter)
        for buffer in kernel.buffers:
            if buffer.local_size is None:
                emitter.buffers[buffer.name] = next(arguments)
            elif buffer.name not in emitter.buffers:
                size = buffer.local_size * element_bytes(buffer.dtype)
                emitter.buffers[buffer.name] = _shared(emitter, buffer.name, size)
        for name in kernel.parameters:
            emitter.variables[name] = self._index(emitter, next(arguments))
        emitter.variables[BLOCK] = self._index(emitter, _threads(emitter).thread_block())
        emitter.variables[LANE] = self._index(emitter, _threads(emitter).thread())
        emitter.body(kernel.body)
        builder.ret_void()

    def _index(self, emitter: Emitter, value: Value) -> Value:
        """A number of 32 or 64 bits as an index."""
        if value.type == self.index:
            return value
        return emitter.builder.trunc(value, INT32) if self.index_bits == 32 else emitter.builder.sext(value, INT64)

    # -- values ------------------------------------------------------------------------------------------------------

    def number(self, emitter: Emitter) -> Value:
        return emitter.variables[LANE]

    def thread(self, emitter: Emitter) -> Value:
        """The same with 32 bits."""
        number = self.number(emitter)
        return number if self.index_bits == 32 else emitter.builder.trunc(number, INT32)

    def spread(self, emitter: Emitter, value: Value) -> Value:
        return value

    def wide(self, emitter: Emitter, value: Dim) -> Value:
        if isinstance(value, int):
            return INT64(value)
        if self.index_bits == 64:
            return emitter.integer(value)
        if fit(value) and is_short(value):
            return emitter.builder.sext(emitter.integer(value), INT64)
        total: Value | None = None
        for monomial, coefficient in value.terms:
            term: Value = INT64(coefficient)
            for atom in monomial:
                term = emitter.builder.mul(term, emitter.builder.sext(emitter.atom(atom), INT64))
            total = term if total is None else emitter.builder.add(total, term)
        return total

    def position(self, emitter: Emitter, indirect: Code) -> Value:
        return self._index(emitter, emitter.code(indirect))

    def comparison(self, emitter: Emitter, call: Call) -> Value | None:
        if call.function not in COMPARISONS or not are_indices(*call.arguments):
            return None
        values = [emitter.integer(value) for argument in call.arguments if (value := index_of(argument)) is not None]
        return functions.apply(emitter.builder, call.function, values, [DType.int32] * 2, DType.bool)

    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        return _threads(emitter).dot4(unsigned, signed, total)

    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads multiply bfloat16 in tiles")

    def half_bits(self, emitter: Emitter, value: Value) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads multiply bfloat16 in tiles")

    def number_of_code(self, emitter: Emitter, code: Value, bits: int) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads look nothing up in registers")

    # -- memory ------------------------------------------------------------------------------------------------------

    def view(self, emitter: Emitter, address: Value) -> Value:
        return address

    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        if fetch.mask is None:
            return emitter.load(emitter.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype), fetch.dtype)
        mask = emitter.code(fetch.mask)
        if fetch.indirect is None or not _has_across(fetch.indirect):
            return emitter.guarded_load(fetch, mask)
        address = emitter.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype)  # by all threads
        return emitter.guarded(mask, lambda: [emitter.load(address, fetch.dtype)])[0]

    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        count = len(fetch.registers)
        if not self._is_run(emitter, fetch.buffer, count):
            parts = [Fetch(fetch.buffer, fetch.offset + n, fetch.dtype, mask=fetch.mask) for n in range(count)]
            return [self.fetch(emitter, part) for part in parts]

        def load() -> list[Value]:
            kind = vector(memory_type(fetch.dtype), count)
            address = emitter.address(fetch.buffer, fetch.offset, None, fetch.dtype)
            run = emitter.builder.load(address, kind, align=_run_alignment(fetch.dtype, count))
            found = [emitter.builder.extract_element(run, INT32(number)) for number in range(count)]
            return [conversions.loaded(emitter.builder, value, fetch.dtype) for value in found]

        return load() if fetch.mask is None else emitter.guarded(emitter.code(fetch.mask), load)

    def put(self, emitter: Emitter, put: Put) -> None:
        builder, dtype = emitter.builder, emitter.dtypes[put.buffer]
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        value = conversions.stored(builder, emitter.code(put.value), dtype)
        address = emitter.address(put.buffer, put.offset, put.indirect, dtype)
        conditions = [] if put.mask is None else [emitter.code(put.mask)]
        if not varies and emitter.kernel.lanes > 1:
            conditions.append(builder.icmp_signed("==", self.number(emitter), self.index(0)))
        self._store(emitter, value, address, element_bytes(dtype), conditions)

    def put_run(self, emitter: Emitter, put: PutRun) -> None:
        dtype, count = emitter.dtypes[put.buffer], len(put.values)
        if not dims_vary(put.offset) or not self._is_run(emitter, put.buffer, count):
            for number, value in enumerate(put.values):
                self.put(emitter, Put(put.buffer, put.offset + number, value, mask=put.mask))
            return
        run: Value = ir.Constant(vector(memory_type(dtype), count), ir.Undefined)
        for number, code in enumerate(put.values):
            value = conversions.stored(emitter.builder, emitter.code(code), dtype)
            run = emitter.builder.insert_element(run, value, INT32(number))
        address = emitter.address(put.buffer, put.offset, None, dtype)
        conditions = [] if put.mask is None else [emitter.code(put.mask)]
        self._store(emitter, run, address, _run_alignment(dtype, count), conditions)

    def _store(self, emitter: Emitter, value: Value, address: Value, align: int, conditions: list[Value]) -> None:
        builder = emitter.builder
        if not conditions:
            builder.store(value, address, align=align)
            return
        condition = conditions[0] if len(conditions) == 1 else builder.and_(*conditions)
        with builder.if_then(condition):
            builder.store(value, address, align=align)

    def _is_run(self, emitter: Emitter, buffer: str, count: int) -> bool:
        return count in RUNS and emitter.homes.get(buffer, buffer) not in self.unaligned

    # -- between lanes -----------------------------------------------------------------------------------------------

    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        """Threads of a warp exchange registers, with ever closer partners; warps meet in shared memory."""
        lanes, builder = emitter.kernel.lanes, _threads(emitter)

        def combined(a: Value, b: Value) -> Value:
            return functions.apply(builder, ACROSS_FUNCTIONS[kind], [a, b], [dtype, dtype], dtype)

        together = min(lanes, WARP)
        if lanes % together or together & (together - 1):
            return self._across_memory(emitter, value, dtype, combined)
        distance = together // 2
        while distance:
            value = combined(value, _exchanged(builder, value, distance, together))
            distance //= 2
        if lanes == together:
            return value
        memory, element, size = _scratch(emitter, dtype)
        warp = builder.lshr(self.number(emitter), self.index(WARP.bit_length() - 1))
        builder.barrier()  # for who still reads what was combined before
        place = builder.gep(memory, [warp], source_etype=element)
        builder.store(conversions.stored(builder, value, dtype), place, align=size)
        builder.barrier()
        result: Value | None = None
        for number in range(lanes // WARP):
            part = emitter.load(builder.gep(memory, [INT32(number)], source_etype=element), dtype)
            result = part if result is None else combined(result, part)
        return result

    def _across_memory(self, emitter: Emitter, value: Value, dtype: DType, combined: Any) -> Value:
        """For any number of threads: halves of what is left are added to the others."""
        builder, left = _threads(emitter), emitter.kernel.lanes
        memory, element, size = _scratch(emitter, dtype)
        own = builder.gep(memory, [self.number(emitter)], source_etype=element)
        builder.barrier()
        builder.store(conversions.stored(builder, value, dtype), own, align=size)
        builder.barrier()
        while left > 1:
            half = (left + 1) // 2
            with builder.if_then(builder.icmp_signed("<", self.number(emitter), self.index(left - half))):
                other = emitter.load(builder.gep(own, [INT32(half)], source_etype=element), dtype)
                total = combined(emitter.load(own, dtype), other)
                builder.store(conversions.stored(builder, total, dtype), own, align=size)
            builder.barrier()
            left = half
        return emitter.load(memory, dtype)

    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        """Through memory that the block shares, in the form that registers have."""
        builder, lanes, kind = _threads(emitter), emitter.kernel.lanes, rows[0].type
        element = ir.IntType(8) if kind == BIT else kind
        memory = _shared(emitter, f".transposed {kind.text}", lanes * lanes * _register_bytes(element))
        builder.barrier()
        me = self.number(emitter)
        for number, row in enumerate(rows):
            place = builder.gep(memory, [builder.add(me, self.index(number * lanes))], source_etype=element)
            builder.store(builder.zext(row, element) if kind == BIT else row, place)
        builder.barrier()
        first = builder.gep(memory, [builder.mul(me, self.index(lanes))], source_etype=element)
        places = [builder.gep(first, [INT32(number)], source_etype=element) for number in range(lanes)]
        columns = [builder.load(place, element) for place in places]
        builder.barrier()
        return [builder.trunc(column, BIT) for column in columns] if kind == BIT else columns

    def barrier(self, emitter: Emitter) -> None:
        if self.tile_products == tiles.BY_GROUPS and any(buffer.tile for buffer in emitter.kernel.buffers):
            show_to_tensor_cores(emitter.builder)
        _threads(emitter).barrier()

    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        if not self.tile_products:
            raise InternalError(f"kernel {emitter.kernel.name}: this processor has no tile products")
        if isinstance(statement, TilePipeline):
            tiles_pipeline.Turns(emitter, statement).write()
        else:
            tiles.write(emitter, statement)


def launched_shared_bytes(kernel: Kernel, module: ir.Module) -> int:
    """The bytes of shared memory that a launch has to bring: 0 where the module has them."""
    memory = module.globals.get(_shared_name(kernel))
    return memory.launched_size if isinstance(memory, ir.SharedMemory) else 0


def _shared_name(kernel: Kernel) -> str:
    return f"{kernel.name}_shared"


def _shared(emitter: Emitter, name: str, size: int, alignment: int = LARGEST_ACCESS) -> Value:
    """The address of so many bytes that the block shares, under a name; what comes up in turn may share one."""
    module, whole = emitter.builder.module, _shared_name(emitter.kernel)
    memory = module.globals.get(whole) or ir.SharedMemory(module, SHARED, whole)
    assert isinstance(memory, ir.SharedMemory)
    return emitter.builder.gep(memory, [INT32(memory.reserve(name, size, alignment))], source_etype=ir.IntType(8))


def _reserve_tiles(emitter: Emitter) -> None:
    """Places for tiles, and for what comes after them in the same place."""
    buffers = emitter.kernel.buffers
    early = [buffer for buffer in buffers if buffer.tile is not None]
    late = [buffer for buffer in buffers if buffer.late]
    if not early:
        return
    places: dict[str, int] = {}
    end = 0
    for group, alignment in ((early, ALIGNMENT), (late, LARGEST_ACCESS)):
        at = 0
        for buffer in group:
            places[buffer.name] = at = -(-at // alignment) * alignment
            at += (
                tiles.reserved_bytes(buffer) if buffer.tile else (buffer.local_size or 0) * element_bytes(buffer.dtype)
            )
        end = max(end, at)
    first = _shared(emitter, ".tiles", end, ALIGNMENT)
    for name, place in places.items():
        emitter.buffers[name] = emitter.builder.gep(first, [INT32(place)], source_etype=ir.IntType(8))


def _scratch(emitter: Emitter, dtype: DType) -> tuple[Value, Any, int]:
    """Shared memory to combine all lanes' values of a type in, the type of an element there, and its bytes."""
    size = element_bytes(dtype)
    return _shared(emitter, f".combined {dtype}", emitter.kernel.lanes * size), memory_type(dtype), size


def _threads(emitter: Emitter) -> NvptxBuilder:
    assert isinstance(emitter.builder, NvptxBuilder)
    return emitter.builder


def _exchanged(builder: NvptxBuilder, value: Value, distance: int, threads: int) -> Value:
    """Another thread's value, word by word."""
    bits = _register_bits(value.type)
    whole = ir.IntType(bits)
    raw = builder.bitcast(value, whole)
    if bits == 64:
        low, high = builder.trunc(raw, INT32), builder.trunc(builder.lshr(raw, INT64(32)), INT32)
        parts = [builder.zext(builder.exchange(part, distance, threads), INT64) for part in (low, high)]
        return builder.bitcast(builder.or_(parts[0], builder.shl(parts[1], INT64(32))), value.type)
    word = builder.exchange(raw if bits == 32 else builder.zext(raw, INT32), distance, threads)
    return builder.bitcast(word if bits == 32 else builder.trunc(word, whole), value.type)


def _register_bits(kind: ir.Type) -> int:
    return kind.width if isinstance(kind, ir.IntType) else {"half": 16, "float": 32, "double": 64}[kind.text]


def _register_bytes(kind: ir.Type) -> int:
    return _register_bits(kind) // 8


def _run_alignment(dtype: DType, count: int) -> int:
    return min(element_bytes(dtype) * count, LARGEST_ACCESS)


def _has_across(code: Code) -> bool:
    """Whether lanes meet in a value, so that all of them have to compute it."""
    return any(isinstance(node, Across) for node in walk_code(code))
