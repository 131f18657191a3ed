"""A tensor of sizes: each element is a parameter of the kernel that writes it.

An element may be any int64, unlike the size of an actual tensor. 32-bit parameters hold a part of an element each.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import LARGEST_POSITION, Dim
from weft.ir.kernel import Integer
from weft.ir.program import Dims
from weft.ir.target import Target
from weft.kernels.lower.kernel_builder import KernelBuilder, put
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work

_PART_BITS = (0, 31, 62)  # the first bit of each part of an element
_PART = 1 << 31
_MAX_ELEMENTS = 16  # per launch with 32-bit parameters: three for each element, and a launch has room for about sixty


def build_sizes(primitive: Dims, result: StoredTensor, target: Target) -> Work:
    """Build kernels with one scalar store per element; tensors of sizes are small."""
    values = list(enumerate(primitive.values))
    per_launch = _MAX_ELEMENTS if target.parameter_bits < 64 else max(len(values), 1)
    pieces = [values[first : first + per_launch] for first in range(0, max(len(values), 1), per_launch)]
    return Work(tuple(_build_stores(tuple(piece), result, target) for piece in pieces))


@memoize
def _build_stores(values: tuple[tuple[int, Dim], ...], result: StoredTensor, target: Target) -> Launch:
    builder = KernelBuilder("sizes")
    out = builder.output("out", result.dtype, Reference("result", 0))
    body = []
    for number, value in values:
        body.append(put(out, number, cast(Integer(_element(value, builder, target)), result.dtype)))
    return builder.launch(1, body, 1)


def _element(value: Dim, builder: KernelBuilder, target: Target) -> Dim:
    if isinstance(value, int):
        return value
    low, high = dims.bounds(value)
    if target.parameter_bits == 64 or (low is not None and low >= 0 and high is not None and high <= LARGEST_POSITION):
        return builder.size(value)
    total: Dim = 0
    for start in _PART_BITS:
        part = dims.mod(dims.floordiv(value, 1 << start), _PART if start < _PART_BITS[-1] else 4)
        total = total + builder.size(part) * (1 << start)
    return total
