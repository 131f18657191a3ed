"""Fold scales after a convolution, such as batch normalisation, into its weights.

A chain of maps after a convolution, each with one reader, that computes a[c] * x + b[c] with constants a and b per
output channel becomes a convolution with weights scaled by a, and one map that adds b. Nothing changes if the scaled
weights would over- or underflow, or if adding b is meant to round (ir/rounding.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Axis
from weft.ir.dtypes import DType
from weft.ir.packing import release_array_pages
from weft.ir.program import Convolve, Map, Step, TensorProgram, Value, join_origins
from weft.ir.rounding import absorbs, is_finite, round_product, weights_vanish
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, identity_indices, rebuild, walk
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number
from weft.records import dataclass

CHANNEL = 1


@dataclass(frozen=True, slots=True)
class Affine:
    """a * x + b; a is None if x does not occur."""

    a: Scalar | None
    b: Scalar | None


def fold_scales(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold per-channel factors into the weights of the convolutions before them."""
    program = everywhere(fold_scales, program, evaluator)
    uses = count_uses(program)
    readers = {operand: step for step in program.steps for operand in step.operands if uses[operand] == 1}
    number = next_number(program)
    constants: dict[Value, Any] = dict(program.constants)
    changed: dict[Value, list[Step]] = {}  # replacements by the convolution's result
    replaced: set[Value] = set()
    for step in program.steps:
        if not isinstance(step.primitive, Convolve) or step.operands[1] not in constants:
            continue
        chain, factor, offset = _find_affine_chain(step, readers, constants, evaluator)
        if not chain or factor is None:
            continue
        scaled_weights = _scale_weights(constants[step.operands[1]], factor, step.primitive)
        if scaled_weights is None or not is_finite(offset):
            continue
        release_array_pages(constants[step.operands[1]])
        channels = step.results[0].shape[CHANNEL]
        weights = Value(number, step.operands[1].type)
        shift = Value(number + 1, TensorType(step.results[0].dtype, (channels,)))
        middle = Value(number + 2, step.results[0].type)
        number += 3
        constants[weights] = scaled_weights
        constants[shift] = offset
        scaled = replace(step, operands=(step.operands[0], weights), results=(middle,))
        added = Step(
            _build_bias_map(middle), (middle, shift), chain[-1].results, join_origins(link.origin for link in chain)
        )
        changed[step.results[0]] = [scaled, added]
        replaced.update(result for link in chain for result in link.results)
    steps: list[Step] = []
    for step in program.steps:
        if step.results and step.results[0] in changed:
            steps.extend(changed[step.results[0]])
        elif not (step.results and step.results[0] in replaced):
            steps.append(step)
    return replace(program, steps=tuple(steps), constants=constants)


def _find_affine_chain(
    step: Step, readers: dict[Value, Step], constants: dict[Value, Any], evaluator: Evaluator
) -> tuple[list[Step], Array | None, Array]:
    """Find the maps after a convolution that scale and shift channels; return them with the total factor and offset.

    The factor is None if the maps only shift.
    """
    dtype, channels = step.results[0].dtype, step.results[0].shape[CHANNEL]
    if not isinstance(channels, int) or dtype not in (DType.float32, DType.float64, DType.float16, DType.bfloat16):
        return [], None, np.zeros(0)
    factor, offset = np.ones(channels), np.zeros(channels)
    scales = False
    chain: list[Step] = []
    current = step.results[0]
    while current in readers:
        link = readers[current]
        if not isinstance(link.primitive, Map) or link.results[0].type != current.type:
            break
        affine = match_affine(link.primitive.expression, link, current, constants)
        if affine is None or affine.a is None:
            break
        a = evaluate_per_channel(affine.a, link, channels, constants, evaluator)
        b = np.zeros(channels)
        if affine.b is not None:
            b = evaluate_per_channel(affine.b, link, channels, constants, evaluator)
        if not (np.isfinite(a).all() and np.isfinite(b).all()) or absorbs(b, dtype.numpy):
            break
        product = round_product(factor, a, factor.dtype)
        if product is None:
            break
        factor, offset = product, offset * a + b
        scales |= bool((a != 1.0).any())
        chain.append(link)
        current = link.results[0]
    with np.errstate(all="ignore"):  # the caller checks for infinities
        return chain, factor if scales else None, offset.astype(dtype.numpy)


def match_affine(
    scalar: Scalar, link: Step, x: Value, constants: dict[Value, Any], channel: int = CHANNEL
) -> Affine | None:
    """Match a * x + b with a and b that depend only on the channel."""
    match scalar:
        case Load(operand, indices, dtype) if link.operands[operand] == x:
            return Affine(Literal(1.0, dtype), None) if indices == identity_indices(x.shape) else None
        case Apply("add" | "subtract", (left, right), dtype):
            first, second = (
                match_affine(left, link, x, constants, channel),
                match_affine(right, link, x, constants, channel),
            )
            if first is None or second is None:
                return None
            return Affine(
                _combine(scalar.function, first.a, second.a, dtype), _combine(scalar.function, first.b, second.b, dtype)
            )
        case Apply("multiply" | "divide", (left, right), dtype):
            first, second = (
                match_affine(left, link, x, constants, channel),
                match_affine(right, link, x, constants, channel),
            )
            if scalar.function == "multiply" and first is not None and first.a is None:
                first, second = second, first
            if first is None or second is None or second.a is not None or second.b is None:
                return None
            factor = second.b
            a, b = (
                None if part is None else Apply(scalar.function, (part, factor), dtype) for part in (first.a, first.b)
            )
            return Affine(a, b)
        case _:
            return Affine(None, scalar) if depends_only_on_channel(scalar, link, constants, channel) else None


def _combine(function: str, left: Scalar | None, right: Scalar | None, dtype: DType) -> Scalar | None:
    if right is None:
        return left
    if left is None:
        return right if function == "add" else Apply("negate", (right,), dtype)
    return Apply(function, (left, right), dtype)


def depends_only_on_channel(scalar: Scalar, link: Step, constants: dict[Value, Any], channel: int = CHANNEL) -> bool:
    """Whether a scalar is constant and depends only on the channel."""
    for node in walk(scalar):
        match node:
            case Load(operand) if link.operands[operand] not in constants:
                return False
            case Index(value) if dims.symbols(value) or any(
                isinstance(atom, Axis) and atom.position != channel for atom in dims.atoms(value)
            ):
                return False
    return True


def evaluate_per_channel(
    scalar: Scalar, link: Step, channels: int, constants: dict[Value, Any], evaluator: Evaluator, *, wide: bool = True
) -> Array:
    """Evaluate a scalar for all channels; with `wide`, in float64."""
    order: list[int] = []

    def renumber(load: Load) -> Scalar:
        if load.operand not in order:
            order.append(load.operand)
        return Load(order.index(load.operand), load.indices, load.dtype, load.checked)

    channel = dims.axis(0, channels)
    expression = rebuild(scalar, renumber, lambda atom: channel if isinstance(atom, Axis) else 0)
    operands = [constants[link.operands[number]] for number in order]
    if not wide:
        return np.asarray(evaluator.evaluate(Map(expression), operands, [TensorType(scalar.dtype, (channels,))])[0])
    widened = [operand.astype(np.float64) if operand.dtype.kind in "fV" else operand for operand in operands]
    result = evaluator.evaluate(Map(_widen(expression)), widened, [TensorType(DType.float64, (channels,))])[0]
    return np.asarray(result, np.float64)


def _widen(scalar: Scalar) -> Scalar:
    """Convert an expression to float64."""
    wide = DType.float64 if scalar.dtype.is_float else scalar.dtype
    match scalar:
        case Literal(value):
            return Literal(value, wide)
        case Load(operand, indices, _, checked):
            return Load(operand, indices, wide, checked)
        case Apply(function, arguments):
            return Apply(function, tuple(_widen(argument) for argument in arguments), wide)
        case _:
            return scalar


def _scale_weights(weights: Array, factor: Array, primitive: Convolve) -> Array | None:
    """Scale output channel m of weights [M, C/g, *K] ([C, M/g, *K] if transposed) by factor[m].

    Return None if their type cannot represent the result.
    """
    if primitive.transposed:
        groups = factor.size // weights.shape[1]
        split = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
        factors = factor.reshape(groups, 1, weights.shape[1], *(1,) * (weights.ndim - 2))
    else:
        split, factors = weights, factor.reshape(-1, *(1,) * (weights.ndim - 1))
    if weights_vanish(split, factors, tuple(axis for axis, size in enumerate(factors.shape) if size == 1)):
        return None
    scaled = np.empty(split.shape, weights.dtype)
    with np.errstate(all="ignore"):
        np.multiply(split, factors, out=scaled, dtype=np.float64, casting="unsafe")
    result: Array = scaled.reshape(weights.shape)
    return result if is_finite(result) else None


def _build_bias_map(middle: Value) -> Map:
    axes = identity_indices(middle.shape)
    dtype = middle.dtype
    return Map(Apply("add", (Load(0, axes, dtype), Load(1, (axes[CHANNEL],), dtype)), dtype))
