"""Attention whose keys are split: what blocks leave of their parts, and the kernel that joins these.

Sums are those of weights relative to the largest score of the part; that, and the total of the weights, are kept for
each row beside them: [parts, heads, rows, columns] and [parts, heads, rows, 2].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.kernel import Code, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, fetch_run, put, put_run, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Workspace
from weft.kernels.threads.attention import FLOAT, RUN, Split, Streaming, below, call, larger, number_of
from weft.kernels.threads.points import all_of, points

SUMS, ROWS = Reference("workspace", 0), Reference("workspace", 1)
_PAIR = 2
_LANES = 64


def workspaces(attention: Attention, parts: Dim) -> tuple[Workspace, ...]:
    """The memory between both kernels."""
    rows = parts * dims.product(attention.shape[:-1])
    return Workspace(FLOAT, rows * attention.width), Workspace(FLOAT, rows * _PAIR)


class PartWriter:
    """Writes what a block has of its part; rows are counted over all parts and heads."""

    def __init__(self, builder: KernelBuilder, width: int) -> None:
        self.builder, self.width = builder, width
        self.sums = builder.output("part_sums", FLOAT, SUMS)
        self.rows = builder.output("part_rows", FLOAT, ROWS)

    def put_row(self, row: Dim, largest: Code, total: Code, mask: Code | None) -> list[Statement]:
        return [put_run(self.rows, row * _PAIR, (largest, total), mask)]

    def put_sums(self, row: Dim, column: Dim, sums: Sequence[Code], tests: Sequence[Code]) -> list[Statement]:
        """Neighbouring columns of a row, those that are there."""
        place = row * self.width + column
        if self.width % len(sums) == 0:
            return [put_run(self.sums, place, sums, all_of(tests))]
        return [
            put(self.sums, place + part, own, mask=all_of([*tests, below(column + part, self.width)]))
            for part, own in enumerate(sums)
        ]


@memoized
def joining_launch(
    attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: ThreadTarget, split: Split
) -> Launch:
    """Operands as those of `Streaming`."""
    return _Joining(attention, operands, result, target, split).build()


class _Joining(Streaming):
    """A lane has some columns of a row."""

    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        split: Split,
    ) -> None:
        super().__init__(attention, operands, result, target, 1, split, streams=False)
        self.sums = self.builder.input("part_sums", FLOAT, SUMS)
        self.marks = self.builder.input("part_rows", FLOAT, ROWS)
        self.run = RUN if attention.width % RUN == 0 else 1

    def build(self) -> Launch:
        builder, run = self.builder, self.run
        lanes = min(_LANES, self.target.block_threads)
        here = points((self.heads, self.count, self.attention.width // run), builder, lanes)
        head, row, place = here.places
        sizes = [builder.named(f"grid{axis}", dims.maximum(self.attention.shape[axis], 1)) for axis in self.grid]
        self.places |= dict(zip(self.grid, split_index(head, sizes)))
        self.first = 0
        self.all_rows = builder.named("all_rows", self.heads * self.count)
        self.own = head * builder.named("rows", self.count) + row
        assert self.split is not None
        parts = builder.named("parts", self.split.parts)
        defined, now = builder.keep("now", number_of(-inf), varying=True)
        statements: list[Statement] = [defined]
        part = builder.variable("part")
        seen, largest = builder.keep("largest", self.mark(part, 0), varying=True)
        statements.append(repeat(part, 0, parts, 1, (seen, assign(now, larger(now, largest)))))
        defined, by = builder.keep("by", self.shift(now), varying=True)
        statements.append(defined)
        total = builder.register("total", FLOAT)
        sums = builder.registers("sum", run, FLOAT)
        statements += [define(each, number_of(0.0)) for each in (total, *sums)]
        part = builder.variable("part")
        statements.append(repeat(part, 0, parts, 1, self.add(part, by, total, sums, place * run)))
        inverse = self.inverse(total, now, statements)
        statements += self.write(sums, inverse, row, place * run, here.mask)
        return builder.launch(lanes, statements, here.blocks)

    def mark(self, part: Dim, number: int) -> Code:
        """The largest score of the row in a part, or the total of its weights."""
        return fetch(self.marks, (part * self.all_rows + self.own) * _PAIR + number)

    def add(self, part: Dim, by: Code, total: Register, sums: Sequence[Register], column: Dim) -> list[Statement]:
        """What a part has, scaled to the largest score of all."""
        scale = call("exp", call("subtract", self.mark(part, 0), by))
        defined, factor = self.builder.keep("factor", scale, varying=True)
        found = self.builder.registers("found", self.run, FLOAT)
        offset = (part * self.all_rows + self.own) * self.attention.width + column
        taken = [fetch_run(found, self.sums, offset)] if self.run > 1 else [define(found[0], fetch(self.sums, offset))]
        added = [(total, self.mark(part, 1)), *zip(sums, found)]
        return [
            defined,
            *taken,
            *(assign(to, multiply_add(self.target, factor, value, to)) for to, value in added),
        ]
