"""The stage that narrows products: where a target may round operands to bfloat16, those with constant weights do it.

The other operand is rounded by a map of its own, which the stages after this one join with what makes it; the weights
are rounded when they are packed. What a product gives stays float32. Products of pictures, whose errors go through all
layers, and those that a logarithm is taken of are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

from weft.cost.effort import step_flops
from weft.cost.sizes import estimate
from weft.fuse.grouping import readers_of, single_group
from weft.fuse.winograd import best_share
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import Concat, Contract, Convolve, Map, Reduce, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Apply, Index, Load, loads, walk
from weft.ir.target import Target, VectorTarget
from weft.ir.types import Shape, TensorType

_LEAST_SUMS = 16  # products that are summed up, or the work of rounding is no small part of it
_LEAST_COLUMNS = 16  # products of each element that is rounded
_LEAST_FLOPS = 100_000  # of a product that is worth another launch
_LOGARITHMS = frozenset(("log", "log1p"))
_PRODUCTS_BEFORE = 2  # that may lie between a product and a logarithm
_WORTHWHILE_RATE = 1.5  # of products of pairs, that pays for rounding
_FEW_ROWS = 8  # products with each weight, up to which half of its bytes are what counts
_PLAIN_SHARE = 0.5  # of the time that products of float32 take


def narrow_products(fused: FusedProgram, target: Target) -> FusedProgram:
    """Products with one operand rounded to bfloat16, where that is allowed and quicker."""
    if not isinstance(target, VectorTarget) or not target.narrow_products:
        return fused
    program = _Narrowing(fused.program, target).program()
    return FusedProgram(program, tuple(map(single_group, program.steps)))


class _Narrowing:
    def __init__(self, program: TensorProgram, target: VectorTarget) -> None:
        self.before, self.target = program, target
        self.makers = {value: step for step in program.steps for value in step.results}
        self.readers = readers_of(program)
        values = [*program.inputs, *program.constants, *self.makers]
        self.numbers = count(max((value.number for value in values), default=0) + 1)
        self.steps: list[Step] = []
        self.rounded: dict[Value, Value] = {}

    def program(self) -> TensorProgram:
        for step in self.before.steps:
            operand = rounded_operand(step, self.before.constants, self.target)
            if operand is not None and not self.is_delicate(step.results[0]):
                at = step.operands.index(operand)
                operands = (*step.operands[:at], self.round(operand, step.origin), *step.operands[at + 1 :])
                self.steps.append(replace(step, operands=operands))
            else:
                self.steps.append(step)
        return replace(self.before, steps=tuple(self.steps))

    def is_delicate(self, value: Value) -> bool:
        """Whether a logarithm is taken of a value, or of a few products and sums of it, as in a spectrogram.

        That makes small differences of small numbers large ones; sums of exponentials are not small.
        """
        seen, pending = {value}, [(value, _PRODUCTS_BEFORE)]
        while pending:
            found, products = pending.pop()
            for step in self.readers.get(found, ()):
                if step is None or not isinstance(step.primitive, (Map, Reshape, Concat, Contract, Reduce)):
                    continue
                left = products - isinstance(step.primitive, Contract)
                taken = _functions_of(step, found)
                if taken & _LOGARITHMS:
                    return True
                if left >= 0 and "exp" not in taken:
                    pending += [(result, left) for result in step.results if result not in seen]
                    seen.update(step.results)
        return False

    def round(self, value: Value, origin: str) -> Value:
        """A value in bfloat16; one with another shape for the same elements is rounded before it gets that."""
        if value not in self.rounded:
            shape = _shape(value)
            result = Value(next(self.numbers), TensorType(DType.bfloat16, shape), value.name)
            maker = self.makers.get(value)
            if maker is not None and isinstance(maker.primitive, Reshape):
                step = Step(Reshape(), (self.round(maker.operands[0], origin),), (result,), maker.origin)
            else:
                plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
                element = Load(0, plain, DType.float32)
                function = "half_bits" if self.target.dot_product_16 else "emulated_half_bits"
                step = Step(Map(Apply(function, (element,), DType.bfloat16)), (value,), (result,), origin)
            self.steps.append(step)
            self.rounded[value] = result
        return self.rounded[value]


def _functions_of(step: Step, value: Value) -> set[str]:
    """The functions that a map applies to what it reads of a value."""
    if not isinstance(step.primitive, Map):
        return set()
    own = {number for number, operand in enumerate(step.operands) if operand == value}
    wanted = _LOGARITHMS | {"exp"}
    return {
        node.function
        for node in walk(step.primitive.expression)
        if isinstance(node, Apply) and node.function in wanted and any(load.operand in own for load in loads(node))
    }


def rounded_operand(step: Step, constants: Mapping[Value, Any], target: VectorTarget) -> Value | None:
    """Which operand of a step is rounded so that it becomes a product of pairs; None where that is not to be."""
    if not isinstance(step.primitive, (Contract, Convolve)):
        return None
    given = [value for value in step.operands if value not in constants]
    if len(given) != 1 or any(tensor_dtype(value) is not DType.float32 for value in (*step.operands, *step.results)):
        return None
    (source,) = given
    weights = step.operands[1 - step.operands.index(source)]
    if not all(isinstance(size, int) for size in _shape(weights)):
        return None
    match step.primitive:
        case Contract() as contract:
            applies = _contracts_pairs(contract, step, source, weights)
        case Convolve() as convolve:
            applies = source is step.operands[0] and _convolves_pairs(convolve, weights)
    return source if applies and _is_quicker(step, weights, target) else None


def _contracts_pairs(primitive: Contract, step: Step, source: Value, weights: Value) -> bool:
    """Whether neighbours of the operand are summed, an even number of them, and enough of everything else."""
    labels, others = primitive.left, primitive.right
    if source is not step.operands[0]:
        labels, others = others, labels
    if not labels or len(set(labels)) != len(labels) or len(set(others)) != len(others):
        return False
    near, sizes = labels[-1], dict(zip(others, _fixed(weights)))
    if near in primitive.output or near not in sizes or sizes[near] % 2 or _shape(source)[-1] != sizes[near]:
        return False
    columns = 1
    for label, size in sizes.items():
        columns *= size if label in primitive.output and label not in labels else 1
    return sizes[near] >= _LEAST_SUMS and columns >= _LEAST_COLUMNS


def _convolves_pairs(primitive: Convolve, weights: Value) -> bool:
    if not isinstance(primitive.groups, int):
        return False
    first, second, *kernel = _fixed(weights)
    channels = first // primitive.groups if primitive.transposed else second
    features = second if primitive.transposed else first // primitive.groups
    taps = 1
    for size in kernel:
        taps *= size
    return channels % 2 == 0 and channels * taps >= _LEAST_SUMS and features >= _LEAST_COLUMNS


def _is_quicker(step: Step, weights: Value, target: VectorTarget) -> bool:
    """Whether a product of pairs beats one of float32, on transformed tiles where these are an option.

    Where pairs are multiplied no quicker, it does as long as reading the weights is what takes the time.
    """
    if estimate(step_flops(step)) < _LEAST_FLOPS:
        return False
    if target.dot_16_rate < _WORTHWHILE_RATE:
        return estimate(step_flops(step)) <= 2 * _FEW_ROWS * prod(_fixed(weights))
    share = best_share(step) if target.transformed_products else 1.0
    return share > _PLAIN_SHARE


def _fixed(value: Value) -> list[int]:
    return [size for size in _shape(value) if isinstance(size, int)]


def _shape(value: Value) -> Shape:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()
