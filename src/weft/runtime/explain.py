"""The steps of a model that did not become native code, and the products that round their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.device import DeviceProgram
from weft.errors import DeviceError
from weft.fuse.host import explain_missing_kernel, host_only_reason
from weft.ir.compiled import CompiledProgram
from weft.ir.narrowed_products import NarrowedProduct
from weft.ir.program import Scan, Step, TensorProgram, bodies, step_name
from weft.ir.work import HostSection, Section
from weft.quantities import format_plural, shorten
from weft.records import dataclass

_MOST_STEPS = 8  # that an error lists


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that runs in Python: its ONNX node, what it does, and why it is on the host.

    `by_nature`: it can only run on the host. Otherwise a kernel for it is missing.
    """

    node: str
    step: str
    reason: str
    by_nature: bool

    def __repr__(self) -> str:
        node, step, reason = (shorten(text) for text in (self.node, self.step, self.reason))
        return f"HostStep(node={node!r}, step={step!r}, reason={reason!r}, by_nature={self.by_nature})"


def explain(program: DeviceProgram) -> tuple[HostStep, ...]:
    """List the steps that a program runs in Python, in order, including those inside control flow."""
    if isinstance(program, CompiledProgram):
        return tuple(_explain_sections(program.sections))
    return tuple(_explain_interpreted(program))


def check_strict(device: str, program: DeviceProgram) -> None:
    """Raise DeviceError if steps of a program run on the host because a kernel is missing."""
    steps = [step for step in explain(program) if not step.by_nature]
    if steps:
        reasons = "; ".join(f"{step.node or step.step}: {step.reason}" for step in steps[:_MOST_STEPS])
        more = f"; and {len(steps) - _MOST_STEPS} more" if len(steps) > _MOST_STEPS else ""
        problem = f"{format_plural(len(steps), 'step')} would not run on {device}: {reasons}{more}"
        raise DeviceError(problem, hint="load it without strict, or on another device")


def _explain_sections(sections: Sequence[Section]) -> Iterator[HostStep]:
    for section in sections:
        if not isinstance(section, HostSection):
            continue
        inside = iter(section.bodies)
        for step in section.steps:
            inner = [host_step for _ in bodies(step.primitive) for host_step in _explain_sections(next(inside))]
            yield _explain_step(step, inner)
            yield from inner


def _explain_step(step: Step, inner: Sequence[HostStep]) -> HostStep:
    reason = host_only_reason(step)
    if reason is not None:
        return HostStep(step.origin, step_name(step), reason, by_nature=True)
    if isinstance(step.primitive, Scan):
        nature = bool(inner) and all(host_step.by_nature for host_step in inner)
        reason = "its body needs the host" if inner else "its body is not a single stretch of native code"
        return HostStep(step.origin, step_name(step), reason, by_nature=nature)
    return HostStep(step.origin, step_name(step), explain_missing_kernel(step), by_nature=False)


def _explain_interpreted(program: TensorProgram) -> Iterator[HostStep]:
    for step in program.steps:
        yield HostStep(step.origin, step_name(step), "this device interprets every step", by_nature=False)


def narrowed_products(program: DeviceProgram) -> tuple[NarrowedProduct, ...]:
    """List the products of a program that round their operands, in order."""
    return program.narrowed if isinstance(program, CompiledProgram) else ()
