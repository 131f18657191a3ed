"""Block-quantized weights: recognise maps that dequantize constants, and pack these constants.

A dequantizing map has the expression (number - zero) * scale, with numbers of 2, 4 or 8 bits; the optional zero point
and the scale are constant over blocks along the axis that a product sums over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Step, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, loads, walk
from weft.records import dataclass

_BITS = (2, 4, 8)
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A dequantizing map of a matrix; expressions are over its two axes, and the product sums over `axis`."""

    axis: int
    columns: int
    depth: int
    block: int
    bits: int
    packed: bool  # several numbers per byte, lowest bits first, along the summed axis, which is the last one
    signed: bool
    numbers: int  # index of their operand
    scale: Scalar
    zero: Scalar | None


def match_block_weights(contract: Step, maker: Step, constants: Mapping[Value, Any]) -> BlockWeights | None:
    """Match a product whose weights a map dequantizes from constants; return None if it does not match."""
    assert isinstance(contract.primitive, Contract)
    constant = all(isinstance(constants.get(value), np.ndarray) for value in maker.operands)
    if not isinstance(maker.primitive, Map) or not constant:
        return None
    weights = maker.results[0]
    if len(contract.operands) != 2 or contract.operands.count(weights) != 1:
        return None
    side = contract.operands.index(weights)
    labels, others = contract.primitive.left, contract.primitive.right
    if side == 1:
        labels, others = others, labels
    if len(labels) != 2 or len(set(labels)) != 2 or not others or len(set(others)) != len(others):
        return None
    summed = others[-1]
    if summed not in labels:
        return None
    column = labels[1 - labels.index(summed)]
    if column in others or sorted((*others[:-1], column)) != sorted(contract.primitive.output):
        return None
    if contract.operands[1 - side].dtype is not DType.float32:
        return None
    return _match_map(maker, labels.index(summed))


def _match_map(maker: Step, axis: int) -> BlockWeights | None:
    assert isinstance(maker.primitive, Map)
    if maker.results[0].dtype is not DType.float32:
        return None
    shape = [size for size in maker.results[0].shape if isinstance(size, int)]
    match maker.primitive.expression:
        case Apply("multiply", (centred, scale)) if len(shape) == 2:
            pass
        case _:
            return None
    number, zero = _split_zero_point(_strip_casts(centred))
    number_format = _match_number(number, axis, shape[axis], maker)
    block = _find_block(scale, axis, shape[axis])
    if number_format is None or block is None:
        return None
    operand, bits, packed, signed = number_format
    if block * bits % _WORD_BITS or shape[axis] % block:
        return None
    if zero is not None and not _is_constant_in_blocks(zero, axis, block, shape[axis]):
        return None
    if _is_symmetric(zero, bits, signed):
        zero = None
    elif zero is None:
        zero = Literal(0.0, DType.float32)
    return BlockWeights(axis, shape[1 - axis], shape[axis], block, bits, packed, signed, operand, scale, zero)


def _is_symmetric(zero: Scalar | None, bits: int, signed: bool) -> bool:
    """Whether the zero point is the middle of the range of codes."""
    if zero is None:
        return signed
    return isinstance(zero, Literal) and zero.value == (0 if signed else 2 ** (bits - 1))


def _strip_casts(scalar: Scalar) -> Scalar:
    """Strip casts to float32 and int32, which are exact for small integers."""
    while isinstance(scalar, Apply) and scalar.function == "cast" and scalar.dtype in (DType.float32, DType.int32):
        (scalar,) = scalar.arguments
    return scalar


def _split_zero_point(scalar: Scalar) -> tuple[Scalar, Scalar | None]:
    match scalar:
        case Apply("subtract", (number, zero)):
            return _strip_casts(number), zero
        case _:
            return scalar, None


def _match_number(number: Scalar, axis: int, depth: int, maker: Step) -> tuple[int, int, bool, bool] | None:
    """Match the load of a number: (operand, bits, whether packed in bytes, whether signed)."""
    identity = [Index(dims.axis(0, maker.results[0].shape[0])), Index(dims.axis(1, maker.results[0].shape[1]))]
    match number:
        case Load(operand, indices, dtype) if list(indices) == identity and dtype.is_integer and dtype.bits in _BITS:
            return operand, dtype.bits, False, dtype.is_signed
        case Apply("bit_and", (Apply("shift_right", (Load(operand, (row, byte), DType.uint8), shift)), Literal(mask))):
            bits = next((bits for bits in _BITS if mask == 2**bits - 1), 0)
            per_byte = 8 // bits if bits else 0
            if not per_byte or axis != 1 or row != identity[0] or depth % per_byte:
                return None
            position = dims.axis(1, depth)
            expected_shift = Apply("cast", (Index(dims.mod(position, per_byte) * bits),), DType.uint8)
            return (
                (operand, bits, True, False)
                if byte == Index(dims.floordiv(position, per_byte)) and shift == expected_shift
                else None
            )
    return None


def _find_block(scale: Scalar, axis: int, depth: int) -> int | None:
    """Return the block length along an axis over which an expression is constant: all of it if it ignores the axis."""
    at = dims.axis(axis, depth)
    used = [index.value for load in loads(scale) for index in load.indices if isinstance(index, Index)]
    block_indices = [
        value for value in used if any(isinstance(a, Axis) and a.position == axis for a in dims.atoms(value))
    ]
    for block in range(1, depth + 1) if block_indices else ():
        if depth % block == 0 and all(value == dims.floordiv(at, block) for value in block_indices):
            return block if _is_constant_in_blocks(scale, axis, block, depth) else None
    return None if block_indices else depth


def _is_constant_in_blocks(scalar: Scalar, axis: int, block: int, depth: int) -> bool:
    """Whether `_evaluate` supports an expression, and it is equal at both ends of all blocks."""
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
            ends = [
                _evaluate_index(index.value, {axis: at, 1 - axis: np.int64(0)}) for at in (first, first + block - 1)
            ]
            if np.any(ends[0] != ends[1]):
                return False
    return True


# -- packing ---------------------------------------------------------------------------------------------------------


def pack_block_words(weights: BlockWeights, numbers: Array) -> Array:
    """Pack numbers as unsigned codes in words [columns, words]."""
    if weights.packed:
        return np.ascontiguousarray(numbers[:, : weights.depth * weights.bits // 8]).view("<u4")
    codes = numbers if weights.axis == 1 else numbers.T
    offset = 2 ** (weights.bits - 1) if weights.signed else 0
    bytes_ = (codes.astype(np.int16) + offset).astype(np.uint8)
    each = 8 // weights.bits
    packed = np.zeros((weights.columns, weights.depth // each), np.uint8)
    for slot in range(each):
        packed |= bytes_[:, slot::each] << (weights.bits * slot)
    return packed.view("<u4")


def pack_block_weights(weights: BlockWeights, constants: Sequence[Array]) -> tuple[Array, Array, Array | None]:
    """Pack numbers as unsigned codes in words [columns, words], with scales and zero points [columns, blocks].

    `constants` are the operands of the map, its numbers first, then the others in order.
    """
    operands = list(constants[1:])
    operands.insert(weights.numbers, constants[0])
    words = pack_block_words(weights, constants[0])
    columns, firsts = np.arange(weights.columns)[:, np.newaxis], np.arange(0, weights.depth, weights.block)
    positions = {weights.axis: firsts[np.newaxis], 1 - weights.axis: columns}
    shape = weights.columns, len(firsts)
    scales = np.broadcast_to(_evaluate(weights.scale, positions, operands), shape)
    if weights.zero is None:
        return words, scales, None
    zeros = np.broadcast_to(_evaluate(weights.zero, positions, operands), shape).astype(np.float32)
    return words, scales, zeros + np.float32(2 ** (weights.bits - 1) if weights.signed else 0)


_FUNCTIONS = {
    "bit_and": np.bitwise_and,
    "shift_right": np.right_shift,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "cast": None,
}


_INDEX_FUNCTIONS = {"//": np.floor_divide, "%": np.mod, "min": np.minimum, "max": np.maximum}


def _evaluate(scalar: Scalar, positions: Mapping[int, Array], operands: Sequence[Array]) -> Any:
    match scalar:
        case Literal(value, dtype):
            return np.asarray(value, dtype.numpy)
        case Index(value):
            return _evaluate_index(value, positions)
        case Load(operand, indices):
            at = tuple(_evaluate_index(index.value, positions) for index in indices if isinstance(index, Index))
            return operands[operand][at]
        case Apply("cast", (inner,), dtype):
            return np.asarray(_evaluate(inner, positions, operands)).astype(dtype.numpy)
        case Apply(function, arguments):
            return _FUNCTIONS[function](*(_evaluate(argument, positions, operands) for argument in arguments))  # type: ignore[misc]
    raise TypeError(f"no value for {scalar}")


def _evaluate_index(value: Dim, positions: Mapping[int, Any]) -> Any:
    """Evaluate index arithmetic on arrays of positions along the axes."""
    if isinstance(value, int):
        return np.int64(value)
    return dims.fold(value, lambda atom: positions[atom.position if isinstance(atom, Axis) else -1], _INDEX_FUNCTIONS)
