"""Contractions and convolutions of 8-bit numbers, as products of words that hold four neighbours along the sums.

An operand that is contiguous along the sums already consists of such words; constants are rearranged at compile time,
other operands by a kernel. If the number of summed elements is not a multiple of four, zeros fill the last word. The
words of a convolution hold channels, or, if there are one or two, also neighbouring taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Contract, Convolve
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction, zero_before, zero_outside
from weft.kernels.build.convolution import Convolution
from weft.kernels.lower.tensors import Reference, StoredTensor, Work, stage_operand
from weft.kernels.vector.contract import build_contraction
from weft.kernels.vector.convolve import build_convolution
from weft.kernels.vector.maps import build_map

WORD = 4  # bytes
INT32 = DType.int32


def build_byte_contraction(contraction: Contraction, target: VectorTarget) -> Work:
    """Build a contraction of an uint8 and an int8 operand; the sums are int32."""
    label = _choose_label(contraction.primitive, contraction.left, contraction.right)
    left, right = (
        _ByteWords(side.number, side.tensor, side.labels, side.constant, label) for side in contraction.operands()
    )
    words = replace(
        contraction,
        left=left.tensor(),
        right=right.tensor(),
        constant_left=left.pack_constant(),
        constant_right=right.pack_constant(),
    )
    work = build_contraction(words, target, unsigned=0 if contraction.left.dtype is DType.uint8 else 1)
    return right.prepend_conversion(left.prepend_conversion(work, target), target)


def build_byte_convolution(convolution: Convolution, target: VectorTarget) -> Work:
    """Build a convolution of uint8 x and int8 w with one group."""
    return _build_tap_words(convolution, target) or _build_channel_words(convolution, target)


def _build_tap_words(convolution: Convolution, target: VectorTarget) -> Work | None:
    """Build a convolution whose words hold several taps of the last axis, if so few channels leave room for them."""
    primitive, x, w = convolution.primitive, convolution.x, convolution.constant
    if w is None or convolution.order is not None or primitive.transposed or w.shape[1] not in (1, 2) or w.ndim < 3:
        return None
    taps = WORD // w.shape[1]
    if w.shape[-1] == 1:
        return None
    rank, dilation = len(x.shape), primitive.dilations[-1]
    sizes = [size + before + after for size, (before, after) in zip(x.shape[2:], primitive.pads)]
    words = StoredTensor(INT32, (x.shape[0], 1, *sizes), channels_last(rank))
    padded = np.pad(w, [(0, 0)] * (w.ndim - 1) + [(0, -w.shape[-1] % taps)])
    split = np.moveaxis(padded.reshape(*padded.shape[:-1], -1, taps), 1, -1)  # [features, *kernel, word, tap, channel]
    joined_bytes = np.ascontiguousarray(split).reshape(*split.shape[:-2], WORD)
    packed = joined_bytes.view(np.dtype("<i4"))[:, np.newaxis, ..., 0]
    sparse = Convolve(primitive.strides, (*primitive.dilations[:-1], dilation * taps), ((0, 0),) * (rank - 2), 1)
    right = StoredTensor(INT32, packed.shape, row_major(rank))
    joined = replace(convolution, primitive=sparse, x=words, w=right, constant=packed)
    work = build_convolution(joined, target, words="left")
    places: list[Dim] = [dims.axis(axis, size) for axis, size in enumerate(words.shape)]
    befores = [0, 0, *(before for before, _ in primitive.pads)]
    elements: list[Scalar] = []
    for tap in range(taps):
        for channel in range(w.shape[1]):
            at = [place - before for place, before in zip(places, befores)]
            at[1], at[-1] = channel, at[-1] + tap * dilation
            element: Scalar = Load(0, tuple(map(Index, at)), x.dtype)
            for position, size in zip(at[2:], x.shape[2:]):
                element = zero_before(zero_outside(element, position, size), position)
            elements.append(element)
    conversion = build_map(_join_bytes(elements), [x], words, target)
    return stage_operand(work, Reference("operand", 0), conversion.launches, words)


def _build_channel_words(convolution: Convolution, target: VectorTarget) -> Work:
    """Build a convolution whose words run along the channels."""
    labels = tuple(range(len(convolution.x.shape)))
    left = _ByteWords(0, convolution.x, labels, None, 1)
    right = _ByteWords(1, convolution.w, labels, convolution.constant, 1)
    words = replace(convolution, x=left.tensor(), w=right.tensor(), constant=right.pack_constant())
    work = build_convolution(words, target, words="left")
    return right.prepend_conversion(left.prepend_conversion(work, target), target)


def _choose_label(primitive: Contract, left: StoredTensor, right: StoredTensor) -> int | None:
    """Choose the summed label that words run along: one of both operands, contiguous in as many as possible."""
    shared = [label for label in primitive.left if label in primitive.right and label not in primitive.output]
    once = [label for label in shared if primitive.left.count(label) == primitive.right.count(label) == 1]

    def count_contiguous(label: int) -> int:
        return sum(
            tensor.layout.order[-1] == labels.index(label)
            for tensor, labels in ((left, primitive.left), (right, primitive.right))
        )

    return max(once, key=count_contiguous) if once else None


class _ByteWords:
    """An operand as words along one of its labels; without a label, every word holds one element."""

    def __init__(
        self, number: int, bytes_: StoredTensor, labels: tuple[int, ...], constant: Array | None, label: int | None
    ) -> None:
        self.number, self.bytes, self.constant = number, bytes_, constant
        self.axis = labels.index(label) if label is not None else None

    @property
    def in_place(self) -> bool:
        if self.axis is None:
            return False
        size = self.bytes.shape[self.axis]
        return self.bytes.layout.order[-1] == self.axis and dims.mod(size, WORD) == 0

    def tensor(self) -> StoredTensor:
        if self.axis is None:
            return replace(self.bytes, dtype=INT32)
        shape = list(self.bytes.shape)
        shape[self.axis] = dims.ceildiv(shape[self.axis], WORD)
        return StoredTensor(INT32, tuple(shape), self.bytes.layout)

    def pack_constant(self) -> Array | None:
        if self.constant is None:
            return None
        if self.axis is None:
            return self.constant.astype(np.uint8).astype(np.int32)
        moved = np.moveaxis(self.constant, self.axis, -1)
        rest = -moved.shape[-1] % WORD
        padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, rest)])
        words = np.ascontiguousarray(padded).view(np.dtype("<i4"))
        return np.moveaxis(words, -1, self.axis)

    def prepend_conversion(self, work: Work, target: VectorTarget) -> Work:
        """Prepend the conversion of this operand to words, if the work reads it and it is not in words already."""
        operand = Reference("operand", self.number)
        if self.in_place or all(operand not in launch.references for launch in work.launches):
            return work
        words = self.tensor()
        if (packed := self.pack_constant()) is not None:
            reference = Reference("constant", len(work.constants))
            constant = np.ascontiguousarray(packed.transpose(words.layout.order))
            launches = tuple(launch.rebound({operand: reference}) for launch in work.launches)
            return replace(work, launches=launches, constants=(*work.constants, constant))
        conversion = build_map(self.word_expression(), [self.bytes], words, target)
        return stage_operand(work, operand, conversion.launches, words)

    def word_expression(self) -> Scalar:
        """Build a word from its bytes."""
        shape = self.tensor().shape
        places: list[Dim] = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        elements: list[Scalar] = []
        for byte in range(WORD if self.axis is not None else 1):
            at = list(places)
            if self.axis is not None:
                at[self.axis] = places[self.axis] * WORD + byte
            load = Load(0, tuple(map(Index, at)), self.bytes.dtype)
            elements.append(
                load if self.axis is None else zero_outside(load, at[self.axis], self.bytes.shape[self.axis])
            )
        return _join_bytes(elements)


def _join_bytes(elements: Sequence[Scalar]) -> Scalar:
    """Build a word from its bytes, the first in the lowest bits."""
    total: Scalar | None = None
    for byte, element in enumerate(elements):
        word: Scalar = Apply("cast", (Apply("bitcast", (element,), DType.uint8),), INT32)
        if byte:
            word = Apply("shift_left", (word, Literal(8 * byte, INT32)), INT32)
        total = word if total is None else Apply("bit_or", (total, word), INT32)
    assert total is not None
    return total
