"""The parts of a program that run as one: the program itself, and what is inside of its branches and loops.

Each has numbers and memory of its own. What a part needs is known when its plan is made, and that may be refused: then
it cannot run, and takes no memory. All that is known of a part outside is how many bytes it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import UnsupportedModelError
from weft.export.memory import Bindings, MemoryPlanner, Owner, SectionLayout, Stretch, bound, shape_of, value_bytes
from weft.fuse.host import explain_missing_kernel, host_only_reason
from weft.ir import dims
from weft.ir.dims import Dim, Symbol
from weft.ir.program import Branch, Guard, Loop, Step, TensorProgram, Value, step_name
from weft.ir.work import NativeSection, Section
from weft.records import dataclass

Item = NativeSection | Step


@dataclass(frozen=True, slots=True, eq=False)
class CodeUnit:
    """A program in the order of its items, with the units inside of its steps, by the step's place.

    `guards` are of the model's sizes. `offsets` are those of what the unit needs: values that items hand on, and by
    (place, what for) the memory of items.
    """

    number: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    items: tuple[Item, ...]
    constants: Mapping[Value, Any]
    guards: tuple[Guard, ...]
    bindings: Bindings
    planner: MemoryPlanner
    layouts: Mapping[int, SectionLayout]
    inside: Mapping[int, tuple[CodeUnit, ...]]
    offsets: Mapping[Owner, Dim]
    total: Dim

    def everything(self) -> Iterator[CodeUnit]:
        """This unit and all inside of it, in the order of their numbers."""
        found = [self, *(unit for inner in self.inside.values() for one in inner for unit in one.everything())]
        return iter(sorted(found, key=lambda unit: unit.number))

    @property
    def sections(self) -> list[NativeSection]:
        return [item for item in self.items if isinstance(item, NativeSection)]


class UnitBuilder:
    """Makes the units of one model. `usual` are sizes that memory is laid out for."""

    def __init__(self, inputs: Sequence[Value], observed: Sequence[Symbol], usual: Mapping[str, int]) -> None:
        self._usual = usual
        self._known = {
            symbol.name for value in inputs for dim in (value.known_shape or ()) for symbol in dims.symbols(dim)
        }
        self._known.update(symbol.name for symbol in observed)
        self._count = 0

    def build(
        self, program: TensorProgram, sections: Sequence[Section], bindings: Bindings, more: Sequence[Guard] = ()
    ) -> CodeUnit:
        """A program with its sections; `more` are guards beside its own, of sizes outside."""
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
                bodies[len(items)] = [(body, next(parts)) for body in _checked_bodies(step)]
                items.append(step)
        planner = MemoryPlanner(self._usual)
        elsewhere = {*program.inputs, *program.constants}
        layouts = {
            place: planner.lay_out(item, {*item.inputs, *item.outputs, *elsewhere}, bindings)
            for place, item in enumerate(items)
            if isinstance(item, NativeSection)
        }
        inside = {
            place: tuple(
                self._inside(items[place], body, parts, which, bindings) for which, (body, parts) in enumerate(found)
            )
            for place, found in bodies.items()
        }
        pieces = [*_values(program, items, bindings), *_spaces(items, layouts, inside, planner, bindings)]
        offsets, total = planner.place(pieces)
        guards = [*more, *(_bound_guard(guard, bindings) for guard in program.guards)]
        self._check_known(guards)
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
            total,
        )

    def _inside(
        self, step: Item, body: TensorProgram, parts: Sequence[Section], which: int, outer: Bindings
    ) -> CodeUnit:
        """One of the programs inside a step."""
        assert isinstance(step, Step)
        given, taken = _given(step, which), body.inputs
        inner = dict(outer)
        for inside, outside in zip(taken, given):
            if outside is None:
                continue
            for dim, size in zip((inside.known_shape or ()), shape_of(outside, outer)):
                symbol = dims.as_symbol(dim)
                if symbol is not None and size != dim:
                    inner[symbol.name] = size
        guards = []
        for made, wanted in _taken_over(step, body):
            for dim, size in zip(shape_of(made, inner), shape_of(wanted, outer), strict=True):
                self._check_symbols((dim, size), step)
                if dim != size:
                    guards.append(Guard(dim, size, step.origin))
        return self.build(body, parts, inner, guards)

    def _check_known(self, guards: Sequence[Guard]) -> None:
        for guard in guards:
            for side in (guard.left, guard.right):
                if not dims.symbol_names(side) <= self._known:
                    raise UnsupportedModelError("a size depends on data", node=guard.origin or None, hint=HINT)

    def _check_symbols(self, sizes: Sequence[Dim], step: Step) -> None:
        for size in sizes:
            if not dims.symbol_names(size) <= self._known:
                raise UnsupportedModelError(
                    f"the sizes of what {step_name(step)} gives depend on data", node=step.origin or None, hint=HINT
                )


HINT = (
    "strings, sequences and sizes that depend on data are run from Python; fixed sizes (--shape dim=size) may make "
    "that unnecessary"
)


def _bound_guard(guard: Guard, bindings: Bindings) -> Guard:
    return replace(guard, left=bound(guard.left, bindings), right=bound(guard.right, bindings))


def _checked_bodies(step: Step) -> tuple[TensorProgram, ...]:
    """The programs inside of a step that can be done without Python."""
    match step.primitive:
        case Branch(then, otherwise) if all(map(_is_plain, step.results)):
            return then, otherwise
        case Loop(body, carries) if len(step.results) == carries and all(map(_is_plain, step.results)):
            return (body,)
        case Loop(_, carries) if len(step.results) > carries:
            reason = "how much it gives depends on data"
        case _:
            reason = host_only_reason(step) or explain_missing_kernel(step)
    raise UnsupportedModelError(
        f"code without Python cannot do a step, {step_name(step)}: {reason}", node=step.origin or None, hint=HINT
    )


def made_by(item: Item) -> tuple[Value, ...]:
    """The values that others see of an item."""
    return item.outputs if isinstance(item, NativeSection) else item.results


def _is_plain(value: Value) -> bool:
    return value.has_shape


def _given(step: Step, which: int) -> list[Value | None]:
    """What the inputs of a body are outside; None for a loop's count and its condition, which have no sizes."""
    match step.primitive:
        case Branch(then, _):
            split = 1 + len(then.inputs)
            return [*(step.operands[split:] if which else step.operands[1:split])]
        case _:
            return [None, None, *step.operands[2:]]


def _taken_over(step: Step, body: TensorProgram) -> list[tuple[Value, Value]]:
    """What a body makes, with what it must be of the shape of."""
    if isinstance(step.primitive, Loop):
        carries = step.operands[2 : 2 + step.primitive.carries]
        return [*zip(body.outputs[1:], carries, strict=True), *zip(carries, step.results, strict=True)]
    return [*zip(body.outputs, step.results, strict=True)]


def _values(program: TensorProgram, items: Sequence[Item], bindings: Bindings) -> list[Stretch]:
    """Memory of what one item makes and another reads."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for place, item in enumerate(items):
        for value in made_by(item):
            first[value] = last[value] = place
        for value in item.inputs if isinstance(item, NativeSection) else item.operands:
            last[value] = place
    kept = {*program.outputs}
    return [
        Stretch(value, value_bytes(value, bindings), first[value], last[value]) for value in first if value not in kept
    ]


def _spaces(
    items: Sequence[Item],
    layouts: Mapping[int, SectionLayout],
    inside: Mapping[int, tuple[CodeUnit, ...]],
    planner: MemoryPlanner,
    bindings: Bindings,
) -> Iterator[Stretch]:
    """Memory that items need for themselves; of a loop, two places for each carry, its count and its conditions."""
    for place, item in enumerate(items):
        if isinstance(item, NativeSection):
            yield Stretch((place, "section"), layouts[place].total, place, place)
            continue
        bytes_inside = planner.largest_unit([(unit.number, unit.planner.usual(unit.total)) for unit in inside[place]])
        yield Stretch((place, "inside"), bytes_inside, place, place)
        if isinstance(item.primitive, Loop):
            for what in ("count", "before", "after"):
                yield Stretch((place, what), 8, place, place)
            for number, value in enumerate(item.operands[2 : 2 + item.primitive.carries]):
                for half in range(2):
                    yield Stretch((place, number, half), value_bytes(value, bindings), place, place)
