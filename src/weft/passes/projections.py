"""Join the projections of attention: products of one tensor whose columns are split into heads.

A projection is a product with a constant, optional maps that add a bias and scale by a power of two, and the reshape
that splits the columns. Weights and biases are concatenated after scaling, which is exact; a missing bias becomes
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import frexp, isfinite
from typing import Any

import numpy as np

from weft.ir.access import axes_of_shape
from weft.ir.dims import Dim
from weft.ir.program import Contract, Map, Reshape, Step, TensorProgram, Value, join_origins
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, identity_indices
from weft.ir.types import TensorType
from weft.records import dataclass

MAX_BYTES = 1 << 26  # bytes of constants that may be copied
MAX_EXPONENT = 8  # limit on the exponent of a scale


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The epilogue of a product: (element + bias[column]) * scale."""

    bias: Value | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A product, the elementwise maps after it, and the reshape that splits its columns."""

    product: Step
    maps: tuple[Step, ...]
    split: Step
    epilogue: Epilogue

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.product, *self.maps, self.split)


def has_constant_columns(step: Step, constants: Mapping[Value, Any]) -> bool:
    """Whether the step is a product with a constant matrix whose columns are the last axis of the result."""
    if not isinstance(step.primitive, Contract):
        return False
    left, right, output = step.primitive.left, step.primitive.right, step.primitive.output
    free = [label for label in right if label not in left]
    weights = constants.get(step.operands[1])
    return (
        isinstance(weights, np.ndarray)
        and step.operands[0] not in constants
        and step.operands[0].dtype is step.operands[1].dtype
        and len(free) == 1
        and output[-1:] == (free[0],)
        and not any(label in output for label in right if label != free[0])
    )


def find_projections(program: TensorProgram, excluded: set[int]) -> list[list[Projection]]:
    """Find families of at least two projections; steps whose ids are in `excluded` are skipped."""
    readers: dict[Value, list[Step]] = {}
    for step in program.steps:
        for operand in dict.fromkeys(step.operands):
            readers.setdefault(operand, []).append(step)
    families: dict[Any, list[Projection]] = {}
    for step in program.steps:
        if id(step) in excluded or not has_constant_columns(step, program.constants):
            continue
        projection = _match_projection(step, readers, program)
        if projection is not None:
            families.setdefault((step.operands[0], step.primitive), []).append(projection)
    return [
        family
        for family in families.values()
        if len(family) > 1 and _constant_bytes(family, program.constants) <= MAX_BYTES
    ]


def _match_projection(step: Step, readers: Mapping[Value, list[Step]], program: TensorProgram) -> Projection | None:
    def only_reader(value: Value) -> Step | None:
        following = readers.get(value, [])
        return following[0] if len(following) == 1 and value not in program.outputs else None

    epilogue = Epilogue()
    chain = [step]
    split = only_reader(step.results[0])
    while split is not None and isinstance(split.primitive, Map):
        map_epilogue = _match_epilogue(split, chain[-1].results[0], program.constants)
        if map_epilogue is None or (map_epilogue.bias is not None and epilogue != Epilogue()):
            return None
        epilogue = Epilogue(map_epilogue.bias or epilogue.bias, epilogue.scale * map_epilogue.scale)
        chain.append(split)
        split = only_reader(split.results[0])
    if split is None or not isinstance(split.primitive, Reshape):
        return None
    before, after = split.operands[0].shape, split.results[0].shape
    rows = len(before) - 1
    if len(after) <= len(before) or after[:rows] != before[:rows]:
        return None
    scaled = [step.operands[1], *([] if epilogue.bias is None else [epilogue.bias])]
    if not all(_scales_exactly(program.constants[value], epilogue) for value in scaled):
        return None
    return Projection(step, tuple(chain[1:]), split, epilogue)


def _match_epilogue(step: Step, product: Value, constants: Mapping[Value, Any]) -> Epilogue | None:
    """Match a map that adds a bias to a product or scales it."""
    assert isinstance(step.primitive, Map)
    shape = product.shape
    if step.results[0].shape != shape or step.results[0].dtype is not product.dtype:
        return None
    identity = identity_indices(shape)

    def match(expression: Scalar) -> Epilogue | None:
        match expression:
            case Load(operand, indices) if step.operands[operand] == product:
                return Epilogue() if indices == identity else None
            case Apply("add", (left, right)):
                for inner, added in ((left, right), (right, left)):
                    bias = match_bias(added)
                    if match(inner) == Epilogue() and bias is not None:
                        return Epilogue(bias)
            case Apply("multiply", (left, right)):
                for inner, factor in ((left, right), (right, left)):
                    epilogue, scale = match(inner), _match_scale(factor, step, constants)
                    if epilogue is not None and scale is not None:
                        return Epilogue(epilogue.bias, epilogue.scale * scale)
        return None

    def match_bias(added: Scalar) -> Value | None:
        if not isinstance(added, Load) or added.indices != identity[-1:]:
            return None
        value = step.operands[added.operand]
        content = constants.get(value)
        return value if isinstance(content, np.ndarray) and content.shape == shape[-1:] else None

    return match(step.primitive.expression)


def _match_scale(expression: Scalar, step: Step, constants: Mapping[Value, Any]) -> float | None:
    """Match a constant that is a power of two, of an exponent that keeps products exact."""
    number: float | None = None
    match expression:
        case Literal(float(value)):
            number = value
        case Load(operand, ()):
            content = constants.get(step.operands[operand])
            number = float(content) if isinstance(content, np.ndarray) and content.dtype.kind == "f" else None
    if number is None or not isfinite(number) or number <= 0:
        return None
    fraction, power = frexp(number)
    return number if fraction == 0.5 and abs(power) <= MAX_EXPONENT else None


def _constant_bytes(family: Sequence[Projection], constants: Mapping[Value, Any]) -> int:
    return sum(int(constants[member.product.operands[1]].nbytes) for member in family)


def join_projections(family: Sequence[Projection], constants: dict[Value, Any], numbers: Iterator[int]) -> list[Step]:
    """Build one product with its bias, and the heads of each member of the family."""
    first = family[0].product
    assert isinstance(first.primitive, Contract)
    contract, left = first.primitive, first.operands[0]
    axis = contract.right.index(contract.output[-1])
    dtype = first.results[0].dtype

    def concatenate(arrays: Sequence[Any], along: int) -> Value:
        content = np.concatenate(arrays, along)
        joined = Value(next(numbers), TensorType(first.operands[1].dtype, content.shape))
        constants[joined] = content
        return joined

    weights = concatenate([_scale(constants[m.product.operands[1]], m.epilogue) for m in family], axis)
    rows = first.results[0].shape[:-1]
    widths = [member.product.results[0].shape[-1] for member in family]
    columns: Dim = sum(widths, start=0)
    product = Value(next(numbers), TensorType(dtype, (*rows, columns)))
    origin = join_origins(member.product.origin for member in family)
    steps = [Step(contract, (left, weights), (product,), origin)]
    if any(member.epilogue.bias is not None for member in family):
        added = concatenate([_scaled_bias(member, constants) for member in family], 0)
        finished = Value(next(numbers), TensorType(dtype, (*rows, columns)))
        identity = identity_indices((*rows, columns))
        element = Apply("add", (Load(0, identity, dtype), Load(1, identity[-1:], dtype)), dtype)
        steps.append(
            Step(
                Map(element),
                (product, added),
                (finished,),
                join_origins(step.origin for member in family for step in member.maps),
            )
        )
        product = finished
    start: Dim = 0
    for member, width in zip(family, widths):
        steps.append(_build_heads(member.split, product, len(rows), start))
        start = start + width
    return steps


def _scale(array: Any, epilogue: Epilogue) -> Any:
    return array if epilogue.scale == 1 else array * array.dtype.type(epilogue.scale)


def _scales_exactly(array: Any, epilogue: Epilogue) -> bool:
    """Whether no element over- or underflows when it is scaled by a power of two."""
    with np.errstate(all="ignore"):
        return epilogue.scale == 1 or bool((_scale(array, epilogue) / array.dtype.type(epilogue.scale) == array).all())


def _scaled_bias(member: Projection, constants: Mapping[Value, Any]) -> Any:
    """Return the scaled bias of a projection, or zeros."""
    if member.epilogue.bias is not None:
        return _scale(constants[member.epilogue.bias], member.epilogue)
    axis = member.product.primitive.right.index(member.product.primitive.output[-1])  # type: ignore[union-attr]
    weights = constants[member.product.operands[1]]
    return np.zeros(weights.shape[axis], weights.dtype)


def _build_heads(split: Step, product: Value, rows: int, start: Dim) -> Step:
    """Read the columns from `start` on in the shape of a reshape's result."""
    shape = split.results[0].shape
    positions = axes_of_shape(shape)
    column: Dim = 0
    for position, size in zip(positions[rows:], shape[rows:]):
        column = column * size + position
    load = Load(0, tuple(map(Index, (*positions[:rows], column + start))), product.dtype)
    return Step(Map(load), (product,), split.results, split.origin)
