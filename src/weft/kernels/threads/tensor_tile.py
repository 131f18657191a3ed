"""Which tile products compute a product, in which types, and the tiles that blocks compute, with their speeds."""

from __future__ import annotations

from weft.cost.tile_times import TileSpeed
from weft.ir.dtypes import DType
from weft.ir.target import Float32Products, ThreadTarget, TileProduct
from weft.kernels.threads.product import sum_dtype
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

CHUNK = 16  # bytes that one instruction moves into a tile
PAD = 8  # elements between the rows of sums in local memory, so that lanes access different banks
_MIN_STAGES, _MAX_STAGES = 2, 4
_MAX_SWAPPED_STAGES = 8
_MAX_SUMS = 144  # registers of a lane that hold sums


@dataclass(frozen=True, slots=True)
class ProductScheme:
    """The tile product that computes a product, and the number of planes that each operand is split into.

    With `promotes_sums`, the sums of each depth tile are added to the total outside of the tensor cores.
    """

    tile_product: TileProduct
    planes: int = 1
    promotes_sums: bool = False

    @property
    def products(self) -> int:
        """How many products of tiles one product of operands takes."""
        return len(self.pairs)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which planes of the operands are multiplied, the smallest products first."""
        return ((0, 0),) if self.planes == 1 else ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))

    @property
    def can_transpose(self) -> bool:
        """Whether tiles may have the depth outermost."""
        return self.left.bits == self.right.bits == 16

    @property
    def reads_plain_constants(self) -> bool:
        """Whether constants have the same layout as for kernels without tile products."""
        return self.can_transpose and self.planes == 1

    @property
    def left(self) -> DType:
        return self.tile_product.left

    @property
    def right(self) -> DType:
        return self.tile_product.right


def find_product_scheme(
    left: DType, right: DType, target: ThreadTarget, *, has_wide_result: bool = False
) -> ProductScheme | None:
    """Find how tile products multiply operands of these types, if they can; one may be float32, the other float16.

    A wide result of narrow floats is as accurate as one of float32.
    """
    if not (DType.float32 in (left, right) and {left, right} <= {DType.float32, DType.float16}):
        tile_product = target.tile_product(left, right)
        is_usable = tile_product is not None and tile_product.sums is sum_dtype(left, right)
        promotes = has_wide_result and target.float32_products in (Float32Products.EXACT, Float32Products.PARTS)
        return ProductScheme(tile_product, 1, promotes) if tile_product is not None and is_usable else None
    if target.float32_tiles is None:
        return None
    element, planes = target.float32_tiles
    tile_product = target.tile_product(element, element)
    return None if tile_product is None else ProductScheme(tile_product, planes, planes > 1)


def chunk_length(element: DType) -> int:
    """Return the number of elements that one instruction moves into a tile."""
    return CHUNK * 8 // element.bits


def constant_layout(left: DType, right: DType, target: ThreadTarget) -> tuple[DType | None, int]:
    """Return the type that constants are converted to (None: they are not), and the multiple they are padded to."""
    scheme = find_product_scheme(left, right, target)
    if scheme is None and target.half_constants and left is right is DType.float32:
        return DType.float16, RUN
    if scheme is None or not scheme.reads_plain_constants:
        return None, RUN
    return (None if scheme.left is left else scheme.left), chunk_length(scheme.left)


@dataclass(frozen=True, slots=True)
class TensorTile:
    """The tile of the result that a block of `lanes` lanes computes, with `stages` buffers for its operands' tiles.

    For few rows it is `swapped`: the result's columns become the rows of the tile product, whose number is fixed.
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

    def sums(self, scheme: ProductScheme) -> int:
        """Registers of a lane that hold sums; promoted ones, as tile products of float8 are, take twice as many."""
        is_promoted = scheme.promotes_sums or (scheme.left.is_float and scheme.left.bits == 8)
        return self.height * self.width // self.lanes * (2 if is_promoted else 1)

    def bytes(self, scheme: ProductScheme) -> int:
        """Local memory of a block."""
        lines, length = self.sums_shape
        return max(self.stage_bytes(scheme) * self.stages, lines * (length + PAD) * 4)

    def stage_bytes(self, scheme: ProductScheme) -> int:
        return (self.height * scheme.left.bits + self.width * scheme.right.bits) // 8 * scheme.planes * self.depth


@dataclass(frozen=True, slots=True)
class RatedTensorTile:
    """A tile without its stages, and its estimated speed relative to the tile product's; tuning overrides it.

    Lines of the operands' tiles have the usual length divided by `line_part`.
    """

    height: int
    width: int
    lanes: int
    speed: TileSpeed
    line_part: int = 1
    swapped: bool = False


# warp groups multiply 64 rows at a time (wgmma)
_GROUPED = (
    RatedTensorTile(128, 256, 256, TileSpeed(0.92, 0.92, 1, 3.0)),
    RatedTensorTile(256, 128, 256, TileSpeed(0.88, 0.88, 1, 3.0)),
    RatedTensorTile(128, 128, 256, TileSpeed(0.74, 0.95, 2, 2.5)),
    RatedTensorTile(128, 64, 256, TileSpeed(0.57, 0.95, 2, 2.0)),
    RatedTensorTile(64, 128, 128, TileSpeed(0.57, 0.85, 2, 2.0)),
    RatedTensorTile(64, 64, 128, TileSpeed(0.33, 0.7, 3, 1.5)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.18, 0.45, 3, 1.5)),
)
_GROUPED_PROMOTED = (
    RatedTensorTile(128, 128, 256, TileSpeed(0.79, 0.79, 1, 2.5)),
    RatedTensorTile(128, 128, 256, TileSpeed(0.87, 0.87, 1, 2.5), line_part=2),
    RatedTensorTile(128, 64, 256, TileSpeed(0.77, 0.77, 1, 2.0)),
    RatedTensorTile(64, 128, 128, TileSpeed(0.5, 0.82, 2, 2.0), line_part=2),
    RatedTensorTile(64, 64, 128, TileSpeed(0.5, 0.72, 2, 1.5)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.27, 0.5, 2, 1.5)),
)
# warps multiply 16 rows at a time (mma.sync)
_SINGLE = (
    RatedTensorTile(128, 128, 256, TileSpeed(0.6, 0.7, 2, 2.5)),
    RatedTensorTile(128, 64, 128, TileSpeed(0.4, 0.6, 2, 2.0)),
    RatedTensorTile(64, 64, 128, TileSpeed(0.3, 0.5, 3, 2.0)),
    RatedTensorTile(64, 32, 128, TileSpeed(0.2, 0.4, 3, 2.0)),
    RatedTensorTile(32, 64, 128, TileSpeed(0.2, 0.4, 3, 2.0)),
    RatedTensorTile(16, 64, 128, TileSpeed(0.1, 0.25, 4, 2.0)),
)
# few rows: the number of bytes in flight from memory limits the speed
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
# by the rows of a tile product, and whether sums are promoted
RATED_TENSOR_TILES = {
    (64, False): (*_GROUPED, *_GROUPED_FEW),
    (64, True): (*_GROUPED_PROMOTED, *_GROUPED_FEW),
    (16, False): (*_SINGLE, *_SINGLE_FEW),
    (16, True): (*_SINGLE, *_SINGLE_FEW),
}


def list_tensor_tiles(scheme: ProductScheme, target: ThreadTarget) -> list[tuple[TensorTile, TileSpeed]]:
    """List the tiles that fit a target, each with as many stages as fit."""
    fitting = []
    for rated in RATED_TENSOR_TILES.get((scheme.tile_product.rows, scheme.promotes_sums), ()):
        depth = target.tile_line_bytes * 8 // scheme.left.bits // rated.line_part
        tiles = [
            TensorTile(rated.height, rated.width, depth, rated.lanes, stages, rated.swapped)
            for stages in range(_MAX_SWAPPED_STAGES if rated.swapped else _MAX_STAGES, _MIN_STAGES - 1, -1)
        ]
        if rated.swapped and (scheme.left is not scheme.right or scheme.planes > 1):
            continue
        if rated.lanes > target.most_block_threads or tiles[0].sums(scheme) > _MAX_SUMS:
            continue
        for room in (target.shared_bytes // rated.speed.resident, target.shared_bytes):
            tile = next((tile for tile in tiles if tile.bytes(scheme) <= room), None)
            if tile is not None:
                fitting.append((tile, rated.speed))
                break
    return fitting
