"""Row groups: maps and reductions over the same rows as one kernel (softmax, normalisations, means of expressions).

A group has one domain and one set of reduced axes. Each of its values is either full, an element for each point of
the domain, or a row value, one for each row. Full values are computed again in each pass that needs them, unless that
is costly: then they are kept, in a result that is written later anyway or in memory of the block's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Map, Reduce, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.folds import Fold
from weft.kernels.launch import Reference, Tensor, Work
from weft.kernels.maps import is_checked
from weft.kernels.merge import move_axes
from weft.kernels.nest import cost
from weft.kernels.reduce import cut_work, memory_order
from weft.kernels.row_groups import Frame, find_row_groups, row_frame
from weft.kernels.sweep import LOCAL_BYTES, Pass, Result, Single, Sweep, Write, result_buffers, sweep_launch

__all__ = ["find_row_groups", "rows_work"]

KEEP_COST = 10  # of a full value, from which on it is kept for later passes


def rows_work(
    steps: Sequence[Step], operands: Mapping[Value, Tensor], results: Mapping[Value, Tensor], target: Target
) -> Work | None:
    """The steps as one work, whose references count `operands` and `results` in their order; None if it cannot be.

    Results must not share memory with operands.
    """
    frame = row_frame(steps)
    if frame is None or any(operand not in operands and not frame.makes(operand) for s in steps for operand in s.operands):
        return None
    planned = _Plan(frame, steps, operands, results)
    sweep = planned.sweep()
    references = [Reference("operand", number) for number in range(len(operands))]
    checked = (Reference("errors", 0),) if is_checked(*(e for part in sweep.passes for e in part.expressions)) else ()
    short = cut_work(sweep, references, target)
    if short is not None:
        return short
    outputs = [Reference("result", number) for number in result_buffers(sweep)]
    return Work(((sweep_launch(sweep, target), (*references, *outputs, *checked)),))


class _Plan:
    """Which pass computes, folds, keeps and writes what."""

    def __init__(
        self, frame: Frame, steps: Sequence[Step], operands: Mapping[Value, Tensor], results: Mapping[Value, Tensor]
    ) -> None:
        self.frame = frame
        self.operands = operands
        self.results = results
        self.numbers = {value: number for number, value in enumerate(operands)}
        self.row_numbers: dict[Value, int] = {}
        self.level: dict[Value, int] = {}  # the first pass in which a value can be computed
        self.full: dict[Value, Scalar] = {}  # full values over the domain, in terms of operands and row values
        self.uses: dict[Value, set[int]] = {}  # the passes that need a full value
        self.below: dict[Value, set[Value]] = {}  # the full values of the group inside another one
        self.folds: list[list[tuple[Value, Step]]] = []
        self.singles: list[list[tuple[Value, Scalar]]] = []
        self.kept: dict[Value, tuple[int, int]] = {}  # (number, result) of those that are kept
        self.local: list[Result] = []
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        (value,) = step.results
        level = max((self.level[operand] for operand in step.operands if operand in self.level), default=0)
        if isinstance(step.primitive, Reduce):
            self.row_numbers[value] = len(self.operands) + len(self.row_numbers)
            self._at(self.folds, level).append((value, step))
            self.level[value] = level + 1
            return
        assert isinstance(step.primitive, Map)
        self.level[value] = level
        if self.frame.is_full(value):
            self.full[value] = step.primitive.expression
            self.below[value] = {operand for operand in step.operands if operand in self.full}
            self.inner(value, step)
        else:
            self.row_numbers[value] = len(self.operands) + len(self.row_numbers)
            expression = move_axes(self.expression(step), self.frame.row_axes(value))
            self._at(self.singles, level).append((value, expression))

    def inner(self, value: Value, step: Step) -> None:
        self.full[value] = self.expression(step)

    @staticmethod
    def _at(table: list[list[tuple[Value, object]]], level: int) -> list[tuple[Value, object]]:
        while len(table) <= level:
            table.append([])
        return table[level]
