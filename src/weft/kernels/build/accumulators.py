"""Reductions in the making: accumulators in registers, what they take in, and the number they end as."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import ACROSS_FUNCTIONS, Across, Call, Code, Number, Statement, lane
from weft.ir.scalar import Scalar
from weft.kernels.build.positions import as_position
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define
from weft.records import dataclass

COMBINE = ACROSS_FUNCTIONS


@dataclass(frozen=True, slots=True)
class Fold:
    """`element` combined over the reduced axes, held for what follows under a key, of type `dtype`.

    Kinds: sum, product, maximum, minimum. With `position` it is the place, along the one reduced axis, of the first
    maximum or minimum (or of the last); a NaN wins over any number.
    """

    key: int
    kind: str
    element: Scalar
    dtype: DType
    position: str | None = None  # first, last
    positions: DType = DType.int32  # what holds one


def neutral(kind: str, dtype: DType) -> Number:
    """The value that changes nothing."""
    if kind in ("sum", "product"):
        return Number(dtype.numpy.type(kind == "product").item(), dtype)
    lowest = kind == "maximum"
    if dtype is DType.bool:
        return Number(not lowest, dtype)
    if dtype.is_float:
        return Number(float("-inf") if lowest else float("inf"), dtype)
    return Number(int(dtype.limits[0 if lowest else 1]), dtype)


def wide_dtype(kind: str, dtype: DType) -> DType:
    """What accumulators of a type are kept in: narrow floats are added up in float32."""
    narrow = dtype in (DType.float16, DType.bfloat16)
    return DType.float32 if narrow and kind in ("sum", "product") else dtype


class Accumulators:
    """The registers of one fold. `lanes`: how many lanes share a row; None where each has its own.

    A lane that has a row for itself adds up stretches of it first, and then those: as many lanes together would.
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
        self.total = builder.register("total", wide_dtype(kind, element))
        self.place = builder.register("place", fold.positions)
        alone = lanes is None and kind == "sum" and self.total.dtype.is_float
        self.taking = builder.register("stretch", self.total.dtype) if alone else self.total

    @property
    def has_stretches(self) -> bool:
        return self.taking is not self.total

    def start_stretch(self) -> list[Statement]:
        return [define(self.taking, neutral(self.kind, self.taking.dtype))] if self.has_stretches else []

    def finish_stretch(self) -> list[Statement]:
        total = Call(COMBINE["sum"], (self.total, self.taking), self.total.dtype)
        return [assign(self.total, total)] if self.has_stretches else []

    def start(self) -> list[Statement]:
        begin: list[Statement] = [define(self.total, neutral(self.kind, self.total.dtype))]
        if self.fold.position is not None:
            first: Code = Number(0 if self.fold.position == "first" else -1, self.place.dtype)
            if self.fold.position == "first" and self.lanes is not None:
                first = as_position(self.member(), self.place.dtype)
            begin.append(define(self.place, first))
        return begin

    def member(self) -> Dim:
        """The number of a lane among those that share its row."""
        return lane(self.lanes or 1)

    def combined(self, kind: str, value: Code, statements: list[Statement]) -> Code:
        """What all lanes that share a row have, as one; `statements` takes what has to be done for it."""
        del statements  # nothing has
        return Across(kind, value)

    def take(self, value: Code, mask: Code | None, reduced: Sequence[Dim]) -> list[Statement]:
        """Take in one element a lane, except where a mask says no."""
        dtype = self.total.dtype
        if value.dtype is not dtype:
            value = Call("cast", (value,), dtype)
        if mask is not None:
            value = Call("select", (mask, value, neutral(self.kind, dtype)), dtype)
        if self.fold.position is None:
            return [assign(self.taking, Call(COMBINE[self.kind], (self.taking, value), dtype))]
        better = self._better(value)
        if mask is not None:
            better = Call("logical_and", (mask, better), DType.bool)
        here = as_position(reduced[-1] if reduced else 0, self.place.dtype)
        defined, wins = self.builder.keep("better", better, varying=True)
        return [
            defined,
            assign(self.place, Call("select", (wins, here, self.place), here.dtype)),
            assign(self.total, Call("select", (wins, value, self.total), dtype)),
        ]

    def _better(self, value: Code) -> Code:
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
            known = Call("logical_not", (Call("is_nan", (self.total,), DType.bool),), DType.bool)
            wins = Call("logical_and", (wins, known), DType.bool)
        return Call("logical_or", (better, wins), DType.bool)

    def finish(self) -> tuple[list[Statement], Code]:
        """The number of the row, in a register."""
        value: Code = self.total
        statements: list[Statement] = []
        if self.fold.position is not None:
            value = self.place if self.lanes is None else self._best_place(statements)
        elif self.lanes is not None:
            value = self.combined(self.kind, self.total, statements)
        if value.dtype is not self.fold.dtype:
            value = Call("cast", (value,), self.fold.dtype)
        defined, result = self.builder.keep("row", value)
        return [*statements, defined], result

    def _best_place(self, statements: list[Statement]) -> Code:
        """The first (or last) place among the lanes that have the best value."""
        dtype = self.total.dtype
        found = self.combined(self.kind, self.total, statements)
        defined, best = self.builder.keep("best", found)
        statements.append(defined)
        has: Code = Call("equal", (self.total, best), DType.bool)
        if dtype.is_float:
            nan = Call("is_nan", (best,), DType.bool)
            has = Call("select", (nan, Call("is_nan", (self.total,), DType.bool), has), DType.bool)
        first = self.fold.position == "first"
        kind = self.place.dtype
        other = Number(int(kind.limits[1]) if first else -1, kind)
        places = Call("select", (has, self.place, other), kind)
        return self.combined("minimum" if first else "maximum", places, statements)
