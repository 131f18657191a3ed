"""The iterations of a scan: the places of its body's values in each, and how places move from one to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.work import ScanTask
from weft.plan.plan import SymbolicLaunch, SymbolicPlace

UNROLLED = 6  # iterations up to which all launches are listed


class ScanPlaces:
    """The places of the values of a scan's body in each iteration.

    `pairs` are two places for every carry, which alternate. A carry that is an output as well is read back from there.
    """

    def __init__(
        self,
        task: ScanTask,
        pairs: Sequence[Sequence[SymbolicPlace]],
        operands: Sequence[SymbolicPlace],
        results: Sequence[SymbolicPlace],
        length: Dim,
        size: Callable[[Value], Dim],
    ) -> None:
        self.task, self.pairs = task, pairs
        self.operands, self.results, self.length = operands, results, length
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inputs, outputs = task.program.inputs, task.program.outputs
        self.carried = inputs[:carries]
        self.sliced = [(v, p, size(v)) for v, p in zip(inputs[carries:], operands[carries:][:sequences])]
        self.captured = dict(zip(inputs[carries + sequences :], operands[carries + sequences :]))
        self.stacked = [(v, p, size(v)) for v, p in zip(outputs[carries:], results[carries:])]

    def at(self, step: Dim) -> dict[Value, SymbolicPlace]:
        places = dict(self.captured)
        places.update(zip(self.carried, self.carries_before(step)))
        for value, start, size in self.sliced:
            places[value] = start.moved(step * size)
        places.update(self.outputs_of(step))
        return places

    def outputs_of(self, step: Dim) -> dict[Value, SymbolicPlace]:
        outputs = self.task.program.outputs[: len(self.carried)]
        if step == self.length - 1:
            places = dict(zip(outputs, self.results))
        else:
            odd = step % 2
            places = {
                value: even.moved(odd * (other.offset - even.offset))
                for value, (even, other) in zip(outputs, self.pairs)
            }
        for value, start, size in self.stacked:
            places[value] = start.moved(step * size)
        return places

    def carries_before(self, step: Dim) -> list[SymbolicPlace]:
        if step == 0:
            return list(self.operands[: len(self.carried)])
        outputs = self.outputs_of(step - 1)
        return [outputs[value] for value in self.task.program.outputs[: len(self.carried)]]


def find_shifts(first: Sequence[SymbolicLaunch], following: Sequence[SymbolicLaunch]) -> tuple[tuple[Dim, ...], ...]:
    """Return by how many bytes each buffer of each launch moves from one iteration to another."""
    return tuple(
        tuple([after.offset - before.offset for before, after in zip(launch.buffers, other.buffers)])
        for launch, other in zip(first, following, strict=True)
    )
