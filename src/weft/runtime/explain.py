"""What of a model did not become native code, and why; and which of its products round their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.fuse.host import host_by_nature, missing_kernel
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Kernel, MultiplyTiles, Statement, inner_bodies, statement_codes, walk_code
from weft.ir.mixed import MixedProgram
from weft.ir.program import Scan, Step, TensorProgram, bodies, step_name
from weft.ir.types import TensorType
from weft.ir.work import PAIR_PRODUCTS, HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that runs in Python: the ONNX node it came from, what it is, and why.

    `by_nature`: it only makes sense on the host. Otherwise a kernel for it is missing.
    """

    node: str
    step: str
    reason: str
    by_nature: bool


@dataclass(frozen=True, slots=True)
class NarrowedProduct:
    """A product whose float32 operands are rounded before they are multiplied, and to what: tf32, or another type."""

    node: str
    operands: str
    template: str


def explain(program: TensorProgram | CompiledProgram | MixedProgram) -> tuple[HostStep, ...]:
    """The steps that a prepared program runs in Python, in order, those inside of control flow too."""
    if isinstance(program, MixedProgram):
        return tuple(step for piece in program.pieces for step in _explain_sections(piece.program.sections))
    if isinstance(program, CompiledProgram):
        return tuple(_explain_sections(program.sections))
    return tuple(_explain_interpreted(program))


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


def narrowed_products(program: TensorProgram | CompiledProgram | MixedProgram) -> tuple[NarrowedProduct, ...]:
    """The products of a prepared program that take less of their operands than these have, in order.

    It is read from the kernels themselves: from the types of the tiles or pairs that they multiply.
    """
    match program:
        case MixedProgram(pieces=pieces):
            return tuple(found for piece in pieces for found in narrowed_products(piece.program))
        case CompiledProgram(sections=sections):
            return tuple(_narrowed(sections))
    return ()


def _narrowed(sections: Sequence[Section]) -> Iterator[NarrowedProduct]:
    for section in sections:
        match section:
            case NativeSection(tasks=tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _narrowed((task.body,))
                    else:
                        yield from _narrowed_task(task)
            case HostSection(bodies=inside):
                for body in inside:
                    yield from _narrowed(body)


def _narrowed_task(task: Task) -> Iterator[NarrowedProduct]:
    multiplied = {dtype for launch in task.work.launches for dtype in _multiplied(launch.kernel)}
    given = {value.type.dtype for value in task.operands if isinstance(value.type, TensorType)}
    if DType.float32 in multiplied:
        yield NarrowedProduct(task.origin, "tf32", task.template)
    elif DType.float16 in multiplied and DType.float16 not in given:
        yield NarrowedProduct(task.origin, DType.float16.value, task.template)
    elif task.template == PAIR_PRODUCTS or any(_adds_pairs(launch.kernel.body) for launch in task.work.launches):
        yield NarrowedProduct(task.origin, DType.bfloat16.value, task.template)


def _adds_pairs(body: Sequence[Statement]) -> bool:
    """Whether a kernel multiplies pairs of bfloat16."""
    for statement in body:
        for code in statement_codes(statement):
            if any(isinstance(node, Call) and node.function == "dot2" for node in walk_code(code)):
                return True
        if any(_adds_pairs(inner) for inner in inner_bodies(statement)):
            return True
    return False


def _multiplied(kernel: Kernel) -> set[DType]:
    """The types of the tiles that a kernel multiplies."""
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    return {types[name] for product in _tile_products(kernel.body) for name in (product.left, product.right)}


def _tile_products(body: Sequence[Statement]) -> Iterator[MultiplyTiles]:
    for statement in body:
        if isinstance(statement, MultiplyTiles):
            yield statement
        for inner in inner_bodies(statement):
            yield from _tile_products(inner)
