"""Weights in few bits: maps that make numbers of constants quantized in blocks, and what they are made from.

A map is recognised by its expression: a number of 2, 4 or 8 bits, perhaps less a zero point, times a scale; both are
the same for a block of neighbours along the axis that a product sums over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Step, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, loads, walk
from weft.ir.types import TensorType
from weft.records import dataclass

Array = np.ndarray[Any, Any]
_BITS = (2, 4, 8)
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The parts of such a map; expressions are over its two axes, of which number `axis` is summed over."""

    axis: int
    columns: int
    depth: int
    block: int
    bits: int
    packed: bool  # numbers lie in bytes, the first in the lowest bits, along the summed axis, which is the last one
    signed: bool
    numbers: int  # the operand
    scale: Scalar
    zero: Scalar | None


def unpacked_weights(contract: Step, maker: Step, constants: Mapping[Value, Any]) -> BlockWeights | None:
    """How a product's weights are quantized that a map of constants makes; None where they are not, or not so."""
    assert isinstance(contract.primitive, Contract)
    known = all(isinstance(constants.get(value), np.ndarray) for value in maker.operands)
    if not isinstance(maker.primitive, Map) or not known:
        return None
    weights = maker.results[0]
    if len(contract.operands) != 2 or contract.operands.count(weights) != 1:
        return None
    place = contract.operands.index(weights)
    own, others = contract.primitive.left, contract.primitive.right
    if place == 1:
        own, others = others, own
    source = contract.operands[1 - place].type
    if len(own) != 2 or len(set(own)) != 2 or not others or len(set(others)) != len(others):
        return None
    summed = others[-1]
    if summed not in own:
        return None
    column = own[1 - own.index(summed)]
    if column in others or sorted((*others[:-1], column)) != sorted(contract.primitive.output):
        return None
    if not isinstance(source, TensorType) or source.dtype is not DType.float32:
        return None
    return _matched(maker, own.index(summed))


def _matched(maker: Step, axis: int) -> BlockWeights | None:
    assert isinstance(maker.primitive, Map)
    type = maker.results[0].type
    if not isinstance(type, TensorType) or type.dtype is not DType.float32 or type.shape is None:
        return None
    shape = [size for size in type.shape if isinstance(size, int)]
    match maker.primitive.expression:
        case Apply("multiply", (centred, scale)) if len(shape) == 2:
            pass
        case _:
            return None
    number, zero = _without_zero(_plain(centred))
    found = _number(number, axis, shape[axis], maker)
    block = _block_of(scale, axis, shape[axis])
    if found is None or block is None:
        return None
    operand, bits, packed, signed = found
    if block * bits % _WORD_BITS or shape[axis] % block:
        return None
    if zero is not None and not _is_even(zero, axis, block, shape[axis]):
        return None
    if _is_middle(zero, bits, signed):
        zero = None
    elif zero is None:
        zero = Literal(0.0, DType.float32)
    return BlockWeights(axis, shape[1 - axis], shape[axis], block, bits, packed, signed, operand, scale, zero)


def _is_middle(zero: Scalar | None, bits: int, signed: bool) -> bool:
    """Whether numbers are those of a range around 0."""
    if zero is None:
        return signed
    return isinstance(zero, Literal) and zero.value == (0 if signed else 2 ** (bits - 1))


def _plain(scalar: Scalar) -> Scalar:
    """What is cast without losing anything: small integers to float32."""
    while isinstance(scalar, Apply) and scalar.function == "cast" and scalar.dtype in (DType.float32, DType.int32):
        (scalar,) = scalar.arguments
    return scalar


def _without_zero(scalar: Scalar) -> tuple[Scalar, Scalar | None]:
    match scalar:
        case Apply("subtract", (number, zero)):
            return _plain(number), zero
        case _:
            return scalar, None


def _number(number: Scalar, axis: int, depth: int, maker: Step) -> tuple[int, int, bool, bool] | None:
    """(operand, bits, whether they are packed in bytes, whether they are signed)."""
    here = [Index(dims.axis(0, _size(maker, 0))), Index(dims.axis(1, _size(maker, 1)))]
    match number:
        case Load(operand, indices, dtype) if list(indices) == here and dtype.is_integer and dtype.bits in _BITS:
            return operand, dtype.bits, False, dtype.is_signed
        case Apply("bit_and", (Apply("shift_right", (Load(operand, (row, byte), DType.uint8), shift)), Literal(mask))):
            bits = next((bits for bits in _BITS if mask == 2**bits - 1), 0)
            each = 8 // bits if bits else 0
            if not each or axis != 1 or row != here[0] or depth % each:
                return None
            at = dims.axis(1, depth)
            moved = Apply("cast", (Index(dims.mod(at, each) * bits),), DType.uint8)
            return (operand, bits, True, False) if byte == Index(dims.floordiv(at, each)) and shift == moved else None
    return None


def _size(maker: Step, axis: int) -> Dim:
    type = maker.results[0].type
    assert isinstance(type, TensorType) and type.shape is not None
    return type.shape[axis]


def _block_of(scale: Scalar, axis: int, depth: int) -> int | None:
    """The number of neighbours along an axis that an expression is the same for; all, if it ignores the axis."""
    at = dims.axis(axis, depth)
    used = [index.value for load in loads(scale) for index in load.indices if isinstance(index, Index)]
    places = [value for value in used if any(isinstance(a, Axis) and a.position == axis for a in dims.atoms(value))]
    for block in range(1, depth + 1) if places else ():
        if depth % block == 0 and all(value == dims.floordiv(at, block) for value in places):
            return block if _is_even(scale, axis, block, depth) else None
    return None if places else depth


def _is_even(scalar: Scalar, axis: int, block: int, depth: int) -> bool:
    """Whether an expression can be evaluated here, and is the same at both ends of all blocks."""
    if not all(isinstance(node, (Load, Literal, Index, Apply)) for node in walk(scalar)):
        return False
    if any(isinstance(node, Apply) and node.function not in _FUNCTIONS for node in walk(scalar)):
        return False
    first = np.arange(0, depth, block)
    for node in walk(scalar):
        indices = node.indices if isinstance(node, Load) else (node,) if isinstance(node, Index) else ()
        for index in indices:
            if not isinstance(index, Index):
                return False
            ends = [_places(index.value, {axis: at, 1 - axis: np.int64(0)}) for at in (first, first + block - 1)]
            if np.any(ends[0] != ends[1]):
                return False
    return True


# -- their content ---------------------------------------------------------------------------------------------------


def block_arrays(weights: BlockWeights, constants: Sequence[Array]) -> tuple[Array, Array, Array | None]:
    """Words [columns, words] of numbers that are not negative, scales and zero points [columns, blocks].

    `constants` are those of the map, its numbers first, then the others in their order.
    """
    operands = list(constants[1:])
    operands.insert(weights.numbers, constants[0])
    numbers = constants[0]
    if weights.packed:
        used = np.ascontiguousarray(numbers[:, : weights.depth * weights.bits // 8])
        words = used.view("<u4")
    else:
        codes = numbers if weights.axis == 1 else numbers.T
        offset = 2 ** (weights.bits - 1) if weights.signed else 0
        bytes_ = (codes.astype(np.int16) + offset).astype(np.uint8)
        each = 8 // weights.bits
        packed = np.zeros((weights.columns, weights.depth // each), np.uint8)
        for place in range(each):
            packed |= bytes_[:, place::each] << (weights.bits * place)
        words = packed.view("<u4")
    columns, firsts = np.arange(weights.columns)[:, np.newaxis], np.arange(0, weights.depth, weights.block)
    places = {weights.axis: firsts[np.newaxis], 1 - weights.axis: columns}
    shape = weights.columns, len(firsts)
    scales = np.broadcast_to(_evaluate(weights.scale, places, operands), shape)
    if weights.zero is None:
        return words, scales, None
    zeros = np.broadcast_to(_evaluate(weights.zero, places, operands), shape).astype(np.float32)
    return words, scales, zeros + np.float32(2 ** (weights.bits - 1) if weights.signed else 0)


_FUNCTIONS = {
    "bit_and": np.bitwise_and,
    "shift_right": np.right_shift,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "cast": None,
}


_INDEX_FUNCTIONS = {"//": np.floor_divide, "%": np.mod, "min": np.minimum, "max": np.maximum}


def _evaluate(scalar: Scalar, places: Mapping[int, Array], operands: Sequence[Array]) -> Any:
    match scalar:
        case Literal(value, dtype):
            return np.asarray(value, dtype.numpy)
        case Index(value):
            return _places(value, places)
        case Load(operand, indices):
            at = tuple(_places(index.value, places) for index in indices if isinstance(index, Index))
            return operands[operand][at]
        case Apply("cast", (inner,), dtype):
            return np.asarray(_evaluate(inner, places, operands)).astype(dtype.numpy)
        case Apply(function, arguments):
            return _FUNCTIONS[function](*(_evaluate(each, places, operands) for each in arguments))  # type: ignore[misc]
    raise TypeError(f"no value for {scalar}")


def _places(value: Dim, places: Mapping[int, Any]) -> Any:
    """Index arithmetic on arrays of positions along the axes."""
    if isinstance(value, int):
        return np.int64(value)
    return dims.fold(value, lambda atom: places[atom.position if isinstance(atom, Axis) else -1], _INDEX_FUNCTIONS)
