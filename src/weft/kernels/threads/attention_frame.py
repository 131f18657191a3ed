"""The frame of kernels for attention over a paged cache: which keys rows see, and how chunks of keys are merged.

Keys are processed in chunks of one length. The sums of a chunk are relative to its largest score, and chunks are merged
in the order of their keys: by the block that computed them, or by another kernel. A chunk in which a row sees no key
changes no bit of it, so that its bits depend only on the keys that it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from weft.ir import dims
from weft.ir.access import find_axes, find_nonlinear_axes, stride_along
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Register, Statement
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Load, Placeholder, Scalar, walk
from weft.ir.target import ThreadTarget
from weft.kernels.build.attention import renumber_operands
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, define
from weft.kernels.lower.merge_axes import flatten_loads
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.attention import (
    KeySplit,
    StreamingAttention,
    call,
    float32,
    is_below,
    larger,
    list_streamed_operands,
)
from weft.kernels.threads.points import all_of
from weft.records import dataclass

CHUNK = 64  # keys


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys that may be visible, as far as that depends on data or on the row: from `begin` to before `end`."""

    begin: Code | None
    end: Code | None

    def tests(self, start: Dim) -> list[Code | None]:
        """Return the tests whether a chunk has keys of the range."""
        return [
            None if self.begin is None else Call("less", (self.begin, Integer(start + CHUNK)), DType.bool),
            None if self.end is None else Call("less", (Integer(start), self.end), DType.bool),
        ]


@dataclass(frozen=True, slots=True)
class RowSums:
    """The registers of a row: its largest score, the total of its weights, and sums of weighted values."""

    largest: Register
    total: Register
    sums: tuple[Register, ...]

    def clear(self) -> list[Statement]:
        registers = (self.total, *self.sums)
        return [define(self.largest, float32(-inf)), *(define(register, float32(0.0)) for register in registers)]


class PagedFrame(StreamingAttention):
    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        height: int,
        split: KeySplit | None,
        *,
        streams: bool = True,
    ) -> None:
        super().__init__(attention, operands, result, target, height, split, streams=streams)
        used = list_streamed_operands(attention)

        def flatten(limits: Sequence[Scalar]) -> list[Scalar]:
            return [flatten_loads(renumber_operands(limit, used), self.operands) for limit in limits]

        certain = [Index(bound.bound) for bound in attention.causal_bounds if bound.score == -inf]
        self.ends, self.begins = flatten([*attention.loaded_bounds, *certain]), flatten(attention.loaded_starts)

    # -- visible keys ------------------------------------------------------------------------------------------------

    def find_row_range(self, places: Mapping[int, Dim], statements: list[Statement]) -> KeyRange:
        """Find the keys that a row may see."""
        begin = self.combine_limits("maximum", self.begins, places, statements)
        return KeyRange(begin, self.combine_limits("minimum", self.ends, places, statements))

    def find_block_range(self, statements: list[Statement]) -> KeyRange:
        """Find the keys that some row of the block may see, from the limits of its first and last places."""
        rows = [axis for axis, _ in self.axes.rows]
        lowest, highest = self.find_extreme_places(statements)
        begins, ends = (
            [limit for limit in limits if all(_is_nondecreasing(limit, axis) for axis in rows)]
            for limits in (self.begins, self.ends)
        )
        begin = self.combine_limits("maximum", begins, lowest, statements)
        return KeyRange(begin, self.combine_limits("minimum", ends, highest, statements))

    def find_extreme_places(self, statements: list[Statement]) -> tuple[dict[int, Dim], dict[int, Dim]]:
        """Return the lowest and the highest place of the block's rows along each axis."""
        parameter = self.builder.parameter
        last_row = parameter("last_row", dims.maximum(self.count - 1, 0))
        last = dims.minimum(self.first + self.height - 1, last_row)
        firsts, lasts = unravel_index(self.first, self.row_sizes), unravel_index(last, self.row_sizes)
        low: dict[int, Dim] = {}
        high: dict[int, Dim] = {}
        is_one: Dim = 1  # whether all rows have one place along the outer axes
        for number, ((axis, _), size) in enumerate(zip(self.axes.rows, self.row_sizes)):
            to_low, low[axis] = self.builder.let(f"low{axis}", is_one * firsts[number])
            to_high, high[axis] = self.builder.let(f"high{axis}", is_one * lasts[number] + (1 - is_one) * (size - 1))
            statements += [to_low, to_high]
            if number + 1 < len(self.row_sizes):
                distance = dims.minimum(dims.maximum(high[axis] - low[axis], 0), 1)
                to_one, is_one = self.builder.let(f"one{axis}", is_one * (1 - distance))
                statements.append(to_one)
        return self.join_positions(low), self.join_positions(high)

    def combine_limits(
        self, function: str, limits: Sequence[Scalar], places: Mapping[int, Dim], statements: list[Statement]
    ) -> Register | None:
        if not limits:
            return None
        lowering = self.lowering(places, statements)
        result, *others = (lowering.code(limit) for limit in limits)
        for other in others:
            result = Call(function, (result, other), DType.int64)
        definition, register = self.builder.keep("limit", result)
        statements.append(definition)
        return register

    # -- chunks ------------------------------------------------------------------------------------------------------

    def merge_chunk(self, row: RowSums, largest: Code, total: Code, sums: Sequence[Code]) -> list[Statement]:
        """Merge a row's results for a chunk into those for all chunks before."""
        keep = self.builder.keep
        to_now, now = keep("now", larger(row.largest, largest), varying=True)
        to_shift, shift = keep("by", self.shift(now), varying=True)
        to_factor, factor = keep("factor", call("exp", call("subtract", row.largest, shift)), varying=True)
        to_scale, scale = keep("scale", call("exp", call("subtract", largest, shift)), varying=True)
        statements: list[Statement] = [to_now, to_shift, to_factor, to_scale, assign(row.largest, now)]
        for register, added in zip((row.total, *row.sums), (total, *sums), strict=True):
            before = call("multiply", register, factor)
            statements.append(assign(register, multiply_add(self.target, added, scale, before)))
        return statements

    def write_columns(
        self, sums: Sequence[Code], inverse: Code, row: Dim, column: Dim, tests: Sequence[Code | None]
    ) -> list[Statement]:
        """Write a run of columns of a row, as far as they exist.

        The sign of a sum that is 0 would depend on keys that weigh 0.
        """
        values = [call("add", total, float32(0.0)) for total in sums]
        if self.attention.width % len(values) == 0:
            return self.write(values, inverse, row, column, all_of(tests))
        statements: list[Statement] = []
        for number, value in enumerate(values):
            mask = all_of([*tests, is_below(column + number, self.attention.width)])
            statements += self.write([value], inverse, row, column + number, mask)
        return statements


def _is_nondecreasing(limit: Scalar, axis: int) -> bool:
    """Whether a limit certainly does not decrease along an axis."""
    if axis not in find_axes(limit):
        return True
    match limit:
        case Index(value):
            step = stride_along(value, axis)
            return axis not in find_nonlinear_axes(value) and isinstance(step, int) and step >= 0
        case Apply("add" | "minimum" | "maximum", arguments):
            return all(_is_nondecreasing(argument, axis) for argument in arguments)
        case Apply("subtract", (left, right)):
            return axis not in find_axes(right) and _is_nondecreasing(left, axis)
        case Apply("select", (condition, chosen, other)):
            sides = (chosen, other)
            return axis not in find_axes(condition) and all(_is_nondecreasing(side, axis) for side in sides)
        case _:
            return False


def extract_row_values(score: Scalar, key: int) -> tuple[Scalar, dict[str, Scalar]]:
    """Replace what a score computes from data of the row alone by placeholders; return it and their expressions."""
    names: dict[Scalar, str] = {}

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, (Literal, Placeholder, Index)):
            return node
        of_row = key not in find_axes(node) and not any(isinstance(inner, Placeholder) for inner in walk(node))
        if of_row and any(isinstance(inner, (Load, FlatLoad)) for inner in walk(node)):
            return Placeholder(names.setdefault(node, f"row{len(names)}"), node.dtype)
        if isinstance(node, Apply):
            return Apply(node.function, tuple(map(visit, node.arguments)), node.dtype)
        return node

    expression = visit(score)
    return expression, {name: node for node, name in names.items()}
