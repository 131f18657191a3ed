"""Split a product into blocks by its sizes alone, never by the number of threads.

If sizes are known, two, four or eight threads can share the blocks evenly; launches too small to share are one block.
Consecutive blocks share the operand that does not fit the cache.
"""

from __future__ import annotations

from weft.cost.blocks import (
    BLOCK_OVERHEAD,
    BLOCK_WORK,
    LEAST_BLOCK_WORK,
    OPERATIONS_PER_FAR_BYTE,
    OPERATIONS_PER_WEIGHT_BYTE,
)
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.records import dataclass

# Bytes between weights in use and those that are prefetched: a part of L1, and further than hardware looks.
PREFETCH_BYTES = 8192
_THREADS = (1, 2, 4, 8)
_MAX_PARTS = 64  # tried when splitting rows or columns


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The work of a product: tiles of rows times panels of columns, `grid` times."""

    grid: Dim
    tiles: Dim
    panels: Dim
    work: Dim  # operations of one tile with one panel
    tile_bytes: Dim  # of the left operand
    panel_bytes: Dim  # of the right operand


@dataclass(frozen=True, slots=True)
class Blocking:
    """Tiles and panels of a block; with `tiles_first` the next block has other tiles and the same panels."""

    tiles: Dim
    panels: Dim
    tiles_first: bool


def choose_blocking(shape: ProductShape, max_tiles: Dim, step: int, cache_bytes: int) -> Blocking:
    """Choose a blocking with at most `max_tiles` tiles per block, and panels as multiples of `step` if possible."""
    are_known = all(isinstance(size, int) for size in (shape.tiles, shape.panels, shape.work, max_tiles))
    if are_known:
        tiles, panels = _block_known_sizes(shape, max_tiles, step)
    else:
        tiles, panels = _block_unknown_sizes(shape, max_tiles, step, cache_bytes)
    return Blocking(tiles, panels, _should_keep_panels(shape, tiles, panels, cache_bytes))


def exceeds_cache(panel_bytes: Dim, cache_bytes: int) -> bool:
    """Return whether all panels together do not stay in the cache beside tiles; False where that is unknown."""
    return dims.is_at_least(panel_bytes, cache_bytes // 2)


def choose_part_size(count: Dim, part: Dim) -> Dim:
    """Return a part size near `part` such that two, four or eight threads share `count` evenly, if sizes are known."""
    if not isinstance(count, int) or not isinstance(part, int) or count <= part:
        return dims.minimum(part, dims.maximum(count, 1))
    parts = -(-count // part)
    return -(-count // (4 if 2 < parts <= 4 else parts if parts <= 2 else -(-parts // 8) * 8))


def count_blocks(work: Dim) -> Dim:
    """Return the number of blocks for some operations: a multiple of eight, unless blocks would be too small."""
    blocks = dims.ceildiv(work, BLOCK_WORK * _THREADS[-1]) * _THREADS[-1]
    return dims.minimum(blocks, dims.floordiv(work, LEAST_BLOCK_WORK) + 1)


def _should_keep_panels(shape: ProductShape, tiles: Dim, panels: Dim, cache_bytes: int) -> bool:
    """Return whether less memory is read if consecutive blocks have the same panels and other tiles."""
    left, right = estimate(shape.tiles * shape.tile_bytes), estimate(shape.panels * shape.panel_bytes)
    tile_chunks = max(estimate(dims.ceildiv(shape.tiles, tiles)), 1)
    panel_chunks = max(estimate(dims.ceildiv(shape.panels, panels)), 1)
    again = panel_chunks if left > cache_bytes // 2 else 1
    return left * again + right < left + right * (tile_chunks if right > cache_bytes // 2 else 1)


def _block_unknown_sizes(shape: ProductShape, max_tiles: Dim, step: int, cache_bytes: int) -> tuple[Dim, Dim]:
    """Choose (tiles, panels) for about as many blocks as threads share well, for sizes known only at run time.

    Blocks whose panels come from memory get as many tiles as possible, which share the wait for the next panel.
    """
    is_far = exceeds_cache(shape.panels * shape.panel_bytes, cache_bytes)
    all_tiles = shape.grid * shape.tiles * shape.panels if is_far else shape.tiles
    tiles = dims.maximum(dims.minimum(max_tiles, dims.ceildiv(all_tiles, 2 * _THREADS[-1])), 1)
    reading = shape.panel_bytes * round(OPERATIONS_PER_WEIGHT_BYTE)
    blocks = count_blocks(shape.grid * shape.panels * (shape.tiles * shape.work + reading))
    chunks = dims.ceildiv(blocks, dims.maximum(shape.grid * dims.ceildiv(shape.tiles, tiles), 1))
    panels = dims.ceildiv(dims.ceildiv(shape.panels, dims.maximum(chunks, 1)), step) * step
    return tiles, dims.maximum(panels, 1)


def _block_known_sizes(shape: ProductShape, max_tiles: Dim, step: int) -> tuple[Dim, Dim]:
    """Choose the (tiles, panels) with the lowest cost, averaged over numbers of threads."""
    all_tiles, all_panels, work = max(estimate(shape.tiles), 1), max(estimate(shape.panels), 1), estimate(shape.work)
    grid = max(estimate(shape.grid), 1)
    bytes_each = estimate(shape.tile_bytes), estimate(shape.panel_bytes)
    tile_parts = _list_part_sizes(all_tiles, 1, estimate(max_tiles))
    best = (float("inf"), tile_parts[0], all_panels)
    for tiles in tile_parts:
        for panels in _list_part_sizes(all_panels, step, all_panels):
            blocks = grid * -(-all_tiles // tiles) * -(-all_panels // panels)
            if tiles * panels * work < LEAST_BLOCK_WORK and (tiles, panels) != best[1:]:
                continue
            moved = OPERATIONS_PER_FAR_BYTE * (tiles * bytes_each[0] + panels * bytes_each[1])
            block = tiles * panels * work + moved + BLOCK_OVERHEAD
            cost = sum(threads * -(-blocks // threads) * block for threads in _THREADS)
            best = min(best, (cost, tiles, panels))
    return best[1], best[2]


def _list_part_sizes(size: int, step: int, max_size: int) -> list[int]:
    """List part sizes, at most `max_size` and multiples of `step`, that split a size evenly."""
    fewest = -(-size // min(size, max(max_size, 1)))
    counts = range(fewest, max(min(size, _MAX_PARTS), fewest) + 1)
    return list(dict.fromkeys(min(-(-size // (count * step)) * step, size) for count in counts))
