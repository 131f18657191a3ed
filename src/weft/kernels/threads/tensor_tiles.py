"""How products are computed on tile products: in which types, and on which tiles of a block, with how fast each is."""

from __future__ import annotations

from weft.cost.tile_times import TileSpeed
from weft.ir.dtypes import DType
from weft.ir.target import Float32Products, ThreadTarget, TileProduct
from weft.kernels.threads.product import sums_type
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

CHUNK = 16  # bytes that are moved into a tile at once
PAD = 8  # elements between the rows of sums in local memory, so that lanes meet different banks
_LEAST_STAGES, _MOST_STAGES = 2, 4
_MOST_FEW_STAGES = 8  # of tiles for few rows
_MOST_SUMS = 144  # registers of a lane that hold sums


@dataclass(frozen=True, slots=True)
class Multiplying:
    """The tile product that a product is made from; each operand comes as so many numbers of its types."""

    tile_product: TileProduct
    planes: int = 1

    @property
    def products(self) -> int:
        """Of tiles, for one of the operands."""
        return len(self.pairs)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which numbers of the operands are multiplied, the smallest products first."""
        return ((0, 0),) if self.planes == 1 else ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))

    @property
    def can_turn(self) -> bool:
        """Whether tiles may lie with the depth outermost."""
        return self.left.bits == self.right.bits == 16

    @property
    def takes_plain(self) -> bool:
        """Whether constants are read just as other kernels read them."""
        return self.can_turn and self.planes == 1

    @property
    def left(self) -> DType:
        return self.tile_product.left

    @property
    def right(self) -> DType:
        return self.tile_product.right


def multiplying(left: DType, right: DType, target: ThreadTarget) -> Multiplying | None:
    """How tile products multiply operands of these types, if they do; those of float32 may be constants in halves."""
    if not (DType.float32 in (left, right) and {left, right} <= {DType.float32, DType.float16}):
        found = target.tile_product(left, right)
        return None if found is None or found.sums is not sums_type(left, right) else Multiplying(found)
    way = {
        Float32Products.PARTS: (DType.bfloat16, 3),
        Float32Products.TF32: (DType.float32, 1),
        Float32Products.HALVES: (DType.float16, 1),
    }.get(target.float32_products)
    if way is None:
        return None
    element, planes = way
    found = target.tile_product(element, element)
    return None if found is None else Multiplying(found, planes)


def constant_form(left: DType, right: DType, target: ThreadTarget) -> tuple[DType | None, int]:
    """The type that constants are kept in, if not in their own, and for how many neighbours there is to be room."""
    how = multiplying(left, right, target)
    if how is None or not how.takes_plain:
        return None, RUN
    return (None if how.left is left else how.left), CHUNK * 8 // how.left.bits


@dataclass(frozen=True, slots=True)
class TensorTile:
    """The part of a product that a block of so many lanes computes; copies of its operands' tiles are its stages.

    With few rows it is `swapped`: columns are the rows of the product of tiles, of which there can be no fewer.
    """

    height: int
    width: int
    depth: int
    lanes: int
    stages: int = 2
    swapped: bool = False

    @property
    def sums_shape(self) -> tuple[int, int]:
        return (self.width, self.height) if self.swapped else (self.height, self.width)

    def sums(self, how: Multiplying) -> int:
        """Registers of a lane that hold sums; of operands in parts there are small ones beside the large ones."""
        return self.height * self.width // self.lanes * (1 if how.planes == 1 else 2)

    def bytes(self, how: Multiplying) -> int:
        """Local memory that it takes."""
        lines, length = self.sums_shape
        return max(self.stage_bytes(how) * self.stages, lines * (length + PAD) * 4)

    def stage_bytes(self, how: Multiplying) -> int:
        return (self.height * how.left.bits + self.width * how.right.bits) // 8 * how.planes * self.depth


@dataclass(frozen=True, slots=True)
class RatedTensorTile:
    """A tile without its stages, and its speed, as a part of that of the tile product: estimates, which measurements
    replace. Lines of the tiles of operands have a part of the usual length.
    """

    height: int
    width: int
    lanes: int
    speed: TileSpeed
    line_part: int = 1
    swapped: bool = False


# groups of warps multiply 64 rows at a time
_GROUPED = (
    RatedTensorTile(128, 256, 256, TileSpeed(0.92, 0.92, 1, 3.0)),
    RatedTensorTile(256, 128, 256, TileSpeed(0.88, 0.88, 1, 3.0)),
    RatedTensorTile(128, 128, 256, TileSpeed(0.74, 0.95, 2, 2.5)),
    RatedTensorTile(128, 64, 256, TileSpeed(0.57, 0.95, 2, 2.0)),
    RatedTensorTile(64, 128, 128, TileSpeed(0.57, 0.85, 2, 2.0)),
    RatedTensorTile(64, 64, 128, TileSpeed(0.33, 0.7, 3, 1.5)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.18, 0.45, 3, 1.5)),
)
_GROUPED_PARTS = (
    RatedTensorTile(128, 128, 256, TileSpeed(0.79, 0.79, 1, 2.5)),
    RatedTensorTile(128, 128, 256, TileSpeed(0.87, 0.87, 1, 2.5), line_part=2),
    RatedTensorTile(128, 64, 256, TileSpeed(0.77, 0.77, 1, 2.0)),
    RatedTensorTile(64, 128, 128, TileSpeed(0.5, 0.82, 2, 2.0), line_part=2),
    RatedTensorTile(64, 64, 128, TileSpeed(0.5, 0.72, 2, 1.5)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.27, 0.5, 2, 1.5)),
)
# warps multiply 16 rows at a time
_SINGLE = (
    RatedTensorTile(128, 128, 256, TileSpeed(0.6, 0.7, 2, 2.5)),
    RatedTensorTile(128, 64, 128, TileSpeed(0.4, 0.6, 2, 2.0)),
    RatedTensorTile(64, 64, 128, TileSpeed(0.3, 0.5, 3, 2.0)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.2, 0.4, 3, 2.0)),
    RatedTensorTile(32, 64, 128, TileSpeed(0.2, 0.4, 3, 2.0)),
    RatedTensorTile(16, 64, 128, TileSpeed(0.1, 0.25, 4, 2.0)),
)
# few rows: what counts is how much is on its way from memory
_GROUPED_FEW = (
    RatedTensorTile(8, 64, 128, TileSpeed(0.05, 0.1, 2, 1.5), swapped=True),
    RatedTensorTile(16, 64, 128, TileSpeed(0.1, 0.2, 2, 1.5), swapped=True),
    RatedTensorTile(32, 64, 128, TileSpeed(0.18, 0.35, 2, 1.5), swapped=True),
    RatedTensorTile(32, 128, 256, TileSpeed(0.25, 0.4, 2, 1.5), swapped=True),
)
_SINGLE_FEW = (
    RatedTensorTile(8, 64, 128, TileSpeed(0.05, 0.1, 2, 1.5), swapped=True),
    RatedTensorTile(16, 64, 128, TileSpeed(0.1, 0.2, 2, 1.5), swapped=True),
    RatedTensorTile(32, 64, 128, TileSpeed(0.15, 0.3, 2, 1.5), swapped=True),
)
# by the rows that the least number of lanes multiplies, and the numbers that an element comes as
RATED_TENSOR_TILES = {
    (64, 1): (*_GROUPED, *_GROUPED_FEW),
    (64, 3): _GROUPED_PARTS,
    (16, 1): (*_SINGLE, *_SINGLE_FEW),
    (16, 3): _SINGLE,
}


def tensor_tiles(how: Multiplying, target: ThreadTarget) -> list[tuple[TensorTile, TileSpeed]]:
    """The tiles that a target has room for, with as many stages as there is."""
    found = []
    for rated in RATED_TENSOR_TILES.get((how.tile_product.rows, how.planes), ()):
        depth = target.tile_line_bytes * 8 // how.left.bits // rated.line_part
        tiles = [
            TensorTile(rated.height, rated.width, depth, rated.lanes, stages, rated.swapped)
            for stages in range(_MOST_FEW_STAGES if rated.swapped else _MOST_STAGES, _LEAST_STAGES - 1, -1)
        ]
        if rated.swapped and how.left is not how.right:
            continue
        if rated.lanes > target.most_block_threads or tiles[0].sums(how) > _MOST_SUMS:
            continue
        for room in (target.shared_bytes // rated.speed.resident, target.shared_bytes):
            fitting = [tile for tile in tiles if tile.bytes(how) <= room]
            if fitting:
                found.append((fitting[0], rated.speed))
                break
    return found
