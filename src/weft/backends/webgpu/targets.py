"""The kernel target of an adapter."""

from __future__ import annotations

from weft.backends.webgpu.adapters import Limits
from weft.backends.webgpu.wgsl_types import Abilities
from weft.cost.profiles import LARGE_GPU, SOFTWARE_GPU
from weft.ir.dtypes import DType
from weft.ir.target import Rates, ThreadTarget

_THREADS = 256  # of a usual block
_SOFTWARE_THREADS = 64


def build_target(limits: Limits, abilities: Abilities, rates: Rates | None = None, precision: str = "") -> ThreadTarget:
    """Build the target of an adapter; the default of `rates` is the profile of its kind."""
    return ThreadTarget(
        rates=rates or (SOFTWARE_GPU if limits.is_software else LARGE_GPU),
        fused_multiply_add=True,
        unpacks_weights=True,
        widens_weights=abilities.float16,
        half_constants=abilities.float16 and precision == "fast",
        fixed_order=precision == "strict",
        alignment=limits.offset_alignment,
        block_threads=min(_SOFTWARE_THREADS if limits.is_software else _THREADS, limits.max_lanes),
        most_block_threads=limits.max_lanes,
        shared_bytes=limits.shared_bytes,
        sharing_pays=not limits.is_software,
        most_buffers=limits.max_bindings,
        parameter_bits=32,
        missing_types=frozenset() if abilities.float64 and abilities.int64 else frozenset({DType.float64}),
    )
