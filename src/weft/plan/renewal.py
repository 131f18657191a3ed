"""Renew a plan for other sizes: its order, places and waits stay, and only numbers are recomputed.

A loop may have other sizes in each iteration, and an iteration may take less time than planning. Decisions of the plan
that depend on sizes (which values share memory, which copies are skipped) are checked for the new sizes; if one would
differ, or a value no longer fits its place, there is no renewal and a new plan is made. All numbers are computed by one
Python function of the sizes that vary, compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Union

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim
from weft.ir.formulas import FormulaWriter
from weft.ir.program import Value
from weft.ir.verification import is_verifying
from weft.ir.work import Launch, NativeSection, Place, PlannedLaunch, Reference, Repeated, ScanTask, Task
from weft.plan.plan import Plan
from weft.plan.sections import Owners, bytes_with_room, section_storage
from weft.plan.storage import StoragePlan
from weft.plan.verify import verify_plan
from weft.records import dataclass

Compute = Callable[..., Union[list[int], None]]
MOST_VARYING = 400  # numbers to recompute; more take as long as a new plan


@dataclass(frozen=True, slots=True, eq=False)
class Renewal:
    """The numbers of a plan that vary with sizes: `compute` returns them in the order of the fields, or None.

    `blocks` are indices of unrolled launches; `parameters` and `places` are indices of parameters and buffers of all
    launches, where repeated launches have their parameters once and their buffers each time. `outputs` are shapes, with
    None for sizes that vary.
    """

    varying: tuple[int, ...]  # numbers of the symbols that `compute` takes
    fixed: tuple[tuple[int, int], ...]  # the other symbols, and the size that each must have
    compute: Compute
    blocks: Array
    parameters: Array
    places: Array
    outputs: tuple[tuple[int | None, ...], ...]
    plan: Plan

    def numbers(self, sizes: Sequence[int]) -> list[int] | None:
        """Compute the varying numbers for the sizes of the section's symbols; None: a new plan is needed."""
        for number, size in self.fixed:
            if sizes[number] != size:
                return None
        try:
            return self.compute(*[sizes[number] for number in self.varying])
        except ArithmeticError:
            return None

    def shapes(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs; `numbers` are the sizes that vary."""
        varying = iter(numbers)
        return [tuple([next(varying) if size is None else size for size in shape]) for shape in self.outputs]


def varying_owners(section: NativeSection, names: Collection[str]) -> Owners:
    """Find the values and workspaces whose bytes depend on some sizes."""
    owners: set[Value | tuple[int, int]] = set()
    for number, task in enumerate(section.tasks):
        owners.update(value for value in task.results if depends(value_bytes(value), names))
        if isinstance(task, Task):
            spaces = enumerate(task.work.workspaces)
            owners.update((number, index) for index, space in spaces if depends(space.size, names))
    return frozenset(owners)


def find_renewal(
    section: NativeSection,
    symbols: Sequence[str],
    constants: Mapping[Value, Array],
    plan: Plan,
    sizes: Mapping[str, int],
    varying: Collection[str],
    roomy: Owners = frozenset(),
) -> Renewal | None:
    """Find how to renew a plan that was made with room for the `roomy` owners; None if it cannot be renewed."""
    storage = section_storage(section, constants, sizes, plan.steps, roomy=roomy)
    work = PlanSearch(section, storage, DimEvaluator(sizes), frozenset(varying), roomy)
    if not work.follow(plan):
        return None
    work.find_conditions()
    outputs = [value_shape(value) for value in section.outputs]
    shown = [size for shape in outputs for size in shape if work.differs(size)]
    numbers = [*work.blocks.values(), *work.parameters.values(), *work.places.values(), *shown]
    if len(numbers) > MOST_VARYING:
        return None
    varying_numbers = tuple(number for number, name in enumerate(symbols) if name in varying)
    return Renewal(
        varying_numbers,
        tuple((number, sizes[name]) for number, name in enumerate(symbols) if name not in varying),
        _compile_numbers(work, [symbols[number] for number in varying_numbers], numbers),
        np.array(list(work.blocks), np.intp),
        np.array(list(work.parameters), np.intp),
        np.array(list(work.places), np.intp),
        tuple(tuple(None if work.differs(size) else work.number(size) for size in shape) for shape in outputs),
        plan,
    )


class PlanSearch:
    """Finds the numbers of a plan that vary, and the conditions under which the plan stays valid."""

    def __init__(
        self,
        section: NativeSection,
        storage: StoragePlan,
        number: DimEvaluator,
        varying: frozenset[str],
        roomy: Owners,
    ) -> None:
        self.section, self.storage, self.number, self.varying = section, storage, number, varying
        self.room = {
            block.owner: bytes_with_room(block.size) if block.owner in roomy else block.size for block in storage.blocks
        }
        self.blocks: dict[int, Dim] = {}
        self.parameters: dict[int, Dim] = {}
        self.places: dict[int, Dim] = {}
        self.conditions: dict[str, tuple[Dim, str, Dim]] = {}
        self.offsets = self._offsets()

    def differs(self, dim: Dim) -> bool:
        return depends(dim, self.varying)

    # -- what differs ------------------------------------------------------------------------------------------------

    def follow(self, plan: Plan) -> bool:
        """Match the launches of a plan with the tasks that they come from; False where that is ambiguous."""
        if self.offsets is None:
            return False
        entries = iter(plan.launches)
        entry = next(entries, None)
        row = parameter = place = 0
        for number in (number for step in plan.steps for number in step):
            task = self.section.tasks[number]
            if isinstance(task, ScanTask):
                if self._scan_differs(task):
                    return False
                while isinstance(entry, Repeated) or (entry is not None and entry.task >= len(self.section.tasks)):
                    inside = entry.launches if isinstance(entry, Repeated) else (entry,)
                    times = entry.count if isinstance(entry, Repeated) else 1
                    row += times * len(inside)
                    parameter += sum(len(launch.parameters) for launch in inside)
                    place += times * sum(len(launch.buffers) for launch in inside)
                    entry = next(entries, None)
                continue
            for index, launch in enumerate(task.work.launches):
                if (number, index) in self.storage.skipped:
                    continue
                if not isinstance(entry, PlannedLaunch) or entry.kernel is not launch.kernel:
                    return False
                self._note_launch(task, launch, entry, row, parameter, place)
                row, parameter, place = row + 1, parameter + len(entry.parameters), place + len(entry.buffers)
                entry = next(entries, None)
        return entry is None

    def _note_launch(
        self, task: Task, launch: Launch, entry: PlannedLaunch, row: int, parameter: int, place: int
    ) -> None:
        if self.differs(launch.blocks):
            if entry.blocks == 0:
                self.require(launch.blocks, "==", 0)
                return
            self.require(launch.blocks, ">", 0)
            self.blocks[row] = launch.blocks
        if entry.blocks == 0:
            return
        for number, value in enumerate(launch.values):
            if self.differs(value):
                self.parameters[parameter + number] = value
        for number, (reference, buffer) in enumerate(zip(launch.references, entry.buffers)):
            offset = self.offset(reference, task)
            if self.differs(offset):
                self.places[place + number] = buffer.offset - self.number(offset) + offset

    def _scan_differs(self, task: ScanTask) -> bool:
        """Whether a scan, or its body, may depend on the sizes that vary."""
        inside = (value for step in task.program.steps for value in step.results)
        values = (*task.operands, *task.results, *task.program.inputs, *inside)
        works = [task_work for inner in task.body.tasks if isinstance(inner, Task) for task_work in (inner.work,)]
        if len(works) < len(task.body.tasks):
            return True
        launches = [launch for work in (*works, *task.copies) for launch in work.launches]
        dims_inside = [dim for launch in launches for dim in (launch.blocks, *launch.values)]
        spaces = [space.size for work in works for space in work.workspaces]
        sizes = [size for value in values for size in value_shape(value)]
        return any(map(self.differs, (task.primitive.length, *dims_inside, *spaces, *sizes)))

    def offset(self, reference: Reference, task: Task) -> Dim:
        """Return the offset of a reference's value in the memory that holds it."""
        match reference.kind:
            case "operand":
                value = task.operands[reference.number]
            case "result":
                value = task.results[reference.number]
            case _:
                return 0
        offset: Dim = 0
        assert self.offsets is not None
        while (home := self.storage.homes.get(value)) is not None:
            offset = offset + self.offsets.get(value, 0)
            value = home.base
        return offset

    def _offsets(self) -> dict[Value, Dim] | None:
        """Find the offsets of values in others, as dims; None where they are ambiguous."""
        offsets: dict[Value, Dim] = {}
        homes = self.storage.homes
        for number, task in enumerate(self.section.tasks):
            for copy in task.work.copies if isinstance(task, Task) else ():
                if (number, copy.launch) not in self.storage.skipped:
                    continue
                result, operand = task.results[0], task.operands[copy.operand]
                size = result.itemsize
                if result in homes and homes[result].base == operand:
                    offsets[result] = copy.source * size
                    continue
                for value in self._chain(operand):
                    if value in homes and homes[value].base == result:
                        offsets[value] = copy.target * size
                        break
        exact = all(self.number(offsets.get(value, 0)) == home.offset for value, home in homes.items())
        return offsets if exact else None

    def _chain(self, value: Value) -> list[Value]:
        """List a value and all values whose memory holds it."""
        chain = [value]
        while (home := self.storage.homes.get(chain[-1])) is not None:
            chain.append(home.base)
        return chain

    # -- what must hold ----------------------------------------------------------------------------------------------

    def find_conditions(self) -> None:
        """Require that size-dependent decisions stay the same, and that all values fit their places."""
        self.find_decisions()
        for number, task in enumerate(self.section.tasks):
            for index, space in enumerate(task.work.workspaces if isinstance(task, Task) else ()):
                self.require(space.size * space.dtype.numpy.itemsize, "<=", self.room[number, index])
        for block in self.storage.blocks:
            if isinstance(block.owner, Value):
                self.require(value_bytes(block.owner), "<=", self.room[block.owner])

    def find_decisions(self) -> None:
        """Require that the same values share memory and the same copies are skipped."""
        values = {value for task in self.section.tasks for value in (*task.operands, *task.results)}
        for size in {size for value in values for size in value_shape(value)}:
            self.require(size, ">=", 0)
        for task in self.section.tasks:
            if not isinstance(task, Task) or not task.results:
                continue
            whole = value_bytes(task.results[0])
            for copy in task.work.copies:
                self.require_same(copy.pieces, 1)
                if self.number(copy.pieces) == 1:
                    size = copy.size * task.results[0].itemsize
                    self.require_same(copy.source, 0)
                    self.require_same(copy.target, 0)
                    self.require_same(size, whole)
                    for value in self._chain(task.operands[copy.operand]):
                        self.require_same(size, value_bytes(value))
            for operand in task.work.overwritable:
                for value in self._chain(task.operands[operand]):
                    self.require_same(value_bytes(value), whole)

    def require_same(self, left: Dim, right: Dim) -> None:
        """Require that two numbers stay equal, or stay different."""
        self.require(left, "==" if self.number(left) == self.number(right) else "!=", right)

    def require(self, left: Dim, relation: str, right: Dim) -> None:
        if self.differs(left) or self.differs(right):
            self.conditions.setdefault(f"{left} {relation} {right}", (left, relation, right))


def _compile_numbers(work: PlanSearch, varying: Sequence[str], numbers: Sequence[Dim]) -> Compute:
    """Compile a function of the sizes that vary, which returns numbers, or None where a condition does not hold."""
    names = {name: f"s{number}" for number, name in enumerate(varying)}

    def symbol(name: str) -> str:
        return names.get(name) or f"({work.number.sizes[name]})"

    write = FormulaWriter(symbol, lambda dim: None if work.differs(dim) else work.number(dim))
    conditions = [f"{write(left)} {relation} {write(right)}" for left, relation, right in work.conditions.values()]
    if conditions:
        write.lines.append(f"if not ({' and '.join(conditions)}): return None")
    return write.define("compute", ", ".join(names.values()), f"[{', '.join(map(write, numbers))}]")


def check_renewal(
    section: NativeSection, renewal: Renewal, constants: Mapping[Value, Array], symbols: Mapping[str, int]
) -> None:
    """Verify the renewed plan if verification is on."""
    if not is_verifying():
        return
    numbers = renewal.numbers(list(symbols.values()))
    assert numbers is not None
    if any(isinstance(entry, Repeated) for entry in renewal.plan.launches):
        return
    first, second = len(renewal.blocks), len(renewal.blocks) + len(renewal.parameters)
    third = second + len(renewal.places)
    blocks = dict(zip(renewal.blocks.tolist(), numbers[:first]))
    parameters = dict(zip(renewal.parameters.tolist(), numbers[first:second]))
    places = dict(zip(renewal.places.tolist(), numbers[second:third]))
    launches: list[PlannedLaunch | Repeated] = []
    parameter = place = 0
    for row, entry in enumerate(renewal.plan.launches):
        assert isinstance(entry, PlannedLaunch)
        after = None if places else entry.after
        own = tuple(parameters.get(parameter + n, value) for n, value in enumerate(entry.parameters))
        spots = tuple(Place(b.region, places.get(place + n, b.offset)) for n, b in enumerate(entry.buffers))
        launches.append(
            replace(entry, blocks=blocks.get(row, entry.blocks), parameters=own, buffers=spots, after=after)
        )
        parameter, place = parameter + len(own), place + len(spots)
    dtypes = [dtype for _, dtype in renewal.plan.outputs]
    outputs = tuple(zip(renewal.shapes(numbers[third:]), dtypes))
    plan = replace(renewal.plan, launches=tuple(launches), outputs=outputs)
    verify_plan(section, plan, constants, symbols)


def value_shape(value: Value) -> tuple[Dim, ...]:
    return value.known_shape or ()


def value_bytes(value: Value) -> Dim:
    return dims.product(value_shape(value)) * value.itemsize


def depends(dim: Dim, names: Collection[str]) -> bool:
    return not isinstance(dim, int) and any(symbol.name in names for symbol in dims.symbols(dim))
