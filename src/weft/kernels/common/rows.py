"""Row groups as one sweep: softmax, normalisations, means of expressions.

Full values are computed again in each pass over the row that needs them, unless that is costly: then they are kept,
in a result that is written later anyway or in memory of the block's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.cost.expressions import cost
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import RowGroup
from weft.ir.program import Map, Reduce, Step, Value
from weft.ir.rows import RowFrame
from weft.ir.scalar import Apply, Held, Index, Literal, Load, Scalar, rebuild
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.kernels.build.accumulators import Fold
from weft.kernels.build.row_passes import COLUMNS, Pass, Result, Single, Sweep, Write
from weft.kernels.build.templates import Request
from weft.kernels.common.reduce import memory_order
from weft.kernels.lower.tensors import StoredTensor

KEEP_COST = 8  # of a full value, from which on it is kept for later passes
LOCAL_BYTES = 32 * 1024
WIDE = (DType.float32, DType.float64)


def rows_sweep(request: Request[RowGroup, Target], *, keeps: bool) -> Sweep:
    """The group as one sweep, which counts its operands and results in their order.

    Results must not share memory with operands. `keeps`: costly full values stay in memory for later passes.
    """
    group = request.group
    operands, results = ({v: request.tensors[v] for v in values} for values in (group.operands, group.results))
    return _Plan(group.frame, group.steps, operands, results, keeps).sweep()


class _Plan:
    """Which pass computes, folds, keeps and writes what.

    Elements of pass n may use row values of level n or below; a reduction of such elements has level n + 1.
    """

    def __init__(
        self,
        frame: RowFrame,
        steps: Sequence[Step],
        operands: Mapping[Value, StoredTensor],
        results: Mapping[Value, StoredTensor],
        keeps: bool,
    ) -> None:
        self.frame = frame
        self.operands = operands
        self.results = results
        self.steps = {step.results[0]: step for step in steps}
        self.numbers = {value: number for number, value in enumerate(operands)}
        self.keys: dict[Value, int] = {}  # under which what the group's steps give is held
        self.level: dict[Value, int] = {}
        for value, step in self.steps.items():
            level = max((self.level[operand] for operand in step.operands if operand in self.level), default=0)
            self.level[value] = level + 1 if isinstance(step.primitive, Reduce) else level
            self.keys[value] = len(self.level)
        self.inverse: dict[Value, int] = {}  # sums that elements are divided by, and the keys of their inverses
        for value in self.steps:
            if self.is_sum_of_exponentials(value):
                self.inverse[value] = len(self.level) + 1 + len(self.inverse)
        self.kept: dict[Value, tuple[int, int]] = {}  # a full value -> (the pass that writes it, the result)
        self.own: list[Result] = []
        for value in reversed(list(self.steps)):
            if keeps and self.is_full(value):
                self.keep_if_costly(value)

    def is_sum_of_exponentials(self, value: Value) -> bool:
        """Whether a row value is a softmax's sum: at least 1, so that its inverse can neither over- nor underflow."""
        step = self.steps[value]
        if not isinstance(step.primitive, Reduce) or step.primitive.kind != "sum" or _dtype(value) not in WIDE:
            return False
        maker = self.steps.get(step.operands[0])
        match maker.primitive if maker is not None else None:
            case Map(Apply("exp", (Apply("subtract", (_, Load(operand))),))):
                assert maker is not None
                least = self.steps.get(maker.operands[operand])
                return least is not None and isinstance(least.primitive, Reduce) and least.primitive.kind == "maximum"
            case _:
                return False

    # -- what is kept ------------------------------------------------------------------------------------------------

    def is_full(self, value: Value) -> bool:
        return value in self.steps and self.frame.is_full(value)

    def roots(self) -> list[tuple[Value, int]]:
        """The full values that passes reduce or write, each with its pass."""
        reduced = [
            (step.operands[0], self.level[value] - 1)
            for value, step in self.steps.items()
            if isinstance(step.primitive, Reduce)
        ]
        written = [(value, self.level[value]) for value in self.results if self.is_full(value)]
        kept = [(value, number) for value, (number, _) in self.kept.items()]
        return [(value, number) for value, number in (*reduced, *written, *kept) if self.is_full(value)]

    def passes_that_need(self, wanted: Value) -> set[int]:
        """The passes that compute a value, as it is or inside others."""
        found: set[int] = set()
        seen: set[tuple[Value, int]] = set()
        pending = self.roots()
        while pending:
            value, number = pending.pop()
            if (value, number) in seen:
                continue
            seen.add((value, number))
            if value == wanted:
                found.add(number)
            elif value not in self.kept or number <= self.kept[value][0]:
                pending += [(operand, number) for operand in self.steps[value].operands if self.is_full(operand)]
        return found

    def keep_if_costly(self, value: Value) -> None:
        needed = self.passes_that_need(value)
        if len(needed) < 2 or cost(self.full(value, min(needed))) < KEEP_COST:
            return
        names = list(self.results)
        if value in self.results:
            self.kept[value] = (self.level[value], names.index(value))
            return
        used = {result for _, result in self.kept.values()}
        for number, other in enumerate(names):
            fits = self.is_full(other) and number not in used and other.type == value.type
            if fits and max(needed) <= self.level[other] and min(needed) < self.level[other]:
                self.kept[value] = (min(needed), number)
                return
        if self.fits_in_local_memory(value):
            self.kept[value] = (min(needed), len(self.results) + len(self.own))
            self.own.append(Result(_dtype(value), None))

    def fits_in_local_memory(self, value: Value) -> bool:
        length = dims.product(self.frame.domain[axis] for axis in self.frame.reduced)
        width = 1 if self.order()[-1] in self.frame.reduced else COLUMNS
        return isinstance(length, int) and length * width * _dtype(value).numpy.itemsize <= LOCAL_BYTES

    # -- expressions -------------------------------------------------------------------------------------------------

    def full(self, value: Value, number: int) -> Scalar:
        """A full value in pass `number`, in terms of operands, row values and what is kept."""
        return self.expand(self.frame.over_domain(self.steps[value]), self.steps[value], number)

    def expand(self, expression: Scalar, step: Step, number: int) -> Scalar:
        known: dict[Value, Scalar] = {}

        def through(load: Load) -> Scalar:
            value = step.operands[load.operand]
            if value not in self.steps:
                return Load(self.numbers[value], load.indices, load.dtype, load.checked)
            if value not in known:
                known[value] = self.inside(value, number)
            return known[value]

        return self.multiplied(rebuild(expression, through))

    def multiplied(self, expression: Scalar) -> Scalar:
        """The expression with multiplication by inverses in place of divisions, at its top."""
        match expression:
            case Apply("divide", (dividend, Held(key)), dtype):
                for value, inverse in self.inverse.items():
                    if self.keys[value] == key:
                        return Apply("multiply", (dividend, Held(inverse, dtype)), dtype)
        return expression

    def inside(self, value: Value, number: int) -> Scalar:
        """A value of the group, where pass `number` needs it."""
        if not self.is_full(value) or (value in self.kept and self.kept[value][0] < number):
            return Held(self.keys[value], _dtype(value))
        return self.full(value, number)

    def element(self, value: Value, number: int) -> Scalar:
        """What a reduction takes in: a full value of the group, or an operand."""
        if value in self.steps:
            return self.inside(value, number)
        places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(self.frame.domain))
        return Load(self.numbers[value], places, _dtype(value))

    # -- passes ------------------------------------------------------------------------------------------------------

    def sweep(self) -> Sweep:
        last = max(self.level.values())
        passes = [self.make_pass(number) for number in range(-1, last + 1)]
        return Sweep(
            self.frame.domain,
            self.frame.reduced,
            self.order(),
            tuple(part for part in passes if part.expressions),
            tuple(self.operands.values()),
            (*(self.result(value, tensor) for value, tensor in self.results.items()), *self.own),
        )

    def make_pass(self, number: int) -> Pass:
        """Pass -1 has no elements: it finds row values that need no reduction."""
        folds: list[Fold] = []
        writes: list[Write] = []
        then: list[Single | Write] = []
        for value, step in self.steps.items():
            if isinstance(step.primitive, Reduce):
                if self.level[value] - 1 == number:
                    element = self.element(step.operands[0], number)
                    folds.append(Fold(self.keys[value], step.primitive.kind, element, _dtype(value)))
                    if value in self.inverse:
                        one, total = Literal(1.0, _dtype(value)), Held(self.keys[value], _dtype(value))
                        then.append(Single(self.inverse[value], Apply("divide", (one, total), _dtype(value))))
            elif not self.is_full(value) and self.level[value] - 1 == number:
                then.append(Single(self.keys[value], self.full(value, number)))
        for value, (first, result) in self.kept.items():
            if first == number:
                writes.append(Write(result, self.inside(value, number), self.keys[value]))
        for result, value in enumerate(self.results):
            if self.is_full(value):
                if self.level[value] == number and value not in self.kept:
                    writes.append(Write(result, self.inside(value, number)))
            elif self.level[value] - 1 == number:
                then.append(Write(result, Held(self.keys[value], _dtype(value))))
        return Pass(tuple(folds), tuple(writes), tuple(then))

    # -- memory ------------------------------------------------------------------------------------------------------

    def order(self) -> tuple[int, ...]:
        """The domain's axes as a full result stores them, or what is reduced first."""
        for value, tensor in self.results.items():
            if self.is_full(value):
                return tensor.layout.order
        first = next(step for step in self.steps.values() if isinstance(step.primitive, Reduce))
        element = self.element(first.operands[0], 0)
        return memory_order(element, self.frame.domain, tuple(self.operands.values()))

    def result(self, value: Value, tensor: StoredTensor) -> Result:
        if self.is_full(value):
            return Result(tensor.dtype, tensor.strides)
        strides: list[Dim] = [0] * len(self.frame.domain)
        for axis, stride in zip(self.frame.row_axes(value) or (), tensor.strides, strict=True):
            if axis is not None:
                strides[axis] = stride
        return Result(tensor.dtype, tuple(strides))


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
