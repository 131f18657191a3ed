"""Accumulators of reductions: registers that fold elements in and end as one value per row."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import ACROSS_FUNCTIONS, Across, Call, Code, Number, Statement, lane
from weft.ir.scalar import Scalar
from weft.kernels.build.positions import as_position
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define
from weft.kernels.lower.operations import and_masks, cast, logical_and, logical_not, logical_or
from weft.records import dataclass

COMBINE = ACROSS_FUNCTIONS


@dataclass(frozen=True, slots=True)
class Fold:
    """Reduce `element` over the reduced axes; later expressions read the value of type `dtype` by its key.

    Kinds: sum, product, maximum, minimum. With `position` the value is the index, along the only reduced axis, of the
    first or last maximum or minimum; NaN wins over any number. Later expressions read that element by the key `best`.
    """

    key: int
    kind: str
    element: Scalar
    dtype: DType
    position: str | None = None  # "first" or "last"
    positions: DType = DType.int32  # the dtype of an index
    best: int | None = None


def identity_element(kind: str, dtype: DType) -> Number:
    """Return the value that leaves others unchanged: 0 for sums, -inf for maxima."""
    if kind in ("sum", "product"):
        return Number(dtype.numpy.type(kind == "product").item(), dtype)
    lowest = kind == "maximum"
    if dtype is DType.bool:
        return Number(not lowest, dtype)
    if dtype.is_float:
        return Number(float("-inf") if lowest else float("inf"), dtype)
    return Number(int(dtype.limits[0 if lowest else 1]), dtype)


def reduction_dtype(kind: str, dtype: DType) -> DType:
    """Choose the dtype of accumulators: sums and products of narrow floats are float32."""
    narrow = dtype in (DType.float16, DType.bfloat16)
    return DType.float32 if narrow and kind in ("sum", "product") else dtype


class Accumulators:
    """The registers of one fold. `lanes`: how many lanes share a row; None if each lane has its own.

    A lane with its own row sums it in chunks, so that its rounding error is about that of lanes that share a row.
    """

    def __init__(self, fold: Fold, builder: KernelBuilder, lanes: int | None) -> None:
        self.fold = fold
        self.builder = builder
        element = fold.element.dtype
        kind = fold.kind
        if element is DType.bool and kind in ("sum", "product"):
            kind = "maximum" if kind == "sum" else "minimum"
        self.kind = kind
        self.lanes = lanes
        self.total = builder.register("total", reduction_dtype(kind, element))
        self.best = self.total  # the best element of a row, once the row is finished
        self.position = builder.register("place", fold.positions)
        in_chunks = lanes is None and kind == "sum" and self.total.dtype.is_float
        self.partial = builder.register("chunk", self.total.dtype) if in_chunks else self.total

    @property
    def sums_in_chunks(self) -> bool:
        return self.partial is not self.total

    def start_chunk(self) -> list[Statement]:
        return [define(self.partial, identity_element(self.kind, self.partial.dtype))] if self.sums_in_chunks else []

    def finish_chunk(self) -> list[Statement]:
        total = Call(COMBINE["sum"], (self.total, self.partial), self.total.dtype)
        return [assign(self.total, total)] if self.sums_in_chunks else []

    def start(self) -> list[Statement]:
        begin: list[Statement] = [define(self.total, identity_element(self.kind, self.total.dtype))]
        if self.fold.position is not None:
            first: Code = Number(0 if self.fold.position == "first" else -1, self.position.dtype)
            if self.fold.position == "first" and self.lanes is not None:
                first = as_position(self.lane_index(), self.position.dtype)
            begin.append(define(self.position, first))
        return begin

    def lane_index(self) -> Dim:
        """Return the index of a lane among those that share its row."""
        return lane(self.lanes or 1)

    def combine_lanes(self, kind: str, value: Code) -> Code:
        """Combine the values of all lanes that share a row."""
        return Across(kind, value)

    def accumulate(self, value: Code, mask: Code | None, reduced: Sequence[Dim]) -> list[Statement]:
        """Fold in one element per lane, where the mask allows."""
        dtype = self.total.dtype
        value = cast(value, dtype)
        if mask is not None:
            value = Call("select", (mask, value, identity_element(self.kind, dtype)), dtype)
        if self.fold.position is None:
            return [assign(self.partial, Call(COMBINE[self.kind], (self.partial, value), dtype))]
        here = as_position(reduced[-1] if reduced else 0, self.position.dtype)
        defined, wins = self.builder.keep("better", and_masks(mask, self._is_better(value)), varying=True)
        return [
            defined,
            assign(self.position, Call("select", (wins, here, self.position), here.dtype)),
            assign(self.total, Call("select", (wins, value, self.total), dtype)),
        ]

    def _is_better(self, value: Code) -> Code:
        last = self.fold.position == "last"
        relation = ("greater" if self.kind == "maximum" else "less") + ("_equal" if last else "")
        dtype = self.total.dtype
        if dtype is DType.bool:  # false and true compare as 0 and 1
            byte = DType.uint8
            return Call(relation, (Call("cast", (value,), byte), Call("cast", (self.total,), byte)), DType.bool)
        better = Call(relation, (value, self.total), DType.bool)
        if not dtype.is_float:
            return better
        wins: Code = Call("is_nan", (value,), DType.bool)
        if not last:
            wins = logical_and(wins, logical_not(Call("is_nan", (self.total,), DType.bool)))
        return logical_or(better, wins)

    def finish(self) -> tuple[list[Statement], Code]:
        """Return the value of the row in a register, with the statements that compute it."""
        value: Code = self.total
        statements: list[Statement] = []
        if self.fold.position is not None:
            value = self.position if self.lanes is None else self._find_best_position(statements)
        elif self.lanes is not None:
            value = self.combine_lanes(self.kind, self.total)
        value = cast(value, self.fold.dtype)
        defined, result = self.builder.keep("row", value)
        return [*statements, defined], result

    def _find_best_position(self, statements: list[Statement]) -> Code:
        """Find the first (or last) position among the lanes that have the best value."""
        dtype = self.total.dtype
        defined, best = self.builder.keep("best", self.combine_lanes(self.kind, self.total))
        statements.append(defined)
        self.best = best
        has: Code = Call("equal", (self.total, best), DType.bool)
        if dtype.is_float:
            nan = Call("is_nan", (best,), DType.bool)
            has = Call("select", (nan, Call("is_nan", (self.total,), DType.bool), has), DType.bool)
        first = self.fold.position == "first"
        index_dtype = self.position.dtype
        none = Number(int(index_dtype.limits[1]) if first else -1, index_dtype)
        candidates = Call("select", (has, self.position, none), index_dtype)
        return self.combine_lanes("minimum" if first else "maximum", candidates)
