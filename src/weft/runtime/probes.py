"""Small programs whose runs tell what a device does: one for each number of a calibration.

They are traced like any model and take the way that models take, through fusion, templates, compiler and driver of a
device, so that what is measured is what real runs get. Sizes follow from the device's peak: large enough to be seen
beside what a run costs, small enough for all of them to be done in a second or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.cost.roofline import Peak
from weft.ir.dtypes import DType
from weft.ir.program import Contract, TensorProgram
from weft.ir.types import TensorType
from weft.opset import language
from weft.opset.flow import scan
from weft.opset.tensor import Tensor, current_trace
from weft.opset.trace import Trace
from weft.passes import PIPELINE
from weft.records import dataclass

Array = np.ndarray[Any, Any]

SMALL = 16  # elements of what takes no time
CHAIN = 32  # launches that wait for each other
ITERATIONS = 32
COLUMN = 512  # elements of one that is added up
LAYERS = 4  # products or convolutions in a row
MANY = 5  # tensors that come in or go out
PRODUCT_SECONDS = 1.5e-4  # that one should take at the peak, about
SMALLEST_SIDE, LARGEST_SIDE = 128, 2048  # of a product
LARGE_BYTES = 8 << 20  # of a transfer


@dataclass(frozen=True, slots=True)
class Probe:
    """A program with its inputs, and the operations that tell: of its products or convolutions alone."""

    program: TensorProgram
    inputs: tuple[Array, ...]
    flops: float = 0.0


def smallest() -> Probe:
    """A run that does next to nothing."""
    return _probe([_zeros(SMALL)], lambda x: [x + 1.0])


def many_inputs() -> Probe:
    """The same of several tensors."""
    return _probe([_zeros(SMALL)] * MANY, lambda *inputs: [_sum(inputs)])


def many_outputs() -> Probe:
    """The same with several results, each of a launch of its own."""
    return _probe([_zeros(1, SMALL)], lambda x: [language.matmul(x, _weights(SMALL, SMALL)) for _ in range(MANY)])


def large_input() -> Probe:
    """A large tensor comes in, and little is done with it."""
    return _probe([_zeros(LARGE_BYTES // 4)], lambda x: [language.slice_axis(x, 0, 0, SMALL)])


def large_output() -> Probe:
    """A large tensor goes out, and little was done for it."""
    count = LARGE_BYTES // 4 // SMALL
    return _probe([_zeros(SMALL)], lambda x: [language.expand(x, (count, SMALL))])


def chain() -> Probe:
    """Small launches that wait for each other."""

    def layers(x: Tensor) -> list[Tensor]:
        weights = _weights(SMALL, SMALL)
        for _ in range(CHAIN):
            x = language.matmul(x, weights)
        return [x]

    return _probe([_zeros(1, SMALL)], layers)


def iterations() -> Probe:
    """Small launches over and over."""

    def body(state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [language.matmul(state, _weights(SMALL, SMALL))], []

    return _probe([_zeros(1, SMALL)], lambda x: scan(body, [x], [], ITERATIONS)[0])


def column_sums() -> Probe:
    """Sums along an axis that is not the last: where lanes are threads, each has some to itself."""
    return _probe([_zeros(COLUMN, SMALL * SMALL)], lambda x: [language.reduce("sum", x, [0])])


def host_step() -> Probe:
    """A step for the host between two for the device."""

    def interrupted(x: Tensor) -> list[Tensor]:
        (back,) = language.host("scalar", [x + 1.0], [TensorType(DType.float32, ())])
        return [back + 1.0]

    return _probe([_zeros(1)], interrupted)


def products(dtype: DType, peak: Peak, part: float = 1.0) -> Probe:
    """Products with weights, in a row; sides are `part` of those that take the device a while."""
    return _products(dtype, int(_product_side(peak) * part))


def _products(dtype: DType, side: int) -> Probe:
    def layers(x: Tensor) -> list[Tensor]:
        weights = _weights(side, side, dtype=dtype)
        for _ in range(LAYERS):
            x = language.matmul(x, weights)
        return [language.reduce("maximum", x, [0])]

    return _probe([_zeros(side, side, dtype=dtype)], layers, LAYERS * 2.0 * side**3)


def small_products() -> Probe:
    """The same of sides that tell what a device does with little work."""
    return _products(DType.float32, SMALLEST_SIDE)


def byte_products(peak: Peak) -> Probe:
    """A product of bytes, added up in 32 bits."""
    side = _product_side(peak)

    def layer(x: Tensor) -> list[Tensor]:
        operands = [x, _weights(side, side, dtype=DType.int8)]
        type = TensorType(DType.int32, (side, side))
        (sums,) = current_trace.get().emit(Contract((0, 1), (1, 2), (0, 2)), operands, [type])
        return [language.reduce("maximum", sums, [0])]

    return _probe([_zeros(side, side, dtype=DType.uint8)], layer, 2.0 * side**3)


# -- making them -----------------------------------------------------------------------------------------------------


def _probe(inputs: Sequence[Array], function: Callable[..., Sequence[Tensor]], flops: float = 0.0) -> Probe:
    evaluator = Interpreter()
    trace = Trace(evaluator)
    types = [TensorType(DType(array.dtype.name), array.shape) for array in inputs]
    tensors = [trace.input(type, f"input{number}") for number, type in enumerate(types)]
    with trace.active():
        outputs = function(*tensors)
    program = trace.program(outputs)
    for apply in PIPELINE:
        program = apply(program, evaluator)
    return Probe(program, tuple(inputs), flops)


def _zeros(*shape: int, dtype: DType = DType.float32) -> Array:
    return np.zeros(shape, dtype.numpy)


def _weights(*shape: int, dtype: DType = DType.float32) -> Tensor:
    """Constants that no pass makes disappear: small numbers, no two in a row alike."""
    numbers = np.arange(int(np.prod(shape))) % 13 - 6
    return current_trace.get().constant((numbers.reshape(shape) * 2.0**-4).astype(dtype.numpy))


def _sum(inputs: Sequence[Tensor]) -> Tensor:
    total = inputs[0]
    for tensor in inputs[1:]:
        total = total + tensor
    return total


def _product_side(peak: Peak) -> int:
    wanted = (PRODUCT_SECONDS * peak.flops / 2) ** (1 / 3)
    return int(min(max(2 ** int(np.log2(max(wanted, 1.0))), SMALLEST_SIDE), LARGEST_SIDE))
