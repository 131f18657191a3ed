"""Contractions (matrix products, einsum) as tiled products.

One operand gives the rows of the tiles and is read number by number, wherever they lie; the other gives the columns,
whose neighbours must be neighbours in memory: it is read in place where they are, packed into panels when compiling
where it is constant, and packed by a kernel of its own otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.layout import row_major
from weft.ir.packing import Packing
from weft.ir.scalar import Apply, Index, Load
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import Contraction, ContractOperand, guarded, sum_order
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import PAIRS, accumulator_type
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.dot_products import HEIGHT, dot_kernel
from weft.kernels.vector.maps import map_launch
from weft.kernels.vector.panels import lanes_for, panels_for
from weft.kernels.vector.register_tiles import TiledProduct, product_kernel

Array = np.ndarray[Any, Any]
_TYPICAL = 64  # what an unknown size is taken for where a choice must be made
_FEW = 4  # rows or columns so few that the products are bound by memory


def contract_work(
    contraction: Contraction, target: VectorTarget, unsigned: int | None = None, *, pairs: bool = False
) -> Work:
    """With `unsigned` elements are words of four bytes, and those of that operand unsigned; `pairs`: of bfloat16."""
    one, other = contraction.operands()
    output, result, epilogue = contraction.primitive.output, contraction.result, contraction.epilogue
    plans = [
        _Plan(one, other, output, result, epilogue, target, unsigned),
        _Plan(other, one, output, result, epilogue, target, unsigned),
    ]
    for plan in plans:
        plan.words = PAIRS if pairs else plan.words
        plan.prepare = contraction.prepare
    plan = min(plans, key=_Plan.cost)
    return plan.widened_work() if plan.widens else plan.work()


class _Plan:
    """A contraction with its operands' parts given out."""

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
        inner = [output[axis] for axis in result.layout.order]
        self.batch = [x for x in inner if x in rows.labels and x in columns.labels]
        self.rows = [x for x in inner if x not in columns.labels]
        self.columns = [x for x in inner if x not in rows.labels]
        self.sums = sum_order(self.left, self.right, self.output)
        loop_axes = merge_loop_axes([self.loop_axis(label) for label in self.columns], EpilogueAccess(result, epilogue))
        simple = len(loop_axes) == 1
        self.column = loop_axes[0] if simple else self.loop_axis(self.columns[-1]) if self.columns else LoopAxis(1)
        self.outer = [] if simple else self.columns[:-1]
        self.merged_columns = self.columns if simple else self.columns[-1:]
        self.panels = panels_for(target, rows.tensor.dtype, self.column.size)

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
        return _guess(dims.product(self.loop_axis(label).size for label in labels))

    @property
    def uses_dots(self) -> bool:
        """Few rows or columns, with the sums as neighbours in both operands: lanes go along the sums."""
        if not self.sums or (self.right.constant is not None and self.extent(self.rows) > self.extent(self.columns)):
            return False
        loop_axis = self.loop_axis(self.sums[-1])
        narrow = self.extent(self.columns) <= _FEW or (self.extent(self.rows) <= _FEW and not self.in_place)
        if self.right.constant is not None and self.extent(self.columns) > _FEW:
            return False
        return loop_axis.left == 1 and loop_axis.right == 1 and narrow and _guess(loop_axis.size) >= 2 * self.dot_lanes

    @property
    def dot_lanes(self) -> int:
        return lanes_for(self.target, self.left.tensor.dtype, 1 << 30)

    @property
    def in_place(self) -> bool:
        if self.right.constant is not None:
            return False
        contiguous = self.column.right == 1 or self.column.size == 1
        large = self.extent(self.sums) * self.extent(self.columns) * (self.right.tensor.dtype.bits // 8)
        return contiguous and (self.extent(self.rows) < 128 or large <= self.target.cache_bytes // 2)

    def cost(self) -> float:
        """Multiply-adds of whole vectors, about; what packing and scattering take, in the same measure."""
        batch, rows, depth = self.extent(self.batch), self.extent(self.rows), self.extent(self.sums)
        columns, outer = _guess(self.column.size), self.extent(self.outer)
        if self.uses_dots:
            loads = depth / self.dot_lanes * (1 + 1 / max(min(rows, HEIGHT), 1))
            return batch * rows * columns * outer * (loads + 8)
        vectors = -(-columns // self.panels.lanes) * outer
        products = batch * rows * vectors * depth * (1.0 if rows > 1 or self.right.constant is not None else 1.5)
        if not isinstance(self.column.size, int):  # it may be 1, and then nearly all lanes are idle; rows never are
            products *= 4
        packing = 0.0
        if self.right.constant is None and not self.in_place:
            packing = batch * depth * columns * outer * (0.25 if self.column.right == 1 else 1.5)
        writing = 0 if self._contiguous_result() else batch * rows * columns * outer * 2
        return products + packing + writing

    def _contiguous_result(self) -> bool:
        axis = self.column.axis
        return axis is None or self.result.strides[axis] == 1

    # -- building ----------------------------------------------------------------------------------------------------

    def work(self) -> Work:
        left, right = Reference("operand", self.left.number), Reference("operand", self.right.number)
        if self.uses_dots or self.in_place:
            launch = self.dots() if self.uses_dots else product_kernel("contract", self.product(), self.target)
            return Work((launch.rebound({LEFT: left, RIGHT: right}),))
        launch = product_kernel("contract", self.product(padded=True), self.target)
        if self.right.constant is not None:
            packing = self.packing(self.right.constant)
            return Work((launch.rebound({LEFT: left, RIGHT: Reference("constant", 0)}),), constants=(packing,))
        pack, size = self.pack_launch()
        space = Reference("workspace", 0)
        pack = pack.rebound({Reference("operand", 0): right, Reference("result", 0): space})
        launches = (pack, launch.rebound({LEFT: left, RIGHT: space}))
        return Work(launches, (Workspace(self.right.tensor.dtype, size),))

    @property
    def widens(self) -> bool:
        """Whether elements of rows, which are read one by one, are narrower than their sums: a wide copy pays then."""
        dtype = self.left.tensor.dtype
        if accumulator_type(dtype) is dtype or self.left.constant is not None or self.uses_dots:
            return False
        return self.extent(self.columns) >= self.panels.lanes

    def widened_work(self) -> Work:
        """The same work on a wide copy of the rows."""
        narrow, number = self.left.tensor, self.left.number
        wide = replace(narrow, dtype=accumulator_type(narrow.dtype))
        self.left = replace(self.left, tensor=wide)
        work = self.work()
        places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(narrow.shape))
        element = Apply("cast", (Load(0, places, narrow.dtype),), wide.dtype)
        copy = map_launch(element, [narrow], wide, choose_lanes(self.target, (wide.dtype,)))
        own, space = Reference("operand", number), Reference("workspace", len(work.workspaces))
        launches = (
            copy.rebound({Reference("operand", 0): own, Reference("result", 0): space}),
            *(launch.rebound({own: space}) for launch in work.launches),
        )
        return replace(
            work, launches=launches, workspaces=(*work.workspaces, Workspace(wide.dtype, dims.product(wide.shape)))
        )

    def product(self, *, padded: bool = False) -> TiledProduct:
        grid, sums, panel = self.loop_axes() if padded else self.walks_in_place()
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

    def walks_in_place(self) -> tuple[tuple[LoopAxis, ...], tuple[LoopAxis, ...], Dim]:
        """Grid, sums and the distance of panels, with strides into the operand as it is."""
        grid = tuple(self.loop_axis(label) for label in (*self.batch, *self.outer))
        return grid, tuple(self.loop_axis(label) for label in self.sums), self.panels.step

    def loop_axes(self) -> tuple[tuple[LoopAxis, ...], tuple[LoopAxis, ...], Dim]:
        """The same with strides into the packed operand."""
        grid, sums, _ = self.walks_in_place()
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

    def dots(self) -> Launch:
        product = self.product()
        columns = tuple(self.loop_axis(label) for label in self.columns)
        grid = tuple(self.loop_axis(label) for label in self.batch)
        return dot_kernel("contract", product, grid, columns, self.dot_lanes, self.target)

    def packing(self, array: Array) -> Packing:
        """[grid, elements of the packed sums and columns]"""
        grid, sums = ([_fixed(self.right.size(x)) for x in labels] for labels in self.constant_labels())
        shape = self.panels.packed_shape(prod(grid), prod(sums))
        return Packing(array, self.pack_constant, shape, self.right.tensor.dtype.numpy)

    def constant_labels(self) -> tuple[list[int], list[int]]:
        """Those of the grid and the sums that the right operand has."""
        return [*self.batch, *self.outer], [label for label in self.sums if label in self.right.labels]

    def pack_constant(self, array: Array) -> Iterator[Array]:
        grid, sums = self.constant_labels()
        array = array if self.prepare is None else self.prepare(array)
        names = {label: number for number, label in enumerate(dict.fromkeys(self.right.labels))}
        kept = [*grid, *sums, *self.merged_columns]
        arranged = np.einsum(array, [names[x] for x in self.right.labels], [names[x] for x in kept])
        depth = prod(_fixed(self.right.size(x)) for x in sums)
        yield self.panels.pack(arranged.reshape(-1, depth, _fixed(self.column.size)))

    def pack_launch(self) -> tuple[Launch, Dim]:
        """[grid, panels, sums, columns of a panel] by a kernel; the size of the packed operand too."""
        tensor = self.right.tensor
        sums = [label for label in self.sums if label in self.right.labels]
        grid = [*self.batch, *self.outer]
        columns, step = self.column.size, self.panels.step
        panels = dims.ceildiv(columns, step)
        order: list[int | None] = [*grid, None, *sums]
        shape = (*(panels if x is None else self.right.size(x) for x in order), step)
        places: dict[int, Dim] = {x: dims.axis(axis, shape[axis]) for axis, x in enumerate(order) if x is not None}
        column = dims.axis(order.index(None), panels) * step + dims.axis(len(order), step)
        rest = column
        for label in reversed(self.merged_columns):
            size = self.right.size(label)
            places[label] = rest if label == self.merged_columns[0] else dims.mod(rest, size)
            rest = dims.floordiv(rest, size)
        load = Load(0, tuple(Index(places[label]) for label in self.right.labels), tensor.dtype)
        expression = guarded(load, column, columns)
        packed = StoredTensor(tensor.dtype, shape, row_major(len(shape)))
        return map_launch(expression, [tensor], packed, step), dims.product(shape)


def _guess(size: Dim) -> int:
    """A size to decide by."""
    if isinstance(size, int):
        return size
    names = {symbol.name: max(symbol.low or 1, _TYPICAL) for symbol in dims.symbols(size)}
    return max(1, dims.evaluate(size, names))


def _fixed(size: Dim) -> int:
    if not isinstance(size, int):
        raise InternalError(f"a constant operand of the unknown size {size}")
    return size
