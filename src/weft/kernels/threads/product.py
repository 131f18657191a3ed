"""Sums of products as data: what contractions and convolutions have in common.

result[grid, rows, columns] = epilogue(sum of left[grid, rows, sums] * right[grid, sums, columns]), where each of grid,
rows, columns and sums is some loops, outermost first. Elements of the left operand may lie outside of it (the padding
of a convolution): they are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.build.multiply_add import accumulator_type
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Inside:
    """A position in the left operand, where there are elements from 0 to size - 1: `first` for the first row and sum,
    and so much further for a step along each of the rows and sums, never back.
    """

    first: Dim
    size: Dim
    rows: tuple[Dim, ...]
    sums: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """See above. Walks of rows and sums step through the left operand, those of sums and columns through the right.

    `order` says which element along the last sum is the one at a place of the left operand: a dim over one axis,
    which counts on along the grid. `result_start` are first positions along axes of the result, if not 0. Where the
    left or right operand is `padded`, there is room for a multiple of four places across, all along one loop axis; of
    one with `padded_sums` there is room along the sums, if they are one loop axis, for as many as tiles take at once.
    Operands that come as several numbers for each have `planes`: so far it is from one of these to the next.
    `elements` are those of operands that are not constant, 0 of others.
    """

    left: DType
    right: DType
    result: StoredTensor
    epilogue: Epilogue | None
    grid: tuple[LoopAxis, ...]
    rows: tuple[LoopAxis, ...]
    columns: tuple[LoopAxis, ...]
    sums: tuple[LoopAxis, ...]
    left_start: Dim = 0
    right_start: Dim = 0
    result_start: tuple[tuple[int, Dim], ...] = ()
    inside: tuple[Inside, ...] = ()
    order: Dim | None = None
    padded: tuple[bool, bool] = (False, False)
    padded_sums: tuple[bool, bool] = (False, False)
    planes: tuple[Dim, Dim] = (0, 0)
    elements: tuple[Dim, Dim] = (0, 0)

    @property
    def type(self) -> DType:
        """Of the sums."""
        return sums_type(self.left, self.right)

    def extents(self) -> tuple[Dim, Dim, Dim, Dim]:
        """How many places there are along grid, rows, columns and sums."""
        grid, rows, columns, sums = (
            dims.product(loop_axis.size for loop_axis in loop_axes)
            for loop_axes in (self.grid, self.rows, self.columns, self.sums)
        )
        return grid, rows, columns, sums


def sums_type(left: DType, right: DType) -> DType:
    """Of the sums of products of two types."""
    if left is right:
        return accumulator_type(left)
    return DType.float32 if left.is_float else DType.int32


def merged(product: Product) -> Product:
    """The product with as few loop axes as possible, and without tests that always hold."""
    epilogue = EpilogueAccess(product.result, product.epilogue)
    inside = tuple(test for test in product.inside if not _is_certain(test, product))
    rows, row_steps = _merge(product.rows, [test.rows for test in inside], epilogue)
    sums, sum_steps = _merge(product.sums, [test.sums for test in inside], None, apart=product.order is not None)
    tests = tuple(
        replace(test, rows=along_rows, sums=along_sums)
        for test, along_rows, along_sums in zip(inside, row_steps, sum_steps)
    )
    grid, columns = merge_loop_axes(product.grid, epilogue), merge_loop_axes(product.columns, epilogue)
    return replace(product, grid=grid, rows=rows, columns=columns, sums=sums, inside=tests)


def _is_certain(test: Inside, product: Product) -> bool:
    last = test.first
    for loop_axes, steps in ((product.rows, test.rows), (product.sums, test.sums)):
        for loop_axis, step in zip(loop_axes, steps, strict=True):
            last = last + (loop_axis.size - 1) * step
    return dims.is_at_least(test.first, 0) and dims.is_at_least(test.size - 1, last)


def _merge(
    loop_axes: Sequence[LoopAxis],
    steps: Sequence[Sequence[Dim]],
    epilogue: EpilogueAccess | None,
    *,
    apart: bool = False,
) -> tuple[tuple[LoopAxis, ...], list[tuple[Dim, ...]]]:
    """Walks merged, but those that a test steps along (or the last one, if it is to stay apart); the tests' steps."""
    found: list[LoopAxis] = []
    moved: list[list[Dim]] = [[] for _ in steps]
    pending: list[LoopAxis] = []

    def flush() -> None:
        made = merge_loop_axes(pending, epilogue)
        found.extend(made)
        for kept in moved:
            kept.extend([0] * len(made))
        pending.clear()

    for number, loop_axis in enumerate(loop_axes):
        along = [test[number] for test in steps]
        if all(step == 0 for step in along) and not (apart and number == len(loop_axes) - 1):
            pending.append(loop_axis)
            continue
        flush()
        if loop_axis.size != 1 or apart:
            found.append(loop_axis)
            for kept, step in zip(moved, along):
                kept.append(step)
    flush()
    return tuple(found), [tuple(kept) for kept in moved]
