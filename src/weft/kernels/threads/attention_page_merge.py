"""The kernel that merges the chunks of keys of attention over a paged cache, in order."""

from __future__ import annotations

from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.lower.kernel_builder import assign, define, fetch, fetch_run, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Launch, StoredTensor
from weft.kernels.threads.attention import FLOAT, RUN, KeySplit, call, float32, is_below, list_loaded
from weft.kernels.threads.attention_frame import CHUNK, KeyRange, PagedFrame, RowSums
from weft.kernels.threads.attention_split import PAIR, ROWS, SUMS
from weft.kernels.threads.points import all_of, points

_LANES = 64
_CHUNKS = 8  # whose sums are read before they are merged


class _PageMerge(PagedFrame):
    """A lane merges a run of columns of one row, without the chunks in which the row sees no key."""

    def __init__(
        self,
        attention: Attention,
        operands: tuple[StoredTensor, ...],
        result: StoredTensor,
        target: ThreadTarget,
        split: KeySplit,
    ) -> None:
        super().__init__(attention, operands, result, target, 1, split, streams=False)
        self.add_sources(list_loaded(*self.begins, *self.ends))
        self.part_sums = self.builder.input("part_sums", FLOAT, SUMS)
        self.part_rows = self.builder.input("part_rows", FLOAT, ROWS)
        self.run = RUN if attention.width % RUN == 0 else 1

    def build_launch(self) -> Launch:
        builder, run = self.builder, self.run
        lanes = min(_LANES, self.target.block_threads)
        here = points((self.heads, self.count, self.attention.width // run), builder, lanes)
        head, row, place = here.places
        self.grid_positions |= {
            axis: position for (axis, _), position in zip(self.axes.grid, unravel_index(head, self.grid_sizes))
        }
        self.first = 0
        self.every_row = builder.parameter("every_row", self.heads * self.count)
        self.row = head * builder.parameter("rows", self.count) + row
        statements: list[Statement] = []
        visible = self.find_row_range(self.row_positions(row), statements)
        (largest,), (total,) = builder.registers("largest", 1, FLOAT), builder.registers("total", 1, FLOAT)
        sums = RowSums(largest, total, tuple(builder.registers("sum", run, FLOAT)))
        group = builder.variable("group")
        assert self.split is not None
        groups = builder.parameter("groups", dims.ceildiv(self.split.splits, _CHUNKS))
        body = self.merge_group(group * _CHUNKS, visible, sums, place * run)
        statements += [*sums.clear(), repeat(group, 0, groups, 1, body)]
        inverse = self.inverse(total, largest, row, statements)
        statements += self.write_columns(sums.sums, inverse, row, place * run, [here.mask])
        return builder.launch(lanes, statements, here.blocks)

    def merge_group(self, first: Dim, visible: KeyRange, row: RowSums, column: Dim) -> list[Statement]:
        """Merge some chunks, after all of them are read."""
        builder, fetches, merges = self.builder, list[Statement](), list[Statement]()
        assert self.split is not None
        splits = builder.parameter("splits", self.split.splits)
        last = builder.parameter("last_split", self.split.splits - 1)
        for number in range(_CHUNKS):
            chunk = first + number
            to_test, test = builder.keep("is_visible", self.test_chunk(chunk, splits, visible), varying=True)
            at = dims.minimum(chunk, last) * self.every_row + self.row
            registers = builder.registers("part", PAIR + self.run, FLOAT)
            place = at * self.attention.width + column
            fetches.append(fetch_run(registers[:PAIR], self.part_rows, at * PAIR))
            if self.run > 1:
                fetches.append(fetch_run(registers[PAIR:], self.part_sums, place))
            else:
                fetches.append(define(registers[PAIR], fetch(self.part_sums, place)))
            merges.append(to_test)
            others = (float32(-inf), *[float32(0.0)] * (self.run + 1))  # where nothing may have been written
            for register, other in zip(registers, others):
                merges.append(assign(register, call("select", test, register, other)))
            largest, total, *sums = registers
            merges += self.merge_chunk(row, largest, total, sums)
        return [*fetches, *merges]

    def test_chunk(self, chunk: Dim, splits: Dim, visible: KeyRange) -> Code:
        test = all_of([is_below(chunk, splits), *visible.tests(chunk * CHUNK)])
        assert test is not None and test.dtype is DType.bool
        return test


build_page_merge = memoize_launch(_PageMerge)
