"""Contractions (matrix products, einsum) as sums of products where lanes are threads.

Of the two operands the one with the result's innermost label gives the columns. Operands are read in place; a constant
one is rearranged when compiling, so that rows or columns are neighbours, unless they are so already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.cost.sizes import estimate
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.packing import Packing
from weft.ir.program import Contract
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import Contraction, ContractOperand, sum_order
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.lower.tensors import Epilogue, Reference, StoredTensor, Work
from weft.kernels.threads.number_parts import formed_array
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_choice import GivenProduct, product_work
from weft.kernels.threads.tensor_tiles import CHUNK, Multiplying, constant_form
from weft.records import dataclass

Array = np.ndarray[Any, Any]


def contract_work(contraction: Contraction, target: ThreadTarget) -> Work:
    """Operands may be of different types, one uint8 and the other int8: the sums are int32 then."""
    one, other = contraction.operands()
    ends = contraction.primitive, contraction.result, contraction.epilogue
    plans = [_Plan(one, other, *ends), _Plan(other, one, *ends)]
    return min(plans, key=_Plan.rank).work(target)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A constant operand rearranged: [grid, sums, rows or columns], or with the sums last, each of those labels that it
    has; `plane` is how far it is between the numbers that an element comes as.
    """

    packing: Packing
    strides: dict[int, Dim]
    padded: bool
    padded_sums: bool
    plane: int


class _Plan:
    """A contraction in which `left` gives the rows and `right` the columns."""

    def __init__(
        self,
        left: ContractOperand,
        right: ContractOperand,
        primitive: Contract,
        result: StoredTensor,
        epilogue: Epilogue | None,
    ) -> None:
        self.left, self.right, self.output, self.result, self.epilogue = left, right, primitive.output, result, epilogue
        inner = [self.output[axis] for axis in result.layout.order]
        self.grid = [x for x in inner if x in left.labels and x in right.labels]
        self.rows = [x for x in inner if x not in right.labels]
        self.columns = [x for x in inner if x not in left.labels]
        self.sums = sum_order(self.left, self.right, self.output)

    def rank(self) -> tuple[bool, bool, int]:
        """The less the better: neighbours of the result are columns, a constant gives them, and there are many."""
        near = [x for x in (self.output[axis] for axis in self.result.layout.order) if self.size(x) != 1]
        columns = dims.product(self.size(x) for x in self.columns)
        away = bool(near) and near[-1] not in self.columns
        return away, self.right.constant is None, -estimate(columns)

    def size(self, label: int) -> Dim:
        sizes = [side.size(label) for side in (self.left, self.right) if label in side.labels]
        return next((size for size in sizes if size != 1), 1)

    def work(self, target: ThreadTarget) -> Work:
        return product_work("contract", partial(self.given, target), target, Work(()))

    def given(self, target: ThreadTarget, how: Multiplying | None) -> GivenProduct:
        """The product for tile products, or for other kernels."""
        sides = ((self.left, self.rows), (self.right, self.columns))
        kept, run = constant_form(self.left.tensor.dtype, self.right.tensor.dtype, target)
        elements = (kept, kept) if how is None else (how.left, how.right)
        packed = [
            self.packed(side, labels, run, element) if how is None else self.formed(side, labels, how, element)
            for (side, labels), element in zip(sides, elements)
        ]
        strides = [
            {label: side.stride(label) for label in side.labels} if found is None else found.strides
            for (side, _), found in zip(sides, packed)
        ]

        def loop_axes(labels: Sequence[int]) -> tuple[LoopAxis, ...]:
            return tuple(
                LoopAxis(
                    self.size(label),
                    strides[0].get(label, 0),
                    strides[1].get(label, 0),
                    self.output.index(label) if label in self.output else None,
                )
                for label in labels
            )

        types = [
            side.tensor.dtype if found is None or element is None else element
            for (side, _), found, element in zip(sides, packed, elements)
        ]
        one, other = packed
        product = Product(
            left=types[0],
            right=types[1],
            result=self.result,
            epilogue=self.epilogue,
            grid=loop_axes(self.grid),
            rows=loop_axes(self.rows),
            columns=loop_axes(self.columns),
            sums=loop_axes(self.sums),
            padded=(one is not None and one.padded, other is not None and other.padded),
            padded_sums=(one is not None and one.padded_sums, other is not None and other.padded_sums),
            planes=(0 if one is None else one.plane, 0 if other is None else other.plane),
            elements=(_elements(self.left), _elements(self.right)),
        )
        left, right = (
            Reference("operand", side.number) if found is None else found.packing
            for (side, _), found in zip(sides, packed)
        )
        return GivenProduct(product, left, right)

    # -- constants ---------------------------------------------------------------------------------------------------

    def packed(self, side: ContractOperand, across: Sequence[int], run: int, element: DType | None) -> _Packed | None:
        """A constant operand as kernels read it best; None where it is so already, or not constant."""
        if side.constant is None or (element is None and self.is_ready(side, across, run)):
            return None
        return self.arranged(side, across, run, element or side.tensor.dtype, 1, is_deep=False)

    def formed(
        self, side: ContractOperand, across: Sequence[int], how: Multiplying, element: DType | None
    ) -> _Packed | None:
        """The same as the tiles of a tile product take it."""
        if side.constant is None or element is None:
            return None
        return self.arranged(side, across, CHUNK * 8 // element.bits, element, how.planes, is_deep=not how.can_turn)

    def arranged(
        self, side: ContractOperand, across: Sequence[int], run: int, element: DType, planes: int, *, is_deep: bool
    ) -> _Packed:
        own = [[label for label in labels if label in side.labels] for labels in (self.grid, self.sums, across)]
        if is_deep:
            own = [own[0], own[2], own[1]]
        sizes = {label: _fixed(side.size(label)) for labels in own for label in labels}
        merged = is_deep or self.joined(across)
        count = prod(sizes[label] for label in own[2])
        pitch = -(-count // run) * run if merged else count
        strides: dict[int, Dim] = {}
        step = 1
        for labels, width in ((own[2], pitch), (own[1], None), (own[0], None)):
            start = step
            for label in reversed(labels):
                strides[label] = step if sizes[label] != 1 else 0
                step *= sizes[label]
            if width is not None:
                step = start * width
        shape = (prod(sizes[label] for label in (*own[0], *own[1])), pitch)
        order = [label for labels in own for label in labels]
        pack = partial(_pack, side=side, order=order, shape=shape, element=element, planes=planes)
        plane = prod(shape) if planes > 1 else 0
        whole = (planes * shape[0], pitch)
        assert side.constant is not None
        packing = Packing(side.constant, pack, whole, element.numpy)
        return _Packed(packing, strides, merged and not is_deep, is_deep, plane)

    def joined(self, labels: Sequence[int]) -> bool:
        """Whether rows or columns are one loop axis for all that is written."""
        loop_axes: list[LoopAxis] = []
        step: Dim = 1
        for label in reversed(labels):
            loop_axes.insert(0, LoopAxis(self.size(label), step, step, self.output.index(label)))
            step = step * self.size(label)
        return len(merge_loop_axes(loop_axes, EpilogueAccess(self.result, self.epilogue))) <= 1

    def is_ready(self, side: ContractOperand, across: Sequence[int], run: int) -> bool:
        """Whether so many neighbours across can be read at once where they are."""
        inner = [label for label in across if self.size(label) != 1]
        if not inner or side.stride(inner[-1]) != 1:
            return not inner
        others = [side.stride(label) for label in dict.fromkeys(side.labels) if label != inner[-1]]
        return all(dims.mod(value, run) == 0 for value in (self.size(inner[-1]), *others))


def _pack(
    array: Array, *, side: ContractOperand, order: Sequence[int], shape: tuple[int, int], element: DType, planes: int
) -> Iterator[Array]:
    names = {label: number for number, label in enumerate(dict.fromkeys(side.labels))}
    arranged = np.einsum(array, [names[x] for x in side.labels], [names[x] for x in order])
    lines = formed_array(arranged.reshape(shape[0], -1), element, planes)
    if planes > 1:
        lines = lines.reshape(planes * shape[0], lines.shape[-1])
    yield np.pad(lines, ((0, 0), (0, shape[1] - lines.shape[1])))


def _elements(side: ContractOperand) -> Dim:
    """Of an operand that is not constant."""
    return dims.product(side.tensor.shape) if side.constant is None else 0


def _fixed(size: Dim) -> int:
    if not isinstance(size, int):
        raise InternalError(f"a constant operand of the unknown size {size}")
    return size
