"""Which tiles a product is computed in, and in how many parts its sums are added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from weft.ir.dtypes import DType
from weft.ir.target import Target
from weft.kernels.ending import LONG, ending_references
from weft.kernels.grid.product import Product
from weft.kernels.grid.sides import RUN
from weft.kernels.grid.split import adding_launch
from weft.kernels.grid.tile import Tile
from weft.kernels.grid.tile_products import tile_product
from weft.kernels.launch import Reference, Work, Workspace
from weft.kernels.nest import cost, estimate

_UNITS = 132  # of a device, each of which runs blocks on its own
_SPEED = 0.225  # millions of multiply-adds that a unit does in a microsecond at most
_START = 2.0  # microseconds of a launch
_BANDWIDTH = 2.0  # megabytes a microsecond that parts of sums are written and read with
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
_SHORTEST = 128  # sums of a part


@dataclass(frozen=True, slots=True)
class _Kind:
    """A tile, and which part of a unit's speed its blocks reach: one of them, and as many as there is `room` for.

    Measured on an H200 (132 units), on which times that come out here were right within some percent.
    """

    tile: Tile
    alone: float
    full: float
    room: int
    start: float = 0.0  # microseconds


_KINDS = (
    _Kind(Tile(8, 16, 16, 8, 8, near=8), 0.65, 0.8, 2),
    _Kind(Tile(8, 16, 8, 8, 16), 0.675, 0.8, 3),
    _Kind(Tile(8, 16, 8, 4, 16), 0.575, 0.72, 4),
    _Kind(Tile(8, 8, 4, 8, 16), 0.3, 0.525, 2),
    _Kind(Tile(8, 8, 4, 8, 32, slices=2), 0.525, 0.525, 2, 1.5),
    _Kind(Tile(4, 8, 4, 4, 64, slices=4), 0.325, 0.325, 2, 0.5),
)
_LARGEST_WIDE = 32  # sums of a lane, where one takes two registers or is written piecemeal
_LARGEST_LONG = 64  # and where much is to be done with each
_FEW = 8  # rows with which a product is bound by memory
_ROW_LANES = 256
_MOST_SLICES = 32


def product_work(name: str, product: Product, left: Reference, right: Reference, target: Target, before: Work) -> Work:
    """What is to be done before, and a product: one kernel, or one for parts of the sums and one that adds those."""
    tile, parts = choose(product, target)
    launch = tile_product(name, product, tile, parts, target)
    ending = ending_references(product.epilogue)
    if parts == 1:
        return replace(before, launches=(*before.launches, (launch, (left, right, *ending))))
    grid, rows, columns, _ = product.extents()
    space = Reference("workspace", len(before.workspaces))
    adding = adding_launch(name, product, parts, target)
    return replace(
        before,
        launches=(*before.launches, (launch, (left, right, space)), (adding, (space, *ending))),
        workspaces=(*before.workspaces, Workspace(product.type, parts * grid * rows * columns)),
    )


def choose(product: Product, target: Target) -> tuple[Tile, int]:
    """The tile and the number of parts."""
    extents = tuple(max(estimate(extent), 1) for extent in product.extents())
    if not target.shared_bytes:
        return _own_tile(product, extents), 1
    if extents[1] <= _FEW:
        return _row_tile(product, extents, target)
    size = product.type.numpy.itemsize
    most = _most_sums(product)
    fitting = [
        kind
        for kind in _KINDS
        if kind.tile.bytes(size) <= target.shared_bytes
        and kind.tile.lanes <= target.most_threads
        and kind.tile.rows * kind.tile.columns <= most
    ]
    ways = [(_time(kind, parts, extents), kind.tile, parts) for kind in fitting for parts in _PARTS]
    _, tile, parts = min(ways, key=lambda way: way[0])
    return tile, parts


def _most_sums(product: Product) -> int:
    """Sums that a lane may have, so that kernels stay small enough to compile."""
    written = product.result.dtype
    if product.type.numpy.itemsize > 4 or (written.numpy.itemsize < 4 and written is not DType.float16):
        return _LARGEST_WIDE
    is_long = product.epilogue is not None and cost(product.epilogue.expression) > LONG
    return _LARGEST_LONG if is_long else 1 << 30


def _time(kind: _Kind, parts: int, extents: Sequence[int]) -> float:
    """Microseconds that a product takes on a large device, about."""
    grid, rows, columns, sums = extents
    if parts > 1 and sums < parts * _SHORTEST:
        return inf
    tile = kind.tile
    blocks = grid * parts * -(-rows // tile.height) * -(-columns // tile.width)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    each = -(-blocks // _UNITS)
    share = (min(each, kind.room) - 1) / (kind.room - 1)
    speed = kind.alone + (kind.full - kind.alone) * share
    multiplied = each * tile.height * tile.width * depth / 1e6 / (_SPEED * speed)
    moved = 8 * parts * grid * rows * columns / 1e6 / _BANDWIDTH + _START if parts > 1 else 0.0
    return _START + kind.start + multiplied + moved


def _row_tile(product: Product, extents: Sequence[int], target: Target) -> tuple[Tile, int]:
    """For few rows: every element of the right operand is read once, by lanes that share the sums."""
    grid, rows, columns, sums = extents
    deep = bool(product.sums) and product.sums[-1].right == 1
    many = not deep and grid * columns >= _UNITS * _ROW_LANES // 2
    wide = 32 if many else 8
    slices = min(_ROW_LANES // wide, _MOST_SLICES)
    while slices > 1 and RUN * slices > sums:
        slices //= 2
    tall = _power(rows) if _are_apart(product) else max(_power(rows), RUN)
    tile = Tile(1, wide, tall, RUN, RUN * slices, shared=False, slices=slices, interleaved=deep)
    while tile.bytes(product.type.numpy.itemsize) > target.shared_bytes or tile.lanes > target.most_threads:
        tile = replace(tile, slices=tile.slices // 2, depth=tile.depth // 2)
    blocks = grid * -(-columns // tile.width)
    fitting = [parts for parts in _PARTS if sums >= parts * max(tile.depth, _SHORTEST)]
    few = [parts for parts in fitting if blocks * parts <= _UNITS // 2]
    return tile, max(few, default=1) if blocks < _UNITS // 8 else 1


def _own_tile(product: Product, extents: Sequence[int]) -> Tile:
    """For lanes that read memory on their own: as large as registers allow."""
    _, rows, columns, _ = extents
    each = 8 if columns > 32 else 4
    wide = _power(min(max(-(-columns // each), 8), 16))
    single = len(product.rows) == 1 and not product.inside
    high = 16 // wide if single and rows > 8 else 1
    most = 4 if 8 * each > _most_sums(product) else 8
    tall = -(-rows // -(-rows // most)) if rows < 8 * most and high == 1 and _are_apart(product) else most
    return Tile(high, wide, tall, each, RUN, shared=False)


def _are_apart(product: Product) -> bool:
    """Whether rows are read one by one, never in runs."""
    return all(walk.left != 1 for walk in product.rows)


def _power(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
