"""Packed columns, and the split of products into blocks."""

from __future__ import annotations

import numpy as np
import pytest

from weft.cost.blocks import BLOCK_WORK
from weft.ir import dims
from weft.kernels.vector.blocking import ProductShape, choose_blocking, choose_part_size
from weft.kernels.vector.panels import Panels

CACHE = 1 << 20


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 8, 11, 12, 16, 19])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_positions_of_packed_columns(columns: int, width: int) -> None:
    heads, sums, lanes = 2, 3, 4
    panels = Panels(columns, lanes, width)
    array = np.arange(1, heads * sums * columns + 1).reshape(heads, sums, columns)
    packed = panels.pack(array)
    assert packed.shape == panels.packed_shape(heads, sums) == (heads, sums * panels.stored(packed=True))
    assert np.count_nonzero(packed) == array.size
    for column in range(columns):
        panel, inside = divmod(column, panels.step)
        start, step = panel * panels.step * sums, panels.step
        if panel == panels.whole:
            single, inside = divmod(inside, lanes)
            start, step = start + single * lanes * sums, lanes
        for number in range(sums):
            np.testing.assert_array_equal(packed[:, start + number * step + inside], array[:, number, column])


def test_packing_in_parts_reads_each_column_once() -> None:
    array = np.random.default_rng(0).standard_normal((1, 5, 43))
    requests: list[slice] = []

    def part(columns: slice) -> np.ndarray:
        requests.append(columns)
        return array[:, :, columns]

    panels = Panels(43, 8, 2)
    assert panels.pack_parts(1, 5, array.dtype, part).tobytes() == panels.pack(array).tobytes()
    assert requests == [slice(0, 16), slice(16, 32), slice(32, 40), slice(40, 43)]


def product_shape(tiles: int, panels: int, depth: int, grid: int = 1) -> ProductShape:
    return ProductShape(grid, tiles, panels, 2 * 12 * 32 * depth, 12 * 4 * depth, 32 * 4 * depth)


@pytest.mark.parametrize(
    ("tiles", "panels", "depth"), [(1, 38, 400), (17, 8, 256), (22, 32, 512), (4, 24, 768), (5, 16, 4608), (86, 32, 64)]
)
def test_threads_share_evenly(tiles: int, panels: int, depth: int) -> None:
    blocking = choose_blocking(product_shape(tiles, panels, depth), 8, 1, CACHE)
    assert isinstance(blocking.tiles, int)
    assert isinstance(blocking.panels, int)
    assert 1 <= blocking.tiles <= 8
    assert 1 <= blocking.panels <= panels
    tile_sizes = [min(blocking.tiles, tiles - first) for first in range(0, tiles, blocking.tiles)]
    panel_sizes = [min(blocking.panels, panels - first) for first in range(0, panels, blocking.panels)]
    blocks = [a * b for a in tile_sizes for b in panel_sizes]
    for threads in (2, 4):
        longest = -(-len(blocks) // threads) * max(blocks)
        assert sum(blocks) / (threads * longest) > 0.75


def test_small_products_are_one_block() -> None:
    blocking = choose_blocking(product_shape(2, 3, 16), 8, 1, CACHE)
    assert (blocking.tiles, blocking.panels) == (2, 3)


def test_operand_larger_than_the_cache_is_read_once() -> None:
    heavy_right = choose_blocking(product_shape(8, 64, 4096), 1, 1, CACHE * 2)
    assert heavy_right.tiles_first
    heavy_left = choose_blocking(product_shape(4000, 2, 128), 8, 1, CACHE)
    assert not heavy_left.tiles_first


@pytest.mark.parametrize("rows", [1, 17, 100, 5000])
def test_unknown_sizes_give_blocks_for_all_threads(rows: int) -> None:
    depth, panels = 256, 24
    work = 2 * 12 * 32 * depth
    blocking = choose_blocking(
        ProductShape(1, dims.symbol("rows"), panels, work, 12 * 4 * depth, 32 * 4 * depth), 8, 1, CACHE
    )
    tiles, each = (dims.evaluate(size, {"rows": rows}) for size in (blocking.tiles, blocking.panels))
    blocks = -(-rows // tiles) * -(-panels // each)
    assert blocks >= min(8, rows * panels * work // 200_000)
    assert tiles * each * work >= 100_000
    assert tiles * each * work <= 8 * BLOCK_WORK


@pytest.mark.parametrize(
    ("count", "part", "parts"), [(5, 8, 1), (10, 5, 2), (30, 10, 4), (112, 12, 16), (1000, 61, 24)]
)
def test_even_parts(count: int, part: int, parts: int) -> None:
    assert -(-count // choose_part_size(count, part)) == parts
