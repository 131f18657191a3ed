"""Exporter debris: movements that cancel, identities, casts there and back, reshapes of reshapes.

A *movement* is a step that only moves or converts elements: a map that loads one element and perhaps casts it, or a
reshape that adds and drops dimensions of size 1. Maps that read through a movement read its source instead, with the
index expressions composed, so that chains collapse and what cancels becomes an identity.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Map, Reduce, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Apply, Index, Load, Scalar, rebuild
from weft.ir.types import Shape, TensorType
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
    """Compose movements into the maps that read them and drop the steps that do nothing."""
    program = everywhere(simplify_movement, program, evaluator)
    replaced: dict[Value, Value] = {}
    movements: dict[Value, Movement] = {}
    reshaped: dict[Value, Value] = {}
    steps: list[Step] = []
    for original in program.steps:
        step = _compose(_plain_reshape(redirect(original, replaced)), movements)
        if isinstance(step.primitive, Reshape) and step.operands[0] in reshaped:
            step = replace(step, operands=(reshaped[step.operands[0]],))
        same = _identity(step)
        if same is not None:
            replaced[step.results[0]] = same
            continue
        movement = _movement(step)
        if movement is not None:
            movements[step.results[0]] = movement
        if isinstance(step.primitive, Reshape):
            reshaped[step.results[0]] = step.operands[0]
        steps.append(step)
    return replace(program, steps=tuple(steps), outputs=redirect_outputs(program, replaced))


def _plain_reshape(step: Step) -> Step:
    """A reduction along dimensions of size 1 as the reshape that it is."""
    if not isinstance(step.primitive, Reduce):
        return step
    (source,), (result,) = step.operands, step.results
    single = all(_shape(source)[axis] == 1 for axis in step.primitive.axes)
    return replace(step, primitive=Reshape()) if single and tensor_dtype(source) is tensor_dtype(result) else step


def _movement(step: Step) -> Movement | None:
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
            indices_or_none = _unit_reshape(_shape(step.operands[0]), _shape(step.results[0]))
            if indices_or_none is not None:
                return Movement(step.operands[0], indices_or_none, ())
    return None


def _unit_reshape(source: Shape, result: Shape) -> tuple[Dim, ...] | None:
    """The source's indices, if the reshape only adds and drops dimensions of size 1."""
    kept = [(axis, size) for axis, size in enumerate(result) if size != 1]
    if [size for _, size in kept] != [size for size in source if size != 1]:
        return None
    axes = iter(kept)
    return tuple(0 if size == 1 else dims.axis(*next(axes)) for size in source)


def _compose(step: Step, movements: dict[Value, Movement]) -> Step:
    """The step reading past the movements among its operands, where every index allows it."""
    if not isinstance(step.primitive, Map) or not any(operand in movements for operand in step.operands):
        return step
    operands = list(step.operands)

    def position(value: Value) -> int:
        if value not in operands:
            operands.append(value)
        return operands.index(value)

    def through(load: Load) -> Scalar:
        value = operands[load.operand]
        movement = movements.get(value)
        usable = movement is not None and not _is_worth_storing(movement, value, step.results[0])
        indices = _moved_indices(movement, load, _shape(value)) if movement is not None and usable else None
        if movement is None or indices is None:
            return load
        source_type = movement.source.type
        assert isinstance(source_type, TensorType)
        result: Scalar = Load(position(movement.source), indices, source_type.dtype, load.checked)
        for dtype in movement.casts:
            result = Apply("cast", (result,), dtype)
        return result

    expression = _simplify_casts(rebuild(step.primitive.expression, through))
    return compact(replace(step, primitive=Map(expression), operands=tuple(operands)))


def _is_worth_storing(movement: Movement, moved: Value, reader: Value) -> bool:
    """Whether neighbours come from uneven places, as in padding by reflection, and are read more than once each."""
    last = len(_shape(moved)) - 1
    uneven = any(dims.is_uneven(index, last) for index in movement.indices)
    return uneven and not dims.is_at_least(dims.product(_shape(moved)), dims.product(_shape(reader)))


def _moved_indices(movement: Movement, load: Load, shape: Shape) -> tuple[Scalar, ...] | None:
    """The source's indices for a load from the movement's result; None where clamping could tell the difference."""
    source_shape = _shape(movement.source)
    plain: dict[int, Dim] = {}
    for axis, (index, size) in enumerate(zip(load.indices, shape)):
        if isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value):
            plain[axis] = index.value
    result: list[Scalar] = []
    for dim, size in zip(movement.indices, source_shape):
        used = {atom.position for atom in dims.atoms(dim) if isinstance(atom, Axis)}
        if used <= plain.keys():
            result.append(Index(dims.substitute(dim, lambda atom: _place(atom, plain))))
            continue
        (axis, *more) = used
        if more or dim != dims.axis(axis, shape[axis]) or size != shape[axis]:
            return None
        result.append(load.indices[axis])
    unread = [axis for axis in range(len(shape)) if axis not in plain and not _reads(movement, axis)]
    return None if unread and load.checked else tuple(result)


def _reads(movement: Movement, axis: int) -> bool:
    return any(isinstance(atom, Axis) and atom.position == axis for dim in movement.indices for atom in dims.atoms(dim))


def _place(atom: Symbol | Axis, plain: dict[int, Dim]) -> Dim:
    if isinstance(atom, Axis):
        return plain[atom.position]
    return dims.symbol(atom.name, atom.low, atom.high)


def _simplify_casts(scalar: Scalar) -> Scalar:
    """Drop casts to the same type, and casts there and back again that lose nothing."""
    match scalar:
        case Load(operand, indices, dtype, checked):
            return Load(operand, tuple(_simplify_casts(index) for index in indices), dtype, checked)
        case Apply("cast", (argument,), dtype):
            inner = _simplify_casts(argument)
            if inner.dtype is dtype:
                return inner
            if isinstance(inner, Apply) and inner.function == "cast":
                origin = inner.arguments[0]
                if _holds(inner.dtype, origin.dtype):
                    return origin if origin.dtype is dtype else Apply("cast", (origin,), dtype)
            return Apply("cast", (inner,), dtype)
        case Apply(function, arguments, dtype):
            return Apply(function, tuple(_simplify_casts(argument) for argument in arguments), dtype)
        case _:
            return scalar


# Types whose every value the first type holds exactly; a cast through it to any type is then a cast from the origin.
_HELD: dict[DType, frozenset[DType]] = {
    DType.float64: frozenset({DType.float32, DType.float16, DType.bfloat16, DType.int32, DType.int16, DType.int8,
                              DType.uint32, DType.uint16, DType.uint8, DType.bool}),
    DType.float32: frozenset({DType.float16, DType.bfloat16, DType.int16, DType.int8, DType.uint16, DType.uint8,
                              DType.bool}),
    DType.int64: frozenset({DType.int32, DType.int16, DType.int8, DType.uint32, DType.uint16, DType.uint8, DType.bool}),
    DType.int32: frozenset({DType.int16, DType.int8, DType.uint16, DType.uint8, DType.bool}),
}  # fmt: skip


def _holds(wide: DType, narrow: DType) -> bool:
    return narrow in _HELD.get(wide, frozenset())


def _identity(step: Step) -> Value | None:
    """The operand that the step merely repeats."""
    if len(step.results) != 1 or len(step.operands) != 1 or step.operands[0].type != step.results[0].type:
        return None
    match step.primitive:
        case Reshape():
            return step.operands[0]
        case Map(Load(0, indices)):
            plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(_shape(step.results[0])))
            return step.operands[0] if indices == plain else None
        case _:
            return None


def _shape(value: Value) -> Shape:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return ()
    return value.type.shape
