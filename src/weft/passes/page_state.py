"""Move the state of a program into blocks that sequences share: a paged cache of keys and values.

In: a program whose growing inputs are buffers [batch, ..., capacity, ...] (`hold_state`). Out: the same program on
pools [blocks, ..., block_size, ...]. Element `t` of sequence `b` is in block `table[b, t // block_size]`. Sequences of
a batch may have different lengths: the new elements of sequence `b` begin at `starts[b]`, where the program without
pages appends to all sequences at one length. What a sequence must not see, the caller masks.

An update at a position whose table entry is not a block is ignored. A block that a run writes belongs to one sequence:
the entries of the table for positions written in one run are distinct, except those that are no blocks. Updates of
different elements of a buffer therefore stay updates of different elements of the pool (`Scatter.distinct`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Map, Scatter, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, rebuild
from weft.ir.scatter_points import has_distinct_points
from weft.ir.state import HeldInput, PagedInput
from weft.ir.types import TensorType
from weft.passes.hold_state import HeldState
from weft.passes.rewrite import next_number
from weft.records import dataclass

LoadRewrite = Callable[[Load], Scalar]
BLOCKS = "weft.blocks"  # the size of a pool
TABLE, STARTS = "weft.block_table", "weft.starts"  # inputs of the program


@dataclass(frozen=True, slots=True)
class PagedState:
    program: TensorProgram
    inputs: tuple[PagedInput, ...]


def page_state(state: HeldState, block_size: int) -> PagedState | None:
    """Replace the buffers of a state by pools of blocks; None if a buffer is used in a form that has no pages."""
    if state.lengths or not state.inputs:
        return None
    paging = _Paging(state.program, block_size, next_number(state.program))
    entries = {entry.name: entry for entry in state.inputs}
    for value in state.program.inputs:
        if value.name in entries and not paging.add_pool(value, entries[value.name]):
            return None
    return paging.finish(state.inputs)


class _Paging:
    """The rewriting of one program."""

    def __init__(self, program: TensorProgram, block_size: int, number: int) -> None:
        self.program = program
        self.block_size = block_size
        self.number = number
        self.pools: dict[Value, Value] = {}  # by the buffers, and by the results of scatters into them
        self.axes: dict[Value, int] = {}  # the growing axis, by pools
        self.lengths: dict[Value, str] = {}  # the size that is the number of elements before the run, by pools
        self.table: Value | None = None
        self.starts: Value | None = None

    def new_value(self, dtype: DType, shape: tuple[Dim, ...], name: str = "") -> Value:
        self.number += 1
        return Value(self.number - 1, TensorType(dtype, shape), name)

    def add_pool(self, buffer: Value, entry: HeldInput) -> bool:
        """Replace a buffer; False unless its first axis is the batch and another one grows."""
        batch = dims.as_symbol(buffer.shape[0])
        if entry.axis == 0 or batch is None:
            return False
        if self.table is None or self.starts is None:
            width = dims.symbol(f"{TABLE}.width", 1)
            self.table = self.new_value(DType.int64, (buffer.shape[0], width), TABLE)
            self.starts = self.new_value(DType.int64, (buffer.shape[0],), STARTS)
        if self.table.shape[0] != buffer.shape[0]:
            return False
        shape = self.find_sizes(buffer)
        shape[0], shape[entry.axis] = dims.symbol(BLOCKS, 1), self.block_size
        pool = self.new_value(buffer.dtype, tuple(shape), buffer.name)
        self.pools[buffer], self.axes[pool] = pool, entry.axis
        self.lengths[pool] = entry.length
        return True

    def find_sizes(self, buffer: Value) -> list[Dim]:
        """Return the sizes of a buffer, those of the elements written into it where the file does not fix its own."""
        domains = [
            step.primitive.domain
            for step in self.program.steps
            if isinstance(step.primitive, Scatter) and step.operands[0] == buffer
        ]
        return [
            next((domain[axis] for domain in domains if isinstance(domain[axis], int)), size)
            for axis, size in enumerate(buffer.shape)
        ]

    def finish(self, inputs: Sequence[HeldInput]) -> PagedState | None:
        steps: list[Step] = []
        for step in self.program.steps:
            new = self.rewrite_step(step)
            if new is None:
                return None
            steps.append(new)
        if any(value in self.pools for value in self.program.outputs):
            return None
        assert self.table is not None and self.starts is not None
        own = tuple(self.pools.get(value, value) for value in self.program.inputs)
        program = replace(self.program, inputs=(*own, self.table, self.starts), steps=tuple(steps))
        paged = tuple(PagedInput(entry.name, entry.axis, entry.length, self.block_size) for entry in inputs)
        return PagedState(program, paged)

    def rewrite_step(self, step: Step) -> Step | None:
        """Rewrite a step to use pools; None if it uses a buffer in another form."""
        if not any(operand in self.pools for operand in step.operands):
            return step
        match step.primitive:
            case Scatter(in_place=True):
                return self.rewrite_update(step)
            case Map(expression):
                operands, loads = self.redirect_loads(step.operands)
                return replace(step, primitive=Map(rebuild(expression, loads)), operands=operands)
            case _:
                return None

    def rewrite_update(self, step: Step) -> Step | None:
        """Scatter into a pool; a position that follows from the length alone begins at the sequence's own start."""
        scatter = step.primitive
        assert isinstance(scatter, Scatter)
        if step.operands[0] not in self.pools or any(value in self.pools for value in step.operands[1:]):
            return None
        pool = self.pools[step.operands[0]]
        axis = self.axes[pool]
        operands, table, starts = self.add_operands(step.operands[1:], 1)
        batch, position = scatter.indices[0], scatter.indices[axis]
        if isinstance(position, Index):
            start = Load(starts, (batch,), DType.int64)
            offset = _subtract_symbol(position.value, self.lengths[pool])
            position = Apply("add", (Index(offset), start), DType.int64)
        indices = list(scatter.indices)
        indices[0], indices[axis] = self.find_block(batch, position, table)
        extended = self.new_value(pool.dtype, pool.shape)
        self.pools[step.results[0]], self.axes[extended] = extended, axis
        self.lengths[extended] = self.lengths[pool]
        primitive = replace(scatter, indices=tuple(indices), distinct=has_distinct_points(scatter))
        return replace(step, primitive=primitive, operands=(pool, *operands), results=(extended,))

    def redirect_loads(self, operands: Sequence[Value]) -> tuple[tuple[Value, ...], LoadRewrite]:
        """Return the operands of a map with pools for buffers, and the function that rewrites its loads."""
        with_pools = tuple(self.pools.get(value, value) for value in operands)
        new_operands, table, _ = self.add_operands(with_pools, 0)

        def rewrite(load: Load) -> Scalar:
            axis = self.axes.get(new_operands[load.operand])
            if axis is None:
                return load
            indices = list(load.indices)
            indices[0], indices[axis] = self.find_block(load.indices[0], load.indices[axis], table)
            return replace(load, indices=tuple(indices))

        return new_operands, rewrite

    def add_operands(self, operands: Sequence[Value], first: int) -> tuple[tuple[Value, ...], int, int]:
        """Add table and starts to operands, of which the first has the number `first`; return their numbers, too."""
        assert self.table is not None and self.starts is not None
        count = first + len(operands)
        return (*operands, self.table, self.starts), count, count + 1

    def find_block(self, batch: Scalar, position: Scalar, table: int) -> tuple[Scalar, Scalar]:
        """Return the block of an element and its place there."""
        if isinstance(position, Index):
            block: Scalar = Index(dims.floordiv(position.value, self.block_size))
            place: Scalar = Index(dims.mod(position.value, self.block_size))
        else:
            size = Literal(self.block_size, DType.int64)
            block = Apply("divide", (position, size), DType.int64)
            place = Apply("remainder", (position, size), DType.int64)
        return Load(table, (batch, block), DType.int64), place


def _subtract_symbol(value: Dim, name: str) -> Dim:
    """Subtract the symbol of this name, which has the bounds that it has in the value."""
    return value - next((dims.from_atom(symbol) for symbol in dims.symbols(value) if symbol.name == name), 0)
