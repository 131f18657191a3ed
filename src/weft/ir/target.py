"""What a device is to the stages that build and plan for it, as numbers. They read these and never a device's name.

Lanes are the elements of vectors (`VectorTarget`) or threads of their own (`ThreadTarget`). Limits must be kept; rates
say what work costs. A target's rates are a static profile of a class of devices: which kernels are chosen follows from
them, and with that the bits of results and the names of cache entries, so they never come from a measurement that
another run would not repeat. What was measured is a `Peak` (cost/roofline.py): it decides when and where work runs,
not what is computed. The exception is `tuned`, which somebody asked for and which is kept: being a part of the target
it is a part of those names.
"""

from __future__ import annotations

from enum import Enum

from weft.ir.dtypes import DType
from weft.records import dataclass

Choices = tuple[tuple[str, str], ...]
"""Products and the ways to compute them that were measured to be best: names, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a device does in a second, about; its units (cores, multiprocessors) run blocks on their own."""

    compute_units: int
    unit_flops: float  # float32 operations of one unit
    memory_bandwidth: float  # bytes of operands that are read once, by all units together
    workspace_bandwidth: float  # bytes that are written for the kernel after, and read there, by all units together
    unit_bandwidth: float  # bytes that one unit reads from beyond its own caches
    launch_seconds: float  # before a launch (of a CPU: a block) does anything
    latency_seconds: float  # until what a lane reads is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What both kinds have."""

    rates: Rates
    fused_multiply_add: bool
    alignment: int  # bytes that every buffer starts at a multiple of
    dot_product_8: bool = False  # four products of uint8 and int8 added to an int32, for all lanes in one instruction
    unpacks_weights: bool = False  # weights of few bits stay so in memory until they are multiplied
    most_buffers: int = 1 << 30  # that a kernel may have
    parameter_bits: int = 64  # of a kernel's parameters; with 32, tensors are such that their sizes and positions fit
    missing_types: frozenset[DType] = frozenset()  # that it cannot compute with


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorTarget(Target):
    """Lanes are the elements of vectors and go on together; a block is a task for a core."""

    vector_bytes: int  # of a vector register
    vector_registers: int
    cache_bytes: int  # of the cache that a core has for itself
    dot_product_16: bool = False  # two products of bfloat16 added to a float32, for all lanes in one instruction
    dot_16_rate: float = 2.0  # multiply-adds of pairs of bfloat16, however they are done, by those of float32
    narrow_products: bool = False  # operands of products may be rounded to bfloat16, which the sums are not
    lookup_16: bool = False  # one of 16 numbers for each lane, by the lowest bits of an int32, in one instruction
    transformed_products: bool = True  # products may be computed in another basis (Winograd), which rounds more
    features: frozenset[str] = frozenset()  # instruction sets by the compiler's names, for emission alone


@dataclass(frozen=True, slots=True)
class TileProduct:
    """Types of tiles that the lanes of a block multiply together (tensor cores), and how fast."""

    left: DType
    right: DType
    sums: DType
    unit_flops: float  # operations of a unit in a second
    rows: int = 16  # that the least number of lanes multiplies at a time
    lanes: int = 32  # that number


class Float32Products(Enum):
    """How products of float32 are computed where there are tile products for it."""

    EXACT = "exact"  # by multiply-adds
    PARTS = "parts"  # each operand as three bfloat16, which hold all its bits; six products
    TF32 = "tf32"  # with 10 bits behind the point
    HALVES = "halves"  # operands rounded to float16, within its range


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTarget(Target):
    """Lanes are threads of their own; a block is a group of them with memory that they can share."""

    block_threads: int  # of a usual block
    most_block_threads: int
    shared_bytes: int  # that the threads of a block can share
    sharing_pays: bool  # whether threads gain by sharing memory and waiting for each other
    tile_products: tuple[TileProduct, ...] = ()
    tile_line_bytes: int = 128  # of a line of a tile in the product of tiles
    float32_products: Float32Products = Float32Products.EXACT
    tuned: Choices = ()

    def tile_product(self, left: DType, right: DType) -> TileProduct | None:
        """The fastest for tiles of these types."""
        found = [product for product in self.tile_products if (product.left, product.right) == (left, right)]
        return max(found, key=lambda product: product.unit_flops, default=None)
