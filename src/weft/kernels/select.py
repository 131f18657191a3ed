"""Which template builds the kernels for a group: the first of its family's table that is for it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.groups import AttentionGroup, HeavyGroup, KernelGroup, ReduceGroup, RowGroup
from weft.ir.layout import row_major
from weft.ir.program import Value
from weft.ir.scalar import Index, Load
from weft.ir.target import Target, ThreadTarget, VectorTarget
from weft.kernels.build.templates import Part, Request, Templates
from weft.kernels.lower.tensors import Reference, StoredTensor, Work
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The works for a group, whose references count its operands and results, with the template's name and reason."""

    parts: tuple[Part, ...]
    template: str
    reason: str


def choose(request: Request[KernelGroup, Target]) -> Choice:
    """The kernels for a group."""
    group = request.group
    for template in _templates(request.target).get(_key(group), ()):
        built = template.build(request)
        if isinstance(built, Work):
            built = (Part(_renumber(built, group), tuple(range(len(group.operands))), request.result),)
        if built is not None:
            return Choice(built, template.name, template.reason)
    raise InternalError(f"no kernels for {_key(group).__name__}", node=group.steps[0].origin)


def _templates(target: Target) -> Templates:
    """The table of the target's family; that of the other one is not even imported."""
    if isinstance(target, ThreadTarget):
        from weft.kernels.threads import templates as threads

        return threads.TEMPLATES
    from weft.kernels.vector import templates as vector

    return vector.TEMPLATES


def _key(group: KernelGroup) -> type:
    """What a table lists the templates of a group under."""
    match group:
        case RowGroup() | AttentionGroup():
            return type(group)
        case HeavyGroup(heavy=heavy) | ReduceGroup(heavy=heavy):
            return type(heavy.primitive)
        case _:
            return type(group.steps[0].primitive)


def copy_work(source: StoredTensor, result: StoredTensor, target: Target, *, flat: bool) -> Work:
    """The same elements in another layout, or (flat) under another shape."""
    if flat:
        size = dims.product(source.shape)
        source, result = (StoredTensor(source.dtype, (size,), row_major(1)) for _ in range(2))
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.shape))
    element = Load(0, plain, source.dtype)
    match target:
        case ThreadTarget():
            from weft.kernels.threads.maps import map_work as thread_map_work

            return thread_map_work(element, [source], result, target)
        case VectorTarget():
            from weft.kernels.vector.maps import map_work as vector_map_work

            return vector_map_work(element, [source], result, target)
    raise InternalError(f"no kernels for a {type(target).__name__}")


def _renumber(work: Work, group: KernelGroup) -> Work:
    """References to the group's inputs as references to its operands."""
    operands: Sequence[Value] = group.inputs
    places = [group.operands.index(value) if value in group.operands else -1 for value in operands]

    moved = {Reference("operand", number): Reference("operand", place) for number, place in enumerate(places)}
    launches = tuple(launch.rebound(moved) for launch in work.launches)
    kept = {place for number, place in enumerate(places) if number not in work.overwritable}
    free = tuple(sorted({places[number] for number in work.overwritable} - kept))
    copies = tuple(replace(copy, operand=places[copy.operand]) for copy in work.copies)
    return replace(work, launches=launches, overwritable=free, copies=copies)
