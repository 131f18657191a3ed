"""The text of kernels: for people, and to tell kernels with different code apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
    AddSums,
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Let,
    MoveRun,
    MultiplyFragments,
    MultiplyTiles,
    Number,
    Prefetch,
    Put,
    PutRun,
    PutSums,
    PutTile,
    Register,
    Repeat,
    ScaleSums,
    Statement,
    Sums,
    TilePipeline,
    TileStatement,
    Transpose,
    View,
    When,
)
from weft.ir.row_products import MultiplyRows, ReduceRows


def fingerprint(kernel: Kernel) -> tuple[str, Kernel]:
    """Return a text that is equal for kernels with the same code, and the kernel without unused parameters.

    The text consists of the printed kernel and the bounds of its variables.
    """
    printer = _Printer()
    printer.body(kernel.body, "  ")
    used = {symbol for value in printer.used for symbol in dims.symbols(value)}
    names = {symbol.name for symbol in used}
    stripped = replace(kernel, parameters=tuple([name for name in kernel.parameters if name in names]))
    variable_bounds = sorted({(symbol.name, symbol.low, symbol.high) for symbol in used}, key=str)
    return "\n".join((*_head_lines(stripped), *printer.lines, str(variable_bounds))), stripped


def print_kernel(kernel: Kernel) -> str:
    """Print a kernel."""
    printer = _Printer()
    printer.body(kernel.body, "  ")
    return "\n".join((*_head_lines(kernel), *printer.lines))


def _head_lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}({', '.join(kernel.parameters)}), {kernel.lanes} lanes"
    for buffer in kernel.buffers:
        yield f"  {_buffer_kind(buffer)} {buffer.name}: {buffer.dtype}"


def _buffer_kind(buffer: Buffer) -> str:
    if buffer.tile is not None:
        tile = buffer.tile
        return f"{'transposed ' if tile.transposed else ''}tile[{tile.rows} x {tile.depth}, {tile.stages} stages]"
    if buffer.local_size is not None:
        return f"{'late ' if buffer.late else ''}local[{buffer.local_size}]"
    return "out" if buffer.written else "in"


def _names(fragments: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(", ".join(names) for names in fragments)


class _Printer:
    """Prints statements, and collects the index arithmetic in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.used: set[Dim] = set()

    def index(self, value: Dim) -> str:
        self.used.add(value)
        return str(value)

    def body(self, body: tuple[Statement, ...], indent: str) -> None:
        write, code, index = self.lines.append, self.code, self.index
        for statement in body:
            match statement:
                case Define(name, value, varying):
                    write(f"{indent}{'varying' if varying else 'uniform'} {name} = {code(value)}")
                case Assign(name, value):
                    write(f"{indent}{name} = {code(value)}")
                case Put(buffer, offset, value, indirect, mask):
                    address = index(offset) if indirect is None else f"{index(offset)} + {code(indirect)}"
                    write(f"{indent}{buffer}[{address}] = {code(value)}{self.mask(mask)}")
                case Let(name, value):
                    write(f"{indent}let {name} = {index(value)}")
                case View(name, buffer, offset, dtype):
                    write(
                        f"{indent}view {name} = {buffer} from {index(offset)}{'' if dtype is None else f' as {dtype}'}"
                    )
                case Repeat(name, start, stop, step, inner, unroll):
                    by = f" by {step}" if step != 1 else ""
                    times = f" unroll {unroll}" if unroll > 1 else ""
                    write(f"{indent}for {name} in {index(start)}..{index(stop)}{by}{times}:")
                    self.body(inner, indent + "  ")
                case When(condition, then, otherwise):
                    write(f"{indent}when {code(condition)}:")
                    self.body(then, indent + "  ")
                    if otherwise:
                        write(f"{indent}otherwise:")
                        self.body(otherwise, indent + "  ")
                case Transpose(names):
                    write(f"{indent}transpose {', '.join(names)}")
                case FetchRun(names, buffer, offset, _, mask, indirect):
                    place = self.address(offset, indirect)
                    write(f"{indent}varying {', '.join(names)} = {buffer}[{place}..]{self.mask(mask)}")
                case PutRun(buffer, offset, values, mask):
                    write(f"{indent}{buffer}[{index(offset)}..] = {', '.join(map(code, values))}{self.mask(mask)}")
                case Prefetch(buffer, offset, nbytes, level):
                    write(f"{indent}prefetch {nbytes} bytes of {buffer} from {index(offset)} to L{level}")
                case Barrier():
                    write(f"{indent}barrier")
                case _:
                    self.tiles(statement, indent)

    def tiles(self, statement: TileStatement, indent: str) -> None:
        write, code, index = self.lines.append, self.code, self.index
        match statement:
            case Sums(name, rows, columns, dtype):
                write(f"{indent}sums {name}[{rows}, {columns}]: {dtype}")
            case MultiplyTiles(sums, left, right):
                write(f"{indent}{sums} += {left} @ {right}")
            case MultiplyFragments(sums, left, right, planes, dtype):
                write(f"{indent}{_names(sums)} += {_names(left)} @ {_names(right)} of {dtype}, {planes} planes")
            case MultiplyRows() | ReduceRows():
                write(f"{indent}{statement}")
            case AddSums(sums, other):
                write(f"{indent}{sums} += {other}")
            case ScaleSums(sums, buffer, offset):
                write(f"{indent}{sums} *= {buffer}[{index(offset)}..] by rows")
            case PutSums(sums, buffer, offset, pitch):
                write(f"{indent}{buffer}[{index(offset)} + {pitch} * row + column] = {sums}")
            case MoveRun(tile, line, first, count, buffer, offset, mask):
                source = f"{count} of {buffer}[{index(offset)}..]{self.mask(mask)}"
                write(f"{indent}move {tile}[{index(line)}, {index(first)}..] = {source}")
            case PutTile(tile, line, first, values, mask):
                line_text = f"{tile}[{index(line)}, {index(first)}..]"
                write(f"{indent}{line_text} = {', '.join(map(code, values))}{self.mask(mask)}")
            case TilePipeline(name, start, stop):
                write(f"{indent}pipeline {name} in {index(start)}..{index(stop)}:")
                parts = ("move", statement.moves), ("fetch", statement.fetches), ("put", statement.puts)
                for title, body in (*parts, ("work", statement.body)):
                    if body:
                        write(f"{indent}  {title}:")
                        self.body(body, indent + "    ")

    def code(self, code: Code) -> str:
        match code:
            case Register(name):
                return name
            case Call(function, arguments, dtype):
                name = f"{function}<{dtype}>" if function in ("cast", "bitcast") else function
                return f"{name}({', '.join([self.code(argument) for argument in arguments])})"
            case Number(value, dtype):
                return f"{value!r}" if dtype is DType.float32 else f"{value!r}:{dtype}"
            case Integer(value):
                return self.index(value)
            case Fetch(buffer, offset, _, indirect, mask):
                return f"{buffer}[{self.address(offset, indirect)}]{self.mask(mask)}"
            case Across(kind, value):
                return f"across.{kind}({self.code(value)})"
            case AcrossGroup(kind, value, members, step):
                return f"across.{kind}({self.code(value)}) of {members} lanes, {step} apart"

    def address(self, offset: Dim, indirect: Code | None) -> str:
        return self.index(offset) if indirect is None else f"{self.index(offset)} + {self.code(indirect)}"

    def mask(self, mask: Code | None) -> str:
        return "" if mask is None else f" where {self.code(mask)}"
