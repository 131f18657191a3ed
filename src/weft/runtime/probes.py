"""Small programs that measure a device: one for each number of a calibration.

They are traced and compiled like any model, so that they run as real models do. Sizes follow from the device's peak:
large enough to exceed the overhead of a run, small enough for all of them to take a second or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.cost.roofline import Peak
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.program import Contract, TensorProgram
from weft.ir.types import TensorType
from weft.opset import language
from weft.opset.flow import scan
from weft.opset.tensor import Tensor, current_trace
from weft.opset.trace import Trace
from weft.passes import PIPELINE
from weft.records import dataclass

SMALL = 16  # elements of tensors whose work is negligible
CHAIN = 32  # launches that wait for each other
ITERATIONS = 32
COLUMN = 512  # elements of a column that is summed
LAYERS = 4  # products or convolutions in a row
MANY = 5  # inputs or outputs
PRODUCT_SECONDS = 1.5e-4  # of one product at the peak, about
SMALLEST_SIDE, LARGEST_SIDE = 128, 2048  # of a product
LARGE_BYTES = 8 << 20  # of a transfer


@dataclass(frozen=True, slots=True)
class Probe:
    """A program with its inputs; `flops` are those of its products."""

    program: TensorProgram
    inputs: tuple[Array, ...]
    flops: float = 0.0


def smallest() -> Probe:
    """One tiny launch."""
    return _probe([_zeros(SMALL)], lambda x: [x + 1.0])


def many_inputs() -> Probe:
    """One tiny launch with several inputs."""
    return _probe([_zeros(SMALL)] * MANY, lambda *inputs: [_sum(inputs)])


def many_outputs() -> Probe:
    """Several outputs, each with a tiny launch of its own."""
    return _probe([_zeros(1, SMALL)], lambda x: [language.matmul(x, _weights(SMALL, SMALL)) for _ in range(MANY)])


def large_input() -> Probe:
    """A large input with little work."""
    return _probe([_zeros(LARGE_BYTES // 4)], lambda x: [language.slice_axis(x, 0, 0, SMALL)])


def large_output() -> Probe:
    """A large output with little work."""
    count = LARGE_BYTES // 4 // SMALL
    return _probe([_zeros(SMALL)], lambda x: [language.expand(x, (count, SMALL))])


def chain() -> Probe:
    """Tiny launches that depend on each other."""

    def layers(x: Tensor) -> list[Tensor]:
        weights = _weights(SMALL, SMALL)
        for _ in range(CHAIN):
            x = language.matmul(x, weights)
        return [x]

    return _probe([_zeros(1, SMALL)], layers)


def iterations() -> Probe:
    """A loop of tiny launches."""

    def body(state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [language.matmul(state, _weights(SMALL, SMALL))], []

    return _probe([_zeros(1, SMALL)], lambda x: scan(body, [x], [], ITERATIONS)[0])


def column_sums() -> Probe:
    """Sums along the first axis: where lanes are threads, each adds columns serially."""
    return _probe([_zeros(COLUMN, SMALL * SMALL)], lambda x: [language.reduce("sum", x, [0])])


def host_step() -> Probe:
    """A host step between two launches."""

    def interrupted(x: Tensor) -> list[Tensor]:
        (back,) = language.host("scalar", [x + 1.0], [TensorType(DType.float32, ())])
        return [back + 1.0]

    return _probe([_zeros(1)], interrupted)


def products(dtype: DType, peak: Peak, part: float = 1.0) -> Probe:
    """Consecutive matrix products with weights; `part` scales the side."""
    return _products(dtype, int(_product_side(peak) * part))


def _products(dtype: DType, side: int) -> Probe:
    def layers(x: Tensor) -> list[Tensor]:
        weights = _weights(side, side, dtype=dtype)
        for _ in range(LAYERS):
            x = language.matmul(x, weights)
        return [language.reduce("maximum", x, [0])]

    return _probe([_zeros(side, side, dtype=dtype)], layers, LAYERS * 2.0 * side**3)


def small_products() -> Probe:
    """Small matrix products, which show the cost of sharing work between threads."""
    return _products(DType.float32, SMALLEST_SIDE)


def byte_products(peak: Peak) -> Probe:
    """A matrix product of 8-bit integers with 32-bit sums."""
    side = _product_side(peak)

    def layer(x: Tensor) -> list[Tensor]:
        operands = [x, _weights(side, side, dtype=DType.int8)]
        type = TensorType(DType.int32, (side, side))
        (sums,) = current_trace.get().emit(Contract((0, 1), (1, 2), (0, 2)), operands, [type])
        return [language.reduce("maximum", sums, [0])]

    return _probe([_zeros(side, side, dtype=DType.uint8)], layer, 2.0 * side**3)


# -- construction ---------------------------------------------------------------------------------------------------


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
    """Make constants that no pass folds away: small numbers, neighbours different."""
    numbers = np.arange(int(np.prod(shape))) % 13 - 6
    return current_trace.get().constant((numbers.reshape(shape) * 2.0**-4).astype(dtype.numpy))


def _sum(inputs: Sequence[Tensor]) -> Tensor:
    total = inputs[0]
    for tensor in inputs[1:]:
        total = total + tensor
    return total


def _product_side(peak: Peak) -> int:
    side = (PRODUCT_SECONDS * peak.flops / 2) ** (1 / 3)
    return int(min(max(2 ** int(np.log2(max(side, 1.0))), SMALLEST_SIDE), LARGEST_SIDE))
