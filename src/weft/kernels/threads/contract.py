"""Contractions (matrix products, einsum) as sums of products where lanes are threads.

Of the two operands the one with the result's innermost label gives the columns. Operands are read in place; a constant
one is rearranged when compiling, so that rows or columns are neighbours, unless they are so already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.cost.sizes import estimate
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.packing import Packing
from weft.ir.program import Contract
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import Contraction, ContractOperand, sum_order
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.lower.tensors import Epilogue, Reference, StoredTensor, Work
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_choice import product_work
from weft.kernels.threads.product_operands import RUN

Array = np.ndarray[Any, Any]


def contract_work(contraction: Contraction, target: ThreadTarget) -> Work:
    """Operands may be of different types, one uint8 and the other int8: the sums are int32 then."""
    one, other = contraction.operands()
    ends = contraction.primitive, contraction.result, contraction.epilogue
    plans = [_Plan(one, other, *ends), _Plan(other, one, *ends)]
    return min(plans, key=_Plan.rank).work(target)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A constant operand rearranged: [grid, sums, rows or columns], each of those labels that it has."""

    packing: Packing
    strides: dict[int, Dim]
    padded: bool


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
        packed = [self.packed(side, labels) for side, labels in ((self.left, self.rows), (self.right, self.columns))]
        references: list[Reference] = []
        constants: list[Packing] = []
        strides: list[dict[int, Dim]] = []
        for side, found in zip((self.left, self.right), packed):
            if found is None:
                references.append(Reference("operand", side.number))
                strides.append({label: side.stride(label) for label in side.labels})
            else:
                references.append(Reference("constant", len(constants)))
                constants.append(found.packing)
                strides.append(found.strides)

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

        product = Product(
            left=self.left.tensor.dtype,
            right=self.right.tensor.dtype,
            result=self.result,
            epilogue=self.epilogue,
            grid=loop_axes(self.grid),
            rows=loop_axes(self.rows),
            columns=loop_axes(self.columns),
            sums=loop_axes(self.sums),
            padded=(packed[0] is not None and packed[0].padded, packed[1] is not None and packed[1].padded),
        )
        left, right = references
        return product_work("contract", product, left, right, target, Work((), constants=tuple(constants)))

    # -- constants ---------------------------------------------------------------------------------------------------

    def packed(self, side: ContractOperand, across: Sequence[int]) -> _Packed | None:
        """A constant operand as kernels read it best; None where it is so already, or not constant."""
        if side.constant is None or self.is_ready(side, across):
            return None
        own = [[label for label in labels if label in side.labels] for labels in (self.grid, self.sums, across)]
        sizes = {label: _fixed(side.size(label)) for labels in own for label in labels}
        merged = self.joined(across)
        columns = prod(sizes[label] for label in own[2])
        pitch = -(-columns // RUN) * RUN if merged else columns
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
        pack = partial(_pack, side=side, order=[label for labels in own for label in labels], shape=shape)
        return _Packed(Packing(side.constant, pack, shape, side.constant.dtype), strides, merged)

    def joined(self, labels: Sequence[int]) -> bool:
        """Whether rows or columns are one loop axis for all that is written."""
        loop_axes: list[LoopAxis] = []
        step: Dim = 1
        for label in reversed(labels):
            loop_axes.insert(0, LoopAxis(self.size(label), step, step, self.output.index(label)))
            step = step * self.size(label)
        return len(merge_loop_axes(loop_axes, EpilogueAccess(self.result, self.epilogue))) <= 1

    def is_ready(self, side: ContractOperand, across: Sequence[int]) -> bool:
        """Whether four neighbours across can be read at once where they are."""
        inner = [label for label in across if self.size(label) != 1]
        if not inner or side.stride(inner[-1]) != 1:
            return not inner
        others = [side.stride(label) for label in dict.fromkeys(side.labels) if label != inner[-1]]
        return all(dims.mod(value, RUN) == 0 for value in (self.size(inner[-1]), *others))


def _pack(array: Array, *, side: ContractOperand, order: Sequence[int], shape: tuple[int, int]) -> Iterator[Array]:
    names = {label: number for number, label in enumerate(dict.fromkeys(side.labels))}
    arranged = np.einsum(array, [names[x] for x in side.labels], [names[x] for x in order])
    lines = arranged.reshape(shape[0], -1)
    yield np.pad(lines, ((0, 0), (0, shape[1] - lines.shape[1])))


def _fixed(size: Dim) -> int:
    if not isinstance(size, int):
        raise InternalError(f"a constant operand of the unknown size {size}")
    return size
