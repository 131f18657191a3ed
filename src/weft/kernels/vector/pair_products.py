"""Contractions and convolutions of bfloat16 with float32 weights, which are rounded to bfloat16; sums are float32.

They are products of words that hold two neighbours along the sums. The bfloat16 operand has such words in memory
already; weights are rounded and rearranged at compile time, and take half the memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.multiply_add import PAIRS
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.contract import build_contraction
from weft.kernels.vector.convolve import build_convolution

PAIR = 2  # elements
_CHANNEL = 1


def is_pair_product(left: DType, right: DType) -> bool:
    """Return whether one operand is bfloat16 and the other float32, yet to be rounded."""
    return {left, right} == {DType.bfloat16, DType.float32}


def build_pair_contraction(contraction: Contraction, target: VectorTarget) -> Work:
    """Build a contraction; the float32 operand is constant, and the other's last axis is summed and even."""
    left_operand, right_operand = contraction.operands()
    rounded = left_operand if left_operand.tensor.dtype is DType.bfloat16 else right_operand
    label = rounded.labels[rounded.tensor.layout.order[-1]]
    weights = right_operand if rounded is left_operand else left_operand
    prepare = partial(pack_pairs, axis=weights.labels.index(label))
    left, right = (_pair_tensor(side.tensor, side.labels.index(label)) for side in (left_operand, right_operand))
    return build_contraction(replace(contraction, left=left, right=right, prepare=prepare), target, pairs=True)


def build_pair_convolution(convolution: Convolution, target: VectorTarget) -> Work:
    """Build a convolution of bfloat16 x with an even number of channels per group, which words run along."""
    axis = 0 if convolution.primitive.transposed else _CHANNEL
    if convolution.constant is None or convolution.order is not None:
        raise InternalError("a pair convolution needs constant weights and channels in their order")
    x, w = _pair_tensor(convolution.x, _CHANNEL), _pair_tensor(convolution.w, axis)
    words = replace(convolution, x=x, w=w, prepare=partial(pack_pairs, axis=axis))
    return build_convolution(words, target, words=PAIRS)


def pack_pairs(array: Array, axis: int) -> Array:
    """Round float32 to bfloat16 and pack two neighbours along an axis into each int32, the first in the lower half."""
    bits = round_to_bfloat16(np.moveaxis(array, axis, -1))
    low, high = bits[..., ::2].astype(np.uint32), bits[..., 1::2].astype(np.uint32)
    words: Array = np.moveaxis((low | high << np.uint32(16)).view(np.int32), -1, axis)
    return words


def round_to_bfloat16(array: Array) -> Array:
    """Round float32 to the nearest bfloat16 (ties to even, finite numbers to finite ones), as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    bits = np.where(bits & np.uint32(0x7FFF8000) == np.uint32(0x7F7F8000), bits & np.uint32(0xFFFF0000), bits)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    result: Array = np.where(np.isnan(array), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)
    return result


def _pair_tensor(tensor: StoredTensor, axis: int) -> StoredTensor:
    """Return a tensor as words of two elements along an axis."""
    shape = tuple(dims.floordiv(size, PAIR) if axis == at else size for at, size in enumerate(tensor.shape))
    return StoredTensor(DType.int32, shape, tensor.layout)
