"""Products of dequantized floats of 8 bits: recognise them by the maps that dequantize their operands.

A map computes scale * number, with a scale that is constant along the sums and a zero point of 0. Maps that transpose
may follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value
from weft.ir.quantized_operands import QuantizationParameter, QuantizedOperand, match_parameter
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, rebuild
from weft.ir.types import Shape
from weft.records import dataclass

FLOAT8 = (DType.float8e4m3fn, DType.float8e4m3fnuz, DType.float8e5m2, DType.float8e5m2fnuz)  # exact in float16
_FLOATS = (DType.float32, DType.float16, DType.bfloat16)
_CHANNEL = 1  # the channel axis of a convolution's result
_NO_ZERO = QuantizationParameter(Literal(0.0, DType.float32), None)


@dataclass(frozen=True, slots=True)
class Float8Product:
    """The operands of a product, and the maps that dequantize the one that is constant, in reverse order."""

    left: QuantizedOperand
    right: QuantizedOperand
    weight_maps: tuple[Step, ...]


def match_float8_product(
    step: Step, makers: Mapping[Value, Step], constants: Mapping[Value, Any]
) -> Float8Product | None:
    """Match a product of dequantized numbers with dequantized constants; return None if it does not match."""
    match step.primitive:
        case Contract() as contract:
            labels = contract.left, contract.right
        case Convolve(groups=1, transposed=False):
            rank = step.results[0].rank
            labels = (-1,) * rank, (_CHANNEL, *(-1,) * (rank - 1))
        case _:
            return None
    if len(step.operands) != 2 or step.operands[0] == step.operands[1] or step.results[0].dtype not in _FLOATS:
        return None
    matches = [_match_operand(value, own, makers, constants) for value, own in zip(step.operands, labels)]
    if matches[0] is None or matches[1] is None:
        return None
    (left, left_maps), (right, right_maps) = matches[0], matches[1]
    is_constant = [operand.numbers in constants for operand in (left, right)]
    if isinstance(step.primitive, Contract):
        fits = any(is_constant) and not all(is_constant) and _has_scales_outside_sums(left, right, step.primitive)
    else:
        plain = all(operand.numbers.shape == value.shape for operand, value in zip((left, right), step.operands))
        axes = [set() if operand.scale is None else operand.scale.axes for operand in (left, right)]
        fits = is_constant == [False, True] and plain and not axes[0] and axes[1] <= {0}
    return Float8Product(left, right, left_maps if is_constant[0] else right_maps) if fits else None


def find_float8_weights(program: TensorProgram) -> list[Step]:
    """Find the maps that dequantize constants for matching products, and for nothing else."""
    if not any(value.is_tensor and value.dtype in FLOAT8 for value in program.constants):
        return []
    makers = {result: step for step in program.steps for result in step.results}
    readers = _count_readers(program)
    weight_maps: dict[int, Step] = {}
    for step in program.steps:
        product = match_float8_product(step, makers, program.constants)
        if product is not None and all(readers[maker.results[0]] == 1 for maker in product.weight_maps):
            weight_maps.update((id(maker), maker) for maker in product.weight_maps)
    return list(weight_maps.values())


def _count_readers(program: TensorProgram) -> dict[Value, int]:
    readers: dict[Value, int] = {}
    for value in (*program.outputs, *(operand for step in program.steps for operand in step.operands)):
        readers[value] = readers.get(value, 0) + 1
    return readers


def _match_operand(
    value: Value, labels: tuple[int, ...], makers: Mapping[Value, Step], constants: Mapping[Value, Any]
) -> tuple[QuantizedOperand, tuple[Step, ...]] | None:
    """Match an operand with these labels; also return the maps that compute it, the last one first."""
    maps: list[Step] = []
    while True:
        step = makers.get(value)
        if step is None or not isinstance(step.primitive, Map):
            return None
        maps.append(step)
        match step.primitive.expression:
            case Load(operand, indices):
                value = step.operands[operand]
                order = _find_order(indices, value.shape, step.results[0].shape)
                if order is None:
                    return None
                labels = tuple(labels[axis] for axis in order)
            case expression:
                matched = _match_map(expression, step, labels, constants)
                return None if matched is None else (matched, tuple(maps))


def _match_map(
    expression: Scalar, step: Step, labels: tuple[int, ...], constants: Mapping[Value, Any]
) -> QuantizedOperand | None:
    scale: QuantizationParameter | None = None
    match expression:
        case Apply("cast", (Apply("multiply" | "subtract") as value,), dtype) if dtype in _FLOATS:
            expression = value
    match expression:
        case Apply("multiply", (inner, factor), DType.float32):
            expression, scale = inner, match_parameter(factor, step)
            if scale is None:
                return None
    match expression:
        case Apply("subtract", (inner, point), DType.float32) if _is_zero(point, step, constants):
            expression = inner
    match expression:
        case Apply("cast", (Load(operand, indices, number_type),), dtype) if number_type in FLOAT8 and dtype in _FLOATS:
            numbers = step.operands[operand]
            order = _find_order(indices, numbers.shape, step.results[0].shape)
        case _:
            return None
    if order is None:
        return None
    if scale is not None:
        scale = _reorder(scale, order, numbers.shape)
    return QuantizedOperand(numbers, _NO_ZERO, scale, tuple(labels[axis] for axis in order))


def _find_order(indices: Sequence[Scalar], source: Shape, shape: Shape) -> tuple[int, ...] | None:
    """Return the axis that each index into `source` is, if a map of `shape` only transposes; None otherwise."""
    remaining = list(range(len(shape)))
    order: list[int] = []
    for index, size in zip(indices, source):
        axis = next((axis for axis in remaining if index == Index(dims.axis(axis, shape[axis]))), None)
        if axis is None or shape[axis] != size:
            return None
        remaining.remove(axis)
        order.append(axis)
    return None if remaining else tuple(order)


def _reorder(parameter: QuantizationParameter, order: tuple[int, ...], shape: Shape) -> QuantizationParameter:
    """Express a parameter over the axes of the numbers, whose order of the map's axes is given."""

    def substitute_axis(atom: Symbol | Axis) -> Dim:
        if not isinstance(atom, Axis):
            return dims.from_atom(atom)
        position = order.index(atom.position)
        return dims.axis(position, shape[position])

    return replace(parameter, scalar=rebuild(parameter.scalar, lambda load: load, substitute_axis))


def _is_zero(point: Scalar, step: Step, constants: Mapping[Value, Any]) -> bool:
    """Whether a zero point is known to be 0 everywhere."""
    match point:
        case Literal(value):
            return value == 0
        case Apply("cast", (inner,)):
            return _is_zero(inner, step, constants)
        case Load(operand):
            content = constants.get(step.operands[operand])
            return content is not None and not content.astype("float32").any()
    return False


def _has_scales_outside_sums(left: QuantizedOperand, right: QuantizedOperand, primitive: Contract) -> bool:
    """Whether sums run over both operands, and scales are constant along them."""
    if len({*primitive.left}) != len(primitive.left) or len({*primitive.right}) != len(primitive.right):
        return False
    summed = {label for label in (*primitive.left, *primitive.right) if label not in primitive.output}
    if not summed <= {*primitive.left} & {*primitive.right}:
        return False
    return not any(operand.labels_of(operand.scale) & summed for operand in (left, right) if operand.scale is not None)
