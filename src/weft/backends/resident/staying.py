"""Which values stay on a device with memory of its own, on their way between sections and through control flow.

Branches and loops run on the host, but what they hand on need not come there: a value stays where only native sections
read it, in this program or inside of a body that it is handed to. So do the results of bodies, whoever gets them. What
comes to the host is what steps there compute with, the conditions of control flow, and what loops stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.ir.compiled import CompiledProgram
from weft.ir.program import Branch, Loop, Step, TensorProgram, Value, bodies
from weft.ir.work import HostSection, NativeSection, Section

Body = tuple[TensorProgram, tuple[Section, ...]]


class Residence(NamedTuple):
    """What stays: outputs of native sections, by a section's id; what a loop brings to the device once, by a step's."""

    outputs: dict[int, frozenset[Value]]
    brought: dict[int, tuple[int, ...]]  # the numbers of its operands


def residence(program: CompiledProgram) -> Residence:
    """What stays on the device of a program's values."""
    found = Residence({}, {})
    own = _uses(program.sections).on_device
    _settle(program.sections, own, own | set(program.outputs), found)
    return found


def read_operands(step: Step) -> int:
    """How many operands a step reads; it hands the others on as they are, to the programs inside of it."""
    match step.primitive:
        case Branch():
            return 1
        case Loop():
            return 2
        case _:
            return len(step.operands)


class _Uses(NamedTuple):
    """Values by who reads them; some are read by both."""

    native: set[Value]
    host: set[Value]

    @property
    def on_device(self) -> set[Value]:
        return self.native - self.host


def _uses(sections: Sequence[Section]) -> _Uses:
    found = _Uses(set(), set())
    for section in sections:
        if isinstance(section, NativeSection):
            found.native.update(section.inputs)
            continue
        for step, inner in _with_bodies(section):
            found.host.update(step.operands[: read_operands(step)])
            for number, taken, uses in _handed_on(step, inner):
                if taken in uses.host:
                    found.host.add(step.operands[number])
                elif taken in uses.native:
                    found.native.add(step.operands[number])
    return found


def _settle(sections: Sequence[Section], own: set[Value], handed: set[Value], found: Residence) -> None:
    """Note what stays: of native sections' outputs those in `own`, of the results of bodies those in `handed`."""
    for section in sections:
        if isinstance(section, NativeSection):
            found.outputs[id(section)] = frozenset(section.outputs) & own
            continue
        for step, inner in _with_bodies(section):
            for body, part in inner:
                uses = _uses(part)
                stays = uses.on_device | (_given(step, body, handed, uses.on_device) - uses.host)
                _settle(part, stays, stays, found)
            if isinstance(step.primitive, Loop):
                brought = [number for number, taken, uses in _handed_on(step, inner) if taken in uses.on_device]
                found.brought[id(step)] = tuple(brought)


def _given(step: Step, body: TensorProgram, handed: set[Value], on_device: set[Value]) -> set[Value]:
    """The outputs of a body that whoever gets them wants on the device: a next turn, or somebody after the step."""
    match step.primitive:
        case Branch():
            return {given for given, result in zip(body.outputs, step.results, strict=True) if result in handed}
        case Loop(_, carries):
            carried = list(zip(body.outputs[1:], body.inputs[2:], step.results))[:carries]
            return {given for given, taken, result in carried if taken in on_device or result in handed}
        case _:
            return set()


def _handed_on(step: Step, inner: Sequence[Body]) -> Iterator[tuple[int, Value, _Uses]]:
    """The number of each operand that is handed on, what it is called in the body, and what the body does with it."""
    number = read_operands(step)
    for body, part in inner if isinstance(step.primitive, (Branch, Loop)) else ():
        uses = _uses(part)
        for taken in body.inputs[2 if isinstance(step.primitive, Loop) else 0 :]:
            yield number, taken, uses
            number += 1


def _with_bodies(section: HostSection) -> Iterator[tuple[Step, list[Body]]]:
    parts = iter(section.bodies)
    for step in section.steps:
        yield step, [(body, next(parts)) for body in bodies(step.primitive)]
