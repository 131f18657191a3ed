"""Find maps and reductions that share their rows (ir/rows.py), so that one kernel can compute them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.program import Contract, Convolve, Map, Pool, Reduce, Step, TensorProgram, Value
from weft.ir.rows import RowFrame
from weft.ir.scalar import walk

TAKES_MAPS = (Contract, Convolve, Pool)  # heavy steps, which take the map after them as epilogue
LONGEST_ROW = 1 << 18  # elements; a few longer rows are better computed by all threads together
LARGEST_GROUP = 400  # nodes of all its expressions


def find_row_frame(steps: Sequence[Step]) -> RowFrame | None:
    """Return the rows that all steps share, or None."""
    first = next((step for step in steps if isinstance(step.primitive, Reduce)), None)
    domain = None if first is None else first.operands[0].known_shape
    if first is None or domain is None:
        return None
    assert isinstance(first.primitive, Reduce)
    frame = RowFrame(domain, frozenset(first.primitive.axes))
    inside = {result for step in steps for result in step.results}
    return frame if all(frame.fits(step, inside) for step in steps) else None


def find_row_groups(program: TensorProgram, excluded: Collection[int] = ()) -> list[tuple[Step, ...]]:
    """Find groups of at least two steps around reductions, in program order; steps whose ids are `excluded` stay out.

    A group can run at the position of its last step: all other readers of its values come later.
    """
    finder = _Finder(program)
    finder.grouped |= {number for number, step in enumerate(program.steps) if id(step) in excluded}
    groups = []
    for number, step in enumerate(program.steps):
        if isinstance(step.primitive, Reduce) and number not in finder.grouped:
            group = finder.grow(number)
            if len(group) > 1:
                finder.grouped |= group
                groups.append(tuple(program.steps[member] for member in sorted(group)))
    return groups


class _Finder:
    def __init__(self, program: TensorProgram) -> None:
        self.steps = program.steps
        self.grouped: set[int] = set()
        self.maker = {value: number for number, step in enumerate(self.steps) for value in step.results}
        self.readers: dict[Value, set[int]] = {}
        for number, step in enumerate(self.steps):
            for operand in step.operands:
                self.readers.setdefault(operand, set()).add(number)
        for output in program.outputs:
            self.readers.setdefault(output, set()).add(len(self.steps))

    def grow(self, first: int) -> set[int]:
        """Grow a group around a reduction by adding neighbours in program order."""
        frame = find_row_frame([self.steps[first]])
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
        numbers: set[int] = set()
        for number in group:
            numbers |= {self.maker[value] for value in self.steps[number].operands if value in self.maker}
            numbers |= {reader for value in self.steps[number].results for reader in self.readers.get(value, ())}
        return {number for number in numbers if number < len(self.steps) and number not in self.grouped}

    def may_join(self, frame: RowFrame, group: set[int], number: int) -> bool:
        step = self.steps[number]
        if not isinstance(step.primitive, (Map, Reduce)) or self.is_heavy_epilogue(step, group):
            return False
        larger = group | {number}
        inside = self.values(larger)
        if not self.suits_threads(frame) and not self.is_prologue_or_epilogue(frame, step, larger):
            return False
        last = max(larger)
        return (
            all(frame.fits(self.steps[member], inside) for member in larger)
            and sum(map(_count_nodes, (self.steps[member] for member in larger))) <= LARGEST_GROUP
            and all(reader > last or reader in larger for value in inside for reader in self.readers.get(value, ()))
        )

    def is_heavy_epilogue(self, step: Step, group: set[int]) -> bool:
        """Whether the step is the epilogue of a heavy step."""
        for operand in step.operands:
            maker = self.maker.get(operand)
            outside = maker is not None and maker not in group and isinstance(self.steps[maker].primitive, TAKES_MAPS)
            if outside and len(self.readers[operand]) == 1:
                return True
        return False

    def is_prologue_or_epilogue(self, frame: RowFrame, step: Step, group: set[int]) -> bool:
        """Whether the step is only a prologue or epilogue of the reduction."""
        if isinstance(step.primitive, Reduce):
            return False
        return not frame.is_full(step.results[0]) or self.readers.get(step.results[0], set()) <= group

    def values(self, group: Iterable[int]) -> set[Value]:
        return {value for number in group for value in self.steps[number].results}

    @staticmethod
    def suits_threads(frame: RowFrame) -> bool:
        """Whether rows are short or numerous enough to compute each in one thread."""
        rows = dims.product(size for axis, size in enumerate(frame.domain) if axis not in frame.reduced)
        row = dims.product(frame.domain[axis] for axis in frame.reduced)
        return estimate(row) <= LONGEST_ROW or estimate(rows) >= 4


def _count_nodes(step: Step) -> int:
    return sum(1 for _ in walk(step.primitive.expression)) if isinstance(step.primitive, Map) else 1
