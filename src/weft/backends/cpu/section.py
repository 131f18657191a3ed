"""A native section on the CPU: its constants in memory, and a tape for each set of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy import empty, ndarray

from weft.backends.cpu.memory import FIRST_REGION, IN_ORDER, WRITABLE, Arena, Arenas, address_of_word, word
from weft.backends.cpu.peak import assumed_peak
from weft.backends.cpu.pool import MOST_THREADS, shared_pool
from weft.backends.cpu.tape import Tape
from weft.backends.cpu.tape_form import TapeForm
from weft.backends.device import Shortcut
from weft.backends.device_section import DeviceSection
from weft.backends.host.numbers import compute_natively
from weft.backends.host.runner import runner
from weft.backends.reference.sizes import physical_memory
from weft.errors import ExecutionError
from weft.interrupts import run_interruptibly
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.program import Value
from weft.ir.work import NativeSection
from weft.plan.plan import FIRST_FREE, SymbolicPlan
from weft.plan.plan_numbers import Compute, PlanNumbers, SizedNumbers

if TYPE_CHECKING:
    from weft.backends.cpu.executable import CpuExecutable


class CpuPlan:
    """The plan of a section for one set of sizes, with its tape. Several threads may call `run` at once."""

    __slots__ = (
        "_call",
        "_native",
        "_outputs",
        "arena_bytes",
        "arenas",
        "regions",
        "tape",
        "threads",
    )

    def __init__(self, tape: Tape, numbers: SizedNumbers, threads: int, inputs: int, arenas: Arenas) -> None:
        self.tape = tape
        self.arena_bytes = numbers.arena_bytes
        self.arenas = arenas
        self.threads = min(threads, MOST_THREADS) if tape.parallel else 1
        outputs = numbers.outputs
        self.regions = FIRST_FREE + inputs + len(outputs)
        first = FIRST_REGION + FIRST_FREE + inputs
        self._outputs = tuple([(first + number, shape, dtype) for number, (shape, dtype) in enumerate(outputs)])
        self._native = runner()
        self._call = self._native.call

    def run(self, inputs: Sequence[Array], into: Sequence[Array | None] = ()) -> list[Array]:
        """Return the section's outputs: new arrays, or those of `into` that kernels can write to directly."""
        arena = self.arenas.take(self.arena_bytes, self.regions)
        call = arena.call
        call[0] = self.tape.address
        if self.threads > 1:
            call[1] = shared_pool(self.threads).address
        call[2] = self.threads
        place = FIRST_REGION + FIRST_FREE
        copies = []
        for array in inputs:
            if array.flags.num & IN_ORDER != IN_ORDER:
                array = np.array(array, order="C")
                copies.append(array)
            call[place] = word(array)
            place += 1
        if into and not self.tape.may_block:  # else an abandoned helper may still be writing
            outputs = [
                offered if offered is not None and _can_write(offered, shape, dtype) else empty(shape, dtype)
                for offered, (_, shape, dtype) in zip(into, self._outputs, strict=True)
            ]
            for array, (place, _, _) in zip(outputs, self._outputs):
                call[place] = word(array)
        else:
            outputs = []
            for place, shape, dtype in self._outputs:
                array = empty(shape, dtype)
                call[place] = word(array)
                outputs.append(array)
        failed = (
            self._run_in_slices(arena, (inputs, copies, outputs)) if self.tape.is_long else self._call(arena.call_at)
        )
        self.arenas.give(arena)
        if failed:
            raise ExecutionError("an index is out of range")
        return outputs

    def _run_in_slices(self, arena: Arena, arrays: object) -> int:
        """Make the same call in time slices, between which Ctrl-C can end it; `arrays` must stay alive."""
        words = arena.call[FIRST_REGION : FIRST_REGION + self.tape.regions]
        regions = [*words[:FIRST_FREE], *map(address_of_word, words[FIRST_FREE:])]
        run = partial(self.tape.run, regions, self.threads, keep=(arena, arrays))
        if self.tape.may_block:
            run_interruptibly(run)
        else:
            run()
        return arena.take_errors()


def _can_write(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether kernels can write an output to this array; numpy aligns complex numbers to half their size only."""
    return (
        array.shape == shape and array.dtype == dtype and dtype.kind != "c" and array.flags.num & WRITABLE == WRITABLE
    )


class CpuSection(DeviceSection[CpuPlan]):
    """One native section on the CPU. Several threads may call `run` at once."""

    remembered_launches = 1 << 13  # a tape is filled again sooner than fresh memory for one more is mapped

    def __init__(self, section: NativeSection, constants: Mapping[Value, Any], executable: CpuExecutable) -> None:
        super().__init__(section, constants, executable.budget, physical_memory(), executable.program)
        self.threads = executable.threads
        self.code = executable.code
        self.arenas = executable.arenas
        self._forms: WeakKeyDictionary[PlanNumbers, TapeForm] = WeakKeyDictionary()

    def run(
        self,
        inputs: Sequence[Array],
        sizes: Mapping[str, int],
        keep: frozenset[Value] = frozenset(),  # noqa: ARG002
    ) -> list[Array]:
        """Return the section's outputs; the CPU ignores `keep`, because its outputs are in the host's memory."""
        arrays = [array if isinstance(array, ndarray) else np.asarray(array) for array in inputs]
        return self.load_plan(sizes).run(arrays)

    def bind(self, sizes: Mapping[str, int]) -> Shortcut | None:
        return self.load_plan(sizes).run if sizes.keys() >= set(self.symbols) else None

    def fill_tape(self, slots: PlanNumbers, numbers: SizedNumbers) -> Tape:
        """Build the tape of a plan for some sizes."""
        form = self._forms.get(slots)
        if form is None:
            keep = (self.code, slots.plan.constants)
            form = self._forms[slots] = TapeForm(slots, self.code.addresses, self.threads, assumed_peak(), keep)
        return form.fill(numbers)

    def _load_numbers(self, slots: PlanNumbers, numbers: SizedNumbers) -> CpuPlan:
        return CpuPlan(self.fill_tape(slots, numbers), numbers, self.threads, len(self.section.inputs), self.arenas)

    def _compute(self) -> Compute:
        return compute_natively

    def _count_launches(self, plan: CpuPlan) -> int:
        return plan.tape.count

    def _plan_section(self, sizes: Mapping[str, int]) -> SymbolicPlan:
        """Plan tasks to run in parallel where that saves time and stays within the memory budget."""
        from weft.plan.sections import plan_section

        return plan_section(
            self.section,
            self.constants,
            sizes,
            self._find_references(),
            group=None if self.threads == 1 else self._group_tasks,
            may_grow=self.budget.may_grow,
            alignment=self.alignment,
        )

    def _group_tasks(self, order: Sequence[int], number: DimEvaluator) -> list[tuple[int, ...]]:
        from weft.plan.schedule import side_by_side

        return side_by_side(self.section, order, number, assumed_peak(), self.threads)
