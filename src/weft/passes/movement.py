"""Simplify data movement: transposes that cancel, identities, casts and casts back, reshapes of reshapes.

A *movement* is a step that only moves or converts elements: a map that loads one element and perhaps casts it, or a
reshape that adds and drops dimensions of size 1. Maps that read the result of a movement read its source instead, with
composed index expressions, so that chains collapse and inverse movements become identities.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Map, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Load, Scalar, identity_indices, rebuild
from weft.ir.types import Shape
from weft.opset.trace import Evaluator
from weft.passes.rewrite import compact, everywhere, redirect, redirect_outputs
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Movement:
    """result[i...] = casts(source[indices]); indices are integer expressions over the result's axes."""

    source: Value
    indices: tuple[Dim, ...]
    casts: tuple[DType, ...]  # applied in this order


def simplify_movement(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Compose movements into the maps that read them, and drop identities."""
    program = everywhere(simplify_movement, program, evaluator)
    replacements: dict[Value, Value] = {}
    movements: dict[Value, Movement] = {}
    reshaped: dict[Value, Value] = {}
    steps: list[Step] = []
    for original in program.steps:
        step = _compose(_as_reshape(redirect(original, replacements)), movements)
        if isinstance(step.primitive, Reshape) and step.operands[0] in reshaped:
            step = replace(step, operands=(reshaped[step.operands[0]],))
        same = _match_identity(step)
        if same is not None:
            replacements[step.results[0]] = same
            continue
        movement = _match_movement(step)
        if movement is not None:
            movements[step.results[0]] = movement
        if isinstance(step.primitive, Reshape):
            reshaped[step.results[0]] = step.operands[0]
        steps.append(step)
    return replace(program, steps=tuple(steps), outputs=redirect_outputs(program, replacements))


def _as_reshape(step: Step) -> Step:
    """Turn a reduction along dimensions of size 1 into a reshape."""
    if not isinstance(step.primitive, Reduce):
        return step
    (source,), (result,) = step.operands, step.results
    single = all(source.shape[axis] == 1 for axis in step.primitive.axes)
    return replace(step, primitive=Reshape()) if single and source.dtype is result.dtype else step


def _match_movement(step: Step) -> Movement | None:
    match step.primitive:
        case Map(expression):
            casts: list[DType] = []
            while isinstance(expression, Apply) and expression.function == "cast":
                casts.insert(0, expression.dtype)
                expression = expression.arguments[0]
            if isinstance(expression, Load) and not expression.checked:
                indices = [index.value for index in expression.indices if isinstance(index, Index)]
                if len(indices) == len(expression.indices):
                    return Movement(step.operands[expression.operand], tuple(indices), tuple(casts))
        case Reshape():
            indices_or_none = _match_unit_reshape(step.operands[0].shape, step.results[0].shape)
            if indices_or_none is not None:
                return Movement(step.operands[0], indices_or_none, ())
    return None


def _match_unit_reshape(source: Shape, result: Shape) -> tuple[Dim, ...] | None:
    """Return the source's indices if the reshape only adds and drops dimensions of size 1."""
    axes_and_sizes = [(axis, size) for axis, size in enumerate(result) if size != 1]
    if [size for _, size in axes_and_sizes] != [size for size in source if size != 1]:
        return None
    axes = iter(axes_and_sizes)
    return tuple(0 if size == 1 else dims.axis(*next(axes)) for size in source)


def _compose(step: Step, movements: dict[Value, Movement]) -> Step:
    """Read the sources of movements among a map's operands, where the indices allow it."""
    if not isinstance(step.primitive, Map) or not any(operand in movements for operand in step.operands):
        return step
    operands = list(step.operands)

    def position(value: Value) -> int:
        if value not in operands:
            operands.append(value)
        return operands.index(value)

    def read_source(load: Load) -> Scalar:
        value = operands[load.operand]
        movement = movements.get(value)
        usable = movement is not None and not _is_worth_storing(movement, value, step.results[0])
        indices = _compose_indices(movement, load, value.shape) if movement is not None and usable else None
        if movement is None or indices is None:
            return load
        result: Scalar = Load(position(movement.source), indices, movement.source.dtype, load.checked)
        for dtype in movement.casts:
            result = Apply("cast", (result,), dtype)
        return result

    expression = _simplify_casts(rebuild(step.primitive.expression, read_source))
    return compact(replace(step, primitive=Map(expression), operands=tuple(operands)))


def _is_worth_storing(movement: Movement, moved: Value, reader: Value) -> bool:
    """Whether strides vary, as in reflection padding, and elements are read more than once."""
    last = moved.rank - 1
    uneven = any(dims.is_uneven(index, last) for index in movement.indices)
    return uneven and not dims.is_at_least(dims.product(moved.shape), dims.product(reader.shape))


def _compose_indices(movement: Movement, load: Load, shape: Shape) -> tuple[Scalar, ...] | None:
    """Return the source's indices for a load from the movement's result; None if clamping could differ."""
    source_shape = movement.source.shape
    inside: dict[int, Dim] = {}
    for axis, (index, size) in enumerate(zip(load.indices, shape)):
        if isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value):
            inside[axis] = index.value
    result: list[Scalar] = []
    for dim, size in zip(movement.indices, source_shape):
        used = {atom.position for atom in dims.atoms(dim) if isinstance(atom, Axis)}
        if used <= inside.keys():
            result.append(Index(dims.substitute(dim, partial(_substitute, inside))))
            continue
        (axis, *more) = used
        if more or dim != dims.axis(axis, shape[axis]) or size != shape[axis]:
            return None
        result.append(load.indices[axis])
    unread = [axis for axis in range(len(shape)) if axis not in inside and not _uses_axis(movement, axis)]
    return None if unread and load.checked else tuple(result)


def _uses_axis(movement: Movement, axis: int) -> bool:
    return any(isinstance(atom, Axis) and atom.position == axis for dim in movement.indices for atom in dims.atoms(dim))


def _substitute(axes: dict[int, Dim], atom: Symbol | Axis) -> Dim:
    return axes[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom)


def _simplify_casts(scalar: Scalar) -> Scalar:
    """Drop casts to the same type, and casts to a wider type and back."""
    match scalar:
        case Load(operand, indices, dtype, checked):
            return Load(operand, tuple(_simplify_casts(index) for index in indices), dtype, checked)
        case Apply("cast", (argument,), dtype):
            inner = _simplify_casts(argument)
            if inner.dtype is dtype:
                return inner
            if isinstance(inner, Apply) and inner.function == "cast":
                origin = inner.arguments[0]
                if _represents(inner.dtype, origin.dtype):
                    return origin if origin.dtype is dtype else Apply("cast", (origin,), dtype)
            return Apply("cast", (inner,), dtype)
        case Apply(function, arguments, dtype):
            return Apply(function, tuple(_simplify_casts(argument) for argument in arguments), dtype)
        case _:
            return scalar


# Types whose values the first type represents exactly; a cast through it equals a direct cast.
_REPRESENTABLE: dict[DType, frozenset[DType]] = {
    DType.float64: frozenset({DType.float32, DType.float16, DType.bfloat16, DType.int32, DType.int16, DType.int8,
                              DType.uint32, DType.uint16, DType.uint8, DType.bool}),
    DType.float32: frozenset({DType.float16, DType.bfloat16, DType.int16, DType.int8, DType.uint16, DType.uint8,
                              DType.bool}),
    DType.int64: frozenset({DType.int32, DType.int16, DType.int8, DType.uint32, DType.uint16, DType.uint8, DType.bool}),
    DType.int32: frozenset({DType.int16, DType.int8, DType.uint16, DType.uint8, DType.bool}),
}  # fmt: skip


def _represents(wide: DType, narrow: DType) -> bool:
    return narrow in _REPRESENTABLE.get(wide, frozenset())


def _match_identity(step: Step) -> Value | None:
    """Return the operand if the step is an identity."""
    if len(step.results) != 1 or len(step.operands) != 1 or step.operands[0].type != step.results[0].type:
        return None
    match step.primitive:
        case Reshape():
            return step.operands[0]
        case Map(Load(0, indices)):
            return step.operands[0] if indices == identity_indices(step.results[0].shape) else None
        case _:
            return None
