"""Choose how products by packed weights run on tensor cores: ranges of the sums, and tiles by the number of rows."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.packing import Constant
from weft.ir.target import Float32Products, ThreadTarget
from weft.ir.work import Workspace
from weft.kernels.lower.tensors import LEFT, RESULT, Launch, Reference, Work
from weft.kernels.threads.block_format import BlockFormat
from weft.kernels.threads.float_format import FloatFormat
from weft.kernels.threads.fragment_format import FragmentFormat, count_units, find_fragment_block
from weft.kernels.threads.fragment_products import FragmentTile, build_fragment_launch
from weft.kernels.threads.fragment_rows import build_rows_launch, count_row_words
from weft.kernels.threads.product import Product
from weft.kernels.threads.size_ranges import list_active, run_where
from weft.kernels.threads.split_k import build_split_sum_launch

_NAME = "multiply_fragments"
_MOST_RANGES = 8
_UNIT_WARPS = 8  # of a compute unit, for one row
_MANY_WARPS = 32  # of a compute unit, for warps to have several tiles of columns
_UNIT_BLOCKS = 2
_LARGEST_PADDING = 16  # units of a column for one that is empty
_LONGEST_BLOCK = 256  # places of floats that are added on tensor cores
_PLANES = 3  # bfloat16 whose sum is a float32
_LONG_RANGE, _SHORT_BITS = 8, 4  # units, and bits of weights, for a lane to have more reads in flight
_MANY_ROWS, _USUAL_ROWS = 65, 512
_FLOAT32 = DType.float32


def choose_fragments(
    weight_format: BlockFormat | FloatFormat, block: int, left: DType, target: ThreadTarget
) -> FragmentFormat | None:
    """Choose the form of fragments for weights; None if the target's tensor cores cannot multiply them in full.

    Activations are rounded only if the target may round operands of products to float16.
    """
    is_rounded = left is _FLOAT32 and target.float32_products is Float32Products.HALVES
    element = DType.float16 if left is DType.float16 or is_rounded else DType.bfloat16
    tile_product = target.tile_product(element, element)
    if tile_product is None or tile_product.sums is not _FLOAT32:
        return None
    if isinstance(weight_format, FloatFormat):
        if weight_format.dtype is not element or left is not element:
            return None
        bits, zeros, block = element.bits, "middle", _LONGEST_BLOCK
    else:
        bits, zeros, block = weight_format.bits, weight_format.zeros, find_fragment_block(block)
    if not block or zeros == "floats":
        return None
    columns, depth = weight_format.columns, weight_format.depth
    planes = _PLANES if left is _FLOAT32 and not is_rounded else 1
    return FragmentFormat(
        columns, depth, bits, block, zeros, element, planes, _choose_ranges(columns, depth, block, target)
    )


def _choose_ranges(columns: int, depth: int, block: int, target: ThreadTarget) -> int:
    """Choose the number of ranges that keeps all units busy with one row, and leaves few places empty."""
    units = count_units(depth, block, 1)
    least = -(-_UNIT_WARPS * target.rates.compute_units * 16 // columns)
    candidates = [
        ranges
        for ranges in range(1, min(_MOST_RANGES, units) + 1)
        if (ranges * count_units(depth, block, ranges) - units) * _LARGEST_PADDING <= units
    ]
    return next((ranges for ranges in candidates if ranges >= least), candidates[-1])


def build_fragment_work(
    product: Product, fragments: FragmentFormat, constants: tuple[Constant, ...], target: ThreadTarget
) -> Work:
    """Build the launches for each range of numbers of rows."""
    rows = product.extents()[1]
    launches: list[Launch] = []
    workspaces: list[Workspace] = []
    actives = list_active(_list_tiles(fragments, target), rows)
    split_rows: Dim = 0
    for tile, active in actives:
        split_rows = split_rows + (active if tile.rows else 0)
    if split_rows != 0:
        workspaces.append(Workspace(DType.int32, split_rows * count_row_words(rows, fragments)))
        launch = run_where(split_rows, build_rows_launch(product, fragments, target))
        launches.append(launch.rebound({RESULT: Reference("workspace", 0)}))
    for tile, active in actives:
        launch = run_where(active, build_fragment_launch(product, fragments, tile, target))
        if tile.rows:
            launch = launch.rebound({LEFT: Reference("workspace", 0)})
        if tile.splits == 1:
            launches.append(launch)
            continue
        sums = Reference("workspace", len(workspaces))
        workspaces.append(Workspace(_FLOAT32, active * (tile.splits * rows * fragments.columns)))
        split_sum = run_where(active, build_split_sum_launch(_NAME, product, tile.splits, target))
        launches += [launch.rebound({RESULT: sums}), split_sum.rebound({LEFT: sums})]
    return Work(tuple(launches), tuple(workspaces), constants)


def _list_tiles(fragments: FragmentFormat, target: ThreadTarget) -> list[tuple[int, FragmentTile]]:
    """List the tiles with the first number of rows that each is used for."""
    units, tiles, ranges = target.rates.compute_units, fragments.tiles, fragments.ranges
    columns = 2 if tiles * ranges >= _MANY_WARPS * units else 1
    wide = next((w for w in (8, 4, 2) if w * ranges <= 8 and _is_busy(tiles, columns * w, units)), 1)
    is_long = columns == 1 and fragments.range_units >= _LONG_RANGE and fragments.bits <= _SHORT_BITS
    one = FragmentTile(columns, 0, wide, ranges, ahead=4 if is_long else 2)
    few = FragmentTile(columns, 1, wide, ranges, ahead=1)
    choices = [(1, one), (2, few)] if one.shared_bytes(fragments) <= target.shared_bytes else [(1, few)]
    choices.append((few.height + 1, _choose_medium(fragments, target)))
    width = 2 if tiles * (_USUAL_ROWS // 32) >= 8 * _UNIT_BLOCKS * units else 1
    many = FragmentTile(width, 4, 4, ahead=_choose_ahead(width, fragments))
    return choices if choices[-1][1] == many else [*choices, (_MANY_ROWS, many)]


def _choose_medium(fragments: FragmentFormat, target: ThreadTarget) -> FragmentTile:
    """Choose the tile for 32 rows: each block reads all rows in full or, with splits, in part."""
    units, tiles, ranges = target.rates.compute_units, fragments.tiles, fragments.ranges
    if tiles >= 16 * units:
        return FragmentTile(2, 4, 8, ahead=_choose_ahead(2, fragments))
    if tiles >= 2 * units:
        return FragmentTile(1, 4, 2, slices=ranges, ahead=1)
    return FragmentTile(1, 4, 4, splits=ranges, ahead=1)


def _choose_ahead(columns: int, fragments: FragmentFormat) -> int:
    """Choose how far ahead warps with 32 rows fetch; one plane of two tiles of columns would spill with 1."""
    return 2 if columns == 2 and fragments.planes == 1 else 1


def _is_busy(tiles: int, each: int, units: int) -> bool:
    """Whether blocks with some tiles of columns each keep all units busy."""
    return -(-tiles // each) >= _UNIT_BLOCKS * units
