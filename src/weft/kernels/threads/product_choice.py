"""Choose the tiling of a product: the tile of a block, and the number of splits of the reduction (split-K).

There is one choice where all sizes are known, otherwise one for each range of sizes. Tuned choices of the target
override the cost model.
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
from weft.cost.tile_times import FEW, TensorWork, direct_time, row_time, tensor_time, tile_time
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import LARGEST_POSITION, Dim
from weft.ir.dtypes import DType
from weft.ir.packing import Packing
from weft.ir.target import ThreadTarget
from weft.kernels.build.epilogue import LONG
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Launch, Reference, Work, Workspace
from weft.kernels.threads.lane_groups import power_of_two
from weft.kernels.threads.operand_staging import OperandStaging, choose_staging, stage_operands
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_operands import RUN, run_direction
from weft.kernels.threads.size_ranges import choose_ranges, equal, run_where, sample_extents
from weft.kernels.threads.split_k import build_split_sum_launch
from weft.kernels.threads.tensor_product import build_tensor_product
from weft.kernels.threads.tensor_tile import ProductScheme, TensorTile, find_product_scheme, list_tensor_tiles
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_product import build_tile_product
from weft.kernels.threads.tile_speeds import RATED_TILES, RatedTile
from weft.records import dataclass

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_MAX_WIDE_SUMS = 32  # of a lane, where a sum takes two registers or is written element by element
_MAX_LONG_SUMS = 64  # of a lane, where the epilogue is long
_MAX_VARIANTS, _MAX_SOFTWARE_VARIANTS = 4, 2  # of a product with dynamic sizes
_MAX_TUNED = 4  # tuned variants of a product with dynamic sizes, beside those of the cost model
_SIZES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18}){3}")
_ROW_LANES = 256
_MAX_REGISTERS = 200  # of a lane, for sums and for elements that are loaded into tiles
_FETCHED_SPEED = 0.6  # relative, of tiles with an operand that is loaded through registers
_MAX_SLICES = 32
_PLAIN_PENALTY = 1.4  # measured over predicted time of kernels without tile products on devices that have them


@dataclass(frozen=True, slots=True)
class Variant:
    """A tiling for the sizes for which `active` is 1; it is 0 for others."""

    tile: Tile | TensorTile
    splits: int
    active: Dim = 1


@dataclass(frozen=True, slots=True, eq=False)
class BoundProduct:
    """A product with its operands: packed constants, or references to buffers."""

    product: Product
    left: Packing | Reference
    right: Packing | Reference


KernelFactory = Callable[[ProductScheme | None], BoundProduct]
"""Builds the product that kernels on tile products of a scheme compute, or (None) that other kernels compute: constants
are laid out differently for each.
"""


def build_product_work(name: str, factory: KernelFactory, target: ThreadTarget, before: Work) -> Work:
    """Append a product to `before`: one launch, or with split-K one for the splits and one that adds them up.

    With dynamic sizes there may be several variants; in a run all but one of them have no blocks.
    """
    plain = factory(None)
    variants = choose(plain.product, target)
    scheme = _find_scheme(plain.product, target)
    work = before
    plain_variants = [variant for variant in variants if isinstance(variant.tile, Tile)]
    if plain_variants:
        work, left, right = _bind_operands(work, plain)
        for variant in plain_variants:
            assert isinstance(variant.tile, Tile)
            launch = build_tile_product(name, plain.product, variant.tile, variant.splits, target)
            work = _append_variant(name, plain.product, variant, launch, left, right, target, work)
    tensor_variants = [variant for variant in variants if isinstance(variant.tile, TensorTile)]
    if tensor_variants:
        assert scheme is not None
        bound = plain if scheme.reads_plain_constants else factory(scheme)
        if not (plain_variants and bound is plain):
            work, left, right = _bind_operands(work, bound)
        active: Dim = 0
        for variant in tensor_variants:
            active = active + variant.active
        product, left, right, work = stage_operands(bound.product, scheme, (left, right), active, target, work)
        for variant in tensor_variants:
            assert isinstance(variant.tile, TensorTile)
            launch = build_tensor_product(name, product, scheme, variant.tile, variant.splits)
            work = _append_variant(name, product, variant, launch, left, right, target, work)
    return work


def _find_scheme(product: Product, target: ThreadTarget) -> ProductScheme | None:
    return find_product_scheme(product.left, product.right, target, has_wide_result=product.has_wide_result)


def _bind_operands(work: Work, bound: BoundProduct) -> tuple[Work, Reference, Reference]:
    """Add a product's constants to the work; returns the work and references to both operands."""
    references: list[Reference] = []
    for operand in (bound.left, bound.right):
        if isinstance(operand, Reference):
            references.append(operand)
            continue
        references.append(Reference("constant", len(work.constants)))
        work = replace(work, constants=(*work.constants, operand))
    return work, references[0], references[1]


def _append_variant(
    name: str,
    product: Product,
    variant: Variant,
    launch: Launch,
    left: Reference,
    right: Reference,
    target: ThreadTarget,
    before: Work,
) -> Work:
    splits, active = variant.splits, variant.active
    launch = run_where(active, launch)
    if splits == 1:
        return replace(before, launches=(*before.launches, launch.rebound({LEFT: left, RIGHT: right})))
    grid, rows, columns, _ = product.extents()
    workspace = Reference("workspace", len(before.workspaces))
    split_sum = run_where(active, build_split_sum_launch(name, product, splits, target))
    return replace(
        before,
        launches=(
            *before.launches,
            launch.rebound({LEFT: left, RIGHT: right, RESULT: workspace}),
            split_sum.rebound({Reference("operand", 0): workspace}),
        ),
        workspaces=(*before.workspaces, Workspace(product.type, active * (splits * grid * rows * columns))),
    )


@dataclass(frozen=True, slots=True)
class TilingCandidate:
    """A tiling, and a function that predicts its times for arrays of extents."""

    tile: Tile | TensorTile
    splits: int
    predict: Callable[[Array], Array]

    @property
    def name(self) -> str:
        """The name that tuned choices are stored under."""
        match self.tile:
            case TensorTile(height, width, depth, lanes, stages, swapped):
                text = f"tiles {height}x{width}x{depth} lanes {lanes} stages {stages}{' swapped' if swapped else ''}"
            case Tile(high, wide, rows, columns, depth, shared, near, slices, interleaved):
                marks = f"{' shared' if shared else ''}{' interleaved' if interleaved else ''}"
                text = f"lanes {high}x{wide} of {rows}x{columns}x{depth} near {near} slices {slices}{marks}"
        return f"{text} parts {self.splits}"


@dataclass(frozen=True, slots=True)
class TilingQuery:
    """A product whose tiling was chosen; `candidates` are (name, predicted seconds), the fastest first."""

    product: str
    chosen: str
    candidates: tuple[tuple[str, float], ...]


_recorder: ContextVar[tuple[Mapping[str, int], list[TilingQuery]] | None] = ContextVar("recorder", default=None)


@contextmanager
def record_tiling_queries(sizes: Mapping[str, int]) -> Iterator[list[TilingQuery]]:
    """Record the products whose tilings are chosen inside the context, for these sizes of dynamic dims.

    Products with other dynamic dims are left out.
    """
    queries: list[TilingQuery] = []
    token = _recorder.set((sizes, queries))
    try:
        yield queries
    finally:
        _recorder.reset(token)


def _name_around_sizes(product: Product, target: ThreadTarget) -> tuple[str, str]:
    """Return the text before and after the sizes in a product's name, which tuned choices are stored under.

    It covers what the speed of tilings depends on: types, staging of operands, epilogue.
    """
    scheme = _find_scheme(product, target)
    text = f"axes {len(product.rows)},{len(product.columns)},{len(product.sums)}"
    if scheme is not None:
        text += f" by {scheme.left}*{scheme.right}" + (f" in {scheme.planes}" if scheme.planes > 1 else "")
        text += " promoted" if scheme.promotes_sums and scheme.planes == 1 else ""
    for side, name in enumerate(("left", "right")):
        if product.elements[side] == 0:
            text += f" {name} constant"
        elif scheme is not None:
            text += f" {name} {choose_staging(product, scheme, side).value}"
        text += f" {run_direction(merge_product_axes(product), side == 0, RUN) or 'apart'}"
    text += f" tests {len(product.inside)}" if product.inside else ""
    text += " ordered" if product.order is not None else ""
    text += f" then {cost(product.epilogue.expression):g}" if product.epilogue is not None else ""
    return f"{product.left}*{product.right}={product.result.dtype} ", f" {text}"


@memoize
def choose(product: Product, target: ThreadTarget) -> tuple[Variant, ...]:
    """Choose one variant if sizes are known, otherwise several; for any sizes exactly one is active."""
    extents = product.extents()
    samples = sample_extents(extents) or [tuple(min(max(estimate(extent), 1), LARGEST_POSITION) for extent in extents)]
    candidates = _list_candidates(product, samples, target)
    times = np.stack([candidate.predict(np.array(samples, np.float64).T) for candidate in candidates], axis=1)
    max_variants = _MAX_VARIANTS if target.sharing_pays else _MAX_SOFTWARE_VARIANTS
    variants = tuple(
        Variant(candidates[entry.candidate].tile, candidates[entry.candidate].splits, entry.active)
        for entry in choose_ranges(extents, samples, times, max_variants)
    )
    recorder = _recorder.get()
    if not target.sharing_pays or (recorder is None and not target.tuned):
        return variants
    around = _name_around_sizes(product, target)
    variants = _with_tuned(variants, candidates, extents, around, target)
    if recorder is not None:
        _record_query(variants, candidates, extents, around, *recorder)
    return variants


def _with_tuned(
    variants: Sequence[Variant],
    candidates: Sequence[TilingCandidate],
    extents: Sequence[Dim],
    around: tuple[str, str],
    target: ThreadTarget,
) -> tuple[Variant, ...]:
    """Put the target's tuned choices before the variants, as far as they are among the candidates."""
    before, after = around
    by_name = {candidate.name: candidate for candidate in candidates}
    tuned: dict[str, Dim] = {}
    for product, choice in target.tuned:
        sizes = product.removeprefix(before).removesuffix(after)
        if choice in by_name and product == f"{before}{sizes}{after}" and _SIZES.fullmatch(sizes):
            active = dims.product(equal(extent, int(size)) for extent, size in zip(extents, sizes.split("x")))
            if active != 0 and (choice in tuned or len(tuned) < _MAX_TUNED):
                tuned[choice] = tuned.get(choice, 0) + active
    remaining: Dim = 1
    for active in tuned.values():
        remaining = remaining - active
    tuned_variants = [Variant(by_name[name].tile, by_name[name].splits, active) for name, active in tuned.items()]
    others = [replace(variant, active=remaining * variant.active) for variant in variants]
    return (*tuned_variants, *(variant for variant in others if variant.active != 0))


def _record_query(
    variants: Sequence[Variant],
    candidates: Sequence[TilingCandidate],
    extents: Sequence[Dim],
    around: tuple[str, str],
    sizes: Mapping[str, int],
    queries: list[TilingQuery],
) -> None:
    if not {symbol.name for extent in extents for symbol in dims.symbols(extent)} <= sizes.keys():
        return
    numbers = [dims.evaluate(extent, sizes) for extent in extents]
    if 0 in numbers:
        return
    times = [
        (candidate.name, float(candidate.predict(np.array([numbers], np.float64).T)[0])) for candidate in candidates
    ]
    (chosen,) = (variant for variant in variants if dims.evaluate(variant.active, sizes) == 1)
    tiling = (chosen.tile, chosen.splits)
    (name,) = {candidate.name for candidate in candidates if (candidate.tile, candidate.splits) == tiling}
    product = "x".join(map(str, numbers)).join(around)
    queries.append(TilingQuery(product, name, tuple(sorted(times, key=lambda entry: entry[1]))))


def _list_candidates(product: Product, samples: Sequence[Sequence[int]], target: ThreadTarget) -> list[TilingCandidate]:
    """List the tilings that may be the best for one of the samples."""
    rates = target.rates
    if not target.sharing_pays:
        tiles = dict.fromkeys(_register_tile(product, extents) for extents in samples)
        return [TilingCandidate(tile, 1, partial(direct_time, rates, tile)) for tile in tiles]
    element = product.right.numpy.itemsize
    tiles = dict.fromkeys(_row_tile(product, extents, target) for extents in samples if extents[1] <= FEW)
    candidates = [
        TilingCandidate(tile, splits, partial(row_time, rates, tile, splits, element))
        for tile in tiles
        for splits in _SPLITS
    ]
    if any(extents[1] > FEW for extents in samples):
        for rated in _list_shared_tiles(product, target):
            time = partial(tile_time, rates, rated.tile, rated.speed)
            candidates += [TilingCandidate(rated.tile, splits, partial(time, splits)) for splits in _SPLITS]
    tensor_candidates = _list_tensor_candidates(product, target)
    if not tensor_candidates:
        return candidates
    return [*map(_penalize, candidates), *tensor_candidates]


def _penalize(candidate: TilingCandidate) -> TilingCandidate:
    return replace(candidate, predict=lambda extents: _PLAIN_PENALTY * candidate.predict(extents))


def _list_tensor_candidates(product: Product, target: ThreadTarget) -> list[TilingCandidate]:
    """List tilings on tile products."""
    scheme = _find_scheme(product, target)
    candidates: list[TilingCandidate] = []
    if scheme is None:
        return candidates
    stagings = [choose_staging(product, scheme, side) for side in (0, 1)]
    work = TensorWork(
        scheme.tile_product.unit_flops,
        scheme.products,
        scheme.planes * scheme.left.bits / 8,
        (
            _conversion_bytes(product, scheme, stagings[0], 0),
            _conversion_bytes(product, scheme, stagings[1], 1),
        ),
        _FETCHED_SPEED if OperandStaging.FETCHED in stagings else 1.0,
        written=product.result.dtype.numpy.itemsize,
    )
    for tile, speed in list_tensor_tiles(scheme, target):
        fetch_registers = [
            extent * tile.depth // tile.lanes
            for staging, extent in zip(stagings, (tile.height, tile.width))
            if staging is OperandStaging.FETCHED
        ]
        if tile.sums(scheme) + sum(fetch_registers) > _MAX_REGISTERS:
            continue
        tile_work = replace(work, ahead=(tile.stages - 1) * tile.stage_bytes(scheme))
        time = partial(tensor_time, target.rates, tile.height, tile.width, tile.depth, speed, tile_work)
        candidates += [TilingCandidate(tile, splits, partial(time, splits)) for splits in _SPLITS]
    return candidates


def _conversion_bytes(product: Product, scheme: ProductScheme, staging: OperandStaging, side: int) -> float:
    """Count the bytes read and written to convert an operand, per read of an element by the product."""
    if staging not in (OperandStaging.CONVERTED, OperandStaging.PACKED):
        return 0.0
    grid, rows, columns, sums = map(estimate, product.extents())
    reads = max(grid * (columns if side else rows) * sums, 1)
    dtype = product.right if side else product.left
    return (dtype.bits + scheme.planes * scheme.left.bits) / 8 * estimate(product.elements[side]) / reads


def _list_shared_tiles(product: Product, target: ThreadTarget) -> list[RatedTile]:
    """List the tiles in shared memory that fit a product and a target."""
    size = product.type.numpy.itemsize
    max_sums = _max_sums(product)
    return [
        rated
        for rated in RATED_TILES
        if rated.tile.bytes(size) <= target.shared_bytes
        and rated.tile.lanes <= target.most_block_threads
        and rated.tile.rows * rated.tile.columns <= max_sums
    ]


def _max_sums(product: Product) -> int:
    """Return the number of sums that a lane may have for the kernel to stay small enough to compile."""
    dtype = product.result.dtype
    if product.type.numpy.itemsize > 4 or (dtype.numpy.itemsize < 4 and dtype is not DType.float16):
        return _MAX_WIDE_SUMS
    is_long = product.epilogue is not None and cost(product.epilogue.expression) > LONG
    return _MAX_LONG_SUMS if is_long else 1 << 30


def _row_tile(product: Product, extents: Sequence[int], target: ThreadTarget) -> Tile:
    """Choose the tile for few rows: every element of the right operand is read once, by lanes that share the sums."""
    grid, rows, columns, sums = extents
    is_deep = bool(product.sums) and product.sums[-1].right == 1
    is_large = not is_deep and grid * columns >= target.rates.compute_units * _ROW_LANES // 2
    wide = 32 if is_large else 8
    slices = min(_ROW_LANES // wide, _MAX_SLICES)
    while slices > 1 and RUN * slices > sums:
        slices //= 2
    lane_rows = power_of_two(rows) if _are_rows_strided(product) else max(power_of_two(rows), RUN)
    tile = Tile(1, wide, lane_rows, RUN, RUN * slices, shared=False, slices=slices, interleaved=is_deep)
    while tile.bytes(product.type.numpy.itemsize) > target.shared_bytes or tile.lanes > target.most_block_threads:
        tile = replace(tile, slices=tile.slices // 2, depth=tile.depth // 2)
    return tile


def _register_tile(product: Product, extents: Sequence[int]) -> Tile:
    """Choose the tile where lanes read memory directly: as large as registers allow."""
    _, rows, columns, _ = extents
    lane_columns = 8 if columns > 32 else 4
    wide = power_of_two(min(max(-(-columns // lane_columns), 8), 16))
    is_single = len(product.rows) == 1 and not product.inside
    high = 16 // wide if is_single and rows > 8 else 1
    lane_rows = 4 if 8 * lane_columns > _max_sums(product) else 8
    if rows < 8 * lane_rows and high == 1 and _are_rows_strided(product):
        lane_rows = -(-rows // -(-rows // lane_rows))
    return Tile(high, wide, lane_rows, lane_columns, RUN, shared=False)


def _are_rows_strided(product: Product) -> bool:
    """Whether rows are read one by one, never in runs."""
    return all(loop_axis.left != 1 for loop_axis in product.rows)
