"""The base of attention kernels that stream over the keys (flash attention).

A block computes some queries of one head, over all keys or a split of them. The softmax is online: the largest score so
far is subtracted, and when new keys bring a larger one, the sums so far are scaled down. Keys and values are read in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan

from weft.ir import dims
from weft.ir.access import find_axes, find_nonlinear_axes, stride_along, without_axis
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, FetchRun, Integer, Number, Register, Statement, When, block
from weft.ir.scalar import ELEMENT, FlatLoad, Index, Load, Placeholder, Scalar, rebuild, walk
from weft.ir.target import ThreadTarget
from weft.kernels.build.attention import find_operands, renumber_operands
from weft.kernels.build.attention_rows import find_row_axes
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, repeat
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor
from weft.kernels.threads.points import all_of
from weft.records import dataclass

FLOAT = DType.float32
RUN = 4  # elements of a query, key or value that are read at once

Body = tuple[Statement, ...]


def list_streamed_operands(attention: Attention) -> tuple[int, ...]:
    """List the operands that are a kernel's first buffers, before those of the epilogue."""
    sinks = () if attention.sink is None else (attention.sink,)
    others = (*attention.loaded_bounds, *attention.loaded_starts, *sinks)
    return find_operands(attention.query, attention.key, attention.value, attention.score, *others)


def list_epilogue_operands(attention: Attention) -> tuple[int, ...]:
    return () if attention.epilogue is None else find_operands(attention.epilogue)


@dataclass(frozen=True, slots=True)
class KeySplit:
    """The division of the keys into `splits` for different blocks; each split has `tiles` tiles of keys."""

    splits: Dim
    tiles: Dim


class StreamingAttention:
    """Operands are those that are streamed, and the epilogue's; a block has `height` rows.

    Where keys are `split`, a kernel either `streams` over a split of them, or merges the results of all splits.
    """

    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        height: int,
        split: KeySplit | None = None,
        *,
        streams: bool = True,
    ) -> None:
        self.attention, self.result, self.target, self.height = attention, result, target, height
        self.split = split
        self.builder = KernelBuilder("attention" if streams else "attention_parts")
        used = list_streamed_operands(attention)
        self.operands = [operands[number] for number in used]
        self.query, self.key, self.value, self.score = (
            flatten_loads(renumber_operands(expression, used), self.operands)
            for expression in (attention.query, attention.key, attention.value, attention.score)
        )
        self.sources: dict[int, Buffer] = {}
        if streams:
            self.add_sources(range(len(self.operands)))
        self.sink = None
        if attention.sink is not None:
            self.sink = flatten_loads(renumber_operands(attention.sink, used), self.operands)
            if not streams:
                self.add_sources(list_loaded(self.sink))
        if not streams or split is None:
            self.epilogue_writer = EpilogueWriter(result, _epilogue(attention, operands), self.builder, len(used))
        self.last = len(attention.shape) - 1
        self.axes = find_row_axes(attention, in_place=attention.block_size is not None)
        self.count = self.axes.count
        parameter = self.builder.parameter
        self.row_sizes = [parameter(f"rows{axis}", dims.maximum(size, 1)) for axis, size in self.axes.rows]
        self.grid_sizes = [parameter(f"grid{axis}", dims.maximum(size, 1)) for axis, size in self.axes.grid]
        self.is_whole = dims.mod(self.count, height) == 0
        self.keys = parameter("keys", attention.shape[-1])
        self.grid_positions: dict[int, Dim] = dict.fromkeys(range(self.last), 0)

    def add_sources(self, numbers: Iterable[int]) -> None:
        """Add the buffers of operands that the kernel reads."""
        for number in numbers:
            if number not in self.sources:
                reference = Reference("operand", number)
                self.sources[number] = self.builder.input(f"from{number}", self.operands[number].dtype, reference)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def launch(self, lanes: int, body: Sequence[Statement]) -> Launch:
        """Build the launch from the body of a block."""
        splits = 1 if self.split is None else self.split.splits
        return self.builder.launch(lanes, body, splits * self.heads * dims.ceildiv(self.count, self.height))

    @property
    def heads(self) -> Dim:
        return dims.product(size for _, size in self.axes.grid)

    def locate_block(self) -> list[Statement]:
        """Compute the head of a block, its first row, and its split."""
        parameter = self.builder.parameter
        chunks = parameter("chunks", dims.maximum(dims.ceildiv(self.count, self.height), 1))
        first, begin = self.builder.let("first", dims.mod(block(), chunks) * self.height)
        self.first: Dim = begin
        second, self.head = self.builder.let("head", dims.floordiv(block(), chunks))
        statements: list[Statement] = [first, second]
        if self.split is not None:
            heads = parameter("heads", dims.maximum(self.heads, 1))
            second, self.split_index = self.builder.let("part", dims.floordiv(self.head, heads))
            third, self.head = self.builder.let("own_head", dims.mod(self.head, heads))
            statements += [second, third]
        return [*statements, *self.locate_head(self.head)]

    def locate_head(self, head: Dim) -> list[Statement]:
        """Compute the positions of a head along the axes of the grid."""
        statements: list[Statement] = []
        for (axis, _), position in zip(self.axes.grid, unravel_index(head, self.grid_sizes)):
            definition, self.grid_positions[axis] = self.builder.let(f"g{axis}", position)
            statements.append(definition)
        return statements

    def row_positions(self, row: Dim) -> dict[int, Dim]:
        """Return the positions of a row of the block along all axes but the last, clamped to the last row."""
        position = self.first + row
        if not self.is_whole:
            position = dims.minimum(position, self.builder.parameter("last_row", dims.maximum(self.count - 1, 0)))
        places = {axis: place for (axis, _), place in zip(self.axes.rows, unravel_index(position, self.row_sizes))}
        return self.join_positions(places)

    def join_positions(self, places: Mapping[int, Dim]) -> dict[int, Dim]:
        """Return the positions along all axes but the last of the row at some places along the axes of rows."""
        grid = self.grid_positions
        return {axis: self.axes.position(axis, grid[axis], places.get(axis, 0)) for axis in range(self.last)}

    def has_row(self, row: Dim) -> Code | None:
        """Test whether a row of the block exists; None where all do."""
        if self.is_whole:
            return None
        end = self.builder.parameter("rows", self.count)
        return Call("less", (Integer(self.first + row), Integer(end)), DType.bool)

    def split_row(self, row: Dim) -> Dim:
        """Return the index of a row of the block among the rows of all splits."""
        heads, count = (
            self.builder.parameter("heads", dims.maximum(self.heads, 1)),
            self.builder.parameter("rows", self.count),
        )
        return (self.split_index * heads + self.head) * count + self.first + row

    # -- elements ----------------------------------------------------------------------------------------------------

    def lowering(self, places: Mapping[int, Dim], statements: list[Statement], mask: Code | None = None) -> Lowering:
        views = operand_views(self.operands, self.sources, self.builder)
        return Lowering(views, places, self.builder, None, mask, statements)

    def read_padded(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        run: Dim,
        extent: int,
        mask: Code | None,
        statements: list[Statement],
    ) -> list[Code]:
        """Read a run of a query, key or value with `extent` elements; 0 past the end, and where masked."""
        if extent % RUN == 0:
            values = self.read_run(element, {**places, self.last + 1: run * RUN}, statements, mask)
            return [cast(value, FLOAT) for value in values]
        values = []
        for number in range(RUN):
            test = all_of([mask, is_below(run * RUN + number, extent)])
            at = {**places, self.last + 1: run * RUN + number}
            values += self.read_run(element, at, statements, test, 1)
        return [cast(value, FLOAT) for value in values]

    def read_run(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        statements: list[Statement],
        mask: Code | None = None,
        count: int = RUN,
    ) -> list[Code]:
        """Read `count` neighbouring elements of a query, key or value, aligned to `count`; 0 where masked."""
        deep = self.last + 1
        runs: dict[Scalar, list[Register]] = {}
        candidates = dict.fromkeys(node for node in walk(element) if isinstance(node, (FlatLoad, Load)))
        for load in candidates:
            is_only_load = sum(other.operand == load.operand for other in candidates) == 1
            if count == RUN and is_only_load and self.is_run(load):
                fetch = self.lowering(places, statements).fetch_load(load)
                runs[load] = self.builder.registers("run", RUN, load.dtype)
                names, test = tuple(register.name for register in runs[load]), all_of([fetch.mask, mask])
                buffer = self.sources[load.operand].name
                statements.append(FetchRun(names, buffer, fetch.offset, load.dtype, test, fetch.indirect))
        element = rebuild(element, lambda load: Placeholder(str(load), load.dtype) if load in runs else load)
        values: list[Code] = []
        for part in range(count):
            at = {**places, deep: places[deep] + part}
            lowering = self.lowering(at, statements, mask)
            lowering.values = {
                loaded if isinstance(loaded, FlatLoad) else str(loaded): registers[part]
                for loaded, registers in runs.items()
            }
            value = lowering.code(element)
            if mask is not None and not isinstance(element, (Load, FlatLoad, Placeholder)):
                value = Call("select", (mask, value, Number(0.0, value.dtype)), value.dtype)
            values.append(lowering.keep(value) if not isinstance(value, Register) else value)
        return values

    def is_run(self, load: FlatLoad | Load, count: int = RUN) -> bool:
        """Whether a load reads aligned runs of `count` neighbours along the last axis."""
        deep = self.last + 1
        if isinstance(load, FlatLoad):
            return _is_aligned(load.offset, deep, count)
        operand, along = self.operands[load.operand], 0
        for index, size, stride in zip(load.indices, operand.shape, operand.strides, strict=True):
            if deep not in find_axes(index):
                if dims.mod(stride, count) != 0:
                    return False
                continue
            if not isinstance(index, Index) or stride != 1 or not _is_aligned(index.value, deep, count):
                return False
            if not (dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)):
                return False
            along += 1
        return along == 1

    def compute_score(self, product: Code, places: Mapping[int, Dim], key: Dim, statements: list[Statement]) -> Code:
        """Compute the score from a product, for a row and a key that exist."""
        if isinstance(self.score, Placeholder):
            return product
        lowering = self.lowering({**places, self.last: key}, statements)
        lowering.values = {ELEMENT: product}
        return lowering.keep(lowering.code(self.score))

    # -- keys --------------------------------------------------------------------------------------------------------

    def loop_over_keys(self, size: int, process_range: Callable[[Dim, Dim], Body], largest: Sequence[Register]) -> Body:
        """Process all keys that some row of the block attends to, in ranges that start at multiples of `size`.

        A causal mask with a finite score hides keys only from rows that attend to another key. So the keys beyond such
        a bound are processed in a second pass, and only if the `largest` score of some row is as low as the mask's.
        Where keys are split they are always processed.
        """
        index = self.lowering(self.row_positions(self.height - 1), []).index
        hard_bounds = [index(end.bound) for end in self.attention.causal_bounds if end.score == -inf]
        soft_bounds = [index(end.bound) for end in self.attention.causal_bounds if end.score != -inf]
        to_stop, stop = self.builder.let("stop", dims.maximum(_minimum(self.keys, *hard_bounds), 0))
        if self.split is not None:
            span = self.builder.parameter("pieces", self.split.tiles) * size
            begin = self.split_index * span
            return (to_stop, *process_range(begin, dims.maximum(dims.minimum(stop, begin + span), begin)))
        if not soft_bounds:
            return (to_stop, *process_range(0, stop))
        soft_stop = dims.ceildiv(dims.maximum(_minimum(*soft_bounds), 0), size) * size
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        smallest: Code = largest[0]
        for other in largest[1:]:
            smallest = smaller(smallest, other)
        test = Call("less_equal", (Across("minimum", smallest), float32(low / 2)), DType.bool)
        to_middle, middle = self.builder.let("middle", dims.minimum(soft_stop, stop))
        pass_number = self.builder.variable("pass")
        is_first = Call("equal", (Integer(pass_number), Integer(0)), DType.bool)
        to_hidden, hidden = self.builder.keep("hidden", test, varying=False)
        to_begin, begin = self.builder.let("begin", pass_number * middle)
        to_end, end = self.builder.let("end", middle + pass_number * (stop - middle))
        is_needed = Call("logical_or", (is_first, hidden), DType.bool)
        body = When(is_needed, (to_begin, to_end, *process_range(begin, end)))
        return to_stop, to_middle, repeat(pass_number, 0, 2, 1, (to_hidden, body))

    def clamp_key(self, key: Dim, tile: int) -> Dim:
        """Return the position of a key, or of the last one for keys past the end; `tile` keys are processed at once."""
        if dims.mod(self.attention.shape[-1], tile) == 0:
            return key
        return dims.minimum(key, self.builder.parameter("last_key", dims.maximum(self.attention.shape[-1] - 1, 0)))

    # -- softmax -----------------------------------------------------------------------------------------------------

    def shift(self, largest: Code) -> Code:
        """Return the number to subtract from scores before the exponential."""
        is_empty = Call("equal", (largest, float32(-inf)), DType.bool)
        return call("select", is_empty, float32(0.0), largest)

    def inverse(self, total: Code, largest: Code, row: Dim, statements: list[Statement]) -> Code:
        """Compute the factor that a row's sums are multiplied by at the end.

        The total of a row without a visible key is 0 here; it becomes NaN where the program computes -inf - -inf.
        """
        if self.sink is not None:
            return self.inverse_with_sink(total, largest, self.sink, row, statements)
        if not self.attention.shifts_nothing:
            hidden = Call("equal", (largest, float32(-inf)), DType.bool)
            total = call("select", hidden, float32(nan), total)
        definition, row_total = self.builder.keep("whole", total, varying=True)
        statements.append(definition)
        lowering = Lowering({}, {}, self.builder, {ELEMENT: row_total}, None, statements)
        inverse: Code = call("divide", float32(1.0), lowering.code(self.attention.divisor))
        if self.attention.drops_nan:
            inverse = call("select", Call("is_nan", (row_total,), DType.bool), float32(0.0), inverse)
        if not dims.is_at_least(self.attention.shape[-1], 1):
            empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
            inverse = call("select", empty, float32(0.0), inverse)
        definition, register = self.builder.keep("inverse", inverse, varying=True)
        statements.append(definition)
        return register

    def inverse_with_sink(
        self, total: Code, largest: Code, sink: Scalar, row: Dim, statements: list[Statement]
    ) -> Code:
        """As `inverse`; the sink is the only visible score of a row without a visible key."""

        def keep(name: str, code: Code) -> Code:
            definition, register = self.builder.keep(name, code, varying=True)
            statements.append(definition)
            return register

        score = keep("sink", self.lowering(self.row_positions(row), statements).code(sink))
        shift = keep("by", larger(largest, score))
        scale = keep("scale", call("exp", call("subtract", largest, shift)))
        whole = call("add", call("multiply", total, scale), call("exp", call("subtract", score, shift)))
        return keep("inverse", call("divide", scale, whole))

    def write(self, sums: Sequence[Code], inverse: Code, row: Dim, column: Dim, mask: Code | None) -> list[Statement]:
        """Scale neighbouring columns of a row, from `column` on, apply the epilogue and write them."""
        values = [call("multiply", total, inverse) for total in sums]
        if self.attention.drops_nan:
            is_zero = Call("equal", (inverse, float32(0.0)), DType.bool)
            values = [call("select", is_zero, float32(0.0), value) for value in values]
        at = {**self.row_positions(row), self.last + 1: column}
        axes = {axis: at[axis_of_score] for axis, axis_of_score in enumerate(self.attention.axes)}
        along = self.attention.axes.index(self.last + 1)
        is_aligned = all(dims.mod(stride, RUN) == 0 for axis, stride in enumerate(self.result.strides) if axis != along)
        if is_aligned and len(values) == RUN:
            return list(self.epilogue_writer.write_run(values, axes, along, mask))
        statements: list[Statement] = []
        for number, value in enumerate(values):
            place = {**axes, along: axes[along] + number}
            statements += self.epilogue_writer.write(value, place, mask)
        return statements


def _epilogue(attention: Attention, operands: Sequence[StoredTensor]) -> Epilogue | None:
    if attention.epilogue is None:
        return None
    used = list_epilogue_operands(attention)
    return Epilogue(renumber_operands(attention.epilogue, used), tuple(operands[number] for number in used))


def list_loaded(*expressions: Scalar) -> list[int]:
    """List the operands that expressions load from, after `flatten_loads`."""
    nodes = [node for expression in expressions for node in walk(expression)]
    return sorted({node.operand for node in nodes if isinstance(node, (Load, FlatLoad))})


def _is_aligned(place: Dim, axis: int, count: int) -> bool:
    """Whether neighbours along an axis are neighbours in memory, and begin at a multiple of `count`."""
    if axis in find_nonlinear_axes(place) or stride_along(place, axis) != 1:
        return False
    return dims.mod(without_axis(place, axis), count) == 0


def larger(a: Code, b: Code) -> Code:
    """Return the larger of two numbers, ignoring a NaN in `b`, which makes the sums NaN anyway."""
    return call("select", Call("greater", (b, a), DType.bool), b, a)


def smaller(a: Code, b: Code) -> Code:
    return call("select", Call("less", (b, a), DType.bool), b, a)


def float32(value: float) -> Number:
    return Number(value, FLOAT)


def call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)


def _minimum(*values: Dim) -> Dim:
    smallest, *others = values
    for value in others:
        smallest = dims.minimum(smallest, value)
    return smallest


def is_below(value: Dim, limit: Dim) -> Code:
    return Call("less", (Integer(value), Integer(limit)), DType.bool)
