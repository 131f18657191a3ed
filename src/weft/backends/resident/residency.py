"""Which values stay on a device with its own memory, between sections and through control flow.

Branches and loops run on the host, but the values that they pass on need not be copied there: a value stays on the
device if only native sections read it, in this program or in a body that it is passed to. So do the results of bodies.
The operands of host steps, the conditions of control flow and the scan outputs of loops are copied to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.ir.compiled import CompiledProgram
from weft.ir.program import Branch, Loop, Step, TensorProgram, Value, bodies
from weft.ir.work import HostSection, NativeSection, Section

Body = tuple[TensorProgram, tuple[Section, ...]]


class Residency(NamedTuple):
    """The values of a program that stay on the device."""

    outputs: dict[int, frozenset[Value]]  # of native sections, by the id of the section
    uploads: dict[int, tuple[int, ...]]  # the operands that a loop uploads once, by the id of the step


def find_residency(program: CompiledProgram) -> Residency:
    """Find the values of a program that stay on the device."""
    residency = Residency({}, {})
    on_device = _find_uses(program.sections).on_device
    _mark_resident(program.sections, on_device, on_device | set(program.outputs), residency)
    return residency


def count_read_operands(step: Step) -> int:
    """Count the operands that a step reads itself; the others are passed to its bodies."""
    match step.primitive:
        case Branch():
            return 1
        case Loop():
            return 2
        case _:
            return len(step.operands)


class _Uses(NamedTuple):
    """The values that native sections read, and those that the host reads; some are in both."""

    native: set[Value]
    host: set[Value]

    @property
    def on_device(self) -> set[Value]:
        return self.native - self.host


def _find_uses(sections: Sequence[Section]) -> _Uses:
    uses = _Uses(set(), set())
    for section in sections:
        if isinstance(section, NativeSection):
            uses.native.update(section.inputs)
            continue
        for step, inner in _steps_with_bodies(section):
            uses.host.update(step.operands[: count_read_operands(step)])
            for number, body_input, body_uses in _passed_operands(step, inner):
                if body_input in body_uses.host:
                    uses.host.add(step.operands[number])
                elif body_input in body_uses.native:
                    uses.native.add(step.operands[number])
    return uses


def _mark_resident(
    sections: Sequence[Section], on_device: set[Value], passed: set[Value], residency: Residency
) -> None:
    """Mark the outputs of native sections that are in `on_device`, and the results of bodies that are in `passed`."""
    for section in sections:
        if isinstance(section, NativeSection):
            residency.outputs[id(section)] = frozenset(section.outputs) & on_device
            continue
        for step, inner in _steps_with_bodies(section):
            for body, body_sections in inner:
                uses = _find_uses(body_sections)
                resident = uses.on_device | (_resident_outputs(step, body, passed, uses.on_device) - uses.host)
                _mark_resident(body_sections, resident, resident, residency)
            if isinstance(step.primitive, Loop):
                uploads = [number for number, value, uses in _passed_operands(step, inner) if value in uses.on_device]
                residency.uploads[id(step)] = tuple(uploads)


def _resident_outputs(step: Step, body: TensorProgram, passed: set[Value], on_device: set[Value]) -> set[Value]:
    """Find the outputs of a body that are read on the device, by the next iteration or after the step."""
    match step.primitive:
        case Branch():
            return {output for output, result in zip(body.outputs, step.results, strict=True) if result in passed}
        case Loop(_, carries):
            carried = list(zip(body.outputs[1:], body.inputs[2:], step.results))[:carries]
            return {output for output, value, result in carried if value in on_device or result in passed}
        case _:
            return set()


def _passed_operands(step: Step, inner: Sequence[Body]) -> Iterator[tuple[int, Value, _Uses]]:
    """Yield the number of each operand that is passed to a body, the body's input for it, and the body's uses."""
    number = count_read_operands(step)
    for body, sections in inner if isinstance(step.primitive, (Branch, Loop)) else ():
        uses = _find_uses(sections)
        for value in body.inputs[2 if isinstance(step.primitive, Loop) else 0 :]:
            yield number, value, uses
            number += 1


def _steps_with_bodies(section: HostSection) -> Iterator[tuple[Step, list[Body]]]:
    body_sections = iter(section.bodies)
    for step in section.steps:
        yield step, [(body, next(body_sections)) for body in bodies(step.primitive)]
