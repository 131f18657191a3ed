"""Lanes as the elements of vectors: a varying value is a vector, divergence is a mask, and lanes run in lockstep.

A kernel becomes `void name(i64 first, i64 last, ptr buffers, ptr parameters)`, which runs blocks first..last-1.
`buffers` is an array of pointers to the buffers that are not local, in the kernel's order; `parameters` is an array of
int64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from weft.backends.llvm import aarch64, conversions, functions, vectors, x86
from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.emit import Emitter, build_sum
from weft.backends.llvm.instructions import Value, intrinsic
from weft.backends.llvm.lanes import Lanes
from weft.backends.llvm.types import INT32, INT64, POINTER, element_bytes, memory_type, register_type, vector
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    BLOCK,
    LANE,
    AcrossGroup,
    Call,
    Code,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Put,
    PutRun,
    TileStatement,
    dims_vary,
    is_varying,
)

MOST_SHARED = 2  # lanes that may use the same element of a masked pattern load
CACHE_LINE = 64  # bytes that a prefetch loads
MOST_PARTS = 4  # vectors of a pattern load; more are slower than a gather


class VectorLanes(Lanes):
    """The lanes of a CPU."""

    index = INT64

    def __init__(self, dot_products: vectors.DotProducts = x86.DOT_PRODUCTS) -> None:
        self.dot_products = dot_products

    def declare(self, kernel: Kernel, module: ir.Module) -> ir.Function:
        signature = ir.FunctionType(ir.VoidType(), [INT64, INT64, POINTER, POINTER])
        function = ir.Function(module, signature, kernel.name)
        function.attributes.add("nounwind")
        for argument in function.args[2:]:
            argument.add_attribute("noalias")
        return function

    def builder(self, block: ir.Block) -> IRBuilder:
        return IRBuilder(block)

    def emit_function(self, emitter: Emitter) -> None:
        first, last, buffers, parameters = emitter.function.args
        builder, kernel = emitter.builder, emitter.kernel
        for number, buffer in enumerate(b for b in kernel.buffers if b.local_size is None):
            address = builder.gep(buffers, [INT64(number)], source_etype=POINTER)
            emitter.buffers[buffer.name] = builder.load(address, typ=POINTER)
        for buffer in kernel.buffers:
            if buffer.local_size is not None:
                kind = ir.ArrayType(memory_type(buffer.dtype), buffer.local_size)
                emitter.buffers[buffer.name] = builder.alloca(kind, align=64)
        for number, name in enumerate(kernel.parameters):
            address = builder.gep(parameters, [INT64(number)], source_etype=INT64)
            emitter.variables[name] = builder.load(address, typ=INT64)
        emitter.emit_loop(BLOCK, first, last, 1, lambda: emitter.emit_body(kernel.body), ())
        builder.ret_void()

    # -- values ------------------------------------------------------------------------------------------------------

    def lane_index(self, emitter: Emitter) -> Value:
        lanes = emitter.kernel.lanes
        return ir.Constant(vector(INT64, lanes), list(range(lanes)))

    def broadcast(self, emitter: Emitter, value: Value) -> Value:
        if isinstance(value.type, ir.VectorType):
            return value
        varying = emitter.available.get(value)
        if varying is None:
            varying = emitter.available[value] = vectors.broadcast(emitter.builder, value, emitter.kernel.lanes)
        return varying

    def emit_int64(self, emitter: Emitter, value: Dim) -> Value:
        return emitter.emit_index(value)

    def emit_position(self, emitter: Emitter, indirect: Code) -> Value:
        return emitter.emit_code(indirect)

    def compare_indices(self, emitter: Emitter, call: Call) -> Value | None:
        """Compare an index that is linear in the lane or a constant pattern with a uniform one, in narrow integers."""
        match call:
            case Call("less" | "greater_equal" as order, (Integer(left), Integer(right))):
                if order == "greater_equal":
                    below = self.compare_indices(emitter, Call("less", call.arguments, call.dtype))
                    return None if below is None else emitter.builder.not_(below)
                count, stride = split_lane(right - left)
                if stride == -1:
                    return self._compare_lanes(emitter, count)
                base, pattern = split_pattern(left - right)
                if pattern is not None and not isinstance(pattern, int):
                    return self._compare_pattern(emitter, pattern, -base)
        return None

    def _compare_pattern(self, emitter: Emitter, pattern: Dim, limit: Dim) -> Value | None:
        """Compare constants of lanes, close to each other, with a uniform limit, in 8 or 16 bits."""
        builder, lanes = emitter.builder, emitter.kernel.lanes
        offsets = [dims.evaluate(pattern, {LANE: number}) for number in range(lanes)]
        low, span = min(offsets), max(offsets) - min(offsets)
        if span >= 1 << 15:
            return None
        kind = ir.IntType(8 if span < 1 << 7 else 16)
        inside = functions.apply_index_operation(builder, "max", emitter.emit_index(limit - low), INT64(0), False)
        inside = functions.apply_index_operation(builder, "min", inside, INT64(span + 1), False)
        bound = vectors.broadcast(builder, builder.trunc(inside, kind), lanes)
        return builder.icmp_unsigned("<", ir.Constant(vector(kind, lanes), [offset - low for offset in offsets]), bound)

    def _compare_lanes(self, emitter: Emitter, count: Dim) -> Value:
        builder, lanes = emitter.builder, emitter.kernel.lanes
        inside = functions.apply_index_operation(builder, "max", emitter.emit_index(count), INT64(0), False)
        inside = functions.apply_index_operation(builder, "min", inside, INT64(lanes), False)
        limit = vectors.broadcast(builder, builder.trunc(inside, INT32), lanes)
        return builder.icmp_signed("<", ir.Constant(vector(INT32, lanes), list(range(lanes))), limit)

    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        return self.dot_products.dot4(emitter.builder, unsigned, signed, total)

    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        return self.dot_products.dot2(emitter.builder, left, right, total)

    def compute_pairs(self, emitter: Emitter, function: str, values: Sequence[Value]) -> Value:
        raise InternalError(f"kernel {emitter.kernel.name}: vectors have no {function}")

    def round_to_bfloat16(self, emitter: Emitter, value: Value) -> Value:
        return vectors.half_bits(emitter.builder, value)

    def decode_integer(self, emitter: Emitter, code: Value, bits: int) -> Value:
        return x86.look_up(emitter.builder, code, [float(number % 2**bits - 2 ** (bits - 1)) for number in range(16)])

    # -- memory ------------------------------------------------------------------------------------------------------

    def bind_view(self, emitter: Emitter, address: Value) -> Value:
        return vectors.opaque(emitter.builder, address)

    def put(self, emitter: Emitter, put: Put) -> None:
        builder, dtype = emitter.builder, emitter.dtypes[put.buffer]
        size = element_bytes(dtype)
        mask = None if put.mask is None else emitter.emit_code(put.mask)
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        value = emitter.broadcast(emitter.emit_code(put.value), varies)
        if dtype is DType.bfloat16 and value in emitter.bfloat16_bits:
            value = emitter.bfloat16_bits[value]
        else:
            value = conversions.encode(builder, value, dtype)
        if not varies:
            address = emitter.address(put.buffer, put.offset, put.indirect, dtype)
            if mask is None:
                builder.store(value, address, align=size)
            else:
                with builder.if_then(mask):
                    builder.store(value, address, align=size)
            return
        base, stride = _split_stride(put.offset, put.indirect)
        if stride == 1:
            address = emitter.address(put.buffer, base, put.indirect, dtype)
            if mask is None:
                builder.store(value, address, align=size)
            else:
                vectors.masked_store(builder, value, address, self.broadcast(emitter, mask), size)
            return
        addresses = self._emit_addresses(emitter, put.buffer, put.offset, put.indirect, dtype)
        vectors.scatter(builder, value, addresses, self._emit_mask(emitter, mask), size)

    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        builder, dtype = emitter.builder, fetch.dtype
        mask = None if fetch.mask is None else emitter.emit_code(fetch.mask)
        if not (dims_vary(fetch.offset) or (fetch.indirect is not None and is_varying(fetch.indirect))):
            if mask is not None:
                return self._load_if(emitter, fetch, mask)
            return emitter.load(emitter.address(fetch.buffer, fetch.offset, fetch.indirect, dtype), dtype)
        kind, size = vector(memory_type(dtype), emitter.kernel.lanes), element_bytes(dtype)
        base, stride = _split_stride(fetch.offset, fetch.indirect)
        if stride == 1:
            address = emitter.address(fetch.buffer, base, fetch.indirect, dtype)
            if mask is None:
                loaded = builder.load(address, align=size, typ=kind)
            else:
                loaded = vectors.masked_load(builder, kind, address, self.broadcast(emitter, mask), size)
        elif (pattern := _find_pattern(emitter, fetch, mask)) is not None:
            start, offsets = pattern
            loaded = vectors.pattern_load(
                builder,
                kind,
                lambda offset: emitter.address(fetch.buffer, start + offset, fetch.indirect, dtype),
                offsets,
                size,
                None if mask is None else self.broadcast(emitter, mask),
            )
        else:
            addresses = self._emit_addresses(emitter, fetch.buffer, fetch.offset, fetch.indirect, dtype)
            loaded = vectors.gather(builder, kind, addresses, self._emit_mask(emitter, mask), size)
        return conversions.decode(builder, loaded, dtype)

    def _load_if(self, emitter: Emitter, fetch: Fetch, mask: Value) -> Value:
        """Load from a uniform address under a condition; with a varying condition, load once and select."""
        if not isinstance(mask.type, ir.VectorType):
            return emitter.load_if(fetch, mask)
        loaded = emitter.load_if(fetch, vectors.any_lane(emitter.builder, mask))
        zero = ir.Constant(register_type(fetch.dtype), None)
        return emitter.builder.select(mask, self.broadcast(emitter, loaded), self.broadcast(emitter, zero))

    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        parts = [
            Fetch(fetch.buffer, fetch.offset + number, fetch.dtype, fetch.indirect, fetch.mask)
            for number in range(len(fetch.registers))
        ]
        return [self.broadcast(emitter, emitter.emit_code(part)) for part in parts]

    def put_run(self, emitter: Emitter, put: PutRun) -> None:
        for number, value in enumerate(put.values):
            self.put(emitter, Put(put.buffer, put.offset + number, value, mask=put.mask))

    def _emit_addresses(self, emitter: Emitter, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        """Emit an address for each lane."""
        indices = self.broadcast(emitter, emitter.emit_index(offset))
        if indirect is not None:
            indices = emitter.builder.add(indices, self.broadcast(emitter, emitter.emit_code(indirect)))
        return emitter.builder.gep(emitter.buffers[buffer], [indices], source_etype=memory_type(dtype))

    def _emit_mask(self, emitter: Emitter, mask: Value | None) -> Value:
        if mask is None:
            lanes = emitter.kernel.lanes
            return ir.Constant(vector(ir.IntType(1), lanes), [1] * lanes)
        return self.broadcast(emitter, mask)

    # -- between lanes -----------------------------------------------------------------------------------------------

    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        return vectors.across(emitter.builder, kind, value, dtype)

    def across_group(self, emitter: Emitter, across: AcrossGroup, value: Value) -> Value:
        return vectors.across_group(emitter.builder, across, value)

    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        return vectors.transpose(emitter.builder, rows)

    def prefetch(self, emitter: Emitter, start: Value, nbytes: int, level: int) -> None:
        read, locality, of_data = (INT32(number) for number in (0, 4 - level, 1))
        for distance in range(0, nbytes, CACHE_LINE):
            line = emitter.builder.gep(start, [INT64(distance)], source_etype=ir.IntType(8))
            arguments = [line, read, locality, of_data]
            intrinsic(emitter.builder, "llvm.prefetch.p0", [], ir.VoidType(), arguments)

    def barrier(self, emitter: Emitter) -> None:
        """Lanes run in lockstep: nothing to do."""

    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        raise InternalError(f"kernel {emitter.kernel.name}: vectors have no tile products")


VECTOR_LANES = VectorLanes()
_ARM_LANES = VectorLanes(aarch64.DOT_PRODUCTS)
_OLD_ARM_LANES = VectorLanes(aarch64.SIGNED_DOT_PRODUCTS)


def choose_lanes(features: frozenset[str]) -> VectorLanes:
    """Return the lanes of a processor with these features, by LLVM's names."""
    if "neon" not in features:
        return VECTOR_LANES
    return _ARM_LANES if "i8mm" in features else _OLD_ARM_LANES


def _split_stride(offset: Dim, indirect: Code | None) -> tuple[Dim, Dim | None]:
    """Split an address like `split_lane`; the stride of a varying indirect one is None."""
    if indirect is not None and is_varying(indirect):
        return offset, None
    return split_lane(offset)


def _find_pattern(emitter: Emitter, fetch: Fetch, mask: Value | None) -> tuple[Dim, list[int]] | None:
    """Split an offset into a base and constants of lanes; None if it cannot be, or if a gather is faster."""
    if fetch.indirect is not None and is_varying(fetch.indirect):
        return None
    base, pattern = split_pattern(fetch.offset)
    if pattern is None:
        return None
    lanes = emitter.kernel.lanes
    offsets = [dims.evaluate(pattern, {LANE: number}) for number in range(lanes)]
    shared = max(Counter(offsets).values())
    near = max(offsets) - min(offsets) < MOST_PARTS * lanes
    return (base, offsets) if near and (mask is None or shared <= MOST_SHARED) else None


@lru_cache(maxsize=65536)
def split_lane(offset: Dim) -> tuple[Dim, Dim | None]:
    """Split an offset into base + stride * lane; the stride is None if the offset is not linear in the lane."""
    if isinstance(offset, int) or not dims_vary(offset):
        return offset, 0
    base = []
    stride: Dim = 0
    for term in offset.terms:
        monomial, coefficient = term
        if LANE not in dims.monomial_names(monomial):
            base.append(term)
            continue
        rest = tuple(atom for atom in monomial if not (isinstance(atom, Symbol) and atom.name == LANE))
        if len(monomial) - len(rest) != 1 or LANE in dims.monomial_names(rest):
            return offset, None
        stride = stride + (Expr(((rest, coefficient),)) if rest else coefficient)
    return build_sum(base), stride


def split_pattern(offset: Dim) -> tuple[Dim, Dim | None]:
    """Split an offset into terms without the lane and terms of the lane alone; None for other terms."""
    base, rest = [], []
    for term in offset.terms if isinstance(offset, Expr) else (((), offset),):
        names = dims.monomial_names(term[0])
        if LANE not in names:
            base.append(term)
        elif names == {LANE}:
            rest.append(term)
        else:
            return offset, None
    return build_sum(base), build_sum(rest)
