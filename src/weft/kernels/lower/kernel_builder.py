"""A kernel in the making: its parameters, buffers, registers and variables, and the launch that binds them.

A `KernelBuilder` is the only thing that makes names. Templates ask for what they need with a hint of what it is for, so
two parts of a kernel can never mean the same name by chance. Names depend on the order of the requests alone: equal
templates give equal kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    BLOCK,
    LANE,
    Assign,
    Buffer,
    Code,
    Define,
    Fetch,
    FetchRun,
    Kernel,
    Let,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    Sums,
    TileForm,
    Transpose,
    View,
    is_varying,
    variable,
)
from weft.ir.work import Launch, Reference

ERRORS = Reference("errors", 0)


class KernelBuilder:
    """One for each kernel. Sizes are parameters of the kernel, so that one compiled kernel serves many shapes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parameters: dict[str, Dim] = {}
        self._sizes: dict[Dim, Dim] = {}
        self._named: dict[str, tuple[str, Dim, Dim]] = {}  # by hint: name, value, how it is seen
        self._seen: dict[Dim, Dim] = {}  # index arithmetic with parameters in place of symbols
        self._inputs: list[tuple[Buffer, Reference]] = []
        self._outputs: list[tuple[Buffer, Reference]] = []
        self._locals: list[Buffer] = []
        self._variables = _Names((BLOCK, LANE))
        self._registers = _Names()
        self._buffers = _Names()

    # -- parameters --------------------------------------------------------------------------------------------------

    def size(self, value: Dim) -> Dim:
        """A size as the kernel sees it: 0 and 1 as they are, others as parameters, each once."""
        if value in (0, 1):
            return value
        found = self._sizes.get(value)
        if found is None:
            name = self._variables.fresh(f"p{len(self._sizes)}")
            self._parameters[name] = value
            found = self._sizes[value] = _parameter(name, value)
        return found

    def named(self, hint: str, value: Dim, least: int | None = None) -> Dim:
        """A size that is a parameter of its own, whatever it is: shapes that happen to agree need no other kernel.

        Asked for again it is the same one. `least`: what it is known to be at least, for all sizes alike; what its
        value happens to tell would make kernels differ that are the same.
        """
        found = self._named.get(hint)
        if found is None:
            name = self._variables.fresh(hint)
            self._parameters[name] = value
            found = self._named[hint] = name, value, _parameter(name, value)
        elif found[1] != value:
            raise InternalError(f"kernel {self.name}: {hint} is {found[1]} and {value}")
        return found[2] if least is None else variable(found[0], least)

    def symbols(self, value: Dim) -> Dim:
        """Index arithmetic with the program's symbols replaced by parameters; integers stay."""
        if isinstance(value, int):
            return value
        found = self._seen.get(value)
        if found is None:
            found = self._seen[value] = dims.substitute(value, self._atom)
        return found

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, atom.size)
        return self.size(dims.symbol(atom.name, atom.low, atom.high))

    # -- buffers -----------------------------------------------------------------------------------------------------

    def input(self, hint: str, dtype: DType, reference: Reference) -> Buffer:
        """Memory that the kernel reads."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, False)
        self._inputs.append((buffer, reference))
        return buffer

    def output(self, hint: str, dtype: DType, reference: Reference) -> Buffer:
        """Memory that the kernel writes, and may read."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True)
        self._outputs.append((buffer, reference))
        return buffer

    def local(self, hint: str, dtype: DType, size: int) -> Buffer:
        """Memory of so many elements for each block."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, size)
        self._locals.append(buffer)
        return buffer

    def late(self, hint: str, dtype: DType, size: int) -> Buffer:
        """The same, used only after all pipelines are done."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, size, late=True)
        self._locals.append(buffer)
        return buffer

    def tile(self, hint: str, dtype: DType, form: TileForm) -> Buffer:
        """Memory for a matrix that the lanes of a block multiply."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, form.rows * form.depth, form)
        self._locals.append(buffer)
        return buffer

    def view(self, hint: str, buffer: Buffer, offset: Dim, dtype: DType | None = None) -> tuple[View, Buffer]:
        """A buffer from a uniform offset on, as one of its own; with a `dtype` of elements of another type."""
        name = self._buffers.fresh(hint)
        seen = Buffer(name, dtype or buffer.dtype, buffer.written, buffer.local_size)
        return View(name, buffer.name, offset, dtype), seen

    # -- registers and variables -------------------------------------------------------------------------------------

    def register(self, hint: str, dtype: DType, varying: bool = True) -> Register:
        """A register, to be introduced by `define`."""
        return Register(self._registers.fresh(hint), dtype, varying)

    def registers(self, hint: str, count: int, dtype: DType, varying: bool = True) -> list[Register]:
        return [self.register(f"{hint}{number}", dtype, varying) for number in range(count)]

    def keep(self, hint: str, value: Code, varying: bool | None = None) -> tuple[Define, Register]:
        """A value in a register of its own; it varies where the value does, unless it is said to."""
        varies = is_varying(value) if varying is None else varying
        register = self.register(hint, value.dtype, varies)
        return Define(register.name, value, varies), register

    def sums(self, hint: str, rows: int, columns: int, dtype: DType) -> Sums:
        """Sums of products of tiles: what introduces them."""
        return Sums(self._registers.fresh(hint), rows, columns, dtype)

    def variable(self, hint: str, low: int | None = 0, high: int | None = None) -> Expr:
        """An integer, to be introduced by `repeat` or `let`; its bounds help the simplifier."""
        return variable(self._variables.fresh(hint), low, high)

    def variables(self, hint: str, count: int, low: int | None = 0) -> list[Expr]:
        return [self.variable(f"{hint}{number}", low) for number in range(count)]

    def let(self, hint: str, value: Dim, low: int | None = 0) -> tuple[Let, Expr]:
        """A variable that stands for uniform index arithmetic."""
        made = self.variable(hint, low)
        return let(made, value), made

    # -- the whole ---------------------------------------------------------------------------------------------------

    def launch(self, lanes: int, body: Iterable[Statement], blocks: Dim) -> Launch:
        """The kernel, inputs before outputs before local memory, on what its buffers and parameters stand for."""
        bound = (*self._inputs, *self._outputs)
        buffers = (*(buffer for buffer, _ in bound), *self._locals)
        kernel = Kernel(self.name, buffers, tuple(self._parameters), lanes, tuple(body))
        references = tuple((buffer.name, reference) for buffer, reference in bound)
        return Launch(kernel, blocks, tuple(self._parameters.items()), references)


class _Names:
    """Names of one kind of thing, each given out once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        name = hint
        while name in self._taken:
            count = self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        return name


def _parameter(name: str, value: Dim) -> Dim:
    low = dims.bounds(value)[0]
    return variable(name, None if low is None or low < 0 else min(low, 1))


# -- statements and values of what a builder has handed out ----------------------------------------------------------


def define(register: Register, value: Code) -> Define:
    return Define(register.name, value, register.varying)


def assign(register: Register, value: Code) -> Assign:
    return Assign(register.name, value)


def repeat(counter: Dim, start: Dim, stop: Dim, step: int, body: Iterable[Statement], unroll: int = 1) -> Repeat:
    return Repeat(_name(counter), start, stop, step, tuple(body), unroll)


def let(name: Dim, value: Dim) -> Let:
    return Let(_name(name), value)


def unbounded(name: Dim) -> Expr:
    """A variable of which nothing is known."""
    return variable(_name(name), None)


def transpose(registers: Sequence[Register]) -> Transpose:
    return Transpose(tuple(register.name for register in registers))


def fetch(buffer: Buffer, offset: Dim, indirect: Code | None = None, mask: Code | None = None) -> Fetch:
    return Fetch(buffer.name, offset, buffer.dtype, indirect, mask)


def fetch_run(registers: Sequence[Register], buffer: Buffer, offset: Dim, mask: Code | None = None) -> FetchRun:
    return FetchRun(tuple(register.name for register in registers), buffer.name, offset, buffer.dtype, mask)


def put_run(buffer: Buffer, offset: Dim, values: Iterable[Code], mask: Code | None = None) -> PutRun:
    return PutRun(buffer.name, offset, tuple(values), mask)


def put(buffer: Buffer, offset: Dim, value: Code, indirect: Code | None = None, mask: Code | None = None) -> Put:
    return Put(buffer.name, offset, value, indirect, mask)


def _name(made: Dim) -> str:
    assert isinstance(made, Expr)
    (((atom,), _),) = made.terms
    assert isinstance(atom, Symbol)
    return atom.name
