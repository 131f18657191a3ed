"""What a device can do, as numbers. Templates, scheduler and planner read these and never a device's name."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.dtypes import DType


@dataclass(frozen=True, slots=True)
class Target:
    vector_bytes: int  # width of a vector register (CPU) or of a coalesced access per lane (GPU)
    vector_registers: int
    fused_multiply_add: bool
    alignment: int  # bytes that every buffer starts at a multiple of
    cache_bytes: int  # fast memory that one block can count on
    transformed_products: bool = True  # products may be computed in another basis (Winograd), which rounds more
    dot_product_8: bool = False  # four products of uint8 and int8 added to an int32, for all lanes in one instruction
    threads: int = 0  # lanes of a usual block where lanes are threads of their own; 0: they are elements of vectors
    most_threads: int = 0  # lanes that a block may have at most, where they are threads
    shared_bytes: int = 0  # memory that the threads of a block can share; 0: sharing costs more than it saves
    most_buffers: int = 1 << 30  # that a kernel may have
    short_parameters: bool = False  # those of kernels have 32 bits, as sizes and positions of tensors do
    missing_types: frozenset[DType] = frozenset()  # that it cannot compute with
    features: frozenset[str] = frozenset()  # instruction sets by the compiler's names, for emission alone


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device was measured to do at most, with all its threads: float32 operations and bytes read, per second."""

    flops: float
    bandwidth: float

    def roofline(self, flops: float, bytes: float) -> float:
        """The fewest seconds that so much work can take."""
        return max(flops / self.flops, bytes / self.bandwidth)

    def bound(self, flops: float, bytes: float) -> str:
        """What keeps so much work from taking less: "arithmetic" or "memory"."""
        return "arithmetic" if flops / self.flops >= bytes / self.bandwidth else "memory"
