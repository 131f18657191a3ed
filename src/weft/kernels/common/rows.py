"""Plan row groups (softmax, normalisations, means of expressions) as one sweep.

Full values are recomputed in each pass that needs them, unless that is costly: then they are stored, in a result that
is written later anyway or in block-local memory.
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
from weft.ir.scalar import Apply, Literal, Load, Placeholder, Scalar, identity_indices, rebuild
from weft.ir.target import Target
from weft.kernels.build.accumulators import Fold
from weft.kernels.build.row_passes import MAX_COLUMNS, Pass, Result, RowValue, Sweep, Write
from weft.kernels.build.templates import Request
from weft.kernels.common.reduce import memory_order
from weft.kernels.lower.tensors import StoredTensor

STORE_COST = 8  # full values of at least this cost are stored for later passes
LOCAL_BYTES = 32 * 1024
WIDE = (DType.float32, DType.float64)


def plan_row_group(request: Request[RowGroup, Target], *, stores: bool) -> Sweep:
    """Plan a row group as one sweep, whose operands and results are numbered in the group's order.

    Results must not share memory with operands. `stores`: costly full values are stored for later passes.
    """
    group = request.group
    operands, results = ({v: request.tensors[v] for v in values} for values in (group.operands, group.results))
    return _RowPlan(group.frame, group.steps, operands, results, stores).sweep()


class _RowPlan:
    """Assigns computations, folds, stores and writes to passes.

    Elements of pass n may use row values of level n or below; a reduction of such elements has level n + 1.
    """

    def __init__(
        self,
        frame: RowFrame,
        steps: Sequence[Step],
        operands: Mapping[Value, StoredTensor],
        results: Mapping[Value, StoredTensor],
        stores: bool,
    ) -> None:
        self.frame = frame
        self.operands = operands
        self.results = results
        self.steps = {step.results[0]: step for step in steps}
        self.numbers = {value: number for number, value in enumerate(operands)}
        self.keys: dict[Value, int] = {}  # of the results of the group's steps
        self.level: dict[Value, int] = {}
        for value, step in self.steps.items():
            level = max((self.level[operand] for operand in step.operands if operand in self.level), default=0)
            self.level[value] = level + 1 if isinstance(step.primitive, Reduce) else level
            self.keys[value] = len(self.level)
        self.inverses: dict[Value, int] = {}  # sums that elements are divided by, and the keys of their inverses
        for value in self.steps:
            if self.is_sum_of_exponentials(value):
                self.inverses[value] = len(self.level) + 1 + len(self.inverses)
        self.stored: dict[Value, tuple[int, int]] = {}  # full value -> (pass that writes it, number of the result)
        self.local_results: list[Result] = []
        for value in reversed(list(self.steps)):
            if stores and self.is_full(value):
                self.store_if_costly(value)

    def is_sum_of_exponentials(self, value: Value) -> bool:
        """Return whether a row value is a softmax's sum, which is at least 1: its inverse cannot over- or underflow."""
        step = self.steps[value]
        if not isinstance(step.primitive, Reduce) or step.primitive.kind != "sum" or value.dtype not in WIDE:
            return False
        match self.steps.get(step.operands[0]):
            case Step(primitive=Map(Apply("exp", (Apply("subtract", (_, Load(operand))),))), operands=operands):
                largest = self.steps.get(operands[operand])
                if largest is not None and isinstance(largest.primitive, Reduce):
                    return largest.primitive.kind == "maximum"
        return False

    # -- stored values -----------------------------------------------------------------------------------------------

    def is_full(self, value: Value) -> bool:
        return value in self.steps and self.frame.is_full(value)

    def roots(self) -> list[tuple[Value, int]]:
        """Return the full values that passes reduce or write, each with its pass."""
        reduced = [
            (step.operands[0], self.level[value] - 1)
            for value, step in self.steps.items()
            if isinstance(step.primitive, Reduce)
        ]
        written = [(value, self.level[value]) for value in self.results if self.is_full(value)]
        stored = [(value, number) for value, (number, _) in self.stored.items()]
        return [(value, number) for value, number in (*reduced, *written, *stored) if self.is_full(value)]

    def passes_that_need(self, target: Value) -> set[int]:
        """Return the passes that compute a value, directly or inside others."""
        passes: set[int] = set()
        visited: set[tuple[Value, int]] = set()
        pending = self.roots()
        while pending:
            value, number = pending.pop()
            if (value, number) in visited:
                continue
            visited.add((value, number))
            if value == target:
                passes.add(number)
            elif value not in self.stored or number <= self.stored[value][0]:
                pending += [(operand, number) for operand in self.steps[value].operands if self.is_full(operand)]
        return passes

    def store_if_costly(self, value: Value) -> None:
        needed = self.passes_that_need(value)
        if len(needed) < 2 or cost(self.full(value, min(needed))) < STORE_COST:
            return
        results = list(self.results)
        if value in self.results:
            self.stored[value] = (self.level[value], results.index(value))
            return
        used = {result for _, result in self.stored.values()}
        for number, result in enumerate(results):
            fits = self.is_full(result) and number not in used and result.type == value.type
            if fits and max(needed) <= self.level[result] and min(needed) < self.level[result]:
                self.stored[value] = (min(needed), number)
                return
        if self.fits_in_local_memory(value):
            self.stored[value] = (min(needed), len(self.results) + len(self.local_results))
            self.local_results.append(Result(value.dtype, None))

    def fits_in_local_memory(self, value: Value) -> bool:
        length = dims.product(self.frame.domain[axis] for axis in self.frame.reduced)
        width = 1 if self.order()[-1] in self.frame.reduced else MAX_COLUMNS
        return isinstance(length, int) and length * width * value.dtype.numpy.itemsize <= LOCAL_BYTES

    # -- expressions -------------------------------------------------------------------------------------------------

    def full(self, value: Value, number: int) -> Scalar:
        """Express a full value in pass `number` by operands, row values and stored values."""
        return self.expand(self.frame.over_domain(self.steps[value]), self.steps[value], number)

    def expand(self, expression: Scalar, step: Step, number: int) -> Scalar:
        expressions: dict[Value, Scalar] = {}

        def expand_load(load: Load) -> Scalar:
            value = step.operands[load.operand]
            if value not in self.steps:
                return Load(self.numbers[value], load.indices, load.dtype, load.checked)
            if value not in expressions:
                expressions[value] = self.value_in_pass(value, number)
            return expressions[value]

        return self.multiply_by_inverses(rebuild(expression, expand_load))

    def multiply_by_inverses(self, expression: Scalar) -> Scalar:
        """Replace a division by a softmax's sum, at the top of an expression, by a multiplication with its inverse."""
        if not isinstance(expression, Apply) or expression.function != "divide":
            return expression
        dividend, divisor = expression.arguments
        for value, inverse in self.inverses.items():
            if isinstance(divisor, Placeholder) and divisor.key == self.keys[value]:
                return Apply("multiply", (dividend, Placeholder(inverse, expression.dtype)), expression.dtype)
        return expression

    def value_in_pass(self, value: Value, number: int) -> Scalar:
        """Express a value of the group in pass `number`."""
        if not self.is_full(value) or (value in self.stored and self.stored[value][0] < number):
            return Placeholder(self.keys[value], value.dtype)
        return self.full(value, number)

    def element(self, value: Value, number: int) -> Scalar:
        """Express the element of a reduction: a full value of the group, or an operand."""
        if value in self.steps:
            return self.value_in_pass(value, number)
        indices = identity_indices(self.frame.domain)
        return Load(self.numbers[value], indices, value.dtype)

    # -- passes ------------------------------------------------------------------------------------------------------

    def sweep(self) -> Sweep:
        last = max(self.level.values())
        passes = [self.build_pass(number) for number in range(-1, last + 1)]
        return Sweep(
            self.frame.domain,
            self.frame.reduced,
            self.order(),
            tuple(part for part in passes if part.expressions),
            tuple(self.operands.values()),
            (*(self.result(value, tensor) for value, tensor in self.results.items()), *self.local_results),
        )

    def build_pass(self, number: int) -> Pass:
        """Build a pass; pass -1 has no elements and computes row values that need no reduction."""
        folds: list[Fold] = []
        writes: list[Write] = []
        then: list[RowValue | Write] = []
        for value, step in self.steps.items():
            if isinstance(step.primitive, Reduce):
                if self.level[value] - 1 == number:
                    element = self.element(step.operands[0], number)
                    folds.append(Fold(self.keys[value], step.primitive.kind, element, value.dtype))
                    if value in self.inverses:
                        one, total = Literal(1.0, value.dtype), Placeholder(self.keys[value], value.dtype)
                        then.append(RowValue(self.inverses[value], Apply("divide", (one, total), value.dtype)))
            elif not self.is_full(value) and self.level[value] - 1 == number:
                then.append(RowValue(self.keys[value], self.full(value, number)))
        for value, (first, result) in self.stored.items():
            if first == number:
                writes.append(Write(result, self.value_in_pass(value, number), self.keys[value]))
        for result, value in enumerate(self.results):
            if self.is_full(value):
                if self.level[value] == number and value not in self.stored:
                    writes.append(Write(result, self.value_in_pass(value, number)))
            elif self.level[value] - 1 == number:
                then.append(Write(result, Placeholder(self.keys[value], value.dtype)))
        return Pass(tuple(folds), tuple(writes), tuple(then))

    # -- memory ------------------------------------------------------------------------------------------------------

    def order(self) -> tuple[int, ...]:
        """Return the domain's axes in the memory order of a full result, or else of the first reduced element."""
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
