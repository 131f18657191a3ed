"""How operands come into the tiles of a tile product: as they lie in memory, by registers, or made ready before.

Large operands whose elements are taken up several times are made ready by a kernel of their own: numbers of the tiles'
type, and neighbours that can be moved into tiles. Where only the type differs they stay where they are; else they are
arranged with the sums innermost.
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
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, put_run
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import RESULT, Launch, Reference, Work, Workspace
from weft.kernels.threads.number_parts import formed, forming_launch
from weft.kernels.threads.points import points
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN, run_direction
from weft.kernels.threads.tensor_tiles import CHUNK, Multiplying
from weft.records import dataclass

_LARGE = 1 << 18  # elements from which on a kernel of its own pays
_OFTEN = 2.0  # times that each element is taken up
_TILE = 128  # places across, of the other operand, for which it is taken up once
_GIVEN = Reference("operand", 0)


class Bringing(Enum):
    """How an operand comes into tiles."""

    MOVED = "moved"
    FETCHED = "fetched"
    FORMED = "formed"  # moved, once it was made so
    ARRANGED = "arranged"


def bringing(product: Product, how: Multiplying, side: int) -> Bringing:
    """How the left (0) or right (1) operand of a product comes; of constants, product.elements says that they are."""
    element = how.right if side else how.left
    dtype = product.right if side else product.left
    if product.elements[side] == 0:
        return Bringing.MOVED
    direction = run_direction(merged(product), side == 0, CHUNK * 8 // element.bits)
    is_movable = direction == "deep" or (direction == "across" and how.can_turn)
    if is_movable and dtype is element and how.planes == 1:
        return Bringing.MOVED
    grid, rows, columns, sums = map(estimate, product.extents())
    own, other = (columns, rows) if side else (rows, columns)
    taken = grid * own * sums
    size = max(estimate(product.elements[side]), 1)
    if size < _LARGE or taken / size * max(other / _TILE, 1) < _OFTEN:
        return Bringing.FETCHED
    if is_movable:
        return Bringing.FORMED
    is_plain = side == 1 or (not product.inside and product.order is None)
    return Bringing.ARRANGED if is_plain and other >= _OFTEN * _TILE else Bringing.FETCHED


def formed_operands(
    product: Product,
    how: Multiplying,
    operands: tuple[Reference, Reference],
    active: Dim,
    target: ThreadTarget,
    work: Work,
) -> tuple[Product, Reference, Reference, Work]:
    """The product and the work with those operands made ready for which it pays, where `active` is 1."""
    found = list(operands)
    for side, way in enumerate([bringing(product, how, side) for side in (0, 1)]):
        made = None
        if way is Bringing.FORMED:
            made = _formed(product, how, side, target)
        elif way is Bringing.ARRANGED:
            made = _arranged(product, how, side, target)
        if made is None:
            continue
        space = Reference("workspace", len(work.workspaces))
        launch = made.launch.rebound({_GIVEN: found[side], RESULT: space})
        work = replace(
            work,
            launches=(*work.launches, launch if active == 1 else replace(launch, blocks=active * launch.blocks)),
            workspaces=(*work.workspaces, Workspace(how.right if side else how.left, active * made.size)),
        )
        found[side] = space
        product = made.product
    return product, found[0], found[1], work


@dataclass(frozen=True, slots=True)
class _Made:
    """A product with an operand made ready, by a launch that writes so many elements."""

    product: Product
    launch: Launch
    size: Dim


def _formed(product: Product, how: Multiplying, side: int, target: ThreadTarget) -> _Made:
    size, element = product.elements[side], how.right if side else how.left
    plane = dims.ceildiv(size, CHUNK) * CHUNK
    launch = forming_launch(size, element, how.planes, plane, target)
    return _Made(_ready(product, how, side, plane), launch, how.planes * plane)


def _ready(product: Product, how: Multiplying, side: int, plane: Dim) -> Product:
    """The product with an operand in the tiles' type."""
    far = plane if how.planes > 1 else 0
    if side == 0:
        return replace(product, left=how.left, planes=(far, product.planes[1]))
    return replace(product, right=how.right, planes=(product.planes[0], far))


def _arranged(product: Product, how: Multiplying, side: int, target: ThreadTarget) -> _Made | None:
    """None where neighbours could not be moved even then."""
    product = merged(product)
    if any(_step(loop_axis, side) == 0 for loop_axis in product.sums):
        return None
    element = how.right if side else how.left
    run = CHUNK * 8 // element.bits
    across = product.columns if side else product.rows
    pitch = dims.ceildiv(dims.product(loop_axis.size for loop_axis in product.sums), run) * run
    sums, _ = _dense(product.sums, side, 1)
    lines, step = _dense(across, side, pitch)
    grid, plane = _dense(product.grid, side, step)
    made = replace(_ready(product, how, side, plane), grid=grid, sums=sums)
    if side == 0:
        made = replace(made, rows=lines, left_start=0, padded_sums=(True, product.padded_sums[1]))
    else:
        made = replace(made, columns=lines, right_start=0, padded_sums=(product.padded_sums[0], True))
    if run_direction(merged(made), side == 0, run) != "deep":
        return None
    return _Made(made, _arranging_launch(product, how, side, target), how.planes * plane)


def _dense(loop_axes: tuple[LoopAxis, ...], side: int, step: Dim) -> tuple[tuple[LoopAxis, ...], Dim]:
    """Loop axes one after another in memory, the innermost with a step; and the step of one further out."""
    found: list[LoopAxis] = []
    for loop_axis in reversed(loop_axes):
        if _step(loop_axis, side) != 0:
            found.insert(0, replace(loop_axis, right=step) if side else replace(loop_axis, left=step))
            step = step * loop_axis.size
        else:
            found.insert(0, loop_axis)
    return tuple(found), step


def _step(loop_axis: LoopAxis, side: int) -> Dim:
    return loop_axis.right if side else loop_axis.left


@memoized
def _arranging_launch(product: Product, how: Multiplying, side: int, target: ThreadTarget) -> Launch:
    """Of a merged product's operand: [planes, grid, across, sums], with zeros after the last sum."""
    builder = KernelBuilder("arrange_operand")
    dtype: DType = product.right if side else product.left
    element = how.right if side else how.left
    run = CHUNK * 8 // element.bits
    given = builder.input("given", dtype, _GIVEN)
    out = builder.output("out", element, RESULT)
    across = product.columns if side else product.rows
    start = product.right_start if side else product.left_start
    axes = {
        kind: [loop_axis for loop_axis in loop_axes if _step(loop_axis, side) != 0]
        for kind, loop_axes in (("grid", product.grid), ("across", across), ("sums", product.sums))
    }
    counts = {kind: dims.product(loop_axis.size for loop_axis in own) for kind, own in axes.items()}
    whole = dims.product(loop_axis.size for loop_axis in product.sums)
    chunks = dims.ceildiv(whole, run)
    is_near = bool(across) and _step(across[-1], side) == 1
    lanes = target.block_threads
    sizes = (counts["grid"], chunks, counts["across"]) if is_near else (counts["grid"], counts["across"], chunks)
    here = points(sizes, builder, lanes)
    place, line, chunk = (here.places[0], here.places[2], here.places[1]) if is_near else here.places

    def far(kind: str, index: Dim) -> Dim:
        named = [builder.named(f"{kind}{n}", dims.maximum(own.size, 1)) for n, own in enumerate(axes[kind])]
        strides = [builder.size(_step(own, side)) for own in axes[kind]]
        return offset(strides, split_index(index, named)) if named else 0

    base = builder.size(start) + far("grid", place) + far("across", line)
    statements: list[Statement] = []
    found: list[list[Code]] = []
    values = builder.registers("value", run, dtype)
    for number, value in enumerate(values):
        index = chunk * run + number
        mask = here.mask
        if dims.mod(whole, run) != 0:
            test = Call("less", (Integer(index), Integer(builder.named("whole", whole))), DType.bool)
            mask = test if mask is None else Call("logical_and", (mask, test), DType.bool)
        statements.append(define(value, fetch(given, base + far("sums", index), mask=mask)))
    for value in values:
        made, numbers = formed(value, element, how.planes, builder)
        statements += made
        found.append(numbers)
    line_index = place * builder.named("lines", counts["across"]) + line
    target_place = (line_index * builder.named("chunks", chunks) + chunk) * run
    plane = run * builder.named("plane", counts["grid"] * counts["across"] * chunks)
    for part in range(how.planes):
        for first in range(0, run, RUN):
            taken = [numbers[part] for numbers in found[first : first + RUN]]
            statements.append(put_run(out, part * plane + target_place + first, taken, here.mask))
    return builder.launch(lanes, statements, here.blocks)
