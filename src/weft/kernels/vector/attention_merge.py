"""Merge the splits of the keys that blocks of an attention have processed, in the order of the keys.

The sums of a split are in a workspace [splits, heads * rows, columns]; its largest score and the total of its weights
are in another one, [splits, heads * rows, 2].
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.kernel import Statement, block, lane
from weft.ir.target import VectorTarget
from weft.kernels.lower.kernel_builder import fetch, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch, StoredTensor, Workspace
from weft.kernels.vector.attention import FLOAT, STATISTICS, SUMS
from weft.kernels.vector.attention_softmax import ChunkSoftmax


class _Merge(ChunkSoftmax):
    """A block merges one row, as a tile of height 1."""

    def __init__(
        self, attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: VectorTarget
    ) -> None:
        super().__init__(attention, operands, result, target, in_place=True, pairs=False)
        self.part_sums = self.builder.input("part_sums", FLOAT, SUMS)
        self.part_statistics = self.builder.input("part_statistics", FLOAT, STATISTICS)

    def workspaces(self) -> tuple[Workspace, ...]:
        splits = self.find_splits()
        rows = splits.is_used * splits.count * self.heads * self.axes.count
        return Workspace(FLOAT, rows * self.width), Workspace(FLOAT, rows * 2)

    def build_launch(self) -> Launch:
        splits = self.find_splits()
        first, head = self.builder.let("head", dims.floordiv(block(), self.row_count))
        second, row = self.builder.let("row", dims.mod(block(), self.row_count))
        statements: list[Statement] = [first, second, *self.decode_head(head)]
        self.add_local_memory(1)
        rows, views = self.view_tile(1, row, 0)
        every = self.builder.parameter("every_row", self.heads * self.axes.count)
        split, column = self.builder.variable("split"), self.builder.variable("c")
        place = split * every + block()
        at = column + lane(self.lanes)
        part = fetch(self.part_sums, place * self.width + at)
        merged = self.merge(fetch(rows.sum, at), fetch(self.factors, 0), part, fetch(self.scales, 0))
        body = [
            put(self.row_values, 0, fetch(self.part_statistics, 2 * place)),
            *self.update_largest(rows),
            put(self.row_values, 0, fetch(self.part_statistics, 2 * place + 1)),
            *self.add_totals(rows),
            repeat(column, 0, self.width, self.lanes, (put(rows.sum, at, merged),)),
        ]
        statements += [*views, *self.clear(rows)]
        statements.append(repeat(split, 0, self.builder.parameter("splits", splits.count), 1, body))
        statements += self.finish(rows)
        return self.builder.launch(self.lanes, statements, splits.is_used * self.heads * self.axes.count)


@memoize
def build_merge(
    attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: VectorTarget
) -> tuple[Launch, tuple[Workspace, ...]]:
    """Build the launch that merges splits, and the workspaces that it reads."""
    merge = _Merge(attention, operands, result, target)
    return merge.build_launch(), merge.workspaces()
