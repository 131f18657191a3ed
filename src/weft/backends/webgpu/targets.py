"""What an adapter is to the kernel builders: a target whose lanes are threads."""

from __future__ import annotations

from weft.backends.webgpu.adapters import Limits
from weft.backends.webgpu.wgsl_types import Abilities
from weft.ir.dtypes import DType
from weft.ir.target import Target

_THREADS = 256  # of a usual block
_SOFTWARE_THREADS = 64


def target_of(limits: Limits, abilities: Abilities) -> Target:
    """The target that an adapter's limits and abilities describe."""
    return Target(
        vector_bytes=16,
        vector_registers=64,
        fused_multiply_add=True,
        alignment=limits.offset_alignment,
        cache_bytes=limits.shared_bytes,
        transformed_products=False,
        threads=min(_SOFTWARE_THREADS if limits.is_software else _THREADS, limits.max_lanes),
        most_threads=limits.max_lanes,
        shared_bytes=0 if limits.is_software else limits.shared_bytes,
        most_buffers=limits.max_bindings,
        short_parameters=True,
        missing_types=frozenset() if abilities.float64 and abilities.int64 else frozenset({DType.float64}),
    )
