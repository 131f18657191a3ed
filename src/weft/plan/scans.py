"""The iterations of a scan: where the values of its body are in each, and what repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir.program import Value
from weft.ir.work import Place, PlannedLaunch, Repeated, ScanTask

UNROLLED = 6  # iterations up to which all launches are listed one by one


class ScanPlaces:
    """Where the values of a scan's body are in each iteration.

    `inside` are the places of what only the body sees, `pairs` two for every carry: they alternate. A carry that is an
    output as well is read back from where it went.
    """

    def __init__(
        self,
        task: ScanTask,
        inside: Mapping[Value, Place],
        pairs: Sequence[tuple[Place, Place]],
        operands: Sequence[Place],
        results: Sequence[Place],
        length: int,
        size: Callable[[Value], int],
    ) -> None:
        self.task, self.inside, self.pairs = task, inside, pairs
        self.operands, self.results, self.length = operands, results, length
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inputs, outputs = task.program.inputs, task.program.outputs
        self.carried = inputs[:carries]
        self.sliced = [(v, p, size(v)) for v, p in zip(inputs[carries:], operands[carries:][:sequences])]
        self.captured = dict(zip(inputs[carries + sequences :], operands[carries + sequences :]))
        self.stacked = [(v, p, size(v)) for v, p in zip(outputs[carries:], results[carries:])]

    def at(self, step: int) -> dict[Value, Place]:
        places = {**self.inside, **self.captured}
        places.update(zip(self.carried, self.carries_before(step)))
        for value, start, size in self.sliced:
            places[value] = Place(start.region, start.offset + step * size)
        places.update(self.made_in(step))
        return places

    def made_in(self, step: int) -> dict[Value, Place]:
        outputs = self.task.program.outputs[: len(self.carried)]
        if step == self.length - 1:
            places = dict(zip(outputs, self.results))
        else:
            places = {value: pair[step % 2] for value, pair in zip(outputs, self.pairs)}
        for value, start, size in self.stacked:
            places[value] = Place(start.region, start.offset + step * size)
        return places

    def carries_before(self, step: int) -> list[Place]:
        if step == 0:
            return list(self.operands[: len(self.carried)])
        made = self.made_in(step - 1)
        return [made[value] for value in self.task.program.outputs[: len(self.carried)]]


def repeat(
    first: Sequence[PlannedLaunch | Repeated], second: Sequence[PlannedLaunch | Repeated], count: int
) -> Repeated | None:
    """`first` and what follows from `second` being next; None where scans inside make them uneven."""
    shifts = []
    launches = []
    for one, other in zip(first, second, strict=True):
        if isinstance(one, Repeated) or isinstance(other, Repeated):
            return None
        launches.append(one)
        shifts.append(tuple(b.offset - a.offset for a, b in zip(one.buffers, other.buffers)))
    return Repeated(tuple(launches), tuple(shifts), count)
