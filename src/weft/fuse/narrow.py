"""Round operands of products with constant weights to bfloat16, on targets that allow it.

A separate map, which later stages fuse with its operand, rounds the activations; the weights are rounded when they are
packed. Results stay float32. Products in image networks, whose errors accumulate over all layers, and products of which
a logarithm is taken are not narrowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

from weft.cost.effort import count_step_flops
from weft.cost.sizes import estimate
from weft.fuse.grouping import find_readers, single_group
from weft.fuse.winograd import winograd_time_ratio
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import Concat, Contract, Convolve, Map, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Load, identity_indices, loads, walk
from weft.ir.target import Target, VectorTarget
from weft.ir.types import TensorType

_LEAST_SUMS = 16  # depth; for fewer terms, rounding costs too much
_LEAST_COLUMNS = 16  # products per rounded element
_LEAST_FLOPS = 100_000  # of a product that is worth another launch
_LOGARITHMS = frozenset(("log", "log1p"))
_PRODUCTS_BEFORE = 2  # limit on products between a product and a logarithm
_WORTHWHILE_RATE = 1.5  # relative throughput of bfloat16 that pays for rounding
_FEW_ROWS = 8  # products per weight, up to which reading weights is the bottleneck
_PLAIN_SHARE = 0.5  # of the time of float32 products


def narrow_products(fused: FusedProgram, target: Target) -> FusedProgram:
    """Round one operand of products to bfloat16, if that is allowed and faster."""
    if not isinstance(target, VectorTarget) or not target.narrow_products:
        return fused
    program = _Narrower(fused.program, target).run()
    return FusedProgram(program, tuple(map(single_group, program.steps)))


class _Narrower:
    def __init__(self, program: TensorProgram, target: VectorTarget) -> None:
        self.program, self.target = program, target
        self.makers = {value: step for step in program.steps for value in step.results}
        self.readers = find_readers(program)
        values = [*program.inputs, *program.constants, *self.makers]
        self.numbers = count(max((value.number for value in values), default=0) + 1)
        self.steps: list[Step] = []
        self.rounded: dict[Value, Value] = {}

    def run(self) -> TensorProgram:
        for step in self.program.steps:
            operand = find_operand_to_round(step, self.program.constants, self.target)
            if operand is not None and not self.feeds_logarithm(step.results[0]):
                at = step.operands.index(operand)
                operands = (*step.operands[:at], self.round(operand, step.origin), *step.operands[at + 1 :])
                self.steps.append(replace(step, operands=operands))
            else:
                self.steps.append(step)
        return replace(self.program, steps=tuple(self.steps))

    def feeds_logarithm(self, value: Value) -> bool:
        """Whether a logarithm is taken of a value, or of a few products and sums of it, as in a spectrogram.

        A logarithm magnifies errors of small numbers; sums of exponentials are not small.
        """
        visited, pending = {value}, [(value, _PRODUCTS_BEFORE)]
        while pending:
            current, products = pending.pop()
            for step in self.readers.get(current, ()):
                if step is None or not isinstance(step.primitive, (Map, Reshape, Concat, Contract, Reduce)):
                    continue
                products_left = products - isinstance(step.primitive, Contract)
                functions = _magnifying_functions(step, current)
                if functions & _LOGARITHMS:
                    return True
                if products_left >= 0 and "exp" not in functions:
                    pending += [(result, products_left) for result in step.results if result not in visited]
                    visited.update(step.results)
        return False

    def round(self, value: Value, origin: str) -> Value:
        """Return a value in bfloat16; a reshaped value is rounded before the reshape."""
        if value not in self.rounded:
            shape = value.shape
            result = Value(next(self.numbers), TensorType(DType.bfloat16, shape), value.name)
            maker = self.makers.get(value)
            if maker is not None and isinstance(maker.primitive, Reshape):
                step = Step(Reshape(), (self.round(maker.operands[0], origin),), (result,), maker.origin)
            else:
                element = Load(0, identity_indices(shape), DType.float32)
                function = "half_bits" if self.target.dot_product_16 else "emulated_half_bits"
                step = Step(Map(Apply(function, (element,), DType.bfloat16)), (value,), (result,), origin)
            self.steps.append(step)
            self.rounded[value] = result
        return self.rounded[value]


def _magnifying_functions(step: Step, value: Value) -> set[str]:
    """Return the logarithms and exponentials that a map applies to a value."""
    if not isinstance(step.primitive, Map):
        return set()
    positions = {number for number, operand in enumerate(step.operands) if operand == value}
    magnifying = _LOGARITHMS | {"exp"}
    return {
        node.function
        for node in walk(step.primitive.expression)
        if isinstance(node, Apply)
        and node.function in magnifying
        and any(load.operand in positions for load in loads(node))
    }


def find_operand_to_round(step: Step, constants: Mapping[Value, Any], target: VectorTarget) -> Value | None:
    """Return the operand of a step to round, or None if the step is not to be narrowed."""
    if not isinstance(step.primitive, (Contract, Convolve)):
        return None
    activations = [value for value in step.operands if value not in constants]
    if len(activations) != 1 or any(value.dtype is not DType.float32 for value in (*step.operands, *step.results)):
        return None
    (source,) = activations
    weights = step.operands[1 - step.operands.index(source)]
    if not all(isinstance(size, int) for size in weights.shape):
        return None
    match step.primitive:
        case Contract() as contract:
            applies = _can_contract_pairs(contract, step, source, weights)
        case Convolve() as convolve:
            applies = source is step.operands[0] and _can_convolve_pairs(convolve, weights)
    return source if applies and _is_faster(step, weights, target) else None


def _can_contract_pairs(primitive: Contract, step: Step, source: Value, weights: Value) -> bool:
    """Whether the product sums along the operand's last axis, of even size, and is large enough."""
    labels, others = primitive.left, primitive.right
    if source is not step.operands[0]:
        labels, others = others, labels
    if not labels or len(set(labels)) != len(labels) or len(set(others)) != len(others):
        return False
    near, sizes = labels[-1], dict(zip(others, _static_sizes(weights)))
    if near in primitive.output or near not in sizes or sizes[near] % 2 or source.shape[-1] != sizes[near]:
        return False
    columns = 1
    for label, size in sizes.items():
        columns *= size if label in primitive.output and label not in labels else 1
    return sizes[near] >= _LEAST_SUMS and columns >= _LEAST_COLUMNS


def _can_convolve_pairs(primitive: Convolve, weights: Value) -> bool:
    if not isinstance(primitive.groups, int):
        return False
    first, second, *kernel = _static_sizes(weights)
    channels = first // primitive.groups if primitive.transposed else second
    features = second if primitive.transposed else first // primitive.groups
    return channels % 2 == 0 and channels * prod(kernel) >= _LEAST_SUMS and features >= _LEAST_COLUMNS


def _is_faster(step: Step, weights: Value, target: VectorTarget) -> bool:
    """Whether a bfloat16 product is faster than a float32 one, including Winograd.

    If bfloat16 arithmetic is not faster, it pays only if reading the weights is the bottleneck.
    """
    if estimate(count_step_flops(step)) < _LEAST_FLOPS:
        return False
    if target.dot_16_rate < _WORTHWHILE_RATE:
        return estimate(count_step_flops(step)) <= 2 * _FEW_ROWS * prod(_static_sizes(weights))
    share = winograd_time_ratio(step) if target.transformed_products else 1.0
    return share > _PLAIN_SHARE


def _static_sizes(value: Value) -> list[int]:
    return [size for size in value.shape if isinstance(size, int)]
