"""Contractions and convolutions of 8-bit numbers: as others, of words that hold four neighbours along the sums.

An operand whose sums are neighbours in memory already consists of such words; a constant is rearranged when compiling,
and others by a kernel. Where the number of summed elements is no multiple of four, zeros fill the last word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction, guarded
from weft.kernels.build.convolution import Convolution
from weft.kernels.lower.tensors import Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.contract import contract_work
from weft.kernels.vector.convolve import convolve_work
from weft.kernels.vector.maps import map_work

Array = np.ndarray[Any, Any]
WORD = 4  # bytes
INT32 = DType.int32


def dot_product_work(contraction: Contraction, target: VectorTarget) -> Work:
    """As `contract_work`, for an operand of uint8 and one of int8; the sums are int32."""
    label = _summed_label(contraction.primitive, contraction.left, contraction.right)
    left, right = (
        _Words(side.number, side.tensor, side.labels, side.constant, label) for side in contraction.operands()
    )
    words = replace(
        contraction,
        left=left.tensor(),
        right=right.tensor(),
        constant_left=left.constant_words(),
        constant_right=right.constant_words(),
    )
    work = contract_work(words, target, unsigned=0 if contraction.left.dtype is DType.uint8 else 1)
    return right.prepared(left.prepared(work, target), target)


def byte_convolve_work(convolution: Convolution, target: VectorTarget) -> Work:
    """As `convolve_work`, for x of uint8 and w of int8, in one group; words go along the channels."""
    labels = tuple(range(len(convolution.x.shape)))
    left = _Words(0, convolution.x, labels, None, 1)
    right = _Words(1, convolution.w, labels, convolution.constant, 1)
    words = replace(convolution, x=left.tensor(), w=right.tensor(), constant=right.constant_words())
    work = convolve_work(words, target, words="left")
    return right.prepared(left.prepared(work, target), target)


def _summed_label(primitive: Contract, left: StoredTensor, right: StoredTensor) -> int | None:
    """Along which sum words go: one that both operands have, and best as neighbours in the left one."""
    shared = [label for label in primitive.left if label in primitive.right and label not in primitive.output]
    once = [label for label in shared if primitive.left.count(label) == primitive.right.count(label) == 1]

    def nearness(label: int) -> int:
        return sum(
            tensor.layout.order[-1] == labels.index(label)
            for tensor, labels in ((left, primitive.left), (right, primitive.right))
        )

    return max(once, key=nearness) if once else None


class _Words:
    """An operand as words along one of its labels; without one, every word holds one element."""

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

    def constant_words(self) -> Array | None:
        if self.constant is None:
            return None
        if self.axis is None:
            return self.constant.astype(np.uint8).astype(np.int32)
        moved = np.moveaxis(self.constant, self.axis, -1)
        rest = -moved.shape[-1] % WORD
        padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, rest)])
        words = np.ascontiguousarray(padded).view(np.dtype("<i4"))
        return np.moveaxis(words, -1, self.axis)

    def prepared(self, work: Work, target: VectorTarget) -> Work:
        """The work with this operand made into words first, where it reads them and they are not there yet."""
        own = Reference("operand", self.number)
        if self.in_place or all(own not in launch.references for launch in work.launches):
            return work
        words = self.tensor()
        if (known := self.constant_words()) is not None:
            stored = Reference("constant", len(work.constants))
            constant = np.ascontiguousarray(known.transpose(words.layout.order))
            launches = tuple(launch.rebound({own: stored}) for launch in work.launches)
            return replace(work, launches=launches, constants=(*work.constants, constant))
        made = map_work(self.expression(), [self.bytes], words, target)
        space = Reference("workspace", len(work.workspaces))
        first = {Reference("operand", 0): own, Reference("result", 0): space}
        return replace(
            work,
            launches=(
                *(launch.rebound(first) for launch in made.launches),
                *(launch.rebound({own: space}) for launch in work.launches),
            ),
            workspaces=(*work.workspaces, Workspace(INT32, dims.product(words.shape))),
        )

    def expression(self) -> Scalar:
        """A word, from its bytes: the lowest is the first."""
        shape = self.tensor().shape
        places: list[Dim] = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        total: Scalar | None = None
        for byte in range(WORD if self.axis is not None else 1):
            at = list(places)
            if self.axis is not None:
                at[self.axis] = places[self.axis] * WORD + byte
            load = Load(0, tuple(map(Index, at)), self.bytes.dtype)
            element: Scalar = load if self.axis is None else guarded(load, at[self.axis], self.bytes.shape[self.axis])
            word: Scalar = Apply("cast", (Apply("bitcast", (element,), DType.uint8),), INT32)
            if byte:
                word = Apply("shift_left", (word, Literal(8 * byte, INT32)), INT32)
            total = word if total is None else Apply("bit_or", (total, word), INT32)
        assert total is not None
        return total
