"""What of a model did not become native code, and why; and which of its products round their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.device import Compiled
from weft.errors import DeviceError
from weft.fuse.host import host_by_nature, missing_kernel
from weft.ir.compiled import CompiledProgram
from weft.ir.narrowed import NarrowedProduct
from weft.ir.program import Scan, Step, TensorProgram, bodies, step_name
from weft.ir.work import HostSection, Section
from weft.quantities import counted, shortened
from weft.records import dataclass

_MOST_NAMED = 8  # steps that an error names


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that runs in Python: the ONNX node it came from, what it is, and why.

    `by_nature`: it only makes sense on the host. Otherwise a kernel for it is missing.
    """

    node: str
    step: str
    reason: str
    by_nature: bool

    def __repr__(self) -> str:
        node, step, reason = (shortened(text) for text in (self.node, self.step, self.reason))
        return f"HostStep(node={node!r}, step={step!r}, reason={reason!r}, by_nature={self.by_nature})"


def explain(program: Compiled) -> tuple[HostStep, ...]:
    """The steps that a prepared program runs in Python, in order, those inside of control flow too."""
    if isinstance(program, CompiledProgram):
        return tuple(_explain_sections(program.sections))
    return tuple(_explain_interpreted(program))


def check_strict(device: str, program: Compiled) -> None:
    """Raise DeviceError where steps of a program would run on the host for want of a kernel."""
    steps = [step for step in explain(program) if not step.by_nature]
    if steps:
        reasons = "; ".join(f"{step.node or step.step}: {step.reason}" for step in steps[:_MOST_NAMED])
        more = f"; and {len(steps) - _MOST_NAMED} more" if len(steps) > _MOST_NAMED else ""
        problem = f"{counted(len(steps), 'step')} would not run on {device}: {reasons}{more}"
        raise DeviceError(problem, hint="load it without strict, or on another device")


def _explain_sections(sections: Sequence[Section]) -> Iterator[HostStep]:
    for section in sections:
        if not isinstance(section, HostSection):
            continue
        inside = iter(section.bodies)
        for step in section.steps:
            inner = [found for _ in bodies(step.primitive) for found in _explain_sections(next(inside))]
            yield _explain_step(step, inner)
            yield from inner


def _explain_step(step: Step, inner: Sequence[HostStep]) -> HostStep:
    reason = host_by_nature(step)
    if reason is not None:
        return HostStep(step.origin, step_name(step), reason, by_nature=True)
    if isinstance(step.primitive, Scan):
        nature = bool(inner) and all(found.by_nature for found in inner)
        reason = "its body needs the host" if inner else "its body is not a single stretch of native code"
        return HostStep(step.origin, step_name(step), reason, by_nature=nature)
    return HostStep(step.origin, step_name(step), missing_kernel(step), by_nature=False)


def _explain_interpreted(program: TensorProgram) -> Iterator[HostStep]:
    for step in program.steps:
        yield HostStep(step.origin, step_name(step), "this device interprets every step", by_nature=False)


def narrowed_products(program: Compiled) -> tuple[NarrowedProduct, ...]:
    """The products of a prepared program that take less of their operands than these have, in order.

    A compiled program knows them since its kernels were built.
    """
    return program.narrowed if isinstance(program, CompiledProgram) else ()
