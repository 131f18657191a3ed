"""Select the template that builds the kernels for a group: the first of its family's table that applies."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.groups import AttentionGroup, HeavyGroup, KernelGroup, ReduceGroup, RowGroup
from weft.ir.layout import row_major
from weft.ir.scalar import Load, identity_indices
from weft.ir.target import Target, ThreadTarget, VectorTarget
from weft.kernels.build.templates import Part, Request, Templates
from weft.kernels.lower.tensors import Reference, StoredTensor, Work
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The works for a group, whose references number its operands and results; the template's name and reason."""

    parts: tuple[Part, ...]
    template: str
    reason: str


def select_kernels(request: Request[KernelGroup, Target]) -> KernelChoice:
    """Build the kernels for a group by the first template that applies."""
    group = request.group
    for template in _load_templates(request.target).get(_table_key(group), ()):
        built = template.build(request)
        if isinstance(built, Work):
            built = (Part(_renumber(built, group), tuple(range(len(group.operands))), request.result),)
        if built is not None:
            return KernelChoice(built, template.name, template.reason)
    raise InternalError(f"no template for {_table_key(group).__name__}", node=group.steps[0].origin)


def _load_templates(target: Target) -> Templates:
    """Return the table of the target's family; the other family is not imported."""
    if isinstance(target, ThreadTarget):
        from weft.kernels.threads import templates as threads

        return threads.TEMPLATES
    from weft.kernels.vector import templates as vector

    return vector.TEMPLATES


def _table_key(group: KernelGroup) -> type:
    """Return the key of a group's templates in a table."""
    match group:
        case RowGroup() | AttentionGroup():
            return type(group)
        case HeavyGroup(heavy=heavy) | ReduceGroup(heavy=heavy):
            return type(heavy.primitive)
        case _:
            return type(group.steps[0].primitive)


def build_copy(source: StoredTensor, result: StoredTensor, target: Target, *, flat: bool) -> Work:
    """Build a copy into another layout, or (flat) another shape."""
    if flat:
        size = dims.product(source.shape)
        source, result = (StoredTensor(source.dtype, (size,), row_major(1)) for _ in range(2))
    element = Load(0, identity_indices(source.shape), source.dtype)
    match target:
        case ThreadTarget():
            from weft.kernels.threads.maps import build_map as build_thread_map

            return build_thread_map(element, [source], result, target)
        case VectorTarget():
            from weft.kernels.vector.maps import build_map as build_vector_map

            return build_vector_map(element, [source], result, target)
    raise InternalError(f"no kernels for a {type(target).__name__}")


def _renumber(work: Work, group: KernelGroup) -> Work:
    """Turn references to the group's inputs into references to its operands."""
    places = [group.operands.index(value) if value in group.operands else -1 for value in group.inputs]
    bindings = {Reference("operand", number): Reference("operand", place) for number, place in enumerate(places)}
    launches = tuple(launch.rebound(bindings) for launch in work.launches)
    read_only = {place for number, place in enumerate(places) if number not in work.overwritable}
    overwritable = tuple(sorted({places[number] for number in work.overwritable} - read_only))
    copies = tuple(replace(copy, operand=places[copy.operand]) for copy in work.copies)
    return replace(work, launches=launches, overwritable=overwritable, copies=copies)
