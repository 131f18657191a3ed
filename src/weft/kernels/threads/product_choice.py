"""Which tiles a product is computed in, and in how many parts its sums are added up: one way where all sizes are known,
else some, each for a range of sizes. What the target was tuned to for some sizes comes before what the cost model says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

import numpy as np

from weft.cost.expressions import cost
from weft.cost.sizes import estimate
from weft.cost.tile_times import FEW, Array, TensorWork, direct_time, row_time, tensor_time, tile_time
from weft.ir import dims
from weft.ir.dims import LARGEST_POSITION, Dim
from weft.ir.dtypes import DType
from weft.ir.packing import Packing
from weft.ir.target import ThreadTarget
from weft.kernels.build.epilogue import LONG
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Launch, Reference, Work, Workspace
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN, run_direction
from weft.kernels.threads.size_ranges import equal, ranges, sample
from weft.kernels.threads.split_k import adding_launch
from weft.kernels.threads.tensor_forming import Bringing, bringing, formed_operands
from weft.kernels.threads.tensor_product import tensor_product
from weft.kernels.threads.tensor_tiles import Multiplying, TensorTile, multiplying, tensor_tiles
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_product import tile_product
from weft.kernels.threads.tile_speeds import RATED_TILES, RatedTile
from weft.records import dataclass

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
_LARGEST_WIDE = 32  # sums of a lane, where one takes two registers or is written piecemeal
_LARGEST_LONG = 64  # and where much is to be done with each
_MOST_VARIANTS, _MOST_SOFTWARE_VARIANTS = 4, 2  # of a product whose sizes are not known
_MOST_TENSOR_VARIANTS = 6  # where tiles of very different sizes are best for few rows and for many
_MOST_TUNED = 4  # ways beside them that such a one was tuned to
_SIZES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18}){3}")
_ROW_LANES = 256
_MOST_REGISTERS = 200  # of a lane, for sums and what is fetched for tiles
_FETCHED_SPEED = 0.6  # of tiles into which an operand comes by registers
_MOST_SLICES = 32
_BESIDE_TENSORS = 1.4  # times as long as it says takes a product without tile products on a device that has them


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile and a number of parts, for the sizes for which `active` is 1; it is 0 for others."""

    tile: Tile | TensorTile
    parts: int
    active: Dim = 1


@dataclass(frozen=True, slots=True, eq=False)
class GivenProduct:
    """A product with its operands, which are constants or come from elsewhere."""

    product: Product
    left: Packing | Reference
    right: Packing | Reference


Give = Callable[[Multiplying | None], GivenProduct]
"""The product for tile products of a kind, with constants as these take them; or for other kernels."""


def product_work(name: str, give: Give, target: ThreadTarget, before: Work) -> Work:
    """What is to be done before, and a product: one kernel, or one for parts of the sums and one that adds those.

    Where sizes are not known there may be several such, of which a run takes one: others have no blocks.
    """
    plain = give(None)
    variants = choose(plain.product, target)
    how = multiplying(plain.product.left, plain.product.right, target)
    work = before
    others = [variant for variant in variants if isinstance(variant.tile, Tile)]
    if others:
        work, left, right = _referred(work, plain)
        for variant in others:
            assert isinstance(variant.tile, Tile)
            launch = tile_product(name, plain.product, variant.tile, variant.parts, target)
            work = _with_launch(name, plain.product, variant, launch, left, right, target, work)
    on_tensors = [variant for variant in variants if isinstance(variant.tile, TensorTile)]
    if on_tensors:
        assert how is not None
        given = plain if how.takes_plain else give(how)
        if not (others and given is plain):
            work, left, right = _referred(work, given)
        product, left, right, work = formed_operands(
            given.product, how, (left, right), sum_of(on_tensors), target, work
        )
        for variant in on_tensors:
            assert isinstance(variant.tile, TensorTile)
            launch = tensor_product(name, product, how, variant.tile, variant.parts)
            work = _with_launch(name, product, variant, launch, left, right, target, work)
    return work


def sum_of(variants: Sequence[Variant]) -> Dim:
    """1 where one of the variants is active."""
    found: Dim = 0
    for variant in variants:
        found = found + variant.active
    return found


def _referred(work: Work, given: GivenProduct) -> tuple[Work, Reference, Reference]:
    """The work with a product's constants, and where both operands are."""
    found: list[Reference] = []
    for operand in (given.left, given.right):
        if isinstance(operand, Reference):
            found.append(operand)
            continue
        found.append(Reference("constant", len(work.constants)))
        work = replace(work, constants=(*work.constants, operand))
    return work, found[0], found[1]


def _with_launch(
    name: str,
    product: Product,
    variant: Variant,
    launch: Launch,
    left: Reference,
    right: Reference,
    target: ThreadTarget,
    before: Work,
) -> Work:
    parts, active = variant.parts, variant.active
    launch = _only(launch, active)
    if parts == 1:
        return replace(before, launches=(*before.launches, launch.rebound({LEFT: left, RIGHT: right})))
    grid, rows, columns, _ = product.extents()
    space = Reference("workspace", len(before.workspaces))
    adding = _only(adding_launch(name, product, parts, target), active)
    return replace(
        before,
        launches=(
            *before.launches,
            launch.rebound({LEFT: left, RIGHT: right, RESULT: space}),
            adding.rebound({Reference("operand", 0): space}),
        ),
        workspaces=(*before.workspaces, Workspace(product.type, active * (parts * grid * rows * columns))),
    )


def _only(launch: Launch, active: Dim) -> Launch:
    return launch if active == 1 else replace(launch, blocks=active * launch.blocks)


@dataclass(frozen=True, slots=True)
class _Way:
    """A tile and a number of parts, and what tells how long they take."""

    tile: Tile | TensorTile
    parts: int
    times: Callable[[Array], Array]  # of extents

    @property
    def name(self) -> str:
        """The same for the same tile and parts, whatever run of weft they are named in."""
        match self.tile:
            case TensorTile(height, width, depth, lanes, stages, swapped):
                text = f"tiles {height}x{width}x{depth} lanes {lanes} stages {stages}{' swapped' if swapped else ''}"
            case Tile(high, wide, rows, columns, depth, shared, near, slices, interleaved):
                marks = f"{' shared' if shared else ''}{' interleaved' if interleaved else ''}"
                text = f"lanes {high}x{wide} of {rows}x{columns}x{depth} near {near} slices {slices}{marks}"
        return f"{text} parts {self.parts}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A product that a way was chosen for, and all that could be: names and predicted seconds, the least first."""

    product: str
    chosen: str
    ways: tuple[tuple[str, float], ...]


_asked: ContextVar[tuple[Mapping[str, int], list[Asked]] | None] = ContextVar("asked", default=None)


@contextmanager
def asked_products(sizes: Mapping[str, int]) -> Iterator[list[Asked]]:
    """A list that is filled with the products that ways are chosen for in the meantime, as they are with these sizes;
    without those whose sizes are then unknown.
    """
    found: list[Asked] = []
    token = _asked.set((sizes, found))
    try:
        yield found
    finally:
        _asked.reset(token)


def _name_around_sizes(product: Product, target: ThreadTarget) -> tuple[str, str]:
    """What decides how fast the ways of a product are, as a text before its sizes and one behind them: types, how its
    operands come, what is done with its results.
    """
    how = multiplying(product.left, product.right, target)
    text = f"axes {len(product.rows)},{len(product.columns)},{len(product.sums)}"
    if how is not None:
        text += f" by {how.left}*{how.right}" + (f" in {how.planes}" if how.planes > 1 else "")
    for side, name in enumerate(("left", "right")):
        if product.elements[side] == 0:
            text += f" {name} constant"
        elif how is not None:
            text += f" {name} {bringing(product, how, side).value}"
        text += f" {run_direction(merged(product), side == 0, RUN) or 'apart'}"
    text += f" tests {len(product.inside)}" if product.inside else ""
    text += " ordered" if product.order is not None else ""
    text += f" then {cost(product.epilogue.expression):g}" if product.epilogue is not None else ""
    return f"{product.left}*{product.right}={product.result.dtype} ", f" {text}"


@memoized
def choose(product: Product, target: ThreadTarget) -> tuple[Variant, ...]:
    """One variant where sizes are known, else some; for any sizes one of them is active."""
    extents = product.extents()
    samples = sample(extents) or [tuple(min(max(estimate(extent), 1), LARGEST_POSITION) for extent in extents)]
    ways = _ways(product, samples, target)
    times = np.stack([way.times(np.array(samples, np.float64).T) for way in ways], axis=1)
    most = _MOST_VARIANTS if target.sharing_pays else _MOST_SOFTWARE_VARIANTS
    found = ranges(extents, samples, times, most)
    variants = tuple(Variant(ways[one.way].tile, ways[one.way].parts, one.active) for one in found)
    asked = _asked.get()
    if not target.sharing_pays or (asked is None and not target.tuned):
        return variants
    around = _name_around_sizes(product, target)
    variants = _with_tuned(variants, ways, extents, around, target)
    if asked is not None:
        _note(variants, ways, extents, around, *asked)
    return variants


def _with_tuned(
    variants: Sequence[Variant],
    ways: Sequence[_Way],
    extents: Sequence[Dim],
    around: tuple[str, str],
    target: ThreadTarget,
) -> tuple[Variant, ...]:
    """The variants, and before them what the target was tuned to for some sizes, as far as it is one of the ways."""
    before, behind = around
    by_name = {way.name: way for way in ways}
    tuned: dict[str, Dim] = {}
    for name, way in target.tuned:
        sizes = name.removeprefix(before).removesuffix(behind)
        if way in by_name and name == f"{before}{sizes}{behind}" and _SIZES.fullmatch(sizes):
            active = dims.product(equal(extent, int(size)) for extent, size in zip(extents, sizes.split("x")))
            if active != 0 and (way in tuned or len(tuned) < _MOST_TUNED):
                tuned[way] = tuned.get(way, 0) + active
    rest: Dim = 1
    for active in tuned.values():
        rest = rest - active
    own = [Variant(by_name[way].tile, by_name[way].parts, active) for way, active in tuned.items()]
    others = [replace(variant, active=rest * variant.active) for variant in variants]
    return (*own, *(variant for variant in others if variant.active != 0))


def _note(
    variants: Sequence[Variant],
    ways: Sequence[_Way],
    extents: Sequence[Dim],
    around: tuple[str, str],
    sizes: Mapping[str, int],
    asked: list[Asked],
) -> None:
    if not {symbol.name for extent in extents for symbol in dims.symbols(extent)} <= sizes.keys():
        return
    numbers = [dims.evaluate(extent, sizes) for extent in extents]
    if 0 in numbers:
        return
    times = [(way.name, float(way.times(np.array([numbers], np.float64).T)[0])) for way in ways]
    (chosen,) = (variant for variant in variants if dims.evaluate(variant.active, sizes) == 1)
    (name,) = {way.name for way in ways if (way.tile, way.parts) == (chosen.tile, chosen.parts)}
    product = "x".join(map(str, numbers)).join(around)
    asked.append(Asked(product, name, tuple(sorted(times, key=lambda entry: entry[1]))))


def _ways(product: Product, samples: Sequence[Sequence[int]], target: ThreadTarget) -> list[_Way]:
    """All that may be best for one of the samples."""
    rates = target.rates
    if not target.sharing_pays:
        tiles = dict.fromkeys(_own_tile(product, extents) for extents in samples)
        return [_Way(tile, 1, partial(direct_time, rates, tile)) for tile in tiles]
    element = product.right.numpy.itemsize
    tiles = dict.fromkeys(_row_tile(product, extents, target) for extents in samples if extents[1] <= FEW)
    found = [_Way(tile, parts, partial(row_time, rates, tile, parts, element)) for tile in tiles for parts in _PARTS]
    if any(extents[1] > FEW for extents in samples):
        for rated in _fitting(product, target):
            time = partial(tile_time, rates, rated.tile, rated.speed)
            found += [_Way(rated.tile, parts, partial(time, parts)) for parts in _PARTS]
    on_tensors = _tensor_ways(product, target)
    return [_slower(way) for way in found] + on_tensors if on_tensors else found


def _slower(way: _Way) -> _Way:
    """A way beside those on tile products, whose times are closer to what is measured than its own."""
    return replace(way, times=lambda extents: _BESIDE_TENSORS * way.times(extents))


def _tensor_ways(product: Product, target: ThreadTarget) -> list[_Way]:
    """Those of tile products."""
    how = multiplying(product.left, product.right, target)
    found: list[_Way] = []
    if how is None:
        return found
    ways = [bringing(product, how, side) for side in (0, 1)]
    work = TensorWork(
        how.tile_product.unit_flops,
        how.products,
        how.planes * how.left.bits / 8,
        (_formed_bytes(product, how, ways[0], 0), _formed_bytes(product, how, ways[1], 1)),
        _FETCHED_SPEED if Bringing.FETCHED in ways else 1.0,
        written=product.result.dtype.numpy.itemsize,
    )
    for tile, speed in tensor_tiles(how, target):
        fetched = [
            extent * tile.depth // tile.lanes
            for way, extent in zip(ways, (tile.height, tile.width))
            if way is Bringing.FETCHED
        ]
        if tile.sums(how) + sum(fetched) > _MOST_REGISTERS:
            continue
        own = replace(work, ahead=(tile.stages - 1) * tile.stage_bytes(how))
        time = partial(tensor_time, target.rates, tile.height, tile.width, tile.depth, speed, own)
        found += [_Way(tile, parts, partial(time, parts)) for parts in _PARTS]
    return found


def _formed_bytes(product: Product, how: Multiplying, way: Bringing, side: int) -> float:
    """Bytes that are read and written to make an operand ready, for each time that an element is taken up."""
    if way not in (Bringing.FORMED, Bringing.ARRANGED):
        return 0.0
    grid, rows, columns, sums = map(estimate, product.extents())
    taken = max(grid * (columns if side else rows) * sums, 1)
    own = product.right if side else product.left
    return (own.bits + how.planes * how.left.bits) / 8 * estimate(product.elements[side]) / taken


def _fitting(product: Product, target: ThreadTarget) -> list[RatedTile]:
    size = product.type.numpy.itemsize
    most = _most_sums(product)
    return [
        rated
        for rated in RATED_TILES
        if rated.tile.bytes(size) <= target.shared_bytes
        and rated.tile.lanes <= target.most_block_threads
        and rated.tile.rows * rated.tile.columns <= most
    ]


def _most_sums(product: Product) -> int:
    """Sums that a lane may have, so that kernels stay small enough to compile."""
    written = product.result.dtype
    if product.type.numpy.itemsize > 4 or (written.numpy.itemsize < 4 and written is not DType.float16):
        return _LARGEST_WIDE
    is_long = product.epilogue is not None and cost(product.epilogue.expression) > LONG
    return _LARGEST_LONG if is_long else 1 << 30


def _row_tile(product: Product, extents: Sequence[int], target: ThreadTarget) -> Tile:
    """For few rows: every element of the right operand is read once, by lanes that share the sums."""
    grid, rows, columns, sums = extents
    deep = bool(product.sums) and product.sums[-1].right == 1
    many = not deep and grid * columns >= target.rates.compute_units * _ROW_LANES // 2
    wide = 32 if many else 8
    slices = min(_ROW_LANES // wide, _MOST_SLICES)
    while slices > 1 and RUN * slices > sums:
        slices //= 2
    tall = _power(rows) if _are_apart(product) else max(_power(rows), RUN)
    tile = Tile(1, wide, tall, RUN, RUN * slices, shared=False, slices=slices, interleaved=deep)
    while tile.bytes(product.type.numpy.itemsize) > target.shared_bytes or tile.lanes > target.most_block_threads:
        tile = replace(tile, slices=tile.slices // 2, depth=tile.depth // 2)
    return tile


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
    return all(loop_axis.left != 1 for loop_axis in product.rows)


def _power(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
