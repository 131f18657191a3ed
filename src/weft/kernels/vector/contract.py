"""Contractions (matrix products, einsum) as tiled products.

One operand gives the rows of the tiles and is read element by element with any strides; the other gives the columns,
which must be contiguous: it is read in place if they are, packed into panels at compile time if it is constant, and
packed by a separate kernel otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.layout import row_major
from weft.ir.packing import Packing
from weft.ir.scalar import Apply, Index, Load, identity_indices
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction, ContractOperand, order_sums, zero_outside
from weft.kernels.build.convolution import constant_size
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import PAIRS, accumulator_dtype
from weft.kernels.lower.tensors import (
    LEFT,
    RIGHT,
    Epilogue,
    Launch,
    Reference,
    StoredTensor,
    Work,
    Workspace,
    stage_operand,
)
from weft.kernels.vector.dot_products import MAX_ROWS, build_dot_kernel
from weft.kernels.vector.maps import build_map_kernel
from weft.kernels.vector.panels import choose_panels, choose_product_lanes
from weft.kernels.vector.register_tiles import TiledProduct, build_product_kernel

_TYPICAL_SIZE = 64  # assumed for unknown sizes
_MAX_NARROW = 4  # products with at most this many rows or columns are memory-bound


def build_contraction(
    contraction: Contraction, target: VectorTarget, unsigned: int | None = None, *, pairs: bool = False
) -> Work:
    """Build a contraction.

    With `unsigned`, the number of an operand, elements are words of four bytes, unsigned in that operand. With `pairs`,
    elements are words of two bfloat16.
    """
    first, second = contraction.operands()
    output, result, epilogue = contraction.primitive.output, contraction.result, contraction.epilogue
    plans = [
        _ContractionPlan(first, second, output, result, epilogue, target, unsigned),
        _ContractionPlan(second, first, output, result, epilogue, target, unsigned),
    ]
    for plan in plans:
        plan.words = PAIRS if pairs else plan.words
        plan.prepare = contraction.prepare
    plan = min(plans, key=_ContractionPlan.cost)
    return plan.build_widened() if plan.widens else plan.build()


class _ContractionPlan:
    """A contraction with one operand as rows and the other as columns."""

    def __init__(
        self,
        rows: ContractOperand,
        columns: ContractOperand,
        output: tuple[int, ...],
        result: StoredTensor,
        epilogue: Epilogue | None,
        target: VectorTarget,
        unsigned: int | None = None,
    ) -> None:
        self.left, self.right, self.output, self.result = rows, columns, output, result
        self.epilogue, self.target = epilogue, target
        self.words = "" if unsigned is None else "left" if unsigned == rows.number else "right"
        self.prepare: Callable[[Array], Array] | None = None
        labels = [output[axis] for axis in result.layout.order]
        self.batch = [x for x in labels if x in rows.labels and x in columns.labels]
        self.rows = [x for x in labels if x not in columns.labels]
        self.columns = [x for x in labels if x not in rows.labels]
        self.sums = order_sums(self.left, self.right, self.output)
        column_axes = merge_loop_axes(
            [self.loop_axis(label) for label in self.columns], EpilogueAccess(result, epilogue)
        )
        simple = len(column_axes) == 1
        self.column = column_axes[0] if simple else self.loop_axis(self.columns[-1]) if self.columns else LoopAxis(1)
        self.outer_columns = [] if simple else self.columns[:-1]
        self.merged_columns = self.columns if simple else self.columns[-1:]
        self.panels = choose_panels(target, rows.tensor.dtype, self.column.size)

    def loop_axis(self, label: int) -> LoopAxis:
        side = self.left if label in self.left.labels else self.right
        return LoopAxis(
            side.size(label),
            self.left.stride(label),
            self.right.stride(label),
            self.output.index(label) if label in self.output else None,
        )

    # -- choosing ----------------------------------------------------------------------------------------------------

    def extent(self, labels: Sequence[int]) -> int:
        return _estimate_size(dims.product(self.loop_axis(label).size for label in labels))

    @property
    def uses_dots(self) -> bool:
        """Whether lanes run along the sums: for few rows or columns, with sums contiguous in both operands."""
        if not self.sums or (self.right.constant is not None and self.extent(self.rows) > self.extent(self.columns)):
            return False
        loop_axis = self.loop_axis(self.sums[-1])
        narrow = self.extent(self.columns) <= _MAX_NARROW or (
            self.extent(self.rows) <= _MAX_NARROW and not self.in_place
        )
        if self.right.constant is not None and self.extent(self.columns) > _MAX_NARROW:
            return False
        return (
            loop_axis.left == 1
            and loop_axis.right == 1
            and narrow
            and _estimate_size(loop_axis.size) >= 2 * self.dot_lanes
        )

    @property
    def dot_lanes(self) -> int:
        return choose_product_lanes(self.target, self.left.tensor.dtype, 1 << 30)

    @property
    def in_place(self) -> bool:
        if self.right.constant is not None:
            return False
        contiguous = self.column.right == 1 or self.column.size == 1
        right_bytes = self.extent(self.sums) * self.extent(self.columns) * (self.right.tensor.dtype.bits // 8)
        return contiguous and (self.extent(self.rows) < 128 or right_bytes <= self.target.cache_bytes // 2)

    def cost(self) -> float:
        """Estimate the cost in multiply-adds of whole vectors, packing and scattered writes included."""
        batch, rows, depth = self.extent(self.batch), self.extent(self.rows), self.extent(self.sums)
        columns, outer = _estimate_size(self.column.size), self.extent(self.outer_columns)
        if self.uses_dots:
            loads = depth / self.dot_lanes * (1 + 1 / max(min(rows, MAX_ROWS), 1))
            return batch * rows * columns * outer * (loads + 8)
        vectors = -(-columns // self.panels.lanes) * outer
        products = batch * rows * vectors * depth * (1.0 if rows > 1 or self.right.constant is not None else 1.5)
        if not isinstance(self.column.size, int):  # it may be 1, which would leave nearly all lanes idle
            products *= 4
        packing = 0.0
        if self.right.constant is None and not self.in_place:
            packing = batch * depth * columns * outer * (0.25 if self.column.right == 1 else 1.5)
        contiguous = self.column.axis is None or self.result.strides[self.column.axis] == 1
        writing = 0 if contiguous else batch * rows * columns * outer * 2
        return products + packing + writing

    # -- building ----------------------------------------------------------------------------------------------------

    def build(self) -> Work:
        left, right = Reference("operand", self.left.number), Reference("operand", self.right.number)
        if self.uses_dots or self.in_place:
            launch = (
                self.build_dot_launch()
                if self.uses_dots
                else build_product_kernel("contract", self.product(), self.target)
            )
            return Work((launch.rebound({LEFT: left, RIGHT: right}),))
        launch = build_product_kernel("contract", self.product(padded=True), self.target)
        if self.right.constant is not None:
            packing = self.packing(self.right.constant)
            return Work((launch.rebound({LEFT: left, RIGHT: Reference("constant", 0)}),), constants=(packing,))
        pack, size = self.build_pack_launch()
        space = Reference("workspace", 0)
        pack = pack.rebound({Reference("operand", 0): right, Reference("result", 0): space})
        launches = (pack, launch.rebound({LEFT: left, RIGHT: space}))
        return Work(launches, (Workspace(self.right.tensor.dtype, size),))

    @property
    def widens(self) -> bool:
        """Whether to copy the rows in the dtype of their sums: elements are narrower, and are read one by one."""
        dtype = self.left.tensor.dtype
        if accumulator_dtype(dtype) is dtype or self.left.constant is not None or self.uses_dots:
            return False
        return self.extent(self.columns) >= self.panels.lanes

    def build_widened(self) -> Work:
        """Build the work on a copy of the rows in the dtype of their sums."""
        narrow = self.left.tensor
        wide = replace(narrow, dtype=accumulator_dtype(narrow.dtype))
        self.left = replace(self.left, tensor=wide)
        work = self.build()
        places = identity_indices(narrow.shape)
        element = Apply("cast", (Load(0, places, narrow.dtype),), wide.dtype)
        copy = build_map_kernel(element, [narrow], wide, choose_lanes(self.target, (wide.dtype,)))
        return stage_operand(work, Reference("operand", self.left.number), [copy], wide)

    def product(self, *, padded: bool = False) -> TiledProduct:
        grid, sums, panel = self.packed_loop_axes() if padded else self.loop_axes_in_place()
        return TiledProduct(
            left=self.left.tensor.dtype,
            right=self.right.tensor.dtype,
            result=self.result,
            epilogue=self.epilogue,
            grid=grid,
            rows=tuple(self.loop_axis(label) for label in self.rows),
            column=self.column,
            sums=sums,
            panels=self.panels,
            panel=panel,
            padded=padded,
            packed=padded and self.right.constant is not None,
            words=self.words,
        )

    def loop_axes_in_place(self) -> tuple[tuple[LoopAxis, ...], tuple[LoopAxis, ...], Dim]:
        """Return grid, sums and the distance between panels, with strides into the operand in place."""
        grid = tuple(self.loop_axis(label) for label in (*self.batch, *self.outer_columns))
        return grid, tuple(self.loop_axis(label) for label in self.sums), self.panels.step

    def packed_loop_axes(self) -> tuple[tuple[LoopAxis, ...], tuple[LoopAxis, ...], Dim]:
        """Return grid, sums and the distance between panels, with strides into the packed operand."""
        grid, sums, _ = self.loop_axes_in_place()
        strides: list[LoopAxis] = []
        stride: Dim = self.panels.step
        for loop_axis, label in zip(reversed(sums), reversed(self.sums)):
            present = label in self.right.labels
            strides.insert(0, LoopAxis(loop_axis.size, loop_axis.left, stride if present else 0))
            stride = stride * loop_axis.size if present else stride
        panel = stride
        columns = self.panels.stored(packed=self.right.constant is not None)
        stride = dims.floordiv(stride, self.panels.step) * columns
        places: list[LoopAxis] = []
        for loop_axis in reversed(grid):
            places.insert(0, LoopAxis(loop_axis.size, loop_axis.left, stride, loop_axis.axis))
            stride = stride * loop_axis.size
        return tuple(places), tuple(strides), panel

    def build_dot_launch(self) -> Launch:
        product = self.product()
        columns = tuple(self.loop_axis(label) for label in self.columns)
        grid = tuple(self.loop_axis(label) for label in self.batch)
        return build_dot_kernel("contract", product, grid, columns, self.dot_lanes, self.target)

    def packing(self, array: Array) -> Packing:
        """Describe the packed constant: [grid, elements of the packed sums and columns]."""
        grid, sums = ([constant_size(self.right.size(x)) for x in labels] for labels in self.constant_labels())
        shape = self.panels.packed_shape(prod(grid), prod(sums))
        return Packing(array, self.pack_constant, shape, self.right.tensor.dtype.numpy)

    def constant_labels(self) -> tuple[list[int], list[int]]:
        """Return the labels of the grid and of the sums that the right operand has."""
        return [*self.batch, *self.outer_columns], [label for label in self.sums if label in self.right.labels]

    def pack_constant(self, array: Array) -> Iterator[Array]:
        grid, sums = self.constant_labels()
        array = array if self.prepare is None else self.prepare(array)
        names = {label: number for number, label in enumerate(dict.fromkeys(self.right.labels))}
        arranged_labels = [*grid, *sums, *self.merged_columns]
        arranged = np.einsum(array, [names[x] for x in self.right.labels], [names[x] for x in arranged_labels])
        depth = prod(constant_size(self.right.size(x)) for x in sums)
        yield self.panels.pack(arranged.reshape(-1, depth, constant_size(self.column.size)))

    def build_pack_launch(self) -> tuple[Launch, Dim]:
        """Build the launch that packs to [grid, panels, sums, columns of a panel]; return the packed size as well."""
        tensor = self.right.tensor
        sums = [label for label in self.sums if label in self.right.labels]
        grid = [*self.batch, *self.outer_columns]
        columns, step = self.column.size, self.panels.step
        panels = dims.ceildiv(columns, step)
        order: list[int | None] = [*grid, None, *sums]
        shape = (*(panels if x is None else self.right.size(x) for x in order), step)
        places: dict[int, Dim] = {x: dims.axis(axis, shape[axis]) for axis, x in enumerate(order) if x is not None}
        column = dims.axis(order.index(None), panels) * step + dims.axis(len(order), step)
        remaining = column
        for label in reversed(self.merged_columns):
            size = self.right.size(label)
            places[label] = remaining if label == self.merged_columns[0] else dims.mod(remaining, size)
            remaining = dims.floordiv(remaining, size)
        load = Load(0, tuple(Index(places[label]) for label in self.right.labels), tensor.dtype)
        expression = zero_outside(load, column, columns)
        packed = StoredTensor(tensor.dtype, shape, row_major(len(shape)))
        return build_map_kernel(expression, [tensor], packed, step), dims.product(shape)


def _estimate_size(size: Dim) -> int:
    """Return a size, or an estimate where it is unknown."""
    if isinstance(size, int):
        return size
    names = {symbol.name: max(symbol.low or 1, _TYPICAL_SIZE) for symbol in dims.symbols(size)}
    return max(1, dims.evaluate(size, names))
