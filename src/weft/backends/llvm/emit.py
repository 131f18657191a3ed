"""Kernel -> LLVM IR.

A kernel becomes `void name(i64 first, i64 last, ptr buffers, ptr parameters)`, which runs blocks first..last-1.
`buffers` is an array of pointers in the order of the kernel's buffers that are not local, `parameters` one of int64.
A varying value is a vector with one element a lane, a uniform one a scalar. A register's present value is known while
code is written; where control meets again, those that were assigned to become phis. bool is i1 in registers and i8 in
memory; bfloat16 and floats of 8 bits and fewer are computed as float32 and rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions, vectors
from weft.backends.llvm.types import ELEMENT, INT32, INT64, POINTER, memory_type, register_type, vector
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Compound, Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    BLOCK,
    LANE,
    Across,
    Assign,
    Barrier,
    Call,
    Code,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    Transpose,
    View,
    When,
    dims_vary,
    is_varying,
    walk_code,
)

Value = Any
MOST_SHARED = 2  # lanes that use one element, under a mask
MOST_PARTS = 4  # neighbouring vectors that are loaded and shuffled rather than one element for each lane


def emit(kernel: Kernel, module: ir.Module) -> ir.Function:
    """Add the kernel's function to an LLVM module."""
    signature = ir.FunctionType(ir.VoidType(), [INT64, INT64, POINTER, POINTER])
    function = ir.Function(module, signature, kernel.name)
    function.attributes.add("nounwind")
    for argument in function.args[2:]:
        argument.add_attribute("noalias")
    _Emitter(kernel, function).run()
    return function


class _Emitter:
    def __init__(self, kernel: Kernel, function: ir.Function) -> None:
        self.kernel = kernel
        self.function = function
        self.lanes = kernel.lanes
        self.entry = function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry)
        self.variables: dict[str, Value] = {}
        self.registers: dict[str, Value] = {}  # their present values
        self.buffers: dict[str, Value] = {}
        self.dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.moving: set[str] = set()  # variables that change in the innermost loop
        self.known: dict[Any, Value] = {}  # values computed in the blocks that dominate the present one

    def run(self) -> None:
        first, last, buffers, parameters = self.function.args
        builder = self.builder
        shared = [buffer for buffer in self.kernel.buffers if buffer.local_size is None]
        for number, buffer in enumerate(shared):
            place = builder.gep(buffers, [INT64(number)], source_etype=POINTER)
            self.buffers[buffer.name] = builder.load(place, typ=POINTER)
        for buffer in self.kernel.buffers:
            if buffer.local_size is not None:
                kind = ir.ArrayType(memory_type(buffer.dtype), buffer.local_size)
                self.buffers[buffer.name] = builder.alloca(kind, align=64)
        for number, name in enumerate(self.kernel.parameters):
            place = builder.gep(parameters, [INT64(number)], source_etype=INT64)
            self.variables[name] = builder.load(place, typ=INT64)
        self.count(BLOCK, first, last, 1, lambda: self.body(self.kernel.body), ())
        self.builder.ret_void()

    # -- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case Define(name, value, varying):
                    self.registers[name] = self.as_kind(self.code(value), varying)
                case Assign(name, value):
                    varying = isinstance(self.registers[name].type, ir.VectorType)
                    self.registers[name] = self.as_kind(self.code(value), varying)
                case Put():
                    self.put(statement)
                case Repeat():
                    self.repeat(statement)
                case When(condition, then, otherwise):
                    self.when(condition, then, otherwise)
                case Let(name, value):
                    self.variables[name] = self.integer(value)
                    self.moving.add(name)
                case View(name, buffer, offset):
                    dtype = self.buffer_dtype(buffer)
                    self.dtypes[name] = dtype
                    self.buffers[name] = vectors.opaque(self.builder, self.address(buffer, offset, None, dtype))
                case FetchRun(names, buffer, offset, dtype, mask):
                    for number, name in enumerate(names):
                        fetched = self.code(Fetch(buffer, offset + number, dtype, mask=mask))
                        self.registers[name] = self.as_kind(fetched, True)
                case PutRun(buffer, offset, values, mask):
                    for number, value in enumerate(values):
                        self.put(Put(buffer, offset + number, value, mask=mask))
                case Barrier():
                    pass  # lanes go on together
                case Transpose(names):
                    rows = vectors.transpose(self.builder, [self.registers[name] for name in names])
                    self.registers.update(zip(names, rows, strict=True))

    def repeat(self, loop: Repeat) -> None:
        start, stop = self.integer(loop.start), self.integer(loop.stop)
        if loop.unroll == 1:
            self.count(loop.variable, start, stop, loop.step, lambda: self.body(loop.body), loop.body)
            return
        stride = loop.step * loop.unroll
        room = self.builder.sub(stop, start)
        whole = self.builder.mul(self.builder.sdiv(room, INT64(stride)), INT64(stride))
        middle = self.builder.add(start, self.builder.select(
            self.builder.icmp_signed(">", room, INT64(0)), whole, INT64(0)))  # fmt: skip

        def unrolled() -> None:
            base = self.variables[loop.variable]
            for copy in range(loop.unroll):
                self.variables[loop.variable] = self.builder.add(base, INT64(copy * loop.step))
                with self.scope(self.carried(loop.body)):
                    self.body(loop.body)

        self.count(loop.variable, start, middle, stride, unrolled, loop.body)
        self.count(loop.variable, middle, stop, loop.step, lambda: self.body(loop.body), loop.body)

    def count(
        self,
        name: str,
        start: Value,
        stop: Value,
        step: int,
        body: Callable[[], None],
        statements: tuple[Statement, ...],
    ) -> None:
        """A loop over an integer variable; nothing runs where start >= stop. `body` writes the statements."""
        builder = self.builder
        before = builder.block
        inside, after = (
            self.function.append_basic_block(f"{name}.body"),
            self.function.append_basic_block(f"{name}.end"),
        )
        builder.cbranch(builder.icmp_signed("<", start, stop), inside, after)
        builder.position_at_end(inside)
        number = builder.phi(INT64, name)
        number.add_incoming(start, before)
        carried = self.carried(statements)
        outside = {register: self.registers[register] for register in carried}
        phis = {register: builder.phi(value.type) for register, value in outside.items()}
        self.registers.update(phis)
        hidden, outer = self.variables.get(name), self.moving
        self.variables[name] = number
        self.moving = {name}
        with self.scope(carried):
            body()
        self.moving = outer
        following = builder.add(number, INT64(step), flags=["nsw"])
        last = builder.block
        number.add_incoming(following, last)
        builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
        if hidden is None:
            del self.variables[name]
        else:
            self.variables[name] = hidden
        builder.position_at_end(after)
        for register, value in outside.items():
            phis[register].add_incoming(value, before)
            phis[register].add_incoming(self.registers[register], last)
            self.meet(register, (value, before), (self.registers[register], last))

    def when(self, condition: Code, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        test = self.code(condition)
        names = ("then", "otherwise", "after") if otherwise else ("then", "after")
        blocks = [self.function.append_basic_block(name) for name in names]
        self.builder.cbranch(test, blocks[0], blocks[1])
        carried = self.carried((*then, *otherwise))
        before = {register: self.registers[register] for register in carried}
        ways = [] if otherwise else [(before, self.builder.block)]
        for block, statements in zip(blocks, (then, otherwise) if otherwise else (then,)):
            self.builder.position_at_end(block)
            self.registers.update(before)
            with self.scope(carried):
                self.body(statements)
            ways.append(({register: self.registers[register] for register in carried}, self.builder.block))
            self.builder.branch(blocks[-1])
        self.builder.position_at_end(blocks[-1])
        for register in carried:
            self.meet(register, *((values[register], block) for values, block in ways))

    def carried(self, statements: tuple[Statement, ...]) -> list[str]:
        """The present registers that statements assign to."""
        assigned = _assigned(statements)
        return [name for name in self.registers if name in assigned]

    def meet(self, register: str, *ways: tuple[Value, ir.Block]) -> None:
        """A register's value where control comes from several blocks."""
        phi = self.builder.phi(ways[0][0].type)
        for value, block in ways:
            phi.add_incoming(value, block)
        self.registers[register] = phi

    @contextmanager
    def scope(self, carried: Sequence[str] = ()) -> Iterator[None]:
        """What is computed inside is forgotten afterwards, since its block need not dominate what follows.

        Only carried registers keep the value that they were given last.
        """
        known, registers, variables = dict(self.known), dict(self.registers), dict(self.variables)
        yield
        registers.update((name, self.registers[name]) for name in carried)
        self.known, self.registers, self.variables = known, registers, variables

    # -- memory ------------------------------------------------------------------------------------------------------

    def put(self, put: Put) -> None:
        dtype = self.buffer_dtype(put.buffer)
        mask = None if put.mask is None else self.code(put.mask)
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        value = conversions.stored(self.builder, self.as_kind(self.code(put.value), varies), dtype)
        if not varies:
            address = self.address(put.buffer, put.offset, put.indirect, dtype)
            if mask is None:
                self.builder.store(value, address, align=_size(dtype))
            else:
                with self.builder.if_then(mask):
                    self.builder.store(value, address, align=_size(dtype))
            return
        base, stride = self.lane_stride(put.offset, put.indirect)
        if stride == 1:
            address = self.address(put.buffer, base, put.indirect, dtype)
            if mask is None:
                self.builder.store(value, address, align=_size(dtype))
            else:
                vectors.masked_store(self.builder, value, address, self.as_kind(mask, True), _size(dtype))
            return
        addresses = self.addresses(put.buffer, put.offset, put.indirect, dtype)
        vectors.scatter(self.builder, value, addresses, self.lane_mask(mask), _size(dtype))

    def fetch(self, fetch: Fetch) -> Value:
        dtype = fetch.dtype
        mask = None if fetch.mask is None else self.code(fetch.mask)
        varies = dims_vary(fetch.offset) or (fetch.indirect is not None and is_varying(fetch.indirect))
        if not varies:
            if mask is not None:
                return self.guarded_load(fetch, mask, dtype)
            address = self.address(fetch.buffer, fetch.offset, fetch.indirect, dtype)
            return self.load(address, dtype)
        kind = vector(memory_type(dtype), self.lanes)
        base, stride = self.lane_stride(fetch.offset, fetch.indirect)
        if stride == 1:
            address = self.address(fetch.buffer, base, fetch.indirect, dtype)
            if mask is None:
                loaded = self.builder.load(address, align=_size(dtype), typ=kind)
            else:
                loaded = vectors.masked_load(self.builder, kind, address, self.as_kind(mask, True), _size(dtype))
        elif (pattern := self.lane_pattern(fetch, mask)) is not None:
            start, places = pattern
            loaded = vectors.pattern_load(
                self.builder,
                kind,
                lambda place: self.address(fetch.buffer, start + place, fetch.indirect, dtype),
                places,
                _size(dtype),
                None if mask is None else self.as_kind(mask, True),
            )
        else:
            addresses = self.addresses(fetch.buffer, fetch.offset, fetch.indirect, dtype)
            loaded = vectors.gather(self.builder, kind, addresses, self.lane_mask(mask), _size(dtype))
        return conversions.loaded(self.builder, loaded, dtype)

    def load(self, address: Value, dtype: DType) -> Value:
        """One element."""
        raw = self.builder.load(address, align=_size(dtype), typ=memory_type(dtype))
        return conversions.loaded(self.builder, raw, dtype)

    def guarded_load(self, fetch: Fetch, mask: Value, dtype: DType) -> Value:
        """A uniform load under a condition; a varying condition of a uniform place loads once and selects."""
        zero = ir.Constant(register_type(dtype), None)
        if isinstance(mask.type, ir.VectorType):
            loaded = self.guarded_load(fetch, vectors.any_lane(self.builder, mask), dtype)
            return self.builder.select(mask, self.as_kind(loaded, True), self.as_kind(zero, True))
        before = self.builder.block
        with self.builder.if_then(mask), self.scope():
            address = self.address(fetch.buffer, fetch.offset, fetch.indirect, dtype)
            loaded = self.load(address, dtype)
            inside = self.builder.block
        result = self.builder.phi(register_type(dtype))
        result.add_incoming(zero, before)
        result.add_incoming(loaded, inside)
        return result

    def lane_stride(self, offset: Dim, indirect: Code | None) -> tuple[Dim, Dim | None]:
        """(base, stride) with offset == base + stride * lane; stride None where it is not linear in the lane."""
        if indirect is not None and is_varying(indirect):
            return offset, None
        return split_lane(offset)

    def lane_pattern(self, fetch: Fetch, mask: Value | None) -> tuple[Dim, list[int]] | None:
        """(base, place of each lane), where the lanes' places are constants that lie close together.

        Under a mask few lanes may share an element, since each sharing costs.
        """
        if fetch.indirect is not None and is_varying(fetch.indirect):
            return None
        base, pattern = split_pattern(fetch.offset)
        if pattern is None:
            return None
        places = [dims.evaluate(pattern, {LANE: number}) for number in range(self.lanes)]
        shared = max(Counter(places).values())
        near = max(places) - min(places) < MOST_PARTS * self.lanes
        return (base, places) if near and (mask is None or shared <= MOST_SHARED) else None

    def address(self, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        """A place in a buffer, in two steps: first what stays the same in the innermost loop, so that it leaves it."""
        still, moving = self.split_moving(offset)
        address = self.buffers[buffer]
        if still != 0:
            address = self.builder.gep(address, [self.integer(still)], source_etype=memory_type(dtype))
        place = self.integer(moving)
        if indirect is not None:
            place = self.builder.add(place, self.code(indirect))
        return self.builder.gep(address, [place], source_etype=memory_type(dtype))

    def split_moving(self, offset: Dim) -> tuple[Dim, Dim]:
        """An offset as the sum of what stays the same in the innermost loop and what changes."""
        still: Dim = 0
        moving: Dim = 0
        for term in offset.terms if isinstance(offset, Expr) else ():
            part = Expr((term,)) if term[0] else term[1]
            if any(symbol.name in self.moving for symbol in dims.symbols(part)):
                moving = moving + part
            else:
                still = still + part
        return (still, moving) if isinstance(offset, Expr) else (0, offset)

    def addresses(self, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        places = self.as_kind(self.integer(offset), True)
        if indirect is not None:
            places = self.builder.add(places, self.as_kind(self.code(indirect), True))
        return vectors.vector_addresses(self.builder, self.buffers[buffer], places, memory_type(dtype))

    def lane_mask(self, mask: Value | None) -> Value:
        if mask is None:
            return ir.Constant(vector(ir.IntType(1), self.lanes), [1] * self.lanes)
        return self.as_kind(mask, True)

    def buffer_dtype(self, name: str) -> DType:
        return self.dtypes[name]

    # -- values ------------------------------------------------------------------------------------------------------

    def code(self, code: Code) -> Value:
        match code:
            case Number(value, dtype):
                return constant(value, dtype)
            case Integer(value):
                return self.integer(value)
            case Register(name):
                return self.registers[name]
            case Fetch():
                return self.fetch(code)
            case Across(kind, value):
                return vectors.across(self.builder, kind, self.as_kind(self.code(value), True), value.dtype)
            case Call():
                if not _is_index(code):
                    return self.call(code)
                if code not in self.known:
                    self.known[code] = self.call(code)
                return self.known[code]
        raise InternalError(f"no code for {code}")

    def call(self, call: Call) -> Value:
        match call:
            case Call("less", (Integer(left), Integer(right))):
                rest, stride = split_lane(right - left)
                if stride == -1:
                    return self.lanes_below(rest)
            case Call("cast", (inner,), dtype) if dtype.is_integer and dtype.bits <= 16 and _is_clamped(inner):
                return conversions.cast_within_int32(self.builder, self.code(inner), dtype)
        varies = is_varying(call)
        values = [self.as_kind(self.code(argument), varies) for argument in call.arguments]
        return functions.apply(self.builder, call.function, values, [a.dtype for a in call.arguments], call.dtype)

    def lanes_below(self, count: Dim) -> Value:
        """Which lanes' numbers are below a uniform number; in 32 bits, as narrow as most elements are."""
        bounds = INT64(0), INT64(self.lanes)
        inside = functions.integer_operation(self.builder, "max", self.integer(count), bounds[0], False)
        inside = functions.integer_operation(self.builder, "min", inside, bounds[1], False)
        limit = vectors.broadcast(self.builder, self.builder.trunc(inside, INT32), self.lanes)
        return self.builder.icmp_signed("<", ir.Constant(vector(INT32, self.lanes), list(range(self.lanes))), limit)

    def as_kind(self, value: Value, varying: bool) -> Value:
        """A uniform value as a vector, where one is needed."""
        if not varying or isinstance(value.type, ir.VectorType):
            return value
        return vectors.broadcast(self.builder, value, self.lanes)

    def integer(self, value: Dim) -> Value:
        """Index arithmetic; a vector where it varies."""
        if isinstance(value, int):
            return INT64(value)
        if value in self.known:
            return self.known[value]
        result = self.polynomial(value)
        self.known[value] = result
        return result

    def polynomial(self, value: Expr) -> Value:
        varies = dims_vary(value)
        total: Value | None = None
        for monomial, coefficient in value.terms:
            term: Value | None = None if coefficient == 1 and monomial else INT64(coefficient)
            for atom in monomial:
                factor = self.atom(atom)
                if term is None:
                    term = factor
                else:
                    wide = isinstance(term.type, ir.VectorType) or isinstance(factor.type, ir.VectorType)
                    term = self.builder.mul(self.as_kind(term, wide), self.as_kind(factor, wide))
            assert term is not None
            if total is None:
                total = self.as_kind(term, varies)
            else:
                total = self.builder.add(self.as_kind(total, varies), self.as_kind(term, varies))
        assert total is not None
        return total

    def atom(self, atom: Any) -> Value:
        match atom:
            case Symbol(name) if name == LANE:
                return ir.Constant(vector(INT64, self.lanes), list(range(self.lanes)))
            case Symbol(name):
                return self.variables[name]
            case Compound(operation, left, right):
                varies = dims_vary(left) or dims_vary(right)
                a, b = self.as_kind(self.integer(left), varies), self.as_kind(self.integer(right), varies)
                positive = dims.is_at_least(left, 0) and dims.is_at_least(right, 1)
                return functions.integer_operation(self.builder, operation, a, b, positive)
        raise InternalError(f"no code for {atom}")


def _assigned(statements: Sequence[Statement]) -> set[str]:
    """The registers that statements assign to, also inside of others."""
    found: set[str] = set()
    for statement in statements:
        match statement:
            case Assign(name):
                found.add(name)
            case Transpose(names):
                found.update(names)
            case Repeat():
                found |= _assigned(statement.body)
            case When(_, then, otherwise):
                found |= _assigned((*then, *otherwise))
    return found


def _is_clamped(code: Code) -> bool:
    """Whether a float32 is kept within the bounds of int32, or NaN."""
    match code:
        case Call("minimum", (Call("maximum", (_, Number(low))), Number(high)), DType.float32):
            return low >= -(2**31) and high < 2**31
    return False


def _is_index(code: Code) -> bool:
    """Whether a value depends on indices alone, so that it is the same wherever its variables are."""
    return all(isinstance(node, (Number, Integer, Call)) for node in walk_code(code))


def split_lane(offset: Dim) -> tuple[Dim, Dim | None]:
    """(base, stride) with offset == base + stride * lane; stride None where it is not linear in the lane."""
    if isinstance(offset, int) or not dims_vary(offset):
        return offset, 0
    base: Dim = 0
    stride: Dim = 0
    for monomial, coefficient in offset.terms:
        lanes = [atom for atom in monomial if isinstance(atom, Symbol) and atom.name == LANE]
        rest = [atom for atom in monomial if not (isinstance(atom, Symbol) and atom.name == LANE)]
        if len(lanes) > 1 or any(isinstance(atom, Compound) and dims_vary(Expr((((atom,), 1),))) for atom in rest):
            return offset, None
        term: Dim = coefficient
        for atom in rest:
            term = term * Expr((((atom,), 1),))
        if lanes:
            stride = stride + term
        else:
            base = base + term
    return base, stride


def split_pattern(offset: Dim) -> tuple[Dim, Dim | None]:
    """(base, rest) with offset == base + rest, where rest depends on the lane alone; None where it does not."""
    base: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in offset.terms if isinstance(offset, Expr) else (((), offset),):
        term = Expr(((monomial, coefficient),)) if monomial else coefficient
        names = {symbol.name for symbol in dims.symbols(term)}
        if LANE not in names:
            base = base + term
        elif names == {LANE}:
            rest = rest + term
        else:
            return offset, None
    return base, rest


def constant(value: Any, dtype: DType) -> Value:
    if dtype.is_float:
        return ir.Constant(register_type(dtype), float(value))
    return ir.Constant(register_type(dtype), int(value))


def _size(dtype: DType) -> int:
    return ELEMENT[dtype].bytes
