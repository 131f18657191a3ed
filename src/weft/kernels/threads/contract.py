"""Contractions (matrix products, einsum) as products of rows and columns.

The operand with the result's innermost label gives the columns. Operands are read in place; a constant one is packed at
compile time so that rows or columns are contiguous, unless they already are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from weft.cost.sizes import estimate
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.packing import Packing
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import Contraction, ContractOperand, order_sums
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.lower.tensors import Reference, Work
from weft.kernels.threads.float_splits import convert_array
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_choice import BoundProduct, build_product_work
from weft.kernels.threads.tensor_tile import ProductScheme, chunk_length, constant_layout
from weft.records import dataclass


def build_contraction(contraction: Contraction, target: ThreadTarget) -> Work:
    """Build a contraction; operands of uint8 and int8 may be mixed, with sums in int32."""
    first, second = contraction.operands()
    plans = [_ContractionPlan(first, second, contraction), _ContractionPlan(second, first, contraction)]
    return min(plans, key=_ContractionPlan.rank).work(target)


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """A packed constant operand: [grid, sums, rows or columns], or with the sums innermost, of the labels it has.

    `plane` is the distance between the planes of an operand that is split into several.
    """

    packing: Packing
    strides: dict[int, Dim]
    padded: bool
    padded_sums: bool
    plane: int


class _ContractionPlan:
    """A contraction in which `left` gives the rows and `right` the columns."""

    def __init__(self, left: ContractOperand, right: ContractOperand, contraction: Contraction) -> None:
        self.left, self.right, self.output = left, right, contraction.primitive.output
        self.result, self.epilogue = contraction.result, contraction.epilogue
        self.has_wide_result = contraction.has_wide_result
        inner = [self.output[axis] for axis in self.result.layout.order]
        self.grid = [x for x in inner if x in left.labels and x in right.labels]
        self.rows = [x for x in inner if x not in right.labels]
        self.columns = [x for x in inner if x not in left.labels]
        self.sums = order_sums(self.left, self.right, self.output)

    def rank(self) -> tuple[bool, bool, int]:
        """Rank the plan, smallest best: columns are contiguous in the result, come from a constant, and are many."""
        labels = [x for x in (self.output[axis] for axis in self.result.layout.order) if self.size(x) != 1]
        columns = dims.product(self.size(x) for x in self.columns)
        has_strided_columns = bool(labels) and labels[-1] not in self.columns
        return has_strided_columns, self.right.constant is None, -estimate(columns)

    def size(self, label: int) -> Dim:
        sizes = [side.size(label) for side in (self.left, self.right) if label in side.labels]
        return next((size for size in sizes if size != 1), 1)

    def work(self, target: ThreadTarget) -> Work:
        return build_product_work("contract", partial(self.build_product, target), target, Work(()))

    def build_product(self, target: ThreadTarget, scheme: ProductScheme | None) -> BoundProduct:
        """Build the product for a scheme of tile products, or (None) for other kernels."""
        sides = ((self.left, self.rows), (self.right, self.columns))
        constant_type, run = constant_layout(self.left.tensor.dtype, self.right.tensor.dtype, target)
        elements = (constant_type, constant_type) if scheme is None else (scheme.left, scheme.right)
        packed = [
            self.pack_plain(side, labels, run, element)
            if scheme is None
            else self.pack_tiles(side, labels, scheme, element)
            for (side, labels), element in zip(sides, elements)
        ]
        strides = [
            {label: side.stride(label) for label in side.labels} if packing is None else packing.strides
            for (side, _), packing in zip(sides, packed)
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
            side.tensor.dtype if packing is None or element is None else element
            for (side, _), packing, element in zip(sides, packed, elements)
        ]
        left_packed, right_packed = packed
        product = Product(
            left=types[0],
            right=types[1],
            result=self.result,
            epilogue=self.epilogue,
            grid=loop_axes(self.grid),
            rows=loop_axes(self.rows),
            columns=loop_axes(self.columns),
            sums=loop_axes(self.sums),
            padded=(
                left_packed is not None and left_packed.padded,
                right_packed is not None and right_packed.padded,
            ),
            padded_sums=(
                left_packed is not None and left_packed.padded_sums,
                right_packed is not None and right_packed.padded_sums,
            ),
            planes=(
                0 if left_packed is None else left_packed.plane,
                0 if right_packed is None else right_packed.plane,
            ),
            elements=(_count_elements(self.left), _count_elements(self.right)),
            has_wide_result=self.has_wide_result,
        )
        left, right = (
            Reference("operand", side.number) if packing is None else packing.packing
            for (side, _), packing in zip(sides, packed)
        )
        return BoundProduct(product, left, right)

    # -- constants ---------------------------------------------------------------------------------------------------

    def pack_plain(
        self, side: ContractOperand, across: Sequence[int], run: int, element: DType | None
    ) -> PackedOperand | None:
        """Pack a constant operand for kernels without tile products; None where it is read in place."""
        if side.constant is None or (element is None and self.is_contiguous(side, across, run)):
            return None
        return self.pack_operand(side, across, run, element or side.tensor.dtype, 1, is_deep=False)

    def pack_tiles(
        self, side: ContractOperand, across: Sequence[int], scheme: ProductScheme, element: DType | None
    ) -> PackedOperand | None:
        """Pack a constant operand for the tiles of a tile product; None where it is read in place."""
        if side.constant is None or element is None:
            return None
        return self.pack_operand(
            side, across, chunk_length(element), element, scheme.planes, is_deep=not scheme.can_transpose
        )

    def pack_operand(
        self, side: ContractOperand, across: Sequence[int], run: int, element: DType, planes: int, *, is_deep: bool
    ) -> PackedOperand:
        label_groups = [
            [label for label in labels if label in side.labels] for labels in (self.grid, self.sums, across)
        ]
        if is_deep:
            label_groups = [label_groups[0], label_groups[2], label_groups[1]]
        sizes = {label: _constant_size(side.size(label)) for labels in label_groups for label in labels}
        is_merged = is_deep or self.is_one_axis(across)
        count = prod(sizes[label] for label in label_groups[2])
        pitch = -(-count // run) * run if is_merged else count
        strides: dict[int, Dim] = {}
        step = 1
        for labels, width in ((label_groups[2], pitch), (label_groups[1], None), (label_groups[0], None)):
            start = step
            for label in reversed(labels):
                strides[label] = step if sizes[label] != 1 else 0
                step *= sizes[label]
            if width is not None:
                step = start * width
        shape = (prod(sizes[label] for label in (*label_groups[0], *label_groups[1])), pitch)
        order = [label for labels in label_groups for label in labels]
        pack = partial(_pack, side=side, order=order, shape=shape, element=element, planes=planes)
        plane = prod(shape) if planes > 1 else 0
        packed_shape = (planes * shape[0], pitch)
        assert side.constant is not None
        packing = Packing(side.constant, pack, packed_shape, element.numpy)
        return PackedOperand(packing, strides, is_merged and not is_deep, is_deep, plane)

    def is_one_axis(self, labels: Sequence[int]) -> bool:
        """Whether rows or columns merge into one loop axis."""
        loop_axes: list[LoopAxis] = []
        step: Dim = 1
        for label in reversed(labels):
            loop_axes.insert(0, LoopAxis(self.size(label), step, step, self.output.index(label)))
            step = step * self.size(label)
        return len(merge_loop_axes(loop_axes, EpilogueAccess(self.result, self.epilogue))) <= 1

    def is_contiguous(self, side: ContractOperand, across: Sequence[int], run: int) -> bool:
        """Whether aligned runs across are contiguous in place."""
        inner = [label for label in across if self.size(label) != 1]
        if not inner or side.stride(inner[-1]) != 1:
            return not inner
        others = [side.stride(label) for label in dict.fromkeys(side.labels) if label != inner[-1]]
        return all(dims.mod(value, run) == 0 for value in (self.size(inner[-1]), *others))


def _pack(
    array: Array, *, side: ContractOperand, order: Sequence[int], shape: tuple[int, int], element: DType, planes: int
) -> Iterator[Array]:
    names = {label: number for number, label in enumerate(dict.fromkeys(side.labels))}
    packed = np.einsum(array, [names[x] for x in side.labels], [names[x] for x in order])
    lines = convert_array(packed.reshape(shape[0], -1), element, planes)
    if planes > 1:
        lines = lines.reshape(planes * shape[0], lines.shape[-1])
    padding = shape[1] - lines.shape[1]
    yield np.pad(lines, ((0, 0), (0, padding))) if padding else lines


def _count_elements(side: ContractOperand) -> Dim:
    """Return the number of elements of an operand; 0 if it is constant."""
    return dims.product(side.tensor.shape) if side.constant is None else 0


def _constant_size(size: Dim) -> int:
    if not isinstance(size, int):
        raise InternalError(f"a constant operand has the dynamic size {size}")
    return size
