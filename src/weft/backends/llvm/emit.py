"""Kernel -> LLVM IR: loops, conditions, scopes, index arithmetic and scalar functions.

What a lane is, and all that follows from it, `Lanes` say. A uniform value is a scalar. A register's present value is
known while code is written; where control meets again, those that were assigned to become phis. bool is i1 in registers
and i8 in memory; bfloat16 and floats of 8 bits and fewer are computed as float32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions
from weft.backends.llvm.lanes import Lanes, Value
from weft.backends.llvm.types import element_bytes, memory_type, register_type
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Compound, Dim, Expr, Monomial, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    LANE,
    Across,
    AddSums,
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
    MultiplyTiles,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    ScaleSums,
    Statement,
    Sums,
    Transpose,
    View,
    When,
    dims_vary,
    inner_bodies,
    is_varying,
)


def emit(kernel: Kernel, module: ir.Module, lanes: Lanes) -> ir.Function:
    """Add the kernel's function to an LLVM module."""
    function = lanes.declare(kernel, module)
    lanes.run(Emitter(kernel, function, lanes))
    return function


def llvm_text(kernels: Sequence[Kernel], lanes: Lanes) -> str:
    """Kernels as the text of one LLVM module; their names must differ."""
    module = ir.Module(name="weft")
    for kernel in kernels:
        emit(kernel, module, lanes)
    return str(module)


class Emitter:
    """Writes the body of a kernel's function; lanes fill in where buffers, parameters and the block's number are."""

    def __init__(self, kernel: Kernel, function: ir.Function, lanes: Lanes) -> None:
        self.kernel = kernel
        self.function = function
        self.lanes = lanes
        self.index = lanes.index
        self.builder = lanes.builder(function.append_basic_block("entry"))
        self.variables: dict[str, Value] = {}
        self.registers: dict[str, Value] = {}  # their present values
        self.buffers: dict[str, Value] = {}
        self.homes: dict[str, str] = {}  # the buffers that views are of
        self.dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.moving: set[str] = set()  # variables that change in the innermost loop
        self.sums: dict[str, Sums] = {}  # of tile products; their registers are named by the lanes
        self.unsettled: set[str] = set()  # sums of products that are still computed
        self.known: dict[Any, Value] = {}  # values computed in the blocks that dominate the present one
        self.halves: dict[Value, Value] = {}  # bits of numbers that were rounded to bfloat16
        self.hoisted: dict[Any, Value] = {}  # addresses computed before the pipeline that is being written

    # -- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case Define(name, value, varying):
                    self.registers[name] = self.spread(self.code(value), varying)
                case Assign(name, value):
                    varying = isinstance(self.registers[name].type, ir.VectorType)
                    self.registers[name] = self.spread(self.code(value), varying)
                case Put():
                    self.lanes.put(self, statement)
                case Repeat():
                    self.repeat(statement)
                case When(condition, then, otherwise):
                    self.when(condition, then, otherwise)
                case Let(name, value):
                    self.variables[name] = self.integer(value)
                    self.moving.add(name)
                case View(name, buffer, offset):
                    dtype = self.dtypes[buffer]
                    self.dtypes[name] = statement.dtype or dtype
                    self.homes[name] = self.homes.get(buffer, buffer)
                    self.buffers[name] = self.lanes.view(self, self.address(buffer, offset, None, dtype))
                case FetchRun(names):
                    run = self.lanes.fetch_run(self, statement)
                    self.registers.update(zip(names, run, strict=True))
                case PutRun():
                    self.lanes.put_run(self, statement)
                case Barrier():
                    self.lanes.barrier(self)
                case Transpose(names):
                    rows = self.lanes.transpose(self, [self.registers[name] for name in names])
                    self.registers.update(zip(names, rows, strict=True))
                case _:
                    self.lanes.tile_statement(self, statement)

    def repeat(self, loop: Repeat) -> None:
        start, stop = self.integer(loop.start), self.integer(loop.stop)
        if loop.unroll == 1:
            self.count(loop.variable, start, stop, loop.step, lambda: self.body(loop.body), loop.body)
            return
        stride = loop.step * loop.unroll
        room = self.builder.sub(stop, start)
        whole = self.builder.mul(self.builder.sdiv(room, self.index(stride)), self.index(stride))
        middle = self.builder.add(start, self.builder.select(
            self.builder.icmp_signed(">", room, self.index(0)), whole, self.index(0)))  # fmt: skip

        def unrolled() -> None:
            base = self.variables[loop.variable]
            for copy in range(loop.unroll):
                self.variables[loop.variable] = self.builder.add(base, self.index(copy * loop.step))
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
        number = builder.phi(self.index, name)
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
        following = builder.add(number, self.index(step), flags=["nsw"])
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
        return [name for name in self.registers if name.partition("#")[0] in assigned]

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
        known, registers, variables = len(self.known), dict(self.registers), dict(self.variables)
        yield
        registers.update((name, self.registers[name]) for name in carried)
        self.registers, self.variables = registers, variables
        self.forget(known)

    def forget(self, known: int) -> None:
        """Keep only the first so many of the known values."""
        while len(self.known) > known:
            self.known.popitem()

    # -- memory ------------------------------------------------------------------------------------------------------

    def load(self, address: Value, dtype: DType) -> Value:
        """One element."""
        raw = self.builder.load(address, align=element_bytes(dtype), typ=memory_type(dtype))
        return conversions.loaded(self.builder, raw, dtype)

    def guarded_load(self, fetch: Fetch, mask: Value) -> Value:
        """One element, where a condition holds, and 0 elsewhere."""

        def load() -> list[Value]:
            return [self.load(self.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype), fetch.dtype)]

        return self.guarded(mask, load)[0]

    def guarded(self, mask: Value, compute: Callable[[], list[Value]]) -> list[Value]:
        """Values that are computed where a condition holds, and 0 elsewhere."""
        before, known = self.builder.block, len(self.known)
        with self.builder.if_then(mask):
            values = compute()
            inside = self.builder.block
        self.forget(known)
        results = []
        for value in values:
            result = self.builder.phi(value.type)
            result.add_incoming(ir.Constant(value.type, None), before)
            result.add_incoming(value, inside)
            results.append(result)
        return results

    def address(self, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        """A place in a buffer, in two steps: first what stays the same in the innermost loop, so that it leaves it."""
        still, moving = self.split_moving(offset, self.moving)
        found = self.hoisted.get((buffer, still))
        address = self.still_address(buffer, still, dtype) if found is None else found
        place = self.integer(moving)
        if indirect is not None:
            place = self.builder.add(place, self.lanes.position(self, indirect))
        if indirect is None and moving == 0:
            return address
        return self.builder.gep(address, [place], source_etype=memory_type(dtype))

    def still_address(self, buffer: str, still: Dim, dtype: DType) -> Value:
        address = self.buffers[buffer]
        if still == 0:
            return address
        return self.builder.gep(address, [self.integer(still)], source_etype=memory_type(dtype))

    def split_moving(self, offset: Dim, changing: Collection[str]) -> tuple[Dim, Dim]:
        """An offset as the sum of what stays the same in the innermost loop and what changes with its variables."""
        if not isinstance(offset, Expr):
            return 0, offset
        still: list[tuple[Monomial, int]] = []
        moving: list[tuple[Monomial, int]] = []
        for term in offset.terms:
            (still if dims.monomial_names(term[0]).isdisjoint(changing) else moving).append(term)
        if not moving:
            return offset, 0
        return (sum_of(still), sum_of(moving)) if still else (0, offset)

    # -- values ------------------------------------------------------------------------------------------------------

    def code(self, code: Code) -> Value:
        match code:
            case Register(name):
                return self.registers[name]
            case Call():
                if not _is_index(code):
                    return self.call(code)
                if code not in self.known:
                    self.known[code] = self.call(code)
                return self.known[code]
            case Fetch():
                return self.lanes.fetch(self, code)
            case Number(value, dtype):
                return constant(value, dtype)
            case Integer(value):
                return self.lanes.wide(self, value)
            case Across(kind, value):
                return self.lanes.across(self, kind, self.spread(self.code(value), True), value.dtype)
        raise InternalError(f"no code for {code}")

    def call(self, call: Call) -> Value:
        first = call.arguments[0] if call.arguments else None
        if isinstance(first, Integer) and len(call.arguments) == 2:
            compared = self.lanes.comparison(self, call)
            if compared is not None:
                return compared
        if call.function == "cast" and call.dtype.is_integer and call.dtype.bits <= 16:
            (inner,) = call.arguments
            if found := _quantized(inner):
                return conversions.rounded_within(self.builder, self.code(found[0]), found[1], call.dtype)
            if _is_clamped(inner):
                return conversions.cast_within_int32(self.builder, self.code(inner), call.dtype)
        if is_varying(call):
            values = [self.lanes.spread(self, self.code(argument)) for argument in call.arguments]
        else:
            values = [self.code(argument) for argument in call.arguments]
        if call.function == "dot4":
            return self.lanes.dot4(self, *values)
        if call.function == "dot2":
            return self.lanes.dot2(self, *values)
        if call.function == "half_bits":
            (value,) = values
            return self.half(call, self.lanes.half_bits(self, conversions.saturate_bfloat16(self.builder, value)))
        if call.function == "small_half_bits":
            return self.half(call, self.lanes.half_bits(self, *values))
        if call.function == "emulated_half_bits":
            (value,) = values
            bits = conversions.narrow_bfloat16(self.builder, conversions.saturate_bfloat16(self.builder, value))
            return self.half(call, bits)
        if call.function in ("code4", "code2"):
            return self.lanes.number_of_code(self, values[0], int(call.function[-1]))
        return functions.apply(self.builder, call.function, values, [a.dtype for a in call.arguments], call.dtype)

    def half(self, call: Call, bits: Value) -> Value:
        """A rounded number as its bits or as a float, of which the bits are remembered for those who store it."""
        if call.dtype is DType.uint16:
            return bits
        value = conversions.loaded(self.builder, bits, DType.bfloat16)
        self.halves[value] = bits
        return value

    def spread(self, value: Value, varying: bool) -> Value:
        """A uniform value as a varying one, where one is needed."""
        return self.lanes.spread(self, value) if varying else value

    def integer(self, value: Dim) -> Value:
        """Index arithmetic; a vector where it varies."""
        if isinstance(value, int):
            return self.index(value)
        result = self.known.get(value)
        if result is None:
            result = self.known[value] = self.polynomial(value)
        return result

    def polynomial(self, value: Expr) -> Value:
        """A sum of products; what it begins with like another one is computed once for both."""
        terms = value.terms
        if len(terms) > 1:
            total, term = self.sum_of_first(terms, len(terms) - 1), self.term(*terms[-1])
            varies = isinstance(total.type, ir.VectorType) or isinstance(term.type, ir.VectorType)
            return self.builder.add(self.spread(total, varies), self.spread(term, varies))
        return self.term(*terms[0])

    def sum_of_first(self, terms: Sequence[tuple[Monomial, int]], count: int) -> Value:
        return self.integer(sum_of(terms[:count]))

    def term(self, monomial: Monomial, coefficient: int) -> Value:
        if not monomial:
            return self.index(coefficient)
        product: Value | None = None if coefficient == 1 else self.index(coefficient)
        for atom in monomial:
            factor = self.atom(atom)
            if product is None:
                product = factor
            else:
                wide = isinstance(product.type, ir.VectorType) or isinstance(factor.type, ir.VectorType)
                product = self.builder.mul(self.spread(product, wide), self.spread(factor, wide))
        assert product is not None
        return product

    def atom(self, atom: Any) -> Value:
        match atom:
            case Symbol(name) if name == LANE:
                return self.lanes.number(self)
            case Symbol(name):
                return self.variables[name]
            case Compound(operation, left, right):
                varies = dims_vary(left) or dims_vary(right)
                a, b = self.spread(self.integer(left), varies), self.spread(self.integer(right), varies)
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
            case MultiplyTiles(name) | AddSums(name) | ScaleSums(name):
                found.add(name)
            case _:
                for inner in inner_bodies(statement):
                    found |= _assigned(inner)
    return found


def _quantized(code: Code) -> tuple[Code, int] | None:
    """A float32 that is rounded, moved by an integer and kept within bounds: clamped before that, and the integer."""
    match code:
        case Call("minimum", (Call("maximum", (rounded, Number(low))), Number(high)), DType.float32):
            zero = 0.0
            match rounded:
                case Call("add", (inner, Number(float(number)))):
                    rounded, zero = inner, number
            match rounded:
                case Call("round_half_even", (value,)) if zero.is_integer() and max(-low, high) + abs(zero) < 1 << 21:
                    least = Call("maximum", (value, Number(low - zero, DType.float32)), DType.float32)
                    return Call("minimum", (least, Number(high - zero, DType.float32)), DType.float32), int(zero)
    return None


def _is_clamped(code: Code) -> bool:
    """Whether a float32 is kept within the bounds of int32, or NaN."""
    match code:
        case Call("minimum", (Call("maximum", (_, Number(low))), Number(high)), DType.float32):
            return low >= -(2**31) and high < 2**31
    return False


def _is_index(code: Code) -> bool:
    """Whether a value depends on indices alone, so that it is the same wherever its variables are."""
    if isinstance(code, Call):
        for argument in code.arguments:  # noqa: SIM110  # a generator takes longer, and this is asked of all code
            if not _is_index(argument):
                return False
        return True
    return isinstance(code, (Number, Integer))


def sum_of(terms: Sequence[tuple[Monomial, int]]) -> Dim:
    """Some of the terms of an index, in their order, as an index."""
    if not terms:
        return 0
    return terms[0][1] if len(terms) == 1 and not terms[0][0] else Expr(tuple(terms))


def constant(value: Any, dtype: DType) -> Value:
    return _constant(value, type(value).__name__, str(value) if value == 0 else "", dtype)


@lru_cache(maxsize=4096)
def _constant(value: Any, _: str, __: str, dtype: DType) -> Value:
    """The type and, of zeros, the sign tell apart what is equal."""
    return ir.Constant(register_type(dtype), float(value) if dtype.is_float else int(value))
