"""Attention as one kernel that streams over the keys, where lanes are threads: what its forms have in common.

A block has some queries of one head, and all keys or a part of them. The softmax is the running one: the largest score
so far is subtracted, and where new keys bring a larger one, what was summed up before is scaled down. Keys and values
are read where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan

from weft.ir import dims
from weft.ir.access import nonlinear_axes, stride_along, without_axis
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Call, Code, Integer, Number, Register, Statement, When, block
from weft.ir.scalar import AT_HAND, FlatLoad, Held, Load, Scalar, flat_loads
from weft.ir.target import ThreadTarget
from weft.kernels.build.attention import used_operands, with_operands
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import split_index
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch_run, repeat
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor
from weft.records import dataclass

FLOAT = DType.float32
RUN = 4  # numbers of a query, key or value that are read at once

Body = tuple[Statement, ...]


def streamed_operands(attention: Attention) -> tuple[int, ...]:
    """The operands that a kernel's buffers are, before those of the ending."""
    return used_operands(attention.query, attention.key, attention.value, attention.score)


def ending_operands(attention: Attention) -> tuple[int, ...]:
    return () if attention.epilogue is None else used_operands(attention.epilogue)


@dataclass(frozen=True, slots=True)
class Split:
    """The keys in `parts`, for blocks of their own; each has so many `pieces` of the keys."""

    parts: Dim
    pieces: Dim


class Streaming:
    """Operands are those that are streamed, and the epilogue's. `height` rows belong to a block.

    Where keys are `split`, a kernel either streams over a part of them, or ends what such have made.
    """

    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        height: int,
        split: Split | None = None,
        *,
        streams: bool = True,
    ) -> None:
        self.attention, self.result, self.target, self.height = attention, result, target, height
        self.split = split
        self.builder = KernelBuilder("attention" if streams else "attention_parts")
        used = streamed_operands(attention)
        self.operands = [operands[number] for number in used]
        self.query, self.key, self.value, self.score = (
            flatten_loads(with_operands(expression, used), self.operands)
            for expression in (attention.query, attention.key, attention.value, attention.score)
        )
        self.sources = [
            self.builder.input(f"from{n}", tensor.dtype, Reference("operand", n))
            for n, tensor in enumerate(self.operands)
            if streams
        ]
        if not streams or split is None:
            self.epilogue_writer = EpilogueWriter(result, _epilogue(attention, operands), self.builder, len(used))
        self.last = len(attention.shape) - 1
        self.rows = [axis for axis in attention.rows if attention.shape[axis] != 1]
        self.grid = [a for a in range(self.last) if a not in self.rows and attention.shape[a] != 1]
        self.count = dims.product(attention.shape[axis] for axis in self.rows)
        named = self.builder.named
        self.row_sizes = [named(f"rows{axis}", dims.maximum(attention.shape[axis], 1)) for axis in self.rows]
        self.is_whole = dims.mod(self.count, height) == 0
        self.keys = named("keys", attention.shape[-1])
        self.places: dict[int, Dim] = dict.fromkeys(range(self.last), 0)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def launch(self, lanes: int, body: Sequence[Statement]) -> Launch:
        """The kernel around the body for one block."""
        parts = 1 if self.split is None else self.split.parts
        return self.builder.launch(lanes, body, parts * self.heads * dims.ceildiv(self.count, self.height))

    @property
    def heads(self) -> Dim:
        return dims.product(self.attention.shape[axis] for axis in self.grid)

    def decode(self) -> list[Statement]:
        """Which rows a block has, from `first` on, of which head."""
        named = self.builder.named
        chunks = named("chunks", dims.maximum(dims.ceildiv(self.count, self.height), 1))
        first, begin = self.builder.let("first", dims.mod(block(), chunks) * self.height)
        self.first: Dim = begin
        second, self.head = self.builder.let("head", dims.floordiv(block(), chunks))
        statements: list[Statement] = [first, second]
        if self.split is not None:
            heads = named("heads", dims.maximum(self.heads, 1))
            second, self.part = self.builder.let("part", dims.floordiv(self.head, heads))
            third, self.head = self.builder.let("own_head", dims.mod(self.head, heads))
            statements += [second, third]
        return [*statements, *self.decode_head(self.head)]

    def decode_head(self, head: Dim) -> list[Statement]:
        """Where a head is along the axes of the grid."""
        named = self.builder.named
        statements: list[Statement] = []
        rest = head
        for axis in reversed(self.grid):
            size = named(f"grid{axis}", dims.maximum(self.attention.shape[axis], 1))
            outermost = axis == self.grid[0]
            defined, self.places[axis] = self.builder.let(f"g{axis}", rest if outermost else dims.mod(rest, size))
            statements.append(defined)
            if not outermost:
                defined, rest = self.builder.let(f"g{axis}_rest", dims.floordiv(rest, size))
                statements.append(defined)
        return statements

    def at_row(self, row: Dim) -> dict[int, Dim]:
        """Places along all axes but the last, of a row of the block; one beyond the end stands at the last one."""
        position = self.first + row
        if not self.is_whole:
            position = dims.minimum(position, self.builder.named("last_row", dims.maximum(self.count - 1, 0)))
        return {**self.places, **dict(zip(self.rows, split_index(position, self.row_sizes)))}

    def has_row(self, row: Dim) -> Code | None:
        """Whether a row of the block is there."""
        if self.is_whole:
            return None
        end = self.builder.named("rows", self.count)
        return Call("less", (Integer(self.first + row), Integer(end)), DType.bool)

    # -- elements ----------------------------------------------------------------------------------------------------

    def lowering(self, places: Mapping[int, Dim], statements: list[Statement], mask: Code | None = None) -> Lowering:
        views = operand_views(self.operands, dict(enumerate(self.sources)), self.builder)
        return Lowering(views, places, self.builder, None, mask, statements)

    def take_run(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        statements: list[Statement],
        mask: Code | None = None,
        count: int = RUN,
    ) -> list[Code]:
        """Neighbours of a query, key or value, from a place (a multiple of their number) on; 0 where masked."""
        deep = self.last + 1
        runs: dict[FlatLoad, list[Register]] = {}
        flat = dict.fromkeys(flat_loads(element))
        for load in flat:
            alone = sum(other.operand == load.operand for other in flat) == 1
            if count == RUN and alone and self.is_run(load):
                place = self.lowering(places, statements).flat_offset(load.offset)
                own = runs[load] = self.builder.registers("run", RUN, load.dtype)
                statements.append(fetch_run(own, self.sources[load.operand], place, mask))
        values: list[Code] = []
        for part in range(count):
            at = {**places, deep: places[deep] + part}
            lowering = self.lowering(at, statements, mask)
            lowering.known = {load: own[part] for load, own in runs.items()}
            value = lowering.code(element)
            if mask is not None and not isinstance(element, (Load, FlatLoad)):
                value = Call("select", (mask, value, Number(0.0, value.dtype)), value.dtype)
            values.append(lowering.keep(value) if not isinstance(value, Register) else value)
        return values

    def is_run(self, load: FlatLoad, count: int = RUN) -> bool:
        """Whether a load takes neighbours along the last axis, the first of so many at a multiple of their number."""
        place, deep = load.offset, self.last + 1
        if deep in nonlinear_axes(place) or stride_along(place, deep) != 1:
            return False
        return dims.mod(without_axis(place, deep), count) == 0

    def score_at(self, product: Code, places: Mapping[int, Dim], key: Dim, statements: list[Statement]) -> Code:
        """The score that a product becomes, for a row and a key that are there."""
        if isinstance(self.score, Held):
            return product
        lowering = self.lowering({**places, self.last: key}, statements)
        lowering.known = {AT_HAND: product}
        return lowering.keep(lowering.code(self.score))

    # -- keys --------------------------------------------------------------------------------------------------------

    def each_piece(self, size: int, pieces: Callable[[Dim, Dim], Body], largest: Sequence[Register]) -> Body:
        """All keys that some row of the block sees: `pieces` are those of a range, which starts at a multiple of size.

        A finite score hides a key only from rows that see another. So those beyond an end with such a score come in a
        second part, and only if there is a row whose `largest` score so far is as low; where keys are split, they are
        not left out.
        """
        index = self.lowering(self.at_row(self.height - 1), []).index
        certain = [index(end.bound) for end in self.attention.causal_bounds if end.score == -inf]
        likely = [index(end.bound) for end in self.attention.causal_bounds if end.score != -inf]
        stop = dims.maximum(_least(self.keys, *certain), 0)
        to_stop, end_of_all = self.builder.let("stop", stop)
        if self.split is not None:
            span = self.builder.named("pieces", self.split.pieces) * size
            begin = self.part * span
            return (to_stop, *pieces(begin, dims.maximum(dims.minimum(end_of_all, begin + span), begin)))
        if not likely:
            return (to_stop, *pieces(0, end_of_all))
        near = dims.ceildiv(dims.maximum(_least(*likely), 0), size) * size
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        least: Code = largest[0]
        for other in largest[1:]:
            least = smaller(least, other)
        test = Call("less_equal", (Across("minimum", least), number_of(low / 2)), DType.bool)
        to_middle, middle = self.builder.let("middle", dims.minimum(near, end_of_all))
        part = self.builder.variable("pass")
        first = Call("equal", (Integer(part), Integer(0)), DType.bool)
        to_hidden, hidden = self.builder.keep("hidden", test, varying=False)
        to_begin, begin = self.builder.let("begin", part * middle)
        to_end, end = self.builder.let("end", middle + part * (end_of_all - middle))
        seen = When(Call("logical_or", (first, hidden), DType.bool), (to_begin, to_end, *pieces(begin, end)))
        return to_stop, to_middle, repeat(part, 0, 2, 1, (to_hidden, seen))

    # -- softmax -----------------------------------------------------------------------------------------------------

    def shift(self, now: Code) -> Code:
        """What is subtracted from scores whose largest is `now`."""
        unseen = Call("equal", (now, number_of(-inf)), DType.bool)
        return call("select", unseen, number_of(0.0), now)

    def inverse(self, total: Code, largest: Code, statements: list[Statement]) -> Code:
        """What sums of a row are multiplied by at the end.

        Rows without a visible key have a total of 0 here; it is NaN where the program lets -inf - -inf happen.
        """
        if not self.attention.shifts_nothing:
            hidden = Call("equal", (largest, number_of(-inf)), DType.bool)
            total = call("select", hidden, number_of(nan), total)
        defined, whole = self.builder.keep("whole", total, varying=True)
        statements.append(defined)
        lowering = Lowering({}, {}, self.builder, {AT_HAND: whole}, None, statements)
        inverse: Code = call("divide", number_of(1.0), lowering.code(self.attention.divisor))
        if self.attention.drops_nan:
            inverse = call("select", Call("is_nan", (whole,), DType.bool), number_of(0.0), inverse)
        if not dims.is_at_least(self.attention.shape[-1], 1):
            empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
            inverse = call("select", empty, number_of(0.0), inverse)
        defined, register = self.builder.keep("inverse", inverse, varying=True)
        statements.append(defined)
        return register

    def write(self, sums: Sequence[Code], inverse: Code, row: Dim, column: Dim, mask: Code | None) -> list[Statement]:
        """Neighbouring columns of a row, from `column` on, ended and written."""
        values = [call("multiply", each, inverse) for each in sums]
        if self.attention.drops_nan:
            nothing = Call("equal", (inverse, number_of(0.0)), DType.bool)
            values = [call("select", nothing, number_of(0.0), value) for value in values]
        at = {**self.at_row(row), self.last + 1: column}
        axes = {axis: at[own] for axis, own in enumerate(self.attention.axes)}
        along = self.attention.axes.index(self.last + 1)
        aligned = all(dims.mod(s, RUN) == 0 for axis, s in enumerate(self.result.strides) if axis != along)
        if aligned and len(values) == RUN:
            return list(self.epilogue_writer.write_run(values, axes, along, mask))
        statements: list[Statement] = []
        for number, value in enumerate(values):
            place = {**axes, along: axes[along] + number}
            statements += self.epilogue_writer.write(value, place, mask)
        return statements


def _epilogue(attention: Attention, operands: Sequence[StoredTensor]) -> Epilogue | None:
    if attention.epilogue is None:
        return None
    used = ending_operands(attention)
    return Epilogue(with_operands(attention.epilogue, used), tuple(operands[number] for number in used))


def larger(a: Code, b: Code) -> Code:
    """The larger of two numbers; the first where the second is none: what becomes of it shows in the sums."""
    return call("select", Call("greater", (b, a), DType.bool), b, a)


def smaller(a: Code, b: Code) -> Code:
    return call("select", Call("less", (b, a), DType.bool), b, a)


def number_of(value: float) -> Number:
    return Number(value, FLOAT)


def call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)


def _least(*values: Dim) -> Dim:
    least, *others = values
    for value in others:
        least = dims.minimum(least, value)
    return least


def below(value: Dim, limit: Dim) -> Code:
    return Call("less", (Integer(value), Integer(limit)), DType.bool)
