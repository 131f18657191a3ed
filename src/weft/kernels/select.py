"""Which builder makes the kernels for a group of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Reshape, Step, Value
from weft.ir.scalar import Index, Load, Scalar, rebuild
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.kernels.contract import contract_work
from weft.kernels.group import Group
from weft.kernels.launch import Epilogue, Reference, Tensor, Work
from weft.kernels.layout import row_major
from weft.kernels.maps import map_work

NATIVE_PRIMITIVES = (Map, Reshape, Contract)
NATIVE_TYPES = frozenset(
    dtype
    for dtype in DType
    if (dtype.is_integer and dtype.bits >= 8)
    or dtype in (DType.bool, DType.float16, DType.bfloat16, DType.float32, DType.float64)
)


def is_native(group: Group) -> bool:
    """Whether there are kernels for a group; the host does the others."""
    values = [value for step in group.steps for value in (*step.operands, *step.results)]
    return all(isinstance(step.primitive, NATIVE_PRIMITIVES) for step in group.steps) and all(
        isinstance(value.type, TensorType) and value.type.shape is not None and value.type.dtype in NATIVE_TYPES
        for value in values
    )


def build_work(group: Group, tensors: Mapping[Value, Tensor], target: Target, constants: Mapping[Value, Any]) -> Work:
    """The kernels for a group; references count its operands and results."""
    first = group.steps[0]
    match first.primitive:
        case Map(expression):
            operands = [tensors[value] for value in first.operands]
            return _renumber(map_work(expression, operands, tensors[first.results[0]], target), first, group)
        case Contract():
            left, right = first.operands
            epilogue, others = _epilogue(group, tensors)
            work = contract_work(
                first.primitive,
                tensors[left],
                tensors[right],
                tensors[group.results[0]],
                epilogue,
                target,
                constant_left=constants.get(left),
                constant_right=constants.get(right),
            )
            return _renumber(work, replace(first, operands=(left, right, *others)), group)
    raise NotImplementedError(type(first.primitive).__name__)


def copy_work(source: Tensor, result: Tensor, target: Target, *, flat: bool) -> Work:
    """The same elements in another layout, or (flat) under another shape."""
    if flat:
        size = dims.product(source.shape)
        source, result = (Tensor(source.dtype, (size,), row_major(1)) for _ in range(2))
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.shape))
    return map_work(Load(0, plain, source.dtype), [source], result, target)


def _epilogue(group: Group, tensors: Mapping[Value, Tensor]) -> tuple[Epilogue | None, tuple[Value, ...]]:
    """The map after a heavy step, its operands numbered from 1, with 0 for the heavy result."""
    if len(group.steps) == 1:
        return None, ()
    heavy, after = group.steps
    assert isinstance(after.primitive, Map)
    others = tuple(value for value in after.operands if value != heavy.results[0])

    def renumber(load: Load) -> Scalar:
        value = after.operands[load.operand]
        number = 0 if value == heavy.results[0] else 1 + others.index(value)
        return Load(number, load.indices, load.dtype, load.checked)

    expression = rebuild(after.primitive.expression, renumber)
    return Epilogue(expression, tuple(tensors[value] for value in others)), others


def _renumber(work: Work, step: Step, group: Group) -> Work:
    """References to the step's operands as references to the group's."""

    def moved(reference: Reference) -> Reference:
        if reference.kind != "operand":
            return reference
        return Reference("operand", group.operands.index(step.operands[reference.number]))

    launches = tuple((launch, tuple(map(moved, references))) for launch, references in work.launches)
    return replace(work, launches=launches)


