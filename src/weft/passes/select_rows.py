"""Compute an output for some rows only: the logits of the last tokens of a prompt.

In: a program, and an output [batch, rows, ...] of which only the rows `selection[b, r]` are wanted. Out: the output
[batch * selected rows, ...]. The selection moves up through maps, reductions and products with constants, to values
that other steps need for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace

from weft.ir import dims
from weft.ir.dims import Atom, Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Index, Literal, Load, Scalar, identity_indices, loads, rebuild, walk
from weft.ir.types import TensorType
from weft.passes.rewrite import next_number
from weft.records import dataclass

SELECTION = "weft.selected_rows"  # an input of the program
ROW_AXIS = 1


def select_rows(program: TensorProgram, output: int) -> TensorProgram:
    """Let an output, by number, hold the rows that the new last input selects."""
    value = program.outputs[output]
    count = dims.symbol(f"{SELECTION}.count", 1)
    number = next_number(program)
    selection = Value(number, TensorType(DType.int64, (value.shape[0], count)), SELECTION)
    makers = {result: step for step in program.steps for result in step.results}
    others = [other for number, other in enumerate(program.outputs) if number != output]
    work = _Selecting(makers, _find_ancestors(others, makers), selection, number + 1, value.shape[:2])
    selected = work.select(value)
    shape = (value.shape[0] * count, *value.shape[2:])
    result = Value(work.number, TensorType(value.dtype, shape), value.name)
    origin = makers[value].origin if value in makers else ""
    outputs = list(program.outputs)
    outputs[output] = result
    steps = (*work.steps, Step(Reshape(), (selected,), (result,), origin))
    return replace(
        program,
        inputs=(*program.inputs, selection),
        steps=(*program.steps, *steps),
        outputs=tuple(outputs),
    )


@dataclass(slots=True)
class _Selecting:
    """The new steps for one output."""

    makers: Mapping[Value, Step]
    complete: Set[Value]  # values that other outputs need for all rows
    selection: Value
    number: int
    rows: tuple[Dim, ...]  # batch and rows, of values before the selection
    steps: list[Step] = field(default_factory=list)
    selected: dict[Value, Value] = field(default_factory=dict)

    def select(self, value: Value) -> Value:
        """Return the selected rows of a value [batch, rows, ...]."""
        if value not in self.selected:
            step = self.makers.get(value)
            new_step = None if step is None or value in self.complete else self.move_up(step, value)
            self.selected[value] = self.add_step(new_step or self.gather(value, step), value)
        return self.selected[value]

    def add_step(self, step: Step, value: Value) -> Value:
        result = Value(self.number, TensorType(value.dtype, self.new_shape(value)))
        self.number += 1
        self.steps.append(replace(step, results=(result,)))
        return result

    def new_shape(self, value: Value) -> tuple[Dim, ...]:
        return (value.shape[0], self.selection.shape[1], *value.shape[2:])

    def gather(self, value: Value, maker: Step | None) -> Step:
        own = identity_indices(self.new_shape(value))
        row = Load(1, own[:2], DType.int64)
        element = Load(0, (own[0], row, *own[2:]), value.dtype)
        return Step(Map(element), (value, self.selection), (value,), "" if maker is None else maker.origin)

    def move_up(self, step: Step, value: Value) -> Step | None:
        """Return the step on selected rows of its operands; None if it does not compute row by row."""
        if len(step.results) != 1:
            return None
        match step.primitive:
            case Map(expression):
                return self.move_up_map(step, expression, value)
            case Reduce(axes=axes) if not {0, 1} & set(axes) and self.has_rows(step.operands[0]):
                return replace(step, operands=(self.select(step.operands[0]),))
            case Contract() as contract:
                return self.move_up_contract(step, contract)
            case _:
                return None

    def has_rows(self, value: Value) -> bool:
        return value.has_shape and value.rank >= 2 and value.shape[:2] == self.rows

    def move_up_map(self, step: Step, expression: Scalar, value: Value) -> Step | None:
        operands = list(step.operands)
        first = identity_indices(value.shape)[:2]

        def reads_row(load: Load) -> bool:
            return (
                load.indices[:2] == first
                and not any(map(_depends_on_row, load.indices[2:]))
                and self.has_rows(step.operands[load.operand])
            )

        rest = rebuild(expression, lambda load: Literal(0, load.dtype) if reads_row(load) else load)
        rows = {load.operand for load in loads(expression) if reads_row(load)}
        if _depends_on_row(rest) or rows & {load.operand for load in loads(rest)}:
            return None
        for number in sorted(rows):
            operands[number] = self.select(operands[number])
        new_row = identity_indices(self.new_shape(value))[ROW_AXIS].value
        new_expression = rebuild(expression, atom=lambda atom: _replace_row(atom, new_row))
        return replace(step, primitive=Map(new_expression), operands=tuple(operands))

    def move_up_contract(self, step: Step, contract: Contract) -> Step | None:
        """Select the rows of the operand that has them, if the other has neither rows nor batch."""
        batch, row = contract.output[:2]
        sides = (contract.left, contract.right)
        with_rows = [number for number, labels in enumerate(sides) if row in labels or batch in labels]
        if len(with_rows) != 1:
            return None
        (number,) = with_rows
        if sides[number][:2] != (batch, row) or not self.has_rows(step.operands[number]):
            return None
        operands = list(step.operands)
        operands[number] = self.select(operands[number])
        return replace(step, operands=tuple(operands))


def _find_ancestors(values: Sequence[Value], makers: Mapping[Value, Step]) -> Set[Value]:
    """Return these values and all from which they are computed."""
    pending, ancestors = list(values), set(values)
    while pending:
        step = makers.get(pending.pop())
        new = [] if step is None else [value for value in step.operands if value not in ancestors]
        ancestors.update(new)
        pending += new
    return ancestors


def _depends_on_row(scalar: Scalar) -> bool:
    return any(isinstance(node, Index) and any(map(_is_row, dims.atoms(node.value))) for node in walk(scalar))


def _is_row(atom: Atom) -> bool:
    return isinstance(atom, Axis) and atom.position == ROW_AXIS


def _replace_row(atom: Symbol | Axis, row: Dim) -> Dim:
    return row if _is_row(atom) else dims.from_atom(atom)
