"""Lanes as the elements of vectors: a varying value is a vector, divergence a mask, and lanes always go on together.

A kernel becomes `void name(i64 first, i64 last, ptr buffers, ptr parameters)`, which runs blocks first..last-1.
`buffers` is an array of pointers in the order of the kernel's buffers that are not local, `parameters` one of int64.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, vectors
from weft.backends.llvm.dots import dot2, dot4, half_bits, looked_up
from weft.backends.llvm.emit import Emitter, sum_of
from weft.backends.llvm.lanes import Lanes
from weft.backends.llvm.types import INT32, INT64, POINTER, element_bytes, memory_type, register_type, vector
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    BLOCK,
    LANE,
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

Value = Any
MOST_SHARED = 2  # lanes that use one element, under a mask
MOST_PARTS = 4  # neighbouring vectors that are loaded and shuffled rather than one element for each lane


class VectorLanes(Lanes):
    """Those of CPUs."""

    index = INT64

    def declare(self, kernel: Kernel, module: ir.Module) -> ir.Function:
        signature = ir.FunctionType(ir.VoidType(), [INT64, INT64, POINTER, POINTER])
        function = ir.Function(module, signature, kernel.name)
        function.attributes.add("nounwind")
        for argument in function.args[2:]:
            argument.add_attribute("noalias")
        return function

    def builder(self, block: ir.Block) -> ir.IRBuilder:
        return ir.IRBuilder(block)

    def run(self, emitter: Emitter) -> None:
        first, last, buffers, parameters = emitter.function.args
        builder, kernel = emitter.builder, emitter.kernel
        for number, buffer in enumerate(b for b in kernel.buffers if b.local_size is None):
            place = builder.gep(buffers, [INT64(number)], source_etype=POINTER)
            emitter.buffers[buffer.name] = builder.load(place, typ=POINTER)
        for buffer in kernel.buffers:
            if buffer.local_size is not None:
                kind = ir.ArrayType(memory_type(buffer.dtype), buffer.local_size)
                emitter.buffers[buffer.name] = builder.alloca(kind, align=64)
        for number, name in enumerate(kernel.parameters):
            place = builder.gep(parameters, [INT64(number)], source_etype=INT64)
            emitter.variables[name] = builder.load(place, typ=INT64)
        emitter.count(BLOCK, first, last, 1, lambda: emitter.body(kernel.body), ())
        builder.ret_void()

    # -- values ------------------------------------------------------------------------------------------------------

    def number(self, emitter: Emitter) -> Value:
        lanes = emitter.kernel.lanes
        return ir.Constant(vector(INT64, lanes), list(range(lanes)))

    def spread(self, emitter: Emitter, value: Value) -> Value:
        if isinstance(value.type, ir.VectorType):
            return value
        found = emitter.known.get(value)
        if found is None:
            found = emitter.known[value] = vectors.broadcast(emitter.builder, value, emitter.kernel.lanes)
        return found

    def wide(self, emitter: Emitter, value: Dim) -> Value:
        return emitter.integer(value)

    def position(self, emitter: Emitter, indirect: Code) -> Value:
        return emitter.code(indirect)

    def comparison(self, emitter: Emitter, call: Call) -> Value | None:
        """Which lanes' numbers are below a uniform number; in 32 bits, as narrow as most elements are."""
        match call:
            case Call("less" | "greater_equal" as order, (Integer(left), Integer(right))):
                if order == "greater_equal":
                    below = self.comparison(emitter, Call("less", call.arguments, call.dtype))
                    return None if below is None else emitter.builder.not_(below)
                count, stride = split_lane(right - left)
                if stride == -1:
                    return self._lanes_below(emitter, count)
                base, pattern = split_pattern(left - right)
                if pattern is not None and not isinstance(pattern, int):
                    return self._places_below(emitter, pattern, -base)
        return None

    def _places_below(self, emitter: Emitter, pattern: Dim, limit: Dim) -> Value | None:
        """Which lanes' places, constants close to each other, are below a uniform number; in 8 or 16 bits."""
        builder, lanes = emitter.builder, emitter.kernel.lanes
        places = [dims.evaluate(pattern, {LANE: number}) for number in range(lanes)]
        low, span = min(places), max(places) - min(places)
        if span >= 1 << 15:
            return None
        kind = ir.IntType(8 if span < 1 << 7 else 16)
        inside = functions.integer_operation(builder, "max", emitter.integer(limit - low), INT64(0), False)
        inside = functions.integer_operation(builder, "min", inside, INT64(span + 1), False)
        bound = vectors.broadcast(builder, builder.trunc(inside, kind), lanes)
        return builder.icmp_unsigned("<", ir.Constant(vector(kind, lanes), [place - low for place in places]), bound)

    def _lanes_below(self, emitter: Emitter, count: Dim) -> Value:
        builder, lanes = emitter.builder, emitter.kernel.lanes
        inside = functions.integer_operation(builder, "max", emitter.integer(count), INT64(0), False)
        inside = functions.integer_operation(builder, "min", inside, INT64(lanes), False)
        limit = vectors.broadcast(builder, builder.trunc(inside, INT32), lanes)
        return builder.icmp_signed("<", ir.Constant(vector(INT32, lanes), list(range(lanes))), limit)

    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        return dot4(emitter.builder, unsigned, signed, total)

    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        return dot2(emitter.builder, left, right, total)

    def half_bits(self, emitter: Emitter, value: Value) -> Value:
        return half_bits(emitter.builder, value)

    def number_of_code(self, emitter: Emitter, code: Value, bits: int) -> Value:
        return looked_up(emitter.builder, code, [float(place % 2**bits - 2 ** (bits - 1)) for place in range(16)])

    # -- memory ------------------------------------------------------------------------------------------------------

    def view(self, emitter: Emitter, address: Value) -> Value:
        return vectors.opaque(emitter.builder, address)

    def put(self, emitter: Emitter, put: Put) -> None:
        builder, dtype = emitter.builder, emitter.dtypes[put.buffer]
        size = element_bytes(dtype)
        mask = None if put.mask is None else emitter.code(put.mask)
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        value = emitter.spread(emitter.code(put.value), varies)
        if dtype is DType.bfloat16 and value in emitter.halves:
            value = emitter.halves[value]
        else:
            value = conversions.stored(builder, value, dtype)
        if not varies:
            address = emitter.address(put.buffer, put.offset, put.indirect, dtype)
            if mask is None:
                builder.store(value, address, align=size)
            else:
                with builder.if_then(mask):
                    builder.store(value, address, align=size)
            return
        base, stride = _lane_stride(put.offset, put.indirect)
        if stride == 1:
            address = emitter.address(put.buffer, base, put.indirect, dtype)
            if mask is None:
                builder.store(value, address, align=size)
            else:
                vectors.masked_store(builder, value, address, self.spread(emitter, mask), size)
            return
        addresses = self._addresses(emitter, put.buffer, put.offset, put.indirect, dtype)
        vectors.scatter(builder, value, addresses, self._lane_mask(emitter, mask), size)

    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        builder, dtype = emitter.builder, fetch.dtype
        mask = None if fetch.mask is None else emitter.code(fetch.mask)
        if not (dims_vary(fetch.offset) or (fetch.indirect is not None and is_varying(fetch.indirect))):
            if mask is not None:
                return self._guarded_load(emitter, fetch, mask)
            return emitter.load(emitter.address(fetch.buffer, fetch.offset, fetch.indirect, dtype), dtype)
        kind, size = vector(memory_type(dtype), emitter.kernel.lanes), element_bytes(dtype)
        base, stride = _lane_stride(fetch.offset, fetch.indirect)
        if stride == 1:
            address = emitter.address(fetch.buffer, base, fetch.indirect, dtype)
            if mask is None:
                loaded = builder.load(address, align=size, typ=kind)
            else:
                loaded = vectors.masked_load(builder, kind, address, self.spread(emitter, mask), size)
        elif (pattern := _lane_pattern(emitter, fetch, mask)) is not None:
            start, places = pattern
            loaded = vectors.pattern_load(
                builder,
                kind,
                lambda place: emitter.address(fetch.buffer, start + place, fetch.indirect, dtype),
                places,
                size,
                None if mask is None else self.spread(emitter, mask),
            )
        else:
            addresses = self._addresses(emitter, fetch.buffer, fetch.offset, fetch.indirect, dtype)
            loaded = vectors.gather(builder, kind, addresses, self._lane_mask(emitter, mask), size)
        return conversions.loaded(builder, loaded, dtype)

    def _guarded_load(self, emitter: Emitter, fetch: Fetch, mask: Value) -> Value:
        """A uniform load under a condition; a varying condition of a uniform place loads once and selects."""
        if not isinstance(mask.type, ir.VectorType):
            return emitter.guarded_load(fetch, mask)
        loaded = emitter.guarded_load(fetch, vectors.any_lane(emitter.builder, mask))
        zero = ir.Constant(register_type(fetch.dtype), None)
        return emitter.builder.select(mask, self.spread(emitter, loaded), self.spread(emitter, zero))

    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        return [
            self.spread(emitter, emitter.code(Fetch(fetch.buffer, fetch.offset + number, fetch.dtype, mask=fetch.mask)))
            for number in range(len(fetch.registers))
        ]

    def put_run(self, emitter: Emitter, put: PutRun) -> None:
        for number, value in enumerate(put.values):
            self.put(emitter, Put(put.buffer, put.offset + number, value, mask=put.mask))

    def _addresses(self, emitter: Emitter, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        """One pointer a lane."""
        places = self.spread(emitter, emitter.integer(offset))
        if indirect is not None:
            places = emitter.builder.add(places, self.spread(emitter, emitter.code(indirect)))
        return emitter.builder.gep(emitter.buffers[buffer], [places], source_etype=memory_type(dtype))

    def _lane_mask(self, emitter: Emitter, mask: Value | None) -> Value:
        if mask is None:
            lanes = emitter.kernel.lanes
            return ir.Constant(vector(ir.IntType(1), lanes), [1] * lanes)
        return self.spread(emitter, mask)

    # -- between lanes -----------------------------------------------------------------------------------------------

    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        return vectors.across(emitter.builder, kind, value, dtype)

    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        return vectors.transpose(emitter.builder, rows)

    def barrier(self, emitter: Emitter) -> None:
        """Lanes go on together."""

    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        raise InternalError(f"kernel {emitter.kernel.name}: there are no tile products in vectors")


VECTOR_LANES = VectorLanes()


def _lane_stride(offset: Dim, indirect: Code | None) -> tuple[Dim, Dim | None]:
    """(base, stride) with offset == base + stride * lane; stride None where it is not linear in the lane."""
    if indirect is not None and is_varying(indirect):
        return offset, None
    return split_lane(offset)


def _lane_pattern(emitter: Emitter, fetch: Fetch, mask: Value | None) -> tuple[Dim, list[int]] | None:
    """(base, place of each lane), where the lanes' places are constants that lie close together.

    Under a mask few lanes may share an element, since each sharing costs.
    """
    if fetch.indirect is not None and is_varying(fetch.indirect):
        return None
    base, pattern = split_pattern(fetch.offset)
    if pattern is None:
        return None
    lanes = emitter.kernel.lanes
    places = [dims.evaluate(pattern, {LANE: number}) for number in range(lanes)]
    shared = max(Counter(places).values())
    near = max(places) - min(places) < MOST_PARTS * lanes
    return (base, places) if near and (mask is None or shared <= MOST_SHARED) else None


@lru_cache(maxsize=65536)
def split_lane(offset: Dim) -> tuple[Dim, Dim | None]:
    """(base, stride) with offset == base + stride * lane; stride None where it is not linear in the lane."""
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
    return sum_of(base), stride


def split_pattern(offset: Dim) -> tuple[Dim, Dim | None]:
    """(base, rest) with offset == base + rest, where rest depends on the lane alone; None where it does not."""
    base, rest = [], []
    for term in offset.terms if isinstance(offset, Expr) else (((), offset),):
        names = dims.monomial_names(term[0])
        if LANE not in names:
            base.append(term)
        elif names == {LANE}:
            rest.append(term)
        else:
            return offset, None
    return sum_of(base), sum_of(rest)
