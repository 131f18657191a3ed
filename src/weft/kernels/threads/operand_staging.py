"""How operands get into the tiles of a tile product: moved as they are, through registers, or converted before.

Large operands whose elements are read several times are converted by a separate kernel, to the tiles' type and to a
layout that can be moved into tiles. Where only the type differs the layout stays; otherwise they are packed with the
depth innermost.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.ir.layout import offset
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import LoopAxis, unravel_index
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, put_run
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import RESULT, Launch, Reference, Work, Workspace
from weft.kernels.threads.float_splits import build_convert_launch, convert_value
from weft.kernels.threads.points import all_of, points
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_operands import RUN, run_direction
from weft.kernels.threads.size_ranges import run_where
from weft.kernels.threads.tensor_tile import CHUNK, ProductScheme, chunk_length
from weft.records import dataclass

_MIN_ELEMENTS = 1 << 18  # of an operand, for a conversion kernel to pay
_MIN_READS = 2.0  # of each element
_TILE = 128  # rows or columns of the other operand for which an element is read once
_SOURCE = Reference("operand", 0)


class OperandStaging(Enum):
    """How an operand gets into tiles. Values are part of the names that tuned choices are stored under."""

    MOVED = "moved"
    FETCHED = "fetched"  # through registers
    CONVERTED = "formed"  # converted by a kernel, then moved
    PACKED = "arranged"  # converted and rearranged by a kernel, then moved


def choose_staging(product: Product, scheme: ProductScheme, side: int) -> OperandStaging:
    """Choose how the left (0) or right (1) operand of a product is staged; constants have `product.elements` 0."""
    element = scheme.right if side else scheme.left
    dtype = product.right if side else product.left
    if product.elements[side] == 0:
        return OperandStaging.MOVED
    direction = run_direction(merge_product_axes(product), side == 0, chunk_length(element))
    is_movable = direction == "deep" or (direction == "across" and scheme.can_transpose)
    if is_movable and dtype is element and scheme.planes == 1:
        return OperandStaging.MOVED
    grid, rows, columns, sums = map(estimate, product.extents())
    extent, other_extent = (columns, rows) if side else (rows, columns)
    reads = grid * extent * sums
    size = max(estimate(product.elements[side]), 1)
    if size < _MIN_ELEMENTS or reads / size * max(other_extent / _TILE, 1) < _MIN_READS:
        return OperandStaging.FETCHED
    if is_movable:
        return OperandStaging.CONVERTED
    is_plain = side == 1 or (not product.inside and product.order is None)
    return OperandStaging.PACKED if is_plain and other_extent >= _MIN_READS * _TILE else OperandStaging.FETCHED


def stage_operands(
    product: Product,
    scheme: ProductScheme,
    operands: tuple[Reference, Reference],
    active: Dim,
    target: ThreadTarget,
    work: Work,
) -> tuple[Product, Reference, Reference, Work]:
    """Add launches to `work` that convert or pack operands for which it pays; they run where `active` is 1.

    Returns the product that reads the converted operands, references to both operands, and the work.
    """
    references = list(operands)
    for side, staging in enumerate([choose_staging(product, scheme, side) for side in (0, 1)]):
        conversion = None
        if staging is OperandStaging.CONVERTED:
            conversion = _convert_operand(product, scheme, side, target)
        elif staging is OperandStaging.PACKED:
            conversion = _pack_operand(product, scheme, side, target)
        if conversion is None:
            continue
        workspace = Reference("workspace", len(work.workspaces))
        launch = conversion.launch.rebound({_SOURCE: references[side], RESULT: workspace})
        work = replace(
            work,
            launches=(*work.launches, run_where(active, launch)),
            workspaces=(*work.workspaces, Workspace(scheme.right if side else scheme.left, active * conversion.size)),
        )
        references[side] = workspace
        product = conversion.product
    return product, references[0], references[1], work


@dataclass(frozen=True, slots=True)
class _Conversion:
    """A launch that writes `size` elements of a converted operand, and the product that reads them."""

    product: Product
    launch: Launch
    size: Dim


def _convert_operand(product: Product, scheme: ProductScheme, side: int, target: ThreadTarget) -> _Conversion:
    size, element = product.elements[side], scheme.right if side else scheme.left
    plane = dims.ceildiv(size, CHUNK) * CHUNK
    launch = build_convert_launch(size, element, scheme.planes, plane, target)
    return _Conversion(_with_converted(product, scheme, side, plane), launch, scheme.planes * plane)


def _with_converted(product: Product, scheme: ProductScheme, side: int, plane: Dim) -> Product:
    """Return the product with an operand in the tiles' type."""
    distance = plane if scheme.planes > 1 else 0
    if side == 0:
        return replace(product, left=scheme.left, planes=(distance, product.planes[1]))
    return replace(product, right=scheme.right, planes=(product.planes[0], distance))


def _pack_operand(product: Product, scheme: ProductScheme, side: int, target: ThreadTarget) -> _Conversion | None:
    """Pack an operand with the depth innermost; None where even then it could not be moved into tiles."""
    product = merge_product_axes(product)
    if any(_step(loop_axis, side) == 0 for loop_axis in product.sums):
        return None
    element = scheme.right if side else scheme.left
    run = chunk_length(element)
    across = product.columns if side else product.rows
    pitch = dims.ceildiv(dims.product(loop_axis.size for loop_axis in product.sums), run) * run
    sums, _ = _make_contiguous(product.sums, side, 1)
    lines, step = _make_contiguous(across, side, pitch)
    grid, plane = _make_contiguous(product.grid, side, step)
    packed = replace(_with_converted(product, scheme, side, plane), grid=grid, sums=sums)
    if side == 0:
        packed = replace(packed, rows=lines, left_start=0, padded_sums=(True, product.padded_sums[1]))
    else:
        packed = replace(packed, columns=lines, right_start=0, padded_sums=(product.padded_sums[0], True))
    if run_direction(merge_product_axes(packed), side == 0, run) != "deep":
        return None
    return _Conversion(packed, _build_packing_launch(product, scheme, side, target), scheme.planes * plane)


def _make_contiguous(loop_axes: tuple[LoopAxis, ...], side: int, step: Dim) -> tuple[tuple[LoopAxis, ...], Dim]:
    """Make the strides of loop axes contiguous from `step` on; also return the stride of the next outer axis."""
    dense: list[LoopAxis] = []
    for loop_axis in reversed(loop_axes):
        if _step(loop_axis, side) != 0:
            dense.insert(0, replace(loop_axis, right=step) if side else replace(loop_axis, left=step))
            step = step * loop_axis.size
        else:
            dense.insert(0, loop_axis)
    return tuple(dense), step


def _step(loop_axis: LoopAxis, side: int) -> Dim:
    return loop_axis.right if side else loop_axis.left


@memoize
def _build_packing_launch(product: Product, scheme: ProductScheme, side: int, target: ThreadTarget) -> Launch:
    """Write an operand of a merged product as [planes, grid, across, depth], with zeros after the last of a line."""
    builder = KernelBuilder("pack_operand")
    dtype: DType = product.right if side else product.left
    element = scheme.right if side else scheme.left
    run = chunk_length(element)
    source = builder.input("given", dtype, _SOURCE)
    out = builder.output("out", element, RESULT)
    across = product.columns if side else product.rows
    start = product.right_start if side else product.left_start
    axes = {
        kind: [loop_axis for loop_axis in loop_axes if _step(loop_axis, side) != 0]
        for kind, loop_axes in (("grid", product.grid), ("across", across), ("sums", product.sums))
    }
    counts = {kind: dims.product(loop_axis.size for loop_axis in own) for kind, own in axes.items()}
    length = dims.product(loop_axis.size for loop_axis in product.sums)
    chunks = dims.ceildiv(length, run)
    is_across_innermost = bool(across) and _step(across[-1], side) == 1
    lanes = target.block_threads
    if is_across_innermost:  # neighbouring lanes read neighbours
        here = points((counts["grid"], chunks, counts["across"]), builder, lanes)
        grid_index, chunk, line = here.places
    else:
        here = points((counts["grid"], counts["across"], chunks), builder, lanes)
        grid_index, line, chunk = here.places

    def source_offset(kind: str, index: Dim) -> Dim:
        sizes = [builder.parameter(f"{kind}{n}", dims.maximum(axis.size, 1)) for n, axis in enumerate(axes[kind])]
        strides = [builder.size(_step(axis, side)) for axis in axes[kind]]
        return offset(strides, unravel_index(index, sizes)) if sizes else 0

    base = builder.size(start) + source_offset("grid", grid_index) + source_offset("across", line)
    statements: list[Statement] = []
    converted: list[list[Code]] = []
    values = builder.registers("value", run, dtype)
    for number, value in enumerate(values):
        index = chunk * run + number
        mask = here.mask
        if dims.mod(length, run) != 0:
            mask = all_of(
                [mask, Call("less", (Integer(index), Integer(builder.parameter("whole", length))), DType.bool)]
            )
        statements.append(define(value, fetch(source, base + source_offset("sums", index), mask=mask)))
    for value in values:
        conversion, numbers = convert_value(value, element, scheme.planes, builder)
        statements += conversion
        converted.append(numbers)
    line_index = grid_index * builder.parameter("lines", counts["across"]) + line
    target_place = (line_index * builder.parameter("chunks", chunks) + chunk) * run
    plane = run * builder.parameter("plane", counts["grid"] * counts["across"] * chunks)
    for part in range(scheme.planes):
        for first in range(0, run, RUN):
            codes = [numbers[part] for numbers in converted[first : first + RUN]]
            statements.append(put_run(out, part * plane + target_place + first, codes, here.mask))
    return builder.launch(lanes, statements, here.blocks)
