"""Build a kernel: its parameters, buffers, registers and variables, and the launch that binds them.

All names come from the `KernelBuilder`. Templates pass a hint and get a unique name, so parts of a kernel cannot clash.
Names depend on the order of the requests alone: equal templates give equal kernels.
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
    """Builds one kernel. Sizes are parameters of the kernel, so that one compiled kernel serves many shapes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parameters: dict[str, Dim] = {}
        self._sizes: dict[Dim, Dim] = {}
        self._by_hint: dict[str, tuple[str, Dim, Dim]] = {}  # name, value, variable
        self._replaced: dict[Dim, Dim] = {}  # index arithmetic with parameters in place of symbols
        self._inputs: list[tuple[Buffer, Reference]] = []
        self._outputs: list[tuple[Buffer, Reference]] = []
        self._locals: list[Buffer] = []
        self._variables = _Names((BLOCK, LANE))
        self._registers = _Names()
        self._buffers = _Names()

    # -- parameters --------------------------------------------------------------------------------------------------

    def size(self, value: Dim) -> Dim:
        """Return a size as a literal (0 and 1) or as a parameter, the same one for equal sizes."""
        if value in (0, 1):
            return value
        parameter = self._sizes.get(value)
        if parameter is None:
            name = self._variables.fresh(f"p{len(self._sizes)}")
            self._parameters[name] = value
            parameter = self._sizes[value] = _make_parameter(name, value)
        return parameter

    def parameter(self, hint: str, value: Dim, lower_bound: int | None = None) -> Dim:
        """Return the parameter for a hint, even if another has an equal size, so that the kernel stays the same.

        The same hint gives the same parameter. `lower_bound` holds for all sizes; a bound taken from
        the value would make equal kernels differ.
        """
        entry = self._by_hint.get(hint)
        if entry is None:
            name = self._variables.fresh(hint)
            self._parameters[name] = value
            entry = self._by_hint[hint] = name, value, _make_parameter(name, value)
        elif entry[1] != value:
            raise InternalError(f"kernel {self.name}: parameter {hint} has two values, {entry[1]} and {value}")
        return entry[2] if lower_bound is None else variable(entry[0], lower_bound)

    def replace_symbols(self, value: Dim) -> Dim:
        """Replace the program's symbols in index arithmetic by parameters."""
        if isinstance(value, int):
            return value
        replaced = self._replaced.get(value)
        if replaced is None:
            replaced = self._replaced[value] = dims.substitute(value, self._atom)
        return replaced

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, atom.size)
        return self.size(dims.from_atom(atom))

    # -- buffers -----------------------------------------------------------------------------------------------------

    def input(self, hint: str, dtype: DType, reference: Reference) -> Buffer:
        """Declare memory that the kernel reads."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, False)
        self._inputs.append((buffer, reference))
        return buffer

    def output(self, hint: str, dtype: DType, reference: Reference) -> Buffer:
        """Declare memory that the kernel writes, and may read."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True)
        self._outputs.append((buffer, reference))
        return buffer

    def local(self, hint: str, dtype: DType, size: int) -> Buffer:
        """Declare memory of `size` elements for each block."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, size)
        self._locals.append(buffer)
        return buffer

    def late(self, hint: str, dtype: DType, size: int) -> Buffer:
        """Declare local memory that is used only after all pipelines are done."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, size, late=True)
        self._locals.append(buffer)
        return buffer

    def tile(self, hint: str, dtype: DType, form: TileForm) -> Buffer:
        """Declare memory for a matrix that the lanes of a block multiply."""
        buffer = Buffer(self._buffers.fresh(hint), dtype, True, form.rows * form.depth, form)
        self._locals.append(buffer)
        return buffer

    def view(self, hint: str, buffer: Buffer, offset: Dim, dtype: DType | None = None) -> tuple[View, Buffer]:
        """Create a view of a buffer from a uniform offset on, optionally with another dtype."""
        name = self._buffers.fresh(hint)
        return View(name, buffer.name, offset, dtype), Buffer(
            name, dtype or buffer.dtype, buffer.written, buffer.local_size
        )

    # -- registers and variables -------------------------------------------------------------------------------------

    def register(self, hint: str, dtype: DType, varying: bool = True) -> Register:
        """Create a register, to be introduced by `define`."""
        return Register(self._registers.fresh(hint), dtype, varying)

    def registers(self, hint: str, count: int, dtype: DType, varying: bool = True) -> list[Register]:
        return [self.register(f"{hint}{number}", dtype, varying) for number in range(count)]

    def keep(self, hint: str, value: Code, varying: bool | None = None) -> tuple[Define, Register]:
        """Keep a value in a new register, which varies if the value does, or as `varying` says."""
        varies = is_varying(value) if varying is None else varying
        register = self.register(hint, value.dtype, varies)
        return Define(register.name, value, varies), register

    def sums(self, hint: str, rows: int, columns: int, dtype: DType) -> Sums:
        """Create the statement that introduces sums of tile products."""
        return Sums(self._registers.fresh(hint), rows, columns, dtype)

    def variable(self, hint: str, low: int | None = 0, high: int | None = None) -> Expr:
        """Create an integer variable, to be introduced by `repeat` or `let`; its bounds help the simplifier."""
        return variable(self._variables.fresh(hint), low, high)

    def variables(self, hint: str, count: int, low: int | None = 0) -> list[Expr]:
        return [self.variable(f"{hint}{number}", low) for number in range(count)]

    def let(self, hint: str, value: Dim, low: int | None = 0) -> tuple[Let, Expr]:
        """Create a variable that stands for uniform index arithmetic."""
        variable = self.variable(hint, low)
        return let(variable, value), variable

    # -- the launch --------------------------------------------------------------------------------------------------

    def launch(self, lanes: int, body: Iterable[Statement], blocks: Dim) -> Launch:
        """Build the kernel (inputs before outputs before local memory), bound to its references and parameters."""
        arguments = (*self._inputs, *self._outputs)
        buffers = (*(buffer for buffer, _ in arguments), *self._locals)
        kernel = Kernel(self.name, buffers, tuple(self._parameters), lanes, tuple(body))
        references = tuple((buffer.name, reference) for buffer, reference in arguments)
        return Launch(kernel, blocks, tuple(self._parameters.items()), references)


class _Names:
    """Unique names in one namespace."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._used = set(reserved)
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        name = hint
        while name in self._used:
            count = self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}_{count}"
        self._used.add(name)
        return name


def _make_parameter(name: str, value: Dim) -> Dim:
    low = dims.bounds(value)[0]
    return variable(name, None if low is None or low < 0 else min(low, 1))


# -- statements and values of a builder's registers, variables and buffers -------------------------------------------


def define(register: Register, value: Code) -> Define:
    return Define(register.name, value, register.varying)


def assign(register: Register, value: Code) -> Assign:
    return Assign(register.name, value)


def repeat(counter: Dim, start: Dim, stop: Dim, step: int, body: Iterable[Statement], unroll: int = 1) -> Repeat:
    return Repeat(_symbol_name(counter), start, stop, step, tuple(body), unroll)


def let(name: Dim, value: Dim) -> Let:
    return Let(_symbol_name(name), value)


def unbounded(name: Dim) -> Expr:
    """Return the same variable without bounds."""
    return variable(_symbol_name(name), None)


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


def _symbol_name(variable: Dim) -> str:
    assert isinstance(variable, Expr)
    (((atom,), _),) = variable.terms
    assert isinstance(atom, Symbol)
    return atom.name
