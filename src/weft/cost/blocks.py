"""The size of a CPU block: large enough to hide its overhead, small enough for threads to share work evenly.

Blocks depend only on sizes, and are equal on all CPUs and for any number of threads, since splitting sums changes bits.
So this uses the static profile of a core, never a measurement.
"""

from __future__ import annotations

from weft.cost.profiles import CORE

_ELEMENT_BYTES = 8  # of an element that is read and written as float32


def operations_in(seconds: float) -> int:
    """Return the operations that a core does in a time."""
    return round(CORE.unit_flops * seconds)


def elements_in(seconds: float) -> int:
    """Return the elements that a core moves in a time, as a power of two."""
    return 1 << (int(CORE.workspace_bandwidth * seconds / _ELEMENT_BYTES).bit_length() - 1)


BLOCK_ELEMENTS = elements_in(4e-6)  # of a map or a reduction
TRANSFORM_ELEMENTS = elements_in(16e-6)  # of a Winograd transform
BLOCK_WORK = operations_in(10e-6)  # operations of a product's block
LEAST_BLOCK_WORK = operations_in(2e-6)  # minimum if there are several blocks
DEPTHWISE_BLOCK_WORK = operations_in(2.5e-6)
ATTENTION_BLOCK_WORK = operations_in(160e-6)
BLOCK_OVERHEAD = operations_in(CORE.launch_seconds)  # of starting a block, in operations
OPERATIONS_PER_FAR_BYTE = CORE.unit_flops / CORE.unit_bandwidth  # per byte read from outside the cache
OPERATIONS_PER_WEIGHT_BYTE = CORE.unit_flops / CORE.memory_bandwidth  # per byte of weights read from memory
OPERATIONS_PER_MOVED_BYTE = CORE.unit_flops / CORE.workspace_bandwidth  # per byte passed to the next kernel
