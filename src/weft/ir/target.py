"""Targets: the limits and rates of a device, which kernel selection and planning read instead of a device's name.

Lanes are vector elements (`VectorTarget`) or threads (`ThreadTarget`). A target's rates are a static profile of a class
of devices. They decide which kernels are chosen, and with that the bits of results and the names of cache entries, so
they never come from a measurement, which might not repeat. Measurements are in `Peak` (cost/roofline.py), which decides
when and where work runs, not what is computed. The exception is `tuned`: tuning is explicit and its results are stored,
and as a part of the target they are a part of cache names.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from weft.ir.dtypes import DType
from weft.records import dataclass

Choices = tuple[tuple[str, str], ...]
"""Pairs of a product's name and the name of its fastest measured tiling, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Approximate throughput of a device; its units (cores, multiprocessors) run blocks independently."""

    compute_units: int
    unit_flops: float  # float32 operations per second of one unit
    memory_bandwidth: float  # bytes per second of operands that are read once, all units together
    workspace_bandwidth: float  # bytes per second written by one kernel and read by the next, all units together
    unit_bandwidth: float  # bytes per second that one unit reads from outside its caches
    launch_seconds: float  # overhead of a launch (on a CPU: of a block)
    latency_seconds: float  # of a lane's read from memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Limits and features of both kinds of targets."""

    rates: Rates
    fused_multiply_add: bool
    alignment: int  # of every buffer's start, in bytes
    dot_product_8: bool = False  # four products of uint8 and int8 added to an int32, for all lanes in one instruction
    unpacks_weights: bool = False  # quantized weights stay packed in memory until they are multiplied
    widens_weights: bool = False  # weights of 16 bits stay so in memory until float32 values are multiplied by them
    most_buffers: int = 1 << 30  # of a kernel
    parameter_bits: int = 64  # of a kernel's parameters; with 32, sizes and indices of all tensors must fit
    missing_types: frozenset[DType] = frozenset()  # without arithmetic on this target


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorTarget(Target):
    """Lanes are the elements of vectors and run in lockstep; a block is a task for a core."""

    vector_bytes: int  # of a vector register
    vector_registers: int
    cache_bytes: int  # of a core's private cache
    dot_product_16: bool = False  # two products of bfloat16 added to a float32, for all lanes in one instruction
    dot_16_rate: float = 2.0  # throughput of bfloat16 multiply-adds relative to float32
    narrow_products: bool = False  # operands of products may be rounded to bfloat16; sums stay float32
    lookup_16: bool = False  # one of 16 numbers for each lane, by the lowest bits of an int32, in one instruction
    transformed_products: bool = True  # products may be computed in another basis (Winograd), which rounds more
    features: frozenset[str] = field(default=frozenset(), compare=False)  # by LLVM's names, for emission only


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A tensor-core product: the types of tiles that the lanes of a block multiply together, and its rate."""

    left: DType
    right: DType
    sums: DType
    unit_flops: float  # operations per second of one unit
    rows: int = 16  # that the smallest group of lanes multiplies at a time
    lanes: int = 32  # of that group


class Float32Products(Enum):
    """How float32 products are computed on tensor cores."""

    EXACT = "exact"  # by multiply-adds, without tensor cores
    PARTS = "parts"  # each operand as the exact sum of three bfloat16; six products
    TF32 = "tf32"  # with 10 bits of mantissa
    HALVES = "halves"  # operands rounded to float16, if they fit its range


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTarget(Target):
    """Lanes are threads; a block is a group of them with shared memory."""

    block_threads: int  # of a typical block
    most_block_threads: int
    shared_bytes: int  # of shared memory per block
    sharing_pays: bool  # whether shared memory is worth its barriers
    tile_products: tuple[TileProduct, ...] = ()
    tile_line_bytes: int = 128  # of one line of a tile in shared memory
    float32_products: Float32Products = Float32Products.EXACT
    half_constants: bool = False  # float32 constants of products are stored as float16, rounded
    tuned: Choices = ()
    fixed_order: bool = False  # reductions, products by constants and attention sum in an order that ignores other rows

    @property
    def float32_tiles(self) -> tuple[DType, int] | None:
        """The type of tiles for float32 operands, and the number of planes that each operand is split into."""
        match self.float32_products:
            case Float32Products.EXACT:
                return None
            case Float32Products.PARTS:
                element, planes = DType.bfloat16, 3
            case Float32Products.TF32:
                element, planes = DType.float32, 1
            case Float32Products.HALVES:
                element, planes = DType.float16, 1
        return None if self.tile_product(element, element) is None else (element, planes)

    def tile_product(self, left: DType, right: DType) -> TileProduct | None:
        """Return the fastest tile product for these types."""
        candidates = [product for product in self.tile_products if (product.left, product.right) == (left, right)]
        return max(candidates, key=lambda product: product.unit_flops, default=None)
