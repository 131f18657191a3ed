"""Attention on tile products: types and sizes of the tiles, and whether keys are split."""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Statement
from weft.ir.scalar import Index, loads, walk
from weft.ir.target import ThreadTarget
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.kernels.threads.attention import FLOAT, RUN, KeySplit, call, float32
from weft.kernels.threads.lane_groups import power_of_two
from weft.records import dataclass

ROWS = 64  # of a block
KEYS, SPLIT_FLOAT_KEYS = 64, 32  # of a tile; fewer where elements are split into planes
STAGES = 2
WARP, WARP_ROWS = 32, 16  # lanes of a warp, and the rows of which they keep the scores
LANE_SHARES = 2  # times the lanes that products need, so that more lanes share the scores of a row
MIN_LINE = 16
RESERVED_BYTES = 2048  # of shared memory, not used by tiles
_MOVED_BYTES = 16
_LARGEST_HALF = 65504.0
_NARROW = (DType.float16, DType.bfloat16)
_HALF_WORD, _UPPER = Number(16, DType.uint32), Number(0xFFFF0000, DType.uint32)

MIN_SPLIT_KEYS = 512  # fewer keys are not split: merging takes longer than splitting saves
MIN_PART_KEYS = 128  # of a split
MAX_SPLITS = 32
FIXED_SPLIT_KEYS = 512  # of a split in a fixed order
BLOCKS_PER_UNIT = 4  # to hide latency


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The tiles of a block: `rows` queries and `keys` keys, in `planes` of type `element`.

    Tiles of weights have lines of `line`, those of queries and keys of `deep_line`; tiles of values have `columns`.
    With `ahead`, scores are computed in a separate pass whose lanes are neighbours along the keys.
    """

    element: DType
    planes: int
    lanes: int
    line: int
    deep_line: int
    columns: int
    rows: int = ROWS
    keys: int = KEYS
    stages: int = STAGES
    ahead: bool = False

    @property
    def run(self) -> int:
        """Elements of a line that a lane stores at once."""
        return _MOVED_BYTES // self.element.numpy.itemsize

    @property
    def members(self) -> int:
        """Lanes that share a row."""
        return self.lanes // self.rows

    @property
    def transposes_values(self) -> bool:
        """Whether tile products transpose values; otherwise lanes do."""
        return self.element is not DType.float32

    @property
    def keeps_scores(self) -> bool:
        """Whether lanes keep scores in registers."""
        return self.planes == 1 and self.transposes_values

    def deep(self, depth: int) -> int:
        """Return the number of tiles along the depth of queries and keys."""
        return -(-depth // self.deep_line)

    def across(self, width: int) -> int:
        """Return the number of tiles along the width of values."""
        return -(-width // self.columns)

    def bytes(self, depth: int, width: int) -> int:
        """Shared memory of a block."""
        streamed = self.keys * (self.deep(depth) * self.deep_line + self.across(width) * self.columns)
        resident = self.rows * (self.deep(depth) * self.deep_line + (0 if self.keeps_scores else self.keys))
        tiles = self.planes * self.element.numpy.itemsize * (resident + self.stages * streamed)
        scores = self.rows * (self.keys + RUN) + self.lanes + (self.rows * self.keys if self.ahead else 0)
        exchanged = self.lanes + (0 if self.keeps_scores else scores)
        results = self.rows * (self.across(width) * self.columns + RUN)
        size = FLOAT.numpy.itemsize
        return max(tiles, size * results) + size * exchanged


def choose_product_shape(attention: Attention, target: ThreadTarget) -> ProductShape | None:
    """Choose the tiles for an attention; None where it cannot, or should not, use tile products."""
    roles = (attention.query, attention.key, attention.value)
    tile_types = {_tile_type(role.dtype, target) for role in roles}
    tile_type = tile_types.pop() if len(tile_types) == 1 else None
    if tile_type is None:
        return None
    element, planes = tile_type
    product = target.tile_product(element, element)
    if product is None or product.sums is not FLOAT or ROWS % product.rows:
        return None
    line = target.tile_line_bytes // element.numpy.itemsize
    deep_line = min(line, max(power_of_two(attention.depth), MIN_LINE))
    columns = min(line if element is not FLOAT else 2 * line, max(power_of_two(attention.width), MIN_LINE))
    keys = KEYS if planes == 1 else SPLIT_FLOAT_KEYS
    is_narrow = element is not FLOAT and planes == 1
    lanes = (ROWS // WARP_ROWS * WARP) if is_narrow else LANE_SHARES * ROWS // product.rows * product.lanes
    is_ahead = not is_narrow and _reads_by_row(attention)
    shape = ProductShape(element, planes, lanes, min(line, keys), deep_line, columns, keys=keys, ahead=is_ahead)
    simple, free_bytes = replace(shape, stages=1), target.shared_bytes - RESERVED_BYTES
    if shape.bytes(attention.depth, attention.width) <= free_bytes // 2:  # two blocks per unit beat two stages
        return shape
    return simple if simple.bytes(attention.depth, attention.width) <= free_bytes else None


def _reads_by_row(attention: Attention) -> bool:
    """Whether scores read an operand that varies by row and key."""
    last, rows = len(attention.shape) - 1, {axis for axis in attention.rows if attention.shape[axis] != 1}
    for load in loads(attention.score):
        used: set[int] = set()
        for index in load.indices:
            for node in walk(index):
                if isinstance(node, Index):
                    used |= {atom.position for atom in dims.atoms(node.value) if isinstance(atom, Axis)}
        if last in used and used & rows:
            return True
    return False


def _tile_type(dtype: DType, target: ThreadTarget) -> tuple[DType, int] | None:
    """Return the element type of tiles for a type, and the number of planes."""
    if dtype in _NARROW:
        return dtype, 1
    return target.float32_tiles if dtype is FLOAT else None


def plan_key_split(attention: Attention, target: ThreadTarget, rows: int, keys: int) -> tuple[KeySplit, Dim]:
    """Split keys as often as keeps the device busy; also returns a dim that is 1 where splitting pays, 0 elsewhere.

    `rows` are those of a block, `keys` those of a tile. In a fixed order, splits have one length, whatever the sizes.
    """
    tiles = dims.ceildiv(attention.shape[-1], keys)
    if target.fixed_order:
        fixed_tiles = FIXED_SPLIT_KEYS // keys
        splits = dims.maximum(dims.ceildiv(tiles, fixed_tiles), 1)
        return KeySplit(splits, fixed_tiles), dims.minimum(splits - 1, 1)
    count = dims.product(attention.shape[axis] for axis in attention.rows)
    heads = dims.product(size for axis, size in enumerate(attention.shape[:-1]) if axis not in attention.rows)
    blocks = dims.maximum(heads * dims.ceildiv(count, rows), 1)
    idle_factor = dims.floordiv(BLOCKS_PER_UNIT * target.rates.compute_units, blocks)
    max_splits = dims.minimum(dims.minimum(idle_factor, dims.floordiv(tiles, MIN_PART_KEYS // keys)), MAX_SPLITS)
    split_tiles = dims.ceildiv(tiles, dims.maximum(max_splits, 1))
    splits = dims.maximum(dims.ceildiv(tiles, dims.maximum(split_tiles, 1)), 1)
    has_many_keys = dims.minimum(dims.floordiv(tiles, MIN_SPLIT_KEYS // keys), 1)
    return KeySplit(splits, split_tiles), has_many_keys * dims.minimum(dims.floordiv(splits, 2), 1)


class TileConverter:
    """Converts values to elements of tiles."""

    def __init__(self, shape: ProductShape, builder: KernelBuilder) -> None:
        self.shape, self.builder = shape, builder

    def convert(self, value: Code, statements: list[Statement], *, clamps: bool) -> list[Code]:
        """Split a value into planes, the largest first; with several, each has the next bits, and none is rounded.

        `clamps`: values beyond the range of the tiles' type become its limits.
        """
        element = self.shape.element
        if value.dtype is element:
            return [value]
        if self.shape.planes == 1:
            if clamps and value.dtype is FLOAT and element is DType.float16:
                bounded = call("minimum", value, float32(_LARGEST_HALF))
                value = call("maximum", bounded, float32(-_LARGEST_HALF))
            return [self.keep(Call("cast", (value,), element), statements)]
        planes: list[Code] = []
        remainder = value
        for number in range(self.shape.planes):
            bits = self.keep(Call("bitcast", (remainder,), DType.uint32), statements)
            upper = Call("cast", (Call("shift_right", (bits, _HALF_WORD), DType.uint32),), DType.uint16)
            planes.append(self.keep(Call("bitcast", (upper,), element), statements))
            if number + 1 < self.shape.planes:
                plane = Call("bitcast", (Call("bit_and", (bits, _UPPER), DType.uint32),), FLOAT)
                remainder = self.keep(call("subtract", remainder, plane), statements)
        return planes

    def keep(self, value: Code, statements: list[Statement]) -> Code:
        definition, register = self.builder.keep("formed", value, varying=True)
        statements.append(definition)
        return register
