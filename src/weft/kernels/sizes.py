"""A tensor made of sizes: each element is a parameter of the kernel that writes it."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Kernel, Put
from weft.ir.program import Dims
from weft.kernels.launch import Launch, Reference, Tensor, Work
from weft.kernels.parameters import Parameters


def sizes_work(primitive: Dims, result: Tensor) -> Work:
    """One scalar store per element; tensors of sizes are small."""
    parameters = Parameters()
    body = []
    for number, value in enumerate(primitive.values):
        code: Code = Integer(parameters.symbols(value) if isinstance(value, int) else parameters.size(value))
        if result.dtype is not DType.int64:
            code = Call("cast", (code,), result.dtype)
        body.append(Put("out", number, code))
    kernel = Kernel("sizes", (Buffer("out", result.dtype, True),), tuple(parameters.values), 1, tuple(body))
    launch = Launch(kernel, 1, tuple(parameters.values.values()))
    return Work(((launch, (Reference("result", 0),)),))
