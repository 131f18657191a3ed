"""Emit the plan of each unit: a function that computes the numbers of a run from its sizes.

A unit's memory begins with its numbers: blocks, parameters, offsets and other values that depend on sizes. Its plan
computes them and the bytes that the unit needs, and returns an error for sizes that the unit does not accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.export.arithmetic import SizeWriter
from weft.export.functions import FunctionText
from weft.export.interface import NO_SENSE, NULL_ARGUMENT, TOO_LARGE, Interface
from weft.export.observed import ObservedSizes
from weft.export.units import CodeUnit
from weft.ir import dims
from weft.ir.dims import LARGEST_SIZE, Dim, Expr
from weft.ir.program import Value
from weft.plan.layout import LARGEST_BYTES, Bindings, bind_shape
from weft.plan.plan import ALIGNMENT, DefinedSize
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """The parameters of a launch, which are checked only if it has blocks."""

    blocks: Dim
    values: tuple[Dim, ...]


class UnitNumbers:
    """The numbers that a unit needs, with their positions."""

    def __init__(self) -> None:
        self.slots: dict[Expr, int] = {}
        self.rows: dict[ParameterRow, int] = {}
        self.shapes: dict[Dim, None] = {}  # sizes of tensors
        self.count = 0

    def slot(self, dim: Expr) -> int:
        if dim not in self.slots:
            self.slots[dim] = self.count
            self.count += 1
        return self.slots[dim]

    def row(self, row: ParameterRow) -> int:
        if row not in self.rows:
            self.rows[row] = self.count
            self.count += len(row.values)
        return self.rows[row]

    def note_shapes(self, values: Sequence[Value], bindings: Bindings) -> None:
        for value in values:
            self.shapes.update(dict.fromkeys(dim for dim in bind_shape(value, bindings) if not isinstance(dim, int)))

    @property
    def bytes(self) -> int:
        return -(-self.count * 8 // ALIGNMENT) * ALIGNMENT


class PlanWriter:
    """Emits the plans of a model's units, after their numbers were collected, and the functions that query sizes."""

    def __init__(self, interface: Interface, extra: int) -> None:
        """`extra` are the bytes of a workspace beside the memory of the outermost unit."""
        self.interface, self.extra, self.name = interface, extra, interface.name

    def emit_plan(self, unit: CodeUnit, numbers: UnitNumbers) -> str:
        """Emit a function that checks sizes, and computes the bytes of a unit and, unless null, its numbers."""
        text = FunctionText()
        write = SizeWriter(text.emit, text.name)
        if any(definition.units for definition in unit.planner.definitions):
            text.emit("%inner = alloca i64, align 8")
        self._check(unit, numbers, text, write)
        for definition in unit.planner.definitions:
            self._define(definition, text, write)
        total_bytes = unit.planner.align(unit.total + numbers.bytes + (0 if unit.number else self.extra))
        text.fail_if(write.fault(total_bytes), TOO_LARGE)
        text.emit(f"store i64 {write.value(total_bytes)}, ptr %total, align 8")
        if numbers.count:
            fill, leave = text.label("fill"), text.label("done")
            text.branch(text.assign("icmp ne ptr %numbers, null"), fill, leave)
            text.start_block(leave)
            text.emit("ret i32 0")
            text.start_block(fill)
            for dim, slot in numbers.slots.items():
                text.fail_if(write.fault(dim), TOO_LARGE)
                _store(text, write.value(dim), slot)
            for row, first in numbers.rows.items():
                _store_row(text, write, row, first)
        text.emit("ret i32 0")
        return text.definition(
            f'define internal i32 @"{self.name}.plan{unit.number}"(ptr %sizes, ptr %total, ptr %numbers)'
        )

    def _define(self, definition: DefinedSize, text: FunctionText, write: SizeWriter) -> None:
        parts = [write.value(part) for part in definition.parts]
        for part in definition.parts:
            text.fail_if(write.fault(part), TOO_LARGE)
        for unit in definition.units:
            error = text.assign(f'call i32 @"{self.name}.plan{unit}"(ptr %sizes, ptr %inner, ptr null)')
            size = text.assign("load i64, ptr %inner, align 8")
            runs = text.assign(f"icmp eq i32 {error}, 0")
            parts.append(text.assign(f"select i1 {runs}, i64 {size}, i64 0"))
        value = write.largest(parts or ["0"])
        text.fail_if(text.assign(f"icmp ugt i64 {value}, {LARGEST_BYTES}"), TOO_LARGE)
        write.symbols[definition.name] = value

    def _check(self, unit: CodeUnit, numbers: UnitNumbers, text: FunctionText, write: SizeWriter) -> None:
        """Emit checks of guards, and of the sizes of tensors."""
        self._load_sizes(text, write)
        for guard in unit.guards:
            error = self.interface.find_error(guard)
            left, right = write.value(guard.left), write.value(guard.right)
            text.fail_if(write.either(write.fault(guard.left), write.fault(guard.right)), error)
            text.fail_if(text.assign(f"icmp {'slt' if guard.at_least else 'ne'} i64 {left}, {right}"), error)
        for dim in numbers.shapes:
            low = dims.bounds(dim)[0]
            if low is None or low < 0:
                text.fail_if(write.fault(dim), NO_SENSE)
                text.fail_if(text.assign(f"icmp slt i64 {write.value(dim)}, 0"), NO_SENSE)
        for port in () if unit.number else (*self.interface.inputs, *self.interface.outputs):
            port_bytes = dims.product(port.shape) * port.value.itemsize
            if not isinstance(port_bytes, int):
                text.fail_if(write.fault(port_bytes), TOO_LARGE)
                text.fail_if(text.assign(f"icmp ugt i64 {write.value(port_bytes)}, {LARGEST_BYTES}"), TOO_LARGE)

    def _load_sizes(self, text: FunctionText, write: SizeWriter) -> None:
        for number, symbol in enumerate(self.interface.symbols):
            address = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
            write.symbols[symbol.name] = text.assign(f"load i64, ptr {address}, align 8")

    def emit_sizes(self, observed: Sequence[tuple[CodeUnit, ObservedSizes]]) -> str:
        """Emit a function that checks the caller's sizes, and computes those that the model observes."""
        text = FunctionText()
        results = [text.assign(f"alloca [{len(one.symbols)} x i64], align 8") for _, one in observed]
        if self.interface.sizes or self.interface.size_inputs:
            text.fail_if(text.assign("icmp eq ptr %arguments, null"), NULL_ARGUMENT)
        for number, port in enumerate(self.interface.size_inputs):
            if 0 not in port.shape:
                address = size_input_address(text, self.interface, number)
                text.fail_if(text.assign(f"icmp eq ptr {address}, null"), NULL_ARGUMENT)
        for number, size in enumerate(self.interface.sizes):
            address = text.assign(f"getelementptr i64, ptr %arguments, i64 {number}")
            value = text.assign(f"load i64, ptr {address}, align 8")
            text.fail_if(text.assign(f"icmp slt i64 {value}, {size.low}"), size.error)
            text.fail_if(text.assign(f"icmp sgt i64 {value}, {size.high}"), size.error)
            address = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
            text.emit(f"store i64 {value}, ptr {address}, align 8")
        number = len(self.interface.sizes)
        for result, (unit, sizes) in zip(results, observed, strict=True):
            width = unit.outputs[0].itemsize * 8
            call = f'call i32 @"{self.name}.observe{unit.number}"(ptr %arguments, ptr %sizes, ptr {result}, ptr null)'
            text.fail_with(text.assign(call))
            for index, symbol in enumerate(sizes.symbols):
                address = text.assign(f"getelementptr i{width}, ptr {result}, i64 {index}")
                value = text.assign(f"load i{width}, ptr {address}, align {width // 8}")
                if width < 64:
                    value = text.assign(f"sext i{width} {value} to i64")
                low, high = symbol.low, symbol.high
                lower, upper = -LARGEST_SIZE if low is None else low, LARGEST_SIZE if high is None else high
                text.fail_if(text.assign(f"icmp slt i64 {value}, {lower}"), NO_SENSE)
                text.fail_if(text.assign(f"icmp sgt i64 {value}, {upper}"), NO_SENSE)
                address = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
                text.emit(f"store i64 {value}, ptr {address}, align 8")
                number += 1
        text.emit("ret i32 0")
        return text.definition(f'define internal i32 @"{self.name}.sizes"(ptr %arguments, ptr %sizes)')

    def emit_queries(self) -> str:
        """Emit the public functions that check sizes and return the workspace bytes and output shapes."""
        text = FunctionText()
        write = SizeWriter(text.emit, text.name)
        reserve_sizes(text, self.interface)
        text.emit("%total = alloca i64, align 8")
        text.fail_if(text.assign("icmp eq ptr %shapes, null"), NULL_ARGUMENT)
        call_sizes(text, self.interface)
        text.fail_with(text.assign(f'call i32 @"{self.name}.plan0"(ptr %sizes, ptr %total, ptr null)'))
        self._load_sizes(text, write)
        number = 0
        for port in self.interface.outputs:
            for dim in (dims.product(port.shape), *port.shape):
                address = text.assign(f"getelementptr i64, ptr %shapes, i64 {number}")
                text.emit(f"store i64 {write.value(dim)}, ptr {address}, align 8")
                number += 1
        text.emit("ret i32 0")
        shapes = text.definition(f'define i32 @"{self.name}_output_shapes"(ptr %arguments, ptr %shapes)')
        return "\n".join((self._measure(), _QUERIES.format(name=self.name), shapes))

    def _measure(self) -> str:
        text = FunctionText()
        reserve_sizes(text, self.interface)
        call_sizes(text, self.interface)
        error = text.assign(f'call i32 @"{self.name}.plan0"(ptr %sizes, ptr %total, ptr null)')
        text.emit(f"ret i32 {error}")
        return text.definition(f'define internal i32 @"{self.name}.measure"(ptr %arguments, ptr %total)')


def reserve_sizes(text: FunctionText, interface: Interface) -> None:
    """Emit the array of all sizes of a run."""
    text.emit(f"%sizes = alloca [{len(interface.symbols) + 1} x i64], align 8")


def size_input_address(text: FunctionText, interface: Interface, number: int) -> str:
    """Emit the address of an input in the structure of sizes, in which inputs follow the sizes."""
    address = text.assign(f"getelementptr ptr, ptr %arguments, i64 {len(interface.sizes) + number}")
    return text.assign(f"load ptr, ptr {address}, align 8")


def call_sizes(text: FunctionText, interface: Interface) -> None:
    """Emit the call that computes all sizes of a run from the caller's."""
    text.fail_with(text.assign(f'call i32 @"{interface.name}.sizes"(ptr %arguments, ptr %sizes)'))


def _store_row(text: FunctionText, write: SizeWriter, row: ParameterRow, first: int) -> None:
    values = [write.value(dim) for dim in row.values]
    wrong = write.either(*[write.fault(dim) for dim in row.values])
    if wrong is not None:
        has_blocks = text.assign(f"icmp sgt i64 {write.value(row.blocks)}, 0")
        text.fail_if(text.assign(f"and i1 {wrong}, {has_blocks}"), TOO_LARGE)
    for number, value in enumerate(values):
        _store(text, value, first + number)


def _store(text: FunctionText, value: str, slot: int) -> None:
    address = text.assign(f"getelementptr i64, ptr %numbers, i64 {slot}")
    text.emit(f"store i64 {value}, ptr {address}, align 8")


_QUERIES = """
define i32 @"{name}_check"(ptr %arguments) nounwind {{
  %total = alloca i64, align 8
  %error = call i32 @"{name}.measure"(ptr %arguments, ptr %total)
  ret i32 %error
}}

define i64 @"{name}_workspace_bytes"(ptr %arguments) nounwind {{
  %total = alloca i64, align 8
  %error = call i32 @"{name}.measure"(ptr %arguments, ptr %total)
  %fits = icmp eq i32 %error, 0
  %bytes = load i64, ptr %total, align 8
  %result = select i1 %fits, i64 %bytes, i64 0
  ret i64 %result
}}
"""
