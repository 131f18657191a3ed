"""Emit a kernel as LLVM IR: loops, conditions, scopes, index arithmetic and scalar functions.

`Lanes` emit what depends on the kind of lane. A uniform value is a scalar. The emitter tracks the current value of each
register, and merges assigned ones by phis where control flow joins. bool is i1 in registers and i8 in memory; bfloat16
and floats of 8 bits or fewer are computed as float32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import conversions, functions
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.lanes import Lanes
from weft.backends.llvm.types import element_bytes, memory_type, register_type
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Compound, Dim, Expr, Monomial, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    LANE,
    Across,
    AcrossGroup,
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
    MultiplyFragments,
    MultiplyTiles,
    Number,
    Prefetch,
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
from weft.ir.row_products import MultiplyRows, ReduceRows


def emit(kernel: Kernel, module: ir.Module, lanes: Lanes) -> ir.Function:
    """Add the kernel's function to an LLVM module."""
    function = lanes.declare(kernel, module)
    lanes.emit_function(Emitter(kernel, function, lanes))
    return function


def llvm_text(kernels: Sequence[Kernel], lanes: Lanes) -> str:
    """Emit kernels, whose names must differ, as the text of one LLVM module."""
    module = ir.Module(name="weft")
    for kernel in kernels:
        emit(kernel, module, lanes)
    return str(module)


class Emitter:
    """Emits the body of a kernel's function; lanes define its buffers, parameters and the block's number."""

    def __init__(self, kernel: Kernel, function: ir.Function, lanes: Lanes) -> None:
        self.kernel = kernel
        self.function = function
        self.lanes = lanes
        self.index = lanes.index
        self.builder = lanes.builder(function.append_basic_block("entry"))
        self.variables: dict[str, Value] = {}
        self.registers: dict[str, Value] = {}  # current values
        self.buffers: dict[str, Value] = {}
        self.view_buffers: dict[str, str] = {}  # view -> its buffer
        self.dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.loop_variables: set[str] = set()  # variables that change in the innermost loop
        self.sums: dict[str, Sums] = {}  # of tile products
        self.pending_sums: set[str] = set()  # sums of asynchronous products that were not waited for
        self.available: dict[Any, Value] = {}  # expressions computed in blocks that dominate the current one
        self.bfloat16_bits: dict[Value, Value] = {}  # float rounded to bfloat16 -> its bits
        self.hoisted_addresses: dict[Any, Value] = {}  # addresses computed before the current tile pipeline

    # -- statements --------------------------------------------------------------------------------------------------

    def emit_body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case Define(name, value, varying):
                    self.registers[name] = self.broadcast(self.emit_code(value), varying)
                case Assign(name, value):
                    varying = isinstance(self.registers[name].type, ir.VectorType)
                    self.registers[name] = self.broadcast(self.emit_code(value), varying)
                case Put():
                    self.lanes.put(self, statement)
                case Repeat():
                    self.emit_repeat(statement)
                case When(condition, then, otherwise):
                    self.emit_when(condition, then, otherwise)
                case Let(name, value):
                    self.variables[name] = self.emit_index(value)
                    self.loop_variables.add(name)
                case View(name, buffer, offset):
                    dtype = self.dtypes[buffer]
                    self.dtypes[name] = statement.dtype or dtype
                    self.view_buffers[name] = self.view_buffers.get(buffer, buffer)
                    self.buffers[name] = self.lanes.bind_view(self, self.address(buffer, offset, None, dtype))
                case FetchRun(names):
                    run = self.lanes.fetch_run(self, statement)
                    self.registers.update(zip(names, run, strict=True))
                case PutRun():
                    self.lanes.put_run(self, statement)
                case Prefetch(buffer, offset, nbytes, level):
                    self.lanes.prefetch(self, self.address(buffer, offset, None, self.dtypes[buffer]), nbytes, level)
                case Barrier():
                    self.lanes.barrier(self)
                case Transpose(names):
                    rows = self.lanes.transpose(self, [self.registers[name] for name in names])
                    self.registers.update(zip(names, rows, strict=True))
                case _:
                    self.lanes.tile_statement(self, statement)

    def emit_repeat(self, loop: Repeat) -> None:
        start, stop = self.emit_index(loop.start), self.emit_index(loop.stop)
        if loop.unroll == 1:
            self.emit_loop(loop.variable, start, stop, loop.step, lambda: self.emit_body(loop.body), loop.body)
            return
        stride = loop.step * loop.unroll
        length = self.builder.sub(stop, start)
        unrolled_length = self.builder.mul(self.builder.sdiv(length, self.index(stride)), self.index(stride))
        middle = self.builder.add(start, self.builder.select(
            self.builder.icmp_signed(">", length, self.index(0)), unrolled_length, self.index(0)))  # fmt: skip

        def emit_copies() -> None:
            base = self.variables[loop.variable]
            for copy in range(loop.unroll):
                self.variables[loop.variable] = self.builder.add(base, self.index(copy * loop.step))
                with self.scope(self.find_carried(loop.body)):
                    self.emit_body(loop.body)

        self.emit_loop(loop.variable, start, middle, stride, emit_copies, loop.body)
        self.emit_loop(loop.variable, middle, stop, loop.step, lambda: self.emit_body(loop.body), loop.body)

    def emit_loop(
        self,
        name: str,
        start: Value,
        stop: Value,
        step: int,
        body: Callable[[], None],
        statements: tuple[Statement, ...],
    ) -> None:
        """Emit a loop over an integer variable, empty if start >= stop; `body` emits its statements."""
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
        carried = self.find_carried(statements)
        outside = {register: self.registers[register] for register in carried}
        phis = {register: builder.phi(value.type) for register, value in outside.items()}
        self.registers.update(phis)
        shadowed, outer_variables = self.variables.get(name), self.loop_variables
        self.variables[name] = number
        self.loop_variables = {name}
        with self.scope(carried):
            body()
        self.loop_variables = outer_variables
        following = builder.add(number, self.index(step), flags=["nsw"])
        last = builder.block
        number.add_incoming(following, last)
        builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
        if shadowed is None:
            del self.variables[name]
        else:
            self.variables[name] = shadowed
        builder.position_at_end(after)
        for register, value in outside.items():
            phis[register].add_incoming(value, before)
            phis[register].add_incoming(self.registers[register], last)
            self.merge(register, (value, before), (self.registers[register], last))

    def emit_when(self, condition: Code, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        test = self.emit_code(condition)
        names = ("then", "otherwise", "after") if otherwise else ("then", "after")
        blocks = [self.function.append_basic_block(name) for name in names]
        self.builder.cbranch(test, blocks[0], blocks[1])
        carried = self.find_carried((*then, *otherwise))
        before = {register: self.registers[register] for register in carried}
        incoming = [] if otherwise else [(before, self.builder.block)]
        for block, statements in zip(blocks, (then, otherwise) if otherwise else (then,)):
            self.builder.position_at_end(block)
            self.registers.update(before)
            with self.scope(carried):
                self.emit_body(statements)
            incoming.append(({register: self.registers[register] for register in carried}, self.builder.block))
            self.builder.branch(blocks[-1])
        self.builder.position_at_end(blocks[-1])
        for register in carried:
            self.merge(register, *((values[register], block) for values, block in incoming))

    def find_carried(self, statements: tuple[Statement, ...]) -> list[str]:
        """List the existing registers that statements assign to."""
        assigned = _find_assigned(statements)
        return [name for name in self.registers if name.partition("#")[0] in assigned]

    def merge(self, register: str, *incoming: tuple[Value, ir.Block]) -> None:
        """Merge a register's values where control flow joins."""
        phi = self.builder.phi(incoming[0][0].type)
        for value, block in incoming:
            phi.add_incoming(value, block)
        self.registers[register] = phi

    @contextmanager
    def scope(self, carried: Sequence[str] = ()) -> Iterator[None]:
        """Drop values computed in the `with` block, which may not dominate later code; keep carried registers."""
        count, registers, variables = len(self.available), dict(self.registers), dict(self.variables)
        yield
        registers.update((name, self.registers[name]) for name in carried)
        self.registers, self.variables = registers, variables
        self.drop_available(count)

    def drop_available(self, count: int) -> None:
        """Keep only the first `count` available expressions."""
        while len(self.available) > count:
            self.available.popitem()

    # -- memory ------------------------------------------------------------------------------------------------------

    def load(self, address: Value, dtype: DType) -> Value:
        """Load one element."""
        raw = self.builder.load(address, align=element_bytes(dtype), typ=memory_type(dtype))
        return conversions.decode(self.builder, raw, dtype)

    def load_if(self, fetch: Fetch, mask: Value) -> Value:
        """Load one element if a condition holds; otherwise the result is 0."""

        def load() -> list[Value]:
            return [self.load(self.address(fetch.buffer, fetch.offset, fetch.indirect, fetch.dtype), fetch.dtype)]

        return self.compute_if(mask, load)[0]

    def compute_if(self, mask: Value, compute: Callable[[], list[Value]]) -> list[Value]:
        """Compute values if a condition holds; otherwise they are 0."""
        before, count = self.builder.block, len(self.available)
        with self.builder.if_then(mask):
            values = compute()
            inside = self.builder.block
        self.drop_available(count)
        results: list[Value] = []
        for value in values:
            result = self.builder.phi(value.type)
            result.add_incoming(ir.Constant(value.type, None), before)
            result.add_incoming(value, inside)
            results.append(result)
        return results

    def address(self, buffer: str, offset: Dim, indirect: Code | None, dtype: DType) -> Value:
        """Emit an address in two steps, so that the part invariant in the innermost loop is hoisted."""
        invariant, variant = self.split_invariant(offset, self.loop_variables)
        hoisted = self.hoisted_addresses.get((buffer, invariant))
        address = self.invariant_address(buffer, invariant, dtype) if hoisted is None else hoisted
        index = self.emit_index(variant)
        if indirect is not None:
            index = self.builder.add(index, self.lanes.emit_position(self, indirect))
        if indirect is None and variant == 0:
            return address
        return self.builder.gep(address, [index], source_etype=memory_type(dtype))

    def invariant_address(self, buffer: str, invariant: Dim, dtype: DType) -> Value:
        address = self.buffers[buffer]
        if invariant == 0:
            return address
        return self.builder.gep(address, [self.emit_index(invariant)], source_etype=memory_type(dtype))

    def split_invariant(self, offset: Dim, changing: Collection[str]) -> tuple[Dim, Dim]:
        """Split an offset into terms without and with the changing variables."""
        if not isinstance(offset, Expr):
            return 0, offset
        invariant: list[tuple[Monomial, int]] = []
        variant: list[tuple[Monomial, int]] = []
        for term in offset.terms:
            (invariant if dims.monomial_names(term[0]).isdisjoint(changing) else variant).append(term)
        if not variant:
            return offset, 0
        return (build_sum(invariant), build_sum(variant)) if invariant else (0, offset)

    # -- values ------------------------------------------------------------------------------------------------------

    def emit_code(self, code: Code) -> Value:
        match code:
            case Register(name):
                return self.registers[name]
            case Call():
                if not _is_index_code(code):
                    return self.emit_call(code)
                if code not in self.available:
                    self.available[code] = self.emit_call(code)
                return self.available[code]
            case Fetch():
                return self.lanes.fetch(self, code)
            case Number(value, dtype):
                return constant(value, dtype)
            case Integer(value):
                return self.lanes.emit_int64(self, value)
            case Across(kind, value):
                return self.lanes.across(self, kind, self.broadcast(self.emit_code(value), True), value.dtype)
            case AcrossGroup(_, value):
                return self.lanes.across_group(self, code, self.broadcast(self.emit_code(value), True))
        raise InternalError(f"no code for {code}")

    def emit_call(self, call: Call) -> Value:
        first = call.arguments[0] if call.arguments else None
        if isinstance(first, Integer) and len(call.arguments) == 2:
            compared = self.lanes.compare_indices(self, call)
            if compared is not None:
                return compared
        if call.function == "cast" and call.dtype.is_integer and call.dtype.bits <= 16:
            (inner,) = call.arguments
            if quantization := _match_quantization(inner):
                clamped, zero_point = quantization
                return conversions.round_within_int32(self.builder, self.emit_code(clamped), zero_point, call.dtype)
            if _is_clamped(inner):
                return conversions.cast_within_int32(self.builder, self.emit_code(inner), call.dtype)
        if is_varying(call):
            values = [self.lanes.broadcast(self, self.emit_code(argument)) for argument in call.arguments]
        else:
            values = [self.emit_code(argument) for argument in call.arguments]
        if call.function == "dot4":
            return self.lanes.dot4(self, *values)
        if call.function == "dot2":
            return self.lanes.dot2(self, *values)
        if call.function == "half_bits":
            (value,) = values
            return self.use_bfloat16(
                call, self.lanes.round_to_bfloat16(self, conversions.saturate_bfloat16(self.builder, value))
            )
        if call.function == "small_half_bits":
            return self.use_bfloat16(call, self.lanes.round_to_bfloat16(self, *values))
        if call.function == "emulated_half_bits":
            (value,) = values
            bits = conversions.narrow_bfloat16(self.builder, conversions.saturate_bfloat16(self.builder, value))
            return self.use_bfloat16(call, bits)
        if call.function in ("fma_bfloat16x2", "fma_float16x2", "and_or"):
            return self.lanes.compute_pairs(self, call.function, values)
        if call.function in ("code4", "code2"):
            return self.lanes.decode_integer(self, values[0], int(call.function[-1]))
        return functions.apply(self.builder, call.function, values, [a.dtype for a in call.arguments], call.dtype)

    def use_bfloat16(self, call: Call, bits: Value) -> Value:
        """Return a number rounded to bfloat16 as bits or as a float, remembering the float's bits for stores."""
        if call.dtype is DType.uint16:
            return bits
        value = conversions.decode(self.builder, bits, DType.bfloat16)
        self.bfloat16_bits[value] = bits
        return value

    def broadcast(self, value: Value, varying: bool) -> Value:
        """Return a value as a varying one if `varying`."""
        return self.lanes.broadcast(self, value) if varying else value

    def emit_index(self, value: Dim) -> Value:
        """Emit index arithmetic; the result is a vector if it varies and lanes are vectors."""
        if isinstance(value, int):
            return self.index(value)
        result = self.available.get(value)
        if result is None:
            result = self.available[value] = self.emit_sum(value)
        return result

    def emit_sum(self, value: Expr) -> Value:
        """Emit a sum of products; sums with a common beginning share its code."""
        terms = value.terms
        if len(terms) > 1:
            total, term = self.emit_index(build_sum(terms[:-1])), self.emit_term(*terms[-1])
            varies = isinstance(total.type, ir.VectorType) or isinstance(term.type, ir.VectorType)
            return self.builder.add(self.broadcast(total, varies), self.broadcast(term, varies))
        return self.emit_term(*terms[0])

    def emit_term(self, monomial: Monomial, coefficient: int) -> Value:
        if not monomial:
            return self.index(coefficient)
        product: Value | None = None if coefficient == 1 else self.index(coefficient)
        for atom in monomial:
            factor = self.emit_atom(atom)
            if product is None:
                product = factor
            else:
                varies = isinstance(product.type, ir.VectorType) or isinstance(factor.type, ir.VectorType)
                product = self.builder.mul(self.broadcast(product, varies), self.broadcast(factor, varies))
        assert product is not None
        return product

    def emit_atom(self, atom: Any) -> Value:
        match atom:
            case Symbol(name) if name == LANE:
                return self.lanes.lane_index(self)
            case Symbol(name):
                return self.variables[name]
            case Compound(operation, left, right):
                varies = dims_vary(left) or dims_vary(right)
                a, b = self.broadcast(self.emit_index(left), varies), self.broadcast(self.emit_index(right), varies)
                positive = dims.is_at_least(left, 0) and dims.is_at_least(right, 1)
                return functions.apply_index_operation(self.builder, operation, a, b, positive)
        raise InternalError(f"no code for {atom}")


def _find_assigned(statements: Sequence[Statement]) -> set[str]:
    """Find the registers that statements, or statements nested in them, assign to."""
    assigned: set[str] = set()
    for statement in statements:
        match statement:
            case Assign(name) | MultiplyTiles(name) | AddSums(name) | ScaleSums(name):
                assigned.add(name)
            case Transpose(names) | MultiplyRows(names) | ReduceRows(names):
                assigned.update(names)
            case MultiplyFragments(sums):
                assigned.update(name for names in sums for name in names)
            case _:
                for inner in inner_bodies(statement):
                    assigned |= _find_assigned(inner)
    return assigned


def _match_quantization(code: Code) -> tuple[Code, int] | None:
    """Match a float32 that is rounded, shifted by a zero point and clamped.

    Return the code with the clamp moved before the rounding, and the zero point.
    """
    match code:
        case Call("minimum", (Call("maximum", (rounded, Number(low))), Number(high)), DType.float32):
            zero = 0.0
            match rounded:
                case Call("add", (inner, Number(float(number)))):
                    rounded, zero = inner, number
            match rounded:
                case Call("round_half_even", (value,)) if zero.is_integer() and max(-low, high) + abs(zero) < 1 << 21:
                    bounded = Call("maximum", (value, Number(low - zero, DType.float32)), DType.float32)
                    return Call("minimum", (bounded, Number(high - zero, DType.float32)), DType.float32), int(zero)
    return None


def _is_clamped(code: Code) -> bool:
    """Tell whether a float32 is clamped to the range of int32; it may be NaN."""
    match code:
        case Call("minimum", (Call("maximum", (_, Number(low))), Number(high)), DType.float32):
            return low >= -(2**31) and high < 2**31
    return False


def _is_index_code(code: Code) -> bool:
    """Tell whether a value depends on indices alone, so that it can be reused while its variables are unchanged."""
    if isinstance(code, Call):
        for argument in code.arguments:  # noqa: SIM110  # a generator is slower, and this runs for all code
            if not _is_index_code(argument):
                return False
        return True
    return isinstance(code, (Number, Integer))


def build_sum(terms: Sequence[tuple[Monomial, int]]) -> Dim:
    """Build an index from some of the terms of another, in their order."""
    if not terms:
        return 0
    return terms[0][1] if len(terms) == 1 and not terms[0][0] else Expr(tuple(terms))


def constant(value: Any, dtype: DType) -> Value:
    return _constant(value, type(value).__name__, str(value) if value == 0 else "", dtype)


@lru_cache(maxsize=4096)
def _constant(value: Any, _: str, __: str, dtype: DType) -> Value:
    """Cache constants; the extra arguments tell apart equal values: by type, and zeros by sign."""
    return ir.Constant(register_type(dtype), float(value) if dtype.is_float else int(value))
