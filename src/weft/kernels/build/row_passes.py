"""Row passes as data: a domain is passed over row by row, each pass reducing rows to numbers that the next may use."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.scalar import Scalar, loads
from weft.ir.types import Shape
from weft.kernels.build.accumulators import Fold
from weft.kernels.lower.tensors import StoredTensor
from weft.records import dataclass

STRETCH = 64  # elements of a row that a lane adds up on their own
COLUMNS = 64  # rows that a block does side by side, at most


@dataclass(frozen=True, slots=True)
class Single:
    """A number for each row, held for what follows under a key."""

    key: int
    value: Scalar


@dataclass(frozen=True, slots=True)
class Write:
    """A value written to result number `result`; with a key, later passes read it again under that."""

    result: int
    value: Scalar
    key: int | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One way over a row: reductions and what is written for each element; then what is done once."""

    folds: tuple[Fold, ...] = ()
    writes: tuple[Write, ...] = ()
    then: tuple[Single | Write, ...] = ()

    @property
    def elements(self) -> list[Scalar]:
        return [*(fold.element for fold in self.folds), *(write.value for write in self.writes)]

    @property
    def expressions(self) -> list[Scalar]:
        return [*self.elements, *(action.value for action in self.then)]


@dataclass(frozen=True, slots=True)
class Result:
    """Where a sweep writes: strides along all axes of the domain, 0 along reduced ones for a number a row.

    Without strides it is memory of the block's own, one row long.
    """

    dtype: DType
    strides: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class RowCut:
    """Rows in pieces: each `length` elements long along the reduced axis `axis`, results `stride` apart."""

    axis: int
    length: int
    stride: Dim


@dataclass(frozen=True, slots=True)
class Sweep:
    """`order` lists the domain's axes, outermost in memory first; expressions are over the domain's axes.

    What they hold is what passes before have found.
    """

    domain: Shape
    reduced: frozenset[int]
    order: tuple[int, ...]
    passes: tuple[Pass, ...]
    operands: tuple[StoredTensor, ...]
    results: tuple[Result, ...]


def read_operands(sweep: Sweep) -> list[int]:
    """The operands that a launch reads."""
    expressions = [expression for part in sweep.passes for expression in part.expressions]
    read = {load.operand for expression in expressions for load in loads(expression)}
    return [number for number in range(len(sweep.operands)) if number in read]
