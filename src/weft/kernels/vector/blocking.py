"""How a product is cut into blocks: by its sizes alone, never by who will run them.

Where sizes are known, the cut is one that two, four or eight threads share evenly; launches too small to share are one
block. Blocks that follow each other share the operand that does not fit the cache.
"""

from __future__ import annotations

from weft.cost.blocks import BLOCK_OVERHEAD, BLOCK_WORK, LEAST_BLOCK_WORK, OPERATIONS_PER_FAR_BYTE
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.records import dataclass

_THREADS = (1, 2, 4, 8)
_MOST_PARTS = 64  # that rows or columns are tried to be cut into


@dataclass(frozen=True, slots=True)
class Demand:
    """What a product asks for: tiles of rows times panels of columns, `grid` times."""

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


def cut(demand: Demand, most_tiles: Dim, step: int, cache_bytes: int) -> Blocking:
    """The cut with at most so many tiles in a block, and panels as multiples of `step` where there are more."""
    known = all(isinstance(size, int) for size in (demand.tiles, demand.panels, demand.work, most_tiles))
    tiles, panels = (_even if known else _near)(demand, most_tiles, step)
    return Blocking(tiles, panels, _keeps_panels(demand, tiles, panels, cache_bytes))


def even_part(count: Dim, part: Dim) -> Dim:
    """The size of parts, about `part`, that two, four or eight threads share evenly where sizes are known."""
    if not isinstance(count, int) or not isinstance(part, int) or count <= part:
        return dims.minimum(part, dims.maximum(count, 1))
    parts = -(-count // part)
    return -(-count // (4 if 2 < parts <= 4 else parts if parts <= 2 else -(-parts // 8) * 8))


def _keeps_panels(demand: Demand, tiles: Dim, panels: Dim, cache_bytes: int) -> bool:
    """Whether fewer bytes come from beyond the cache with the panels staying and the tiles changing."""
    left, right = estimate(demand.tiles * demand.tile_bytes), estimate(demand.panels * demand.panel_bytes)
    tile_chunks = max(estimate(dims.ceildiv(demand.tiles, tiles)), 1)
    panel_chunks = max(estimate(dims.ceildiv(demand.panels, panels)), 1)
    again = panel_chunks if left > cache_bytes // 2 else 1
    return left * again + right < left + right * (tile_chunks if right > cache_bytes // 2 else 1)


def _near(demand: Demand, most_tiles: Dim, step: int) -> tuple[Dim, Dim]:
    """About as many blocks as threads share well, for sizes that only a run will tell."""
    tiles = dims.maximum(dims.minimum(most_tiles, dims.ceildiv(demand.tiles, 2 * _THREADS[-1])), 1)
    work = demand.grid * demand.tiles * demand.panels * demand.work
    blocks = dims.ceildiv(work, BLOCK_WORK * _THREADS[-1]) * _THREADS[-1]
    blocks = dims.minimum(blocks, dims.floordiv(work, LEAST_BLOCK_WORK) + 1)
    chunks = dims.ceildiv(blocks, dims.maximum(demand.grid * dims.ceildiv(demand.tiles, tiles), 1))
    panels = dims.ceildiv(dims.ceildiv(demand.panels, dims.maximum(chunks, 1)), step) * step
    return tiles, dims.maximum(panels, 1)


def _even(demand: Demand, most_tiles: Dim, step: int) -> tuple[Dim, Dim]:
    """The cheapest cut, on average over numbers of threads."""
    all_tiles, all_panels, work = max(estimate(demand.tiles), 1), max(estimate(demand.panels), 1), estimate(demand.work)
    grid = max(estimate(demand.grid), 1)
    bytes_each = estimate(demand.tile_bytes), estimate(demand.panel_bytes)
    tile_parts = _parts(all_tiles, 1, estimate(most_tiles))
    best = (float("inf"), tile_parts[0], all_panels)
    for tiles in tile_parts:
        for panels in _parts(all_panels, step, all_panels):
            blocks = grid * -(-all_tiles // tiles) * -(-all_panels // panels)
            if tiles * panels * work < LEAST_BLOCK_WORK and (tiles, panels) != best[1:]:
                continue
            moved = OPERATIONS_PER_FAR_BYTE * (tiles * bytes_each[0] + panels * bytes_each[1])
            block = tiles * panels * work + moved + BLOCK_OVERHEAD
            cost = sum(threads * -(-blocks // threads) * block for threads in _THREADS)
            best = min(best, (cost, tiles, panels))
    return best[1], best[2]


def _parts(size: int, step: int, most: int) -> list[int]:
    """Sizes of parts, at most `most` and multiples of `step`, that cut a size evenly."""
    fewest = -(-size // min(size, max(most, 1)))
    counts = range(fewest, max(min(size, _MOST_PARTS), fewest) + 1)
    return list(dict.fromkeys(min(-(-size // (count * step)) * step, size) for count in counts))
