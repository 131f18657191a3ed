"""Batched matrix products as data, which both contractions and convolutions become.

result[grid, rows, columns] = epilogue(sum of left[grid, rows, sums] * right[grid, sums, columns]), where each of grid,
rows, columns and sums stands for several loop axes, outermost first; sums are the reduction. Elements outside of the
left operand (the padding of a convolution) are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.kernels.build.epilogue import EpilogueAccess
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class BoundsTest:
    """A position along an axis of the left operand, whose elements are 0 to size - 1.

    The position is `first` for the first row and sum, plus a step, never negative, for each along rows and sums.
    """

    first: Dim
    size: Dim
    rows: tuple[Dim, ...]
    sums: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A batched matrix product (see above); pairs are for the left and the right operand.

    - `order` permutes the left operand along the innermost reduction axis: a dim over one axis that gives the index
      in memory, and continues along the grid.
    - `result_start` has first positions along axes of the result, if not 0.
    - `padded`: an operand has room for a multiple of four across, all along one loop axis. `padded_sums`: it has room
      along the reduction, if that is one loop axis, for as many elements as tiles take at once.
    - `planes` is the distance between the planes of an operand that is split into several.
    - `elements` is the size of operands that are not constant, 0 of others.
    - `has_wide_result`: before the epilogue the result is float32, though operands are narrower floats.
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
    inside: tuple[BoundsTest, ...] = ()
    order: Dim | None = None
    padded: tuple[bool, bool] = (False, False)
    padded_sums: tuple[bool, bool] = (False, False)
    planes: tuple[Dim, Dim] = (0, 0)
    elements: tuple[Dim, Dim] = (0, 0)
    has_wide_result: bool = False

    @property
    def type(self) -> DType:
        """The type of the sums."""
        return sum_dtype(self.left, self.right)

    def extents(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Return the sizes of grid, rows, columns and sums."""
        grid, rows, columns, sums = (
            dims.product(loop_axis.size for loop_axis in loop_axes)
            for loop_axes in (self.grid, self.rows, self.columns, self.sums)
        )
        return grid, rows, columns, sums


def sum_dtype(left: DType, right: DType) -> DType:
    """Return the type that products of two types are summed in."""
    if left is right and left not in (DType.int8, DType.uint8):
        return accumulator_dtype(left)
    return DType.float32 if left.is_float else DType.int32


def merge_product_axes(product: Product) -> Product:
    """Merge the loop axes of a product as far as possible, and drop bounds tests that always hold."""
    epilogue = EpilogueAccess(product.result, product.epilogue)
    inside = tuple(test for test in product.inside if not _always_holds(test, product))
    rows, row_steps = _merge(product.rows, [test.rows for test in inside], epilogue)
    sums, sum_steps = _merge(product.sums, [test.sums for test in inside], None, apart=product.order is not None)
    tests = tuple(
        replace(test, rows=along_rows, sums=along_sums)
        for test, along_rows, along_sums in zip(inside, row_steps, sum_steps)
    )
    grid, columns = merge_loop_axes(product.grid, epilogue), merge_loop_axes(product.columns, epilogue)
    return replace(product, grid=grid, rows=rows, columns=columns, sums=sums, inside=tests)


def _always_holds(test: BoundsTest, product: Product) -> bool:
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
    """Merge loop axes except those that a test steps along, and the last one if `apart`.

    Returns the merged axes, and the steps of each test along them.
    """
    merged: list[LoopAxis] = []
    merged_steps: list[list[Dim]] = [[] for _ in steps]
    pending: list[LoopAxis] = []

    def flush() -> None:
        flushed = merge_loop_axes(pending, epilogue)
        merged.extend(flushed)
        for test_steps in merged_steps:
            test_steps.extend([0] * len(flushed))
        pending.clear()

    for number, loop_axis in enumerate(loop_axes):
        along = [test[number] for test in steps]
        if all(step == 0 for step in along) and not (apart and number == len(loop_axes) - 1):
            pending.append(loop_axis)
            continue
        flush()
        if loop_axis.size != 1 or apart:
            merged.append(loop_axis)
            for test_steps, step in zip(merged_steps, along):
                test_steps.append(step)
    flush()
    return tuple(merged), [tuple(test_steps) for test_steps in merged_steps]
