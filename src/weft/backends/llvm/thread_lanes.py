"""Lanes as the threads of an NVIDIA GPU: a varying value is a scalar in each thread, divergence is a branch.

A kernel becomes an entry `name(buffers ..., parameters ...)`: global addresses of the buffers that are not local, then
int64 parameters, both in the kernel's order. A block of the kernel is a thread block (along x) with one thread per
lane. Local buffers are in shared memory: static up to 48 KiB, otherwise dynamic (`dynamic_shared_bytes`). All threads
compute uniform values, and the first one stores them. The kernel must contain the barriers that its memory accesses
need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, tile_pipeline, tiles
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.emit import Emitter
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.lanes import Lanes
from weft.backends.llvm.nvptx import GLOBAL, SHARED, WARP, NvptxBuilder
from weft.backends.llvm.tile_instructions import compute_pairs, fence_tensor_cores
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
    AcrossGroup,
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

LARGEST_ACCESS = 16  # bytes of a thread's load or store
RUNS = (2, 4, 8, 16)  # elements of a vector load or store
_MOST_READ = 8  # values of other lanes that a lane reads between barriers


@dataclass(frozen=True, slots=True)
class ThreadLanes(Lanes):
    """The lanes of a GPU.

    `index_bits`: 32 if all sizes, positions and offsets of the launch fit; parameters are int64 in any case.
    `unaligned`: buffers whose runs are accessed element by element, because they may start anywhere.
    `tile_products`: the instruction that multiplies tiles, "mma.sync" or "wgmma"; empty if there is none.
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

    def builder(self, block: ir.Block) -> IRBuilder:
        return NvptxBuilder(block, recent=bool(self.tile_products))

    def emit_function(self, emitter: Emitter) -> None:
        kernel, builder = emitter.kernel, emitter.builder
        arguments = iter(emitter.function.args)
        _reserve_tiles(emitter)
        for buffer in kernel.buffers:
            if buffer.local_size is None:
                emitter.buffers[buffer.name] = next(arguments)
            elif buffer.name not in emitter.buffers:
                size = buffer.local_size * element_bytes(buffer.dtype)
                emitter.buffers[buffer.name] = _reserve_shared(emitter, buffer.name, size)
        for name in kernel.parameters:
            emitter.variables[name] = self._index(emitter, next(arguments))
        emitter.variables[BLOCK] = self._index(emitter, _nvptx_builder(emitter).thread_block())
        emitter.variables[LANE] = self._index(emitter, _nvptx_builder(emitter).thread())
        emitter.emit_body(kernel.body)
        builder.ret_void()

    def _index(self, emitter: Emitter, value: Value) -> Value:
        """Convert a number of 32 or 64 bits to an index."""
        if value.type == self.index:
            return value
        return emitter.builder.trunc(value, INT32) if self.index_bits == 32 else emitter.builder.sext(value, INT64)

    # -- values ------------------------------------------------------------------------------------------------------

    def lane_index(self, emitter: Emitter) -> Value:
        return emitter.variables[LANE]

    def thread(self, emitter: Emitter) -> Value:
        """Return the lane's number as an int32."""
        number = self.lane_index(emitter)
        return number if self.index_bits == 32 else emitter.builder.trunc(number, INT32)

    def broadcast(self, emitter: Emitter, value: Value) -> Value:
        return value

    def emit_int64(self, emitter: Emitter, value: Dim) -> Value:
        if isinstance(value, int):
            return INT64(value)
        if self.index_bits == 64:
            return emitter.emit_index(value)
        if fit(value) and is_short(value):
            return emitter.builder.sext(emitter.emit_index(value), INT64)
        total: Value | None = None
        for monomial, coefficient in value.terms:
            term: Value = INT64(coefficient)
            for atom in monomial:
                term = emitter.builder.mul(term, emitter.builder.sext(emitter.emit_atom(atom), INT64))
            total = term if total is None else emitter.builder.add(total, term)
        assert total is not None
        return total

    def emit_position(self, emitter: Emitter, indirect: Code) -> Value:
        return self._index(emitter, emitter.emit_code(indirect))

    def compare_indices(self, emitter: Emitter, call: Call) -> Value | None:
        if call.function not in COMPARISONS or not are_indices(*call.arguments):
            return None
        values = [emitter.emit_index(value) for argument in call.arguments if (value := index_of(argument)) is not None]
        return functions.apply(emitter.builder, call.function, values, [DType.int32] * 2, DType.bool)

    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        return _nvptx_builder(emitter).dot4(unsigned, signed, total)

    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads multiply bfloat16 in tiles")

    def round_to_bfloat16(self, emitter: Emitter, value: Value) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads multiply bfloat16 in tiles")

    def decode_integer(self, emitter: Emitter, code: Value, bits: int) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: threads have no table lookups in registers")

    def compute_pairs(self, emitter: Emitter, function: str, values: Sequence[Value]) -> Value:
        return compute_pairs(emitter.builder, function, values)

    # -- memory ------------------------------------------------------------------------------------------------------

    def bind_view(self, emitter: Emitter, address: Value) -> Value:
        return address

    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        if fetch.mask is None:
            return emitter.load(emitter.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype), fetch.dtype)
        mask = emitter.emit_code(fetch.mask)
        if fetch.indirect is None or not _has_across(fetch.indirect):
            return emitter.load_if(fetch, mask)
        address = emitter.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype)  # in all threads
        return emitter.compute_if(mask, lambda: [emitter.load(address, fetch.dtype)])[0]

    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        count = len(fetch.registers)
        if not self._is_run(emitter, fetch.buffer, count):
            parts = [
                Fetch(fetch.buffer, fetch.offset + n, fetch.dtype, fetch.indirect, fetch.mask) for n in range(count)
            ]
            return [self.fetch(emitter, part) for part in parts]

        def load() -> list[Value]:
            kind = vector(memory_type(fetch.dtype), count)
            address = emitter.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype)
            run = emitter.builder.load(address, kind, align=_run_alignment(fetch.dtype, count))
            elements = [emitter.builder.extract_element(run, INT32(number)) for number in range(count)]
            return [conversions.decode(emitter.builder, element, fetch.dtype) for element in elements]

        return load() if fetch.mask is None else emitter.compute_if(emitter.emit_code(fetch.mask), load)

    def put(self, emitter: Emitter, put: Put) -> None:
        builder, dtype = emitter.builder, emitter.dtypes[put.buffer]
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        value = conversions.encode(builder, emitter.emit_code(put.value), dtype)
        address = emitter.address(put.buffer, put.offset, put.indirect, dtype)
        conditions = [] if put.mask is None else [emitter.emit_code(put.mask)]
        if not varies and emitter.kernel.lanes > 1:
            conditions.append(builder.icmp_signed("==", self.lane_index(emitter), self.index(0)))
        self._store(emitter, value, address, element_bytes(dtype), conditions)

    def put_run(self, emitter: Emitter, put: PutRun) -> None:
        dtype, count = emitter.dtypes[put.buffer], len(put.values)
        if not dims_vary(put.offset) or not self._is_run(emitter, put.buffer, count):
            for number, code in enumerate(put.values):
                self.put(emitter, Put(put.buffer, put.offset + number, code, mask=put.mask))
            return
        run: Value = ir.Constant(vector(memory_type(dtype), count), ir.Undefined)
        for number, code in enumerate(put.values):
            value = conversions.encode(emitter.builder, emitter.emit_code(code), dtype)
            run = emitter.builder.insert_element(run, value, INT32(number))
        address = emitter.address(put.buffer, put.offset, None, dtype)
        conditions = [] if put.mask is None else [emitter.emit_code(put.mask)]
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
        return count in RUNS and emitter.view_buffers.get(buffer, buffer) not in self.unaligned

    # -- between lanes -----------------------------------------------------------------------------------------------

    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        """Reduce within each warp by butterfly shuffles, then across warps through shared memory."""
        lanes, builder = emitter.kernel.lanes, _nvptx_builder(emitter)

        def combine(a: Value, b: Value) -> Value:
            return functions.apply(builder, ACROSS_FUNCTIONS[kind], [a, b], [dtype, dtype], dtype)

        warp_lanes = min(lanes, WARP)
        if lanes % warp_lanes or warp_lanes & (warp_lanes - 1):
            return self._across_memory(emitter, value, dtype, combine)
        distance = warp_lanes // 2
        while distance:
            value = combine(value, _exchange(builder, value, distance, warp_lanes))
            distance //= 2
        if lanes == warp_lanes:
            return value
        memory, element, size = _reserve_scratch(emitter, dtype)
        warp = builder.lshr(self.lane_index(emitter), self.index(WARP.bit_length() - 1))
        builder.barrier()  # an earlier reduction may still be read
        address = builder.gep(memory, [warp], source_etype=element)
        builder.store(conversions.encode(builder, value, dtype), address, align=size)
        builder.barrier()
        result = emitter.load(builder.gep(memory, [INT32(0)], source_etype=element), dtype)
        for number in range(1, lanes // WARP):
            result = combine(result, emitter.load(builder.gep(memory, [INT32(number)], source_etype=element), dtype))
        return result

    def across_group(self, emitter: Emitter, across: AcrossGroup, value: Value) -> Value:
        """Reduce within each warp by butterfly shuffles, then through shared memory, up to eight values at a time."""
        builder, dtype, lanes = _nvptx_builder(emitter), across.dtype, emitter.kernel.lanes

        def combine(a: Value, b: Value) -> Value:
            return functions.apply(builder, ACROSS_FUNCTIONS[across.kind], [a, b], [dtype, dtype], dtype)

        distance, end, warp_lanes = across.step, across.step * across.members, min(lanes, WARP)
        while distance < min(end, warp_lanes):
            value = combine(value, _exchange(builder, value, distance, warp_lanes))
            distance *= 2
        while distance < end:
            count = min(end // distance, _MOST_READ)
            memory, element, size = _reserve_scratch(emitter, dtype)
            lane = self.lane_index(emitter)
            builder.barrier()  # an earlier reduction may still be read
            address = builder.gep(memory, [lane], source_etype=element)
            builder.store(conversions.encode(builder, value, dtype), address, align=size)
            builder.barrier()
            first = builder.and_(lane, self.index(~((count - 1) * distance)))
            address = builder.gep(memory, [first], source_etype=element)
            values = [
                emitter.load(builder.gep(address, [INT32(number * distance)], source_etype=element), dtype)
                for number in range(count)
            ]
            while len(values) > 1:
                values = [combine(*values[number : number + 2]) for number in range(0, len(values), 2)]
            (value,) = values
            distance *= count
        return value

    def reduce_quads(self, emitter: Emitter, kind: str, value: Value) -> Value:
        """Reduce float32 within each four neighbouring threads."""
        builder, dtypes = _nvptx_builder(emitter), [DType.float32] * 2
        for distance in (2, 1):
            other = _exchange(builder, value, distance, WARP)
            value = functions.apply(builder, ACROSS_FUNCTIONS[kind], [value, other], dtypes, DType.float32)
        return value

    def _across_memory(
        self, emitter: Emitter, value: Value, dtype: DType, combine: Callable[[Value, Value], Value]
    ) -> Value:
        """Reduce any number of threads through shared memory, halving the number of values in each step."""
        builder, left = _nvptx_builder(emitter), emitter.kernel.lanes
        memory, element, size = _reserve_scratch(emitter, dtype)
        slot = builder.gep(memory, [self.lane_index(emitter)], source_etype=element)
        builder.barrier()
        builder.store(conversions.encode(builder, value, dtype), slot, align=size)
        builder.barrier()
        while left > 1:
            half = (left + 1) // 2
            with builder.if_then(builder.icmp_signed("<", self.lane_index(emitter), self.index(left - half))):
                other = emitter.load(builder.gep(slot, [INT32(half)], source_etype=element), dtype)
                total = combine(emitter.load(slot, dtype), other)
                builder.store(conversions.encode(builder, total, dtype), slot, align=size)
            builder.barrier()
            left = half
        return emitter.load(memory, dtype)

    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        """Transpose through shared memory."""
        builder, lanes, kind = _nvptx_builder(emitter), emitter.kernel.lanes, rows[0].type
        element = ir.IntType(8) if kind == BIT else kind
        memory = _reserve_shared(emitter, f".transposed {kind.text}", lanes * lanes * _register_bytes(element))
        builder.barrier()
        lane = self.lane_index(emitter)
        for number, row in enumerate(rows):
            address = builder.gep(memory, [builder.add(lane, self.index(number * lanes))], source_etype=element)
            builder.store(builder.zext(row, element) if kind == BIT else row, address)
        builder.barrier()
        first = builder.gep(memory, [builder.mul(lane, self.index(lanes))], source_etype=element)
        addresses = [builder.gep(first, [INT32(number)], source_etype=element) for number in range(lanes)]
        columns = [builder.load(address, element) for address in addresses]
        builder.barrier()
        return [builder.trunc(column, BIT) for column in columns] if kind == BIT else columns

    def prefetch(self, emitter: Emitter, start: Value, nbytes: int, level: int) -> None:
        """Other warps run while one waits for memory: nothing to do."""

    def barrier(self, emitter: Emitter) -> None:
        if self.tile_products == tiles.WGMMA and any(buffer.tile for buffer in emitter.kernel.buffers):
            fence_tensor_cores(emitter.builder)
        _nvptx_builder(emitter).barrier()

    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        if not self.tile_products:
            raise InternalError(f"kernel {emitter.kernel.name}: this processor has no tile products")
        if isinstance(statement, TilePipeline):
            tile_pipeline.PipelineEmitter(emitter, statement).write()
        else:
            tiles.write(emitter, statement)


def dynamic_shared_bytes(kernel: Kernel, module: ir.Module) -> int:
    """Return the bytes of dynamic shared memory that launches must request; 0 if it is static."""
    memory = module.globals.get(_shared_name(kernel))
    return memory.dynamic_size if isinstance(memory, ir.SharedMemory) else 0


def _shared_name(kernel: Kernel) -> str:
    return f"{kernel.name}_shared"


def _reserve_shared(emitter: Emitter, name: str, size: int, alignment: int = LARGEST_ACCESS) -> Value:
    """Return the address of a named range of shared memory; equal names share it."""
    module, memory_name = emitter.builder.module, _shared_name(emitter.kernel)
    memory = module.globals.get(memory_name) or ir.SharedMemory(module, SHARED, memory_name)
    assert isinstance(memory, ir.SharedMemory)
    return emitter.builder.gep(memory, [INT32(memory.reserve(name, size, alignment))], source_etype=ir.IntType(8))


def _reserve_tiles(emitter: Emitter) -> None:
    """Reserve shared memory for tiles, which late buffers reuse after them."""
    buffers = emitter.kernel.buffers
    early = [buffer for buffer in buffers if buffer.tile is not None]
    late = [buffer for buffer in buffers if buffer.late]
    if not early:
        return
    offsets: dict[str, int] = {}
    end = 0
    for group, alignment in ((early, ALIGNMENT), (late, LARGEST_ACCESS)):
        offset = 0
        for buffer in group:
            offsets[buffer.name] = offset = -(-offset // alignment) * alignment
            offset += (
                tiles.reserved_bytes(buffer) if buffer.tile else (buffer.local_size or 0) * element_bytes(buffer.dtype)
            )
        end = max(end, offset)
    first = _reserve_shared(emitter, ".tiles", end, ALIGNMENT)
    for name, offset in offsets.items():
        emitter.buffers[name] = emitter.builder.gep(first, [INT32(offset)], source_etype=ir.IntType(8))


def _reserve_scratch(emitter: Emitter, dtype: DType) -> tuple[Value, ir.Type, int]:
    """Reserve shared memory to reduce values of a type; return it with the type and size of its elements."""
    size = element_bytes(dtype)
    return _reserve_shared(emitter, f".combined {dtype}", emitter.kernel.lanes * size), memory_type(dtype), size


def _nvptx_builder(emitter: Emitter) -> NvptxBuilder:
    assert isinstance(emitter.builder, NvptxBuilder)
    return emitter.builder


def _exchange(builder: NvptxBuilder, value: Value, distance: int, threads: int) -> Value:
    """Exchange a value of any type with another thread, by 32-bit words."""
    bits = _register_bits(value.type)
    integer_type = ir.IntType(bits)
    raw = builder.bitcast(value, integer_type)
    if bits == 64:
        low, high = builder.trunc(raw, INT32), builder.trunc(builder.lshr(raw, INT64(32)), INT32)
        parts = [builder.zext(builder.exchange(part, distance, threads), INT64) for part in (low, high)]
        return builder.bitcast(builder.or_(parts[0], builder.shl(parts[1], INT64(32))), value.type)
    word = builder.exchange(raw if bits == 32 else builder.zext(raw, INT32), distance, threads)
    return builder.bitcast(word if bits == 32 else builder.trunc(word, integer_type), value.type)


def _register_bits(kind: ir.Type) -> int:
    return kind.width if isinstance(kind, ir.IntType) else {"half": 16, "float": 32, "double": 64}[kind.text]


def _register_bytes(kind: ir.Type) -> int:
    return _register_bits(kind) // 8


def _run_alignment(dtype: DType, count: int) -> int:
    return min(element_bytes(dtype) * count, LARGEST_ACCESS)


def _has_across(code: Code) -> bool:
    """Tell whether a value includes a reduction across lanes, so that all of them must compute it."""
    return any(isinstance(node, (Across, AcrossGroup)) for node in walk_code(code))
