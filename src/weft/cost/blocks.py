"""How much work is worth a block of a CPU: so much that beginning one costs little, and that threads share it evenly.

Blocks are cut by sizes alone, the same ones on all CPUs and for any number of threads, since cuts of sums decide bits:
so what is read here is the static profile of a core, never a measurement.
"""

from __future__ import annotations

from weft.cost.profiles import CORE
from weft.ir.target import Rates

_ELEMENT_BYTES = 8  # of an element that is read and written as float32


def operations_in(seconds: float, rates: Rates = CORE) -> int:
    """Operations that a unit does in a time."""
    return round(rates.unit_flops * seconds)


def elements_in(seconds: float, rates: Rates = CORE) -> int:
    """Elements that a unit moves in a time, as a power of two."""
    return 1 << (int(rates.workspace_bandwidth * seconds / _ELEMENT_BYTES).bit_length() - 1)


BLOCK_ELEMENTS = elements_in(4e-6)  # of a map or a reduction, about
TRANSFORM_ELEMENTS = elements_in(16e-6)  # of tiles that are transformed
BLOCK_WORK = operations_in(10e-6)  # operations of a product, about
LEAST_BLOCK_WORK = operations_in(2e-6)  # operations of a product's block, where there are more
DEPTHWISE_BLOCK_WORK = operations_in(2.5e-6)
ATTENTION_BLOCK_WORK = operations_in(160e-6)
BLOCK_OVERHEAD = operations_in(CORE.launch_seconds)  # operations that could be done while a block is fetched and begun
OPERATIONS_PER_FAR_BYTE = CORE.unit_flops / CORE.unit_bandwidth  # while a byte comes from beyond the cache
OPERATIONS_PER_WEIGHT_BYTE = CORE.unit_flops / CORE.memory_bandwidth  # while a byte of weights comes from memory
OPERATIONS_PER_MOVED_BYTE = CORE.unit_flops / CORE.workspace_bandwidth  # while a byte goes to the kernel after
