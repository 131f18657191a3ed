"""Attention with split keys: the results that blocks write for their splits, and the kernel that merges them.

Sums are relative to the largest score of the split: [splits, heads, rows, columns]. That score and the total of the
weights are stored beside them: [splits, heads, rows, 2].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.kernel import Code, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, fetch_run, put, put_run, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Workspace
from weft.kernels.threads.attention import FLOAT, RUN, KeySplit, StreamingAttention, call, float32, is_below, larger
from weft.kernels.threads.points import all_of, points

SUMS, ROWS = Reference("workspace", 0), Reference("workspace", 1)
PAIR = 2
_LANES = 64


def split_workspaces(attention: Attention, splits: Dim) -> tuple[Workspace, ...]:
    """Return the memory that passes results from the first kernel to the second."""
    rows = splits * dims.product(attention.shape[:-1])
    return Workspace(FLOAT, rows * attention.width), Workspace(FLOAT, rows * PAIR)


class SplitWriter:
    """Writes the results of a block's split; rows are counted over all splits and heads."""

    def __init__(self, builder: KernelBuilder, width: int) -> None:
        self.builder, self.width = builder, width
        self.sums = builder.output("part_sums", FLOAT, SUMS)
        self.rows = builder.output("part_rows", FLOAT, ROWS)

    def put_row(self, row: Dim, largest: Code, total: Code, mask: Code | None) -> list[Statement]:
        return [put_run(self.rows, row * PAIR, (largest, total), mask)]

    def put_sums(self, row: Dim, column: Dim, sums: Sequence[Code], tests: Sequence[Code | None]) -> list[Statement]:
        """Write neighbouring columns of a row, as far as they exist."""
        place = row * self.width + column
        if self.width % len(sums) == 0:
            return [put_run(self.sums, place, sums, all_of(tests))]
        return [
            put(self.sums, place + number, total, mask=all_of([*tests, is_below(column + number, self.width)]))
            for number, total in enumerate(sums)
        ]


class _MergeKernel(StreamingAttention):
    """A lane merges a run of columns of one row."""

    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        split: KeySplit,
    ) -> None:
        super().__init__(attention, operands, result, target, 1, split, streams=False)
        self.sums = self.builder.input("part_sums", FLOAT, SUMS)
        self.row_stats = self.builder.input("part_rows", FLOAT, ROWS)
        self.run = RUN if attention.width % RUN == 0 else 1

    def build_launch(self) -> Launch:
        builder, run = self.builder, self.run
        lanes = min(_LANES, self.target.block_threads)
        here = points((self.heads, self.count, self.attention.width // run), builder, lanes)
        head, row, place = here.places
        places = unravel_index(head, self.grid_sizes)
        self.grid_positions |= {axis: place for (axis, _), place in zip(self.axes.grid, places)}
        self.first = 0
        self.all_rows = builder.parameter("all_rows", self.heads * self.count)
        self.row = head * builder.parameter("rows", self.count) + row
        assert self.split is not None
        splits = builder.parameter("parts", self.split.splits)
        definition, largest = builder.keep("now", float32(-inf), varying=True)
        statements: list[Statement] = [definition]
        split = builder.variable("part")
        definition, split_largest = builder.keep("largest", self.fetch_stat(split, 0), varying=True)
        statements.append(repeat(split, 0, splits, 1, (definition, assign(largest, larger(largest, split_largest)))))
        definition, shift = builder.keep("by", self.shift(largest), varying=True)
        statements.append(definition)
        total = builder.register("total", FLOAT)
        sums = builder.registers("sum", run, FLOAT)
        statements += [define(register, float32(0.0)) for register in (total, *sums)]
        split = builder.variable("part")
        statements.append(repeat(split, 0, splits, 1, self.add(split, shift, total, sums, place * run)))
        inverse = self.inverse(total, largest, row, statements)
        statements += self.write(sums, inverse, row, place * run, here.mask)
        return builder.launch(lanes, statements, here.blocks)

    def fetch_stat(self, split: Dim, number: int) -> Code:
        """Fetch the largest score of the row in a split (0), or the total of its weights (1)."""
        return fetch(self.row_stats, (split * self.all_rows + self.row) * PAIR + number)

    def add(self, split: Dim, shift: Code, total: Register, sums: Sequence[Register], column: Dim) -> list[Statement]:
        """Add the sums of a split, scaled to the largest score of all splits."""
        scale = call("exp", call("subtract", self.fetch_stat(split, 0), shift))
        definition, factor = self.builder.keep("factor", scale, varying=True)
        loaded = self.builder.registers("found", self.run, FLOAT)
        offset = (split * self.all_rows + self.row) * self.attention.width + column
        is_run = self.run > 1
        load = fetch_run(loaded, self.sums, offset) if is_run else define(loaded[0], fetch(self.sums, offset))
        terms = [(total, self.fetch_stat(split, 1)), *zip(sums, loaded)]
        return [
            definition,
            load,
            *(assign(register, multiply_add(self.target, factor, term, register)) for register, term in terms),
        ]


build_merge_launch = memoize_launch(_MergeKernel)
