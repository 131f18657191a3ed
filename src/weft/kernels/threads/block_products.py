"""Products by weights of 2, 4 or 8 bits that are quantized in blocks along the sums and stay so in memory.

Weights of floats are multiplied by the same kernels if the target asks for a fixed order. Tensor cores multiply what
they can without rounding (`fragment_choice.py`); all else is multiplied by the kernels here. Kernels for few and for
many rows are chosen by the number of rows of a run. They add products in the same order, so that a row of the result
has the same bits whatever other rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights
from weft.ir.dtypes import DType
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import Contraction, ContractOperand
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.lower.tensors import LEFT, Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.threads.block_format import find_format, pack_format
from weft.kernels.threads.block_rows import RowTile, build_block_rows
from weft.kernels.threads.block_tiles import DEPTH, build_block_tiles
from weft.kernels.threads.float_format import FloatFormat, WeightFormat, pack_floats
from weft.kernels.threads.fragment_choice import build_fragment_work, choose_fragments
from weft.kernels.threads.fragment_format import pack_float_fragments, pack_fragments
from weft.kernels.threads.lane_groups import power_of_two
from weft.kernels.threads.product import Product
from weft.kernels.threads.size_ranges import list_active, run_where
from weft.kernels.threads.tile import Tile

_FLOATS = (DType.float32, DType.float16, DType.bfloat16)
_RANGES = 32  # of the sums, where lanes share them
_WIDE = 8  # lanes whose chunks are 128 contiguous bytes
_ROWS = (1, 4, 8)  # of row tiles
_SOFTWARE_ROWS = (1, 8)
_MAX_SUMS = 16  # of a lane
_MAX_COLUMNS = 4  # of a lane
_MIN_BLOCKS = 2  # per compute unit, for lanes to have several columns
_MANY_ROWS = 49  # three quarters of a tile in shared memory
_TILES = (Tile(8, 16, 8, 8, DEPTH), Tile(8, 16, 8, 4, DEPTH))
_USUAL_ROWS = 512  # of products with many rows

Choice = tuple[int, RowTile | Tile]
"""The number of rows from which on a tile is used, and the tile."""


def build_block_product(
    left: ContractOperand,
    output: Sequence[int],
    column: int,
    weights: BlockWeights,
    constants: Sequence[Array],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: ThreadTarget,
) -> Work:
    """Build a product over the last axis of `left`; `column` labels the columns of the weights.

    Operands are left, the quantized weights (which are not read), then those of the epilogue.
    """
    block_format = find_format(weights, count_ranges(target))
    product = _describe_product(left, output, column, weights.columns, weights.depth, result, epilogue)
    fragments = choose_fragments(block_format, weights.block, product.left, target)
    if fragments is not None:
        return build_fragment_work(product, fragments, pack_fragments(fragments, weights, constants), target)
    launches = _build_launches(product, block_format, target)
    return Work(launches, constants=pack_format(block_format, weights, constants))


def build_fixed_product(contraction: Contraction, target: ThreadTarget) -> Work | None:
    """Build a product by a constant matrix of floats in a fixed order; None if the target does not ask for it."""
    operands = contraction.operands()
    constants = [operand for operand in operands if operand.constant is not None]
    if not target.fixed_order or len(constants) != 1 or contraction.prepare is not None:
        return None
    (weights,) = constants
    left = operands[1 - weights.number]
    labels, others, dtype = weights.labels, left.labels, weights.tensor.dtype
    if dtype not in _FLOATS or left.tensor.dtype not in _FLOATS or len(set(others)) != len(others) or not others:
        return None
    if len(set(labels)) != 2 or len(labels) != 2 or others[-1] not in labels:
        return None
    axis = labels.index(others[-1])
    column, output = labels[1 - axis], contraction.primitive.output
    columns, depth = weights.tensor.shape[1 - axis], weights.tensor.shape[axis]
    if column in others or sorted((*others[:-1], column)) != sorted(output) or left.size(others[-1]) != depth:
        return None
    assert isinstance(columns, int) and isinstance(depth, int) and weights.constant is not None
    if not columns or not depth:
        return None
    float_format = FloatFormat(columns, depth, dtype, count_ranges(target))
    product = _describe_product(left, output, column, columns, depth, contraction.result, contraction.epilogue)
    fragments = choose_fragments(float_format, depth, product.left, target)
    if fragments is not None:
        packing = pack_float_fragments(fragments, weights.constant, is_deep=axis == 1)
        work = build_fragment_work(product, fragments, (packing,), target)
    else:
        packing = pack_floats(float_format, weights.constant, is_deep=axis == 1)
        work = Work(_build_launches(product, float_format, target), constants=(packing,))
    operand = {LEFT: Reference("operand", left.number)}
    return replace(work, launches=tuple(launch.rebound(operand) for launch in work.launches))


def count_ranges(target: ThreadTarget) -> int:
    """Return the most ranges that sums are cut into."""
    return _RANGES if target.sharing_pays else 1


def _describe_product(
    left: ContractOperand,
    output: Sequence[int],
    column: int,
    columns: int,
    depth: int,
    result: StoredTensor,
    epilogue: Epilogue | None,
) -> Product:
    return Product(
        left=left.tensor.dtype,
        right=left.tensor.dtype,
        result=result,
        epilogue=epilogue,
        grid=(),
        rows=tuple(
            LoopAxis(left.size(label), left.stride(label), axis=output.index(label)) for label in left.labels[:-1]
        ),
        columns=(LoopAxis(columns, axis=output.index(column)),),
        sums=(LoopAxis(depth, left.stride(left.labels[-1])),),
    )


def _build_launches(product: Product, block_format: WeightFormat, target: ThreadTarget) -> tuple[Launch, ...]:
    """Build a launch for each range of numbers of rows."""
    actives = list_active(_list_choices(block_format.columns, target), product.extents()[1])
    return tuple(run_where(active, _build_launch(product, block_format, tile, target)) for tile, active in actives)


def _build_launch(product: Product, block_format: WeightFormat, tile: RowTile | Tile, target: ThreadTarget) -> Launch:
    if isinstance(tile, RowTile):
        return build_block_rows(product, block_format, tile, target)
    return build_block_tiles(product, block_format, tile, target)


def _list_choices(columns: int, target: ThreadTarget) -> list[Choice]:
    """List the tiles for a number of columns, for few rows first."""
    if not target.sharing_pays:
        lanes = min(target.block_threads, power_of_two(columns))
        few, many = (RowTile(height, lanes, 1, 1) for height in _SOFTWARE_ROWS)
        return [(1, few), (few.height + 1, many)]
    choices: list[Choice] = []
    first = 1
    for height in _ROWS:
        choices.append((first, _choose_row_tile(height, columns, target)))
        first = height + 1
    tiles = [tile for tile in _TILES if tile.bytes(4) <= target.shared_bytes]
    if not tiles:
        return choices
    units = target.rates.compute_units
    busy = [tile for tile in tiles if -(-columns // tile.width) * (_USUAL_ROWS // tile.height) >= units]
    return [*choices, (_MANY_ROWS, busy[0] if busy else tiles[-1])]


def _choose_row_tile(height: int, columns: int, target: ThreadTarget) -> RowTile:
    """Choose the tile for a number of rows: lanes have several columns where there are enough for all units."""
    tile = RowTile(height, _WIDE, 1, _RANGES)
    for count in (2, _MAX_COLUMNS):
        wider = RowTile(height, _WIDE, count, _RANGES)
        is_busy = columns >= _MIN_BLOCKS * target.rates.compute_units * wider.width
        if count * height <= _MAX_SUMS and is_busy and wider.shared_bytes <= target.shared_bytes:
            tile = wider
    return tile
