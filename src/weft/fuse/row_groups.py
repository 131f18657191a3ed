"""Which steps of a program share their rows, so that one kernel can do them.

A group has one domain and one set of reduced axes. Each of its values is either full, an element for each point of
the domain, or a row value, one for each row, with the reduced axes missing or of size 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.program import Contract, Convolve, Map, Pool, Reduce, Step, TensorProgram, Value
from weft.ir.rows import RowFrame
from weft.ir.scalar import walk
from weft.ir.types import Shape, TensorType

TAKES_MAPS = (Contract, Convolve, Pool)  # steps that a map after them is better joined with
LONGEST_ROW = 1 << 18  # elements, beyond which few rows are better done by all threads together
LARGEST_GROUP = 400  # nodes of its expressions


def row_frame(steps: Sequence[Step]) -> RowFrame | None:
    """The rows that all steps share; None where they share none."""
    first = next((step for step in steps if isinstance(step.primitive, Reduce)), None)
    domain = None if first is None else _shape(first.operands[0])
    if first is None or domain is None:
        return None
    assert isinstance(first.primitive, Reduce)
    frame = RowFrame(domain, frozenset(first.primitive.axes))
    inside = {result for step in steps for result in step.results}
    return frame if all(frame.fits(step, inside) for step in steps) else None


def find_row_groups(program: TensorProgram, apart: Collection[int] = ()) -> list[tuple[Step, ...]]:
    """Groups of two steps or more around reductions, each in the program's order, of steps whose ids are not `apart`.

    A group can be done where its last step stands: whoever else reads its values comes later.
    """
    finder = _Finder(program)
    finder.taken |= {number for number, step in enumerate(program.steps) if id(step) in apart}
    groups = []
    for number, step in enumerate(program.steps):
        if isinstance(step.primitive, Reduce) and number not in finder.taken:
            group = finder.grow(number)
            if len(group) > 1:
                finder.taken |= group
                groups.append(tuple(program.steps[member] for member in sorted(group)))
    return groups


class _Finder:
    def __init__(self, program: TensorProgram) -> None:
        self.steps = program.steps
        self.taken: set[int] = set()
        self.maker = {value: number for number, step in enumerate(self.steps) for value in step.results}
        self.readers: dict[Value, set[int]] = {}
        for number, step in enumerate(self.steps):
            for operand in step.operands:
                self.readers.setdefault(operand, set()).add(number)
        for output in program.outputs:
            self.readers.setdefault(output, set()).add(len(self.steps))

    def grow(self, first: int) -> set[int]:
        """The largest group around a reduction, found by adding neighbours in the program's order."""
        frame = row_frame([self.steps[first]])
        group = {first}
        if frame is None:
            return group
        while True:
            candidates = sorted(self.neighbours(group) - group)
            added = next((number for number in candidates if self.may_join(frame, group, number)), None)
            if added is None:
                return group
            group.add(added)

    def neighbours(self, group: set[int]) -> set[int]:
        found: set[int] = set()
        for number in group:
            found |= {self.maker[value] for value in self.steps[number].operands if value in self.maker}
            found |= {reader for value in self.steps[number].results for reader in self.readers.get(value, ())}
        return {number for number in found if number < len(self.steps) and number not in self.taken}

    def may_join(self, frame: RowFrame, group: set[int], number: int) -> bool:
        step = self.steps[number]
        if not isinstance(step.primitive, (Map, Reduce)) or self.belongs_to_another(step, group):
            return False
        larger = group | {number}
        inside = self.values(larger)
        if not self.is_worth_it(frame) and not self.is_lone(frame, step, larger):
            return False
        last = max(larger)
        return (
            all(frame.fits(self.steps[member], inside) for member in larger)
            and sum(map(_nodes, (self.steps[member] for member in larger))) <= LARGEST_GROUP
            and all(reader > last or reader in larger for value in inside for reader in self.readers.get(value, ()))
        )

    def belongs_to_another(self, step: Step, group: set[int]) -> bool:
        """Whether the step only finishes what a heavy one made."""
        for operand in step.operands:
            maker = self.maker.get(operand)
            outside = maker is not None and maker not in group and isinstance(self.steps[maker].primitive, TAKES_MAPS)
            if outside and len(self.readers[operand]) == 1:
                return True
        return False

    def is_lone(self, frame: RowFrame, step: Step, group: set[int]) -> bool:
        """Whether the step only prepares or finishes one reduction, which threads can share."""
        if isinstance(step.primitive, Reduce):
            return False
        return not frame.is_full(step.results[0]) or self.readers.get(step.results[0], set()) <= group

    def values(self, group: Iterable[int]) -> set[Value]:
        return {value for number in group for value in self.steps[number].results}

    @staticmethod
    def is_worth_it(frame: RowFrame) -> bool:
        """Whether rows are short enough, or many enough, for one thread to do each."""
        rows = dims.product(size for axis, size in enumerate(frame.domain) if axis not in frame.reduced)
        row = dims.product(frame.domain[axis] for axis in frame.reduced)
        return estimate(row) <= LONGEST_ROW or estimate(rows) >= 4


def _nodes(step: Step) -> int:
    return sum(1 for _ in walk(step.primitive.expression)) if isinstance(step.primitive, Map) else 1


def _shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None
