"""Contractions and convolutions of bfloat16 with weights of float32, which are rounded: the sums are float32.

They are as others, of words that hold two neighbours along the sums. The operand of bfloat16 has such neighbours in
memory already; weights are rounded and rearranged when compiling, and take half the memory that they took.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.multiply_add import PAIRS
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.contract import contract_work
from weft.kernels.vector.convolve import convolve_work

Array = np.ndarray[Any, Any]
WORD = 2  # elements
_CHANNEL = 1


def is_pair_product(left: DType, right: DType) -> bool:
    """Whether a product is one of words: one operand was rounded to bfloat16, and the other is yet to be."""
    return {left, right} == {DType.bfloat16, DType.float32}


def pair_contract_work(contraction: Contraction, target: VectorTarget) -> Work:
    """As `contract_work`; the operand of float32 is constant, the other one's last axis is summed and even."""
    one, other = contraction.operands()
    rounded = one if one.tensor.dtype is DType.bfloat16 else other
    label = rounded.labels[rounded.tensor.layout.order[-1]]
    weights = other if rounded is one else one
    prepare = partial(pairs_along, axis=weights.labels.index(label))
    left, right = (_words(side.tensor, side.labels.index(label)) for side in (one, other))
    return contract_work(replace(contraction, left=left, right=right, prepare=prepare), target, pairs=True)


def pair_convolve_work(convolution: Convolution, target: VectorTarget) -> Work:
    """As `convolve_work`, for x of bfloat16 with an even number of channels in a group; words go along these."""
    axis = 0 if convolution.primitive.transposed else _CHANNEL
    if convolution.constant is None or convolution.order is not None:
        raise InternalError("a convolution of pairs has constant weights, and reads channels in their order")
    x, w = _words(convolution.x, _CHANNEL), _words(convolution.w, axis)
    words = replace(convolution, x=x, w=w, prepare=partial(pairs_along, axis=axis))
    return convolve_work(words, target, words=PAIRS)


def pairs_along(array: Array, axis: int) -> Array:
    """float32 rounded to bfloat16, two neighbours along an axis in each int32; the first is in the lower half."""
    bits = rounded_bits(np.moveaxis(array, axis, -1))
    low, high = bits[..., ::2].astype(np.uint32), bits[..., 1::2].astype(np.uint32)
    words: Array = np.moveaxis((low | high << np.uint32(16)).view(np.int32), -1, axis)
    return words


def rounded_bits(array: Array) -> Array:
    """Round float32 to the nearest bfloat16, to even where two are, and finite numbers to finite ones; as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    bits = np.where(bits & np.uint32(0x7FFF8000) == np.uint32(0x7F7F8000), bits & np.uint32(0xFFFF0000), bits)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    found: Array = np.where(np.isnan(array), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)
    return found


def _words(tensor: StoredTensor, axis: int) -> StoredTensor:
    """The words of a tensor, two elements along an axis each."""
    shape = tuple(dims.floordiv(size, WORD) if axis == at else size for at, size in enumerate(tensor.shape))
    return StoredTensor(DType.int32, shape, tensor.layout)
