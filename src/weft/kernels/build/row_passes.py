"""Sweeps as data: passes over the rows of a domain, each reducing rows to values that later passes may use."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.scalar import Scalar, loads
from weft.ir.types import Shape
from weft.kernels.build.accumulators import Fold
from weft.kernels.lower.tensors import StoredTensor
from weft.records import dataclass

SUM_CHUNK = 64  # elements of a row that a lane sums before adding them to the total
MAX_COLUMNS = 64  # rows that a block processes side by side


@dataclass(frozen=True, slots=True)
class RowValue:
    """A value per row, read by later expressions by its key."""

    key: int
    value: Scalar


@dataclass(frozen=True, slots=True)
class Write:
    """A value written to result number `result`; later passes may read it back by its key."""

    result: int
    value: Scalar
    key: int | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a row: folds and writes for each element, then `then` once per row."""

    folds: tuple[Fold, ...] = ()
    writes: tuple[Write, ...] = ()
    then: tuple[RowValue | Write, ...] = ()

    @property
    def elements(self) -> list[Scalar]:
        return [*(fold.element for fold in self.folds), *(write.value for write in self.writes)]

    @property
    def expressions(self) -> list[Scalar]:
        return [*self.elements, *(action.value for action in self.then)]


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a sweep: strides along all axes of the domain, 0 along reduced axes for one value per row.

    Without strides it is block-local memory, one row long.
    """

    dtype: DType
    strides: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class RowChunks:
    """Rows split into chunks of `length` elements along the reduced axis `axis`, with results `stride` apart."""

    axis: int
    length: int
    stride: Dim


@dataclass(frozen=True, slots=True)
class Sweep:
    """Passes over a domain whose axes are listed in `order`, outermost in memory first.

    Expressions are over the domain's axes, and read values of earlier passes by their keys.
    """

    domain: Shape
    reduced: frozenset[int]
    order: tuple[int, ...]
    passes: tuple[Pass, ...]
    operands: tuple[StoredTensor, ...]
    results: tuple[Result, ...]


def read_operands(sweep: Sweep) -> list[int]:
    """Return the numbers of the operands that a sweep reads."""
    expressions = [expression for part in sweep.passes for expression in part.expressions]
    read = {load.operand for expression in expressions for load in loads(expression)}
    return [number for number in range(len(sweep.operands)) if number in read]
