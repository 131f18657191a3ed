"""A tensor made of sizes: each element is a parameter of the kernel that writes it.

It may be any int64, unlike the size of a tensor that exists. Where parameters have 32 bits, several make one.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import LARGEST_POSITION, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer
from weft.ir.program import Dims
from weft.ir.target import Target
from weft.kernels.lower.kernel_builder import KernelBuilder, put
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work

_PART_BITS = (0, 31, 62)  # where parts start
_PART = 1 << 31
_MOST_ELEMENTS = 16  # of a launch whose parameters are parts: it has room for some sixty


def sizes_work(primitive: Dims, result: StoredTensor, target: Target) -> Work:
    """One scalar store per element; tensors of sizes are small."""
    values = list(enumerate(primitive.values))
    each = _MOST_ELEMENTS if target.parameter_bits < 64 else max(len(values), 1)
    pieces = [values[first : first + each] for first in range(0, max(len(values), 1), each)]
    return Work(tuple(_launch(piece, result, target) for piece in pieces))


def _launch(values: list[tuple[int, Dim]], result: StoredTensor, target: Target) -> Launch:
    builder = KernelBuilder("sizes")
    out = builder.output("out", result.dtype, Reference("result", 0))
    body = []
    for number, value in values:
        code: Code = Integer(_element(value, builder, target))
        if result.dtype is not DType.int64:
            code = Call("cast", (code,), result.dtype)
        body.append(put(out, number, code))
    return builder.launch(1, body, 1)


def _element(value: Dim, builder: KernelBuilder, target: Target) -> Dim:
    if isinstance(value, int):
        return value
    low, high = dims.bounds(value)
    if target.parameter_bits == 64 or (low is not None and low >= 0 and high is not None and high <= LARGEST_POSITION):
        return builder.size(value)
    found: Dim = 0
    for start in _PART_BITS:
        part = dims.mod(dims.floordiv(value, 1 << start), _PART if start < _PART_BITS[-1] else 4)
        found = found + builder.size(part) * (1 << start)
    return found
