"""Divide a program into units: the program itself, and the bodies of its branches and loops.

Each unit has its own numbers, memory and plan. A unit whose plan fails cannot run and takes no memory. The enclosing
unit only knows how many bytes an inner unit needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import UnsupportedModelError
from weft.fuse.host import explain_missing_kernel, host_only_reason
from weft.ir import dims
from weft.ir.dims import Dim, Symbol
from weft.ir.program import Branch, Guard, Loop, Step, TensorProgram, Value, step_name
from weft.ir.work import NativeSection, Section
from weft.plan.layout import Bindings, LayoutPlanner, Owner, SectionLayout, bind_dim, bind_shape, value_bytes
from weft.plan.plan import ALIGNMENT
from weft.plan.storage import MemoryBlock
from weft.records import dataclass

Item = NativeSection | Step


@dataclass(frozen=True, slots=True, eq=False)
class CodeUnit:
    """A program as a list of items, with the inner units of steps by the step's index.

    `guards` are on the model's sizes. `offsets` has the values that pass between items, and the memory of items by
    (index, purpose).
    """

    number: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    items: tuple[Item, ...]
    constants: Mapping[Value, Any]
    guards: tuple[Guard, ...]
    bindings: Bindings
    planner: LayoutPlanner
    layouts: Mapping[int, SectionLayout]
    inside: Mapping[int, tuple[CodeUnit, ...]]
    offsets: Mapping[Owner, Dim]
    total: Dim

    def all_units(self) -> Iterator[CodeUnit]:
        """Return this unit and all inner ones, ordered by number."""
        units = [self, *(unit for inner in self.inside.values() for each in inner for unit in each.all_units())]
        return iter(sorted(units, key=lambda unit: unit.number))

    @property
    def sections(self) -> list[NativeSection]:
        return [item for item in self.items if isinstance(item, NativeSection)]


class UnitBuilder:
    """Builds the units of one model. `usual` are the sizes that memory is laid out for."""

    def __init__(self, inputs: Sequence[Value], observed: Sequence[Symbol], usual: Mapping[str, int]) -> None:
        self._usual = usual
        self._symbols = {
            symbol.name for value in inputs for dim in (value.known_shape or ()) for symbol in dims.symbols(dim)
        }
        self._symbols.update(symbol.name for symbol in observed)
        self._count = 0

    def build(
        self, program: TensorProgram, sections: Sequence[Section], bindings: Bindings, more: Sequence[Guard] = ()
    ) -> CodeUnit:
        """Build the unit of a program with its sections; `more` are additional guards, on outer sizes."""
        number = self._count
        self._count += 1
        items: list[Item] = []
        bodies: dict[int, list[tuple[TensorProgram, Sequence[Section]]]] = {}
        for section in sections:
            if isinstance(section, NativeSection):
                items.append(section)
                continue
            parts = iter(section.bodies)
            for step in section.steps:
                bodies[len(items)] = [(body, next(parts)) for body in _check_bodies(step)]
                items.append(step)
        planner = LayoutPlanner([self._usual], ALIGNMENT)
        external = {*program.inputs, *program.constants}
        layouts = {
            index: _lay_out(planner, item, {*item.inputs, *item.outputs, *external}, bindings)
            for index, item in enumerate(items)
            if isinstance(item, NativeSection)
        }
        inside = {
            index: tuple(
                self._build_inner(items[index], body, parts, body_index, bindings)
                for body_index, (body, parts) in enumerate(programs)
            )
            for index, programs in bodies.items()
        }
        blocks = [*_value_blocks(program, items, bindings), *_item_blocks(items, layouts, inside, planner, bindings)]
        stack = planner.stack(blocks)
        offsets = {block.owner: offset for block, offset in zip(blocks, stack.offsets)}
        guards = [*more, *(_bind_guard(guard, bindings) for guard in program.guards)]
        self._check_guards(guards)
        return CodeUnit(
            number,
            program.inputs,
            program.outputs,
            tuple(items),
            program.constants,
            tuple(guards),
            bindings,
            planner,
            layouts,
            inside,
            offsets,
            stack.total,
        )

    def _build_inner(
        self, step: Item, body: TensorProgram, parts: Sequence[Section], body_index: int, outer: Bindings
    ) -> CodeUnit:
        """Build the unit of a body of a step."""
        assert isinstance(step, Step)
        inner = dict(outer)
        for inside, outside in zip(body.inputs, _body_operands(step, body_index)):
            if outside is None:
                continue
            for dim, size in zip((inside.known_shape or ()), bind_shape(outside, outer)):
                symbol = dims.as_symbol(dim)
                if symbol is not None and size != dim:
                    inner[symbol.name] = size
        guards = []
        for result, target in _body_results(step, body):
            for dim, size in zip(bind_shape(result, inner), bind_shape(target, outer), strict=True):
                self._check_symbols((dim, size), step)
                if dim != size:
                    guards.append(Guard(dim, size, step.origin))
        return self.build(body, parts, inner, guards)

    def _check_guards(self, guards: Sequence[Guard]) -> None:
        for guard in guards:
            for side in (guard.left, guard.right):
                if not dims.symbol_names(side) <= self._symbols:
                    raise UnsupportedModelError("a size depends on data", node=guard.origin or None, hint=HINT)

    def _check_symbols(self, sizes: Sequence[Dim], step: Step) -> None:
        for size in sizes:
            if not dims.symbol_names(size) <= self._symbols:
                raise UnsupportedModelError(
                    f"the sizes of the results of {step_name(step)} depend on data",
                    node=step.origin or None,
                    hint=HINT,
                )


HINT = "strings, sequences and sizes that depend on data need Python; fixed sizes (--shape dim=size) may avoid them"


def _bind_guard(guard: Guard, bindings: Bindings) -> Guard:
    return replace(guard, left=bind_dim(guard.left, bindings), right=bind_dim(guard.right, bindings))


def _check_bodies(step: Step) -> tuple[TensorProgram, ...]:
    """Return the bodies of a step; raise UnsupportedModelError if the step needs Python."""
    match step.primitive:
        case Branch(then, otherwise) if _have_shapes(step.results):
            return then, otherwise
        case Loop(body, carries) if len(step.results) == carries and _have_shapes(step.results):
            return (body,)
        case Loop(_, carries) if len(step.results) > carries:
            reason = "the size of its results depends on data"
        case _:
            reason = host_only_reason(step) or explain_missing_kernel(step)
    raise UnsupportedModelError(f"{step_name(step)} cannot be exported: {reason}", node=step.origin or None, hint=HINT)


def item_results(item: Item) -> tuple[Value, ...]:
    """Return the values that an item computes for others."""
    return item.outputs if isinstance(item, NativeSection) else item.results


def _have_shapes(values: Sequence[Value]) -> bool:
    return all(value.has_shape for value in values)


def _body_operands(step: Step, body_index: int) -> list[Value | None]:
    """Return the outer values of a body's inputs; None for the count and condition of a loop, which are scalars."""
    if isinstance(step.primitive, Branch):
        split = 1 + len(step.primitive.then.inputs)
        return [*(step.operands[split:] if body_index else step.operands[1:split])]
    return [None, None, *step.operands[2:]]


def _body_results(step: Step, body: TensorProgram) -> list[tuple[Value, Value]]:
    """Return pairs of a body's results and outer values that must have the same shape."""
    if isinstance(step.primitive, Loop):
        carries = step.operands[2 : 2 + step.primitive.carries]
        return [*zip(body.outputs[1:], carries, strict=True), *zip(carries, step.results, strict=True)]
    return [*zip(body.outputs, step.results, strict=True)]


def _lay_out(
    planner: LayoutPlanner, section: NativeSection, external: Collection[Value], bindings: Bindings
) -> SectionLayout:
    return planner.lay_out(section, external, planner.choose_steps(section, external, bindings), bindings)


def _value_blocks(program: TensorProgram, items: Sequence[Item], bindings: Bindings) -> list[MemoryBlock]:
    """Return the memory of values that one item computes and another reads."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, item in enumerate(items):
        for value in item_results(item):
            first[value] = last[value] = index
        for value in item.inputs if isinstance(item, NativeSection) else item.operands:
            last[value] = index
    outputs = {*program.outputs}
    return [
        MemoryBlock(value, value_bytes(value, bindings), first[value], last[value])
        for value in first
        if value not in outputs
    ]


def _item_blocks(
    items: Sequence[Item],
    layouts: Mapping[int, SectionLayout],
    inside: Mapping[int, tuple[CodeUnit, ...]],
    planner: LayoutPlanner,
    bindings: Bindings,
) -> Iterator[MemoryBlock]:
    """Yield the memory of items; for a loop, two buffers for each carry, its count and its conditions."""
    for index, item in enumerate(items):
        if isinstance(item, NativeSection):
            yield MemoryBlock((index, "section"), layouts[index].total, index, index)
            continue
        bytes_inside = planner.largest_unit(
            [(unit.number, unit.planner.estimate(unit.total)) for unit in inside[index]]
        )
        yield MemoryBlock((index, "inside"), bytes_inside, index, index)
        if isinstance(item.primitive, Loop):
            for word in ("count", "before", "after"):
                yield MemoryBlock((index, word), 8, index, index)
            for number, value in enumerate(item.operands[2 : 2 + item.primitive.carries]):
                for half in range(2):
                    yield MemoryBlock((index, number, half), value_bytes(value, bindings), index, index)
