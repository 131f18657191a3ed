"""The iterations of a scan: the places of its body's values in each, and the launches that repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir.program import Value
from weft.ir.work import Place, PlannedLaunch, Repeated, ScanTask

UNROLLED = 6  # iterations up to which all launches are listed


class ScanPlaces:
    """The places of the values of a scan's body in each iteration.

    `inside` are the places of values internal to the body, `pairs` two places for every carry, which alternate. A carry
    that is an output as well is read back from there.
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
        places.update(self.outputs_of(step))
        return places

    def outputs_of(self, step: int) -> dict[Value, Place]:
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
        outputs = self.outputs_of(step - 1)
        return [outputs[value] for value in self.task.program.outputs[: len(self.carried)]]


def repeat_launches(
    first: Sequence[PlannedLaunch | Repeated], second: Sequence[PlannedLaunch | Repeated], count: int
) -> Repeated | None:
    """Repeat `first`, with the shifts that lead to `second`, `count` times; None if one contains a scan."""
    shifts = []
    launches = []
    for launch, following in zip(first, second, strict=True):
        if isinstance(launch, Repeated) or isinstance(following, Repeated):
            return None
        launches.append(launch)
        shifts.append(tuple(b.offset - a.offset for a, b in zip(launch.buffers, following.buffers)))
    return Repeated(tuple(launches), tuple(shifts), count)
