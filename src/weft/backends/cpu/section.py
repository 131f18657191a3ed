"""A native section at run time: its constants in memory, and a tape for each set of sizes that it has met."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from weft.backends.cpu.memory import Arenas, address, contiguous
from weft.backends.cpu.tape import Launch, Repeat, Tape
from weft.backends.reference.interpret import physical_memory
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir import dims
from weft.ir.compiled import read_values
from weft.ir.program import Value
from weft.ir.work import NativeSection, PlannedLaunch, Repeated, ScanTask
from weft.plan.sections import make_plan, shape_of

Array = np.ndarray[Any, Any]
REMEMBERED_PLANS = 64  # sets of sizes for which a section keeps its tape
REMEMBERED_LAUNCHES = 1 << 18  # in all of them together


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A section for one set of sizes."""

    tape: Tape
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each


class SectionRunner:
    """Runs one native section. Several threads may call `run` at once."""

    def __init__(
        self,
        section: NativeSection,
        constants: Mapping[Value, Any],
        addresses: Mapping[str, int],
        threads: int,
        arenas: Arenas,
    ) -> None:
        self.section = section
        self.threads = threads
        self.addresses = addresses
        self.arenas = arenas
        self.symbols = tuple(sorted(_section_symbols(section)))
        self.constants = _gather_constants(section, constants)
        self._plans: OrderedDict[tuple[int, ...], _Prepared] = OrderedDict()
        self._lock = Lock()

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """The section's outputs."""
        plan = self._plan(sizes)
        inputs = [contiguous(array) for array in inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        arena = self.arenas.take(plan.arena_bytes)
        plan.tape.run([0, arena.start, arena.errors_at, *map(address, inputs), *map(address, outputs)], self.threads)
        failed = arena.errors.value
        if failed:
            arena.errors.value = 0
        self.arenas.give(arena)
        if failed:
            raise ExecutionError("an index is out of range")
        return outputs

    def _plan(self, sizes: Mapping[str, int]) -> _Prepared:
        key = tuple([sizes[name] for name in self.symbols])
        plan = self._plans.get(key)
        if plan is not None and len(self._plans) == 1:
            return plan
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
            plan = self._plans[key] = self._prepare(sizes)
            launches = sum(kept.tape.count for kept in self._plans.values())
            while len(self._plans) > 1 and (len(self._plans) > REMEMBERED_PLANS or launches > REMEMBERED_LAUNCHES):
                launches -= self._plans.popitem(last=False)[1].tape.count
            return plan

    def _prepare(self, sizes: Mapping[str, int]) -> _Prepared:
        try:
            plan = make_plan(self.section, self.constants, sizes)
        except ArithmeticError as error:
            raise ExecutionError(f"sizes cannot be computed: {error}") from error
        needed = plan.arena_bytes + sum(prod(shape) * dtype.itemsize for shape, dtype in plan.outputs)
        if needed > physical_memory():
            raise OutOfMemoryError(
                f"a run for these sizes needs {needed:,} bytes, more than this machine's memory of "
                f"{physical_memory():,}",
                hint="check the sizes of the inputs and the shapes in the model",
            )
        launches = [
            Repeat(tuple(map(self._launch, entry.launches)), entry.shifts, entry.count)
            if isinstance(entry, Repeated)
            else self._launch(entry)
            for entry in plan.launches
        ]
        return _Prepared(Tape(launches, keep=plan.constants), plan.arena_bytes, plan.outputs)

    def _launch(self, planned: PlannedLaunch) -> Launch:
        function = self.addresses[planned.kernel.name]
        return Launch(function, planned.blocks, planned.buffers, planned.parameters, parallel=planned.blocks > 1)


def _gather_constants(section: NativeSection, constants: Mapping[Value, Any]) -> dict[Value, Array]:
    """The constants that tasks read from memory, contiguous; those of scans' bodies too."""
    gathered: dict[Value, Array] = {}
    for task in section.tasks:
        if isinstance(task, ScanTask):
            gathered |= _gather_constants(task.body, task.program.constants)
    for value in read_values(section):
        if value in constants:
            gathered[value] = np.ascontiguousarray(constants[value])
    return gathered


def _section_symbols(section: NativeSection) -> set[str]:
    """The sizes that a section's plan depends on."""
    found: set[dims.Dim] = set()
    inner: set[str] = set()
    for task in section.tasks:
        for value in (*task.operands, *task.results):
            found.update(shape_of(value))
        if isinstance(task, ScanTask):
            found.add(task.primitive.length)
            inner |= _section_symbols(task.body) - _bound_inside(task)
            continue
        for launch, _ in task.work.launches:
            found.add(launch.blocks)
            found.update(launch.parameters)
        found.update(workspace.size for workspace in task.work.workspaces)
    found.update(dim for value in section.outputs for dim in shape_of(value))
    return inner | _names(found)


def _bound_inside(task: ScanTask) -> set[str]:
    """The sizes that a scan's body learns from its inputs."""
    return _names({dim for value in task.program.inputs for dim in shape_of(value)})


def _names(found: set[dims.Dim]) -> set[str]:
    return {symbol.name for dim in found for symbol in dims.symbols(dim)}
