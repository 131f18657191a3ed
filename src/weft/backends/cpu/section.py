"""A native section on the CPU: its constants in memory, and a tape for each set of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import empty, ndarray

from weft.backends.cpu.memory import FIRST_REGION, IN_ORDER, WRITABLE, Arena, Arenas, address_of_word, word
from weft.backends.cpu.peak import assumed_peak
from weft.backends.cpu.pool import MOST_THREADS, runner, shared_pool
from weft.backends.cpu.tape import Tape, TapeLaunch, TapeLoop
from weft.backends.device import Shortcut
from weft.backends.device_section import FEW_SIZES, DeviceSection
from weft.backends.reference.sizes import physical_memory
from weft.cost.launches import (
    blocks_between_checks,
    find_sequences,
    is_long,
    is_worth_sharing,
    is_worth_waking,
    may_block,
)
from weft.cost.roofline import Peak
from weft.errors import ExecutionError
from weft.interrupts import run_interruptibly
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.program import Value
from weft.ir.work import NativeSection, PlannedLaunch, Repeated
from weft.plan.plan import FIRST_FREE, Plan

if TYPE_CHECKING:
    from weft.backends.cpu.executable import CpuExecutable
    from weft.backends.cpu.renewals import SectionRenewals
    from weft.backends.cpu.templates import SectionTemplates
    from weft.plan.sections import Owners


class CpuPlan:
    """The plan of a section for one set of sizes, with its tape. Several threads may call `run` at once."""

    __slots__ = (
        "_call",
        "_native",
        "_outputs",
        "arena_bytes",
        "arenas",
        "blocks",
        "long",
        "regions",
        "tape",
        "threads",
    )

    def __init__(
        self,
        tape: Tape,
        plan: Plan,
        inputs: int,
        arenas: Arenas,
        threads: int,
        long: bool,  # whether Ctrl-C should interrupt a run instead of waiting for its end
        blocks: bool = False,  # whether one block alone takes that long, so that a helper thread has to run it
    ) -> None:
        self.tape = tape
        self.arena_bytes = plan.arena_bytes
        self.arenas = arenas
        self.threads = min(threads, MOST_THREADS) if tape.parallel else 1
        self.regions = FIRST_FREE + inputs + len(plan.outputs)
        first = FIRST_REGION + FIRST_FREE + inputs
        self._outputs = tuple((first + number, shape, dtype) for number, (shape, dtype) in enumerate(plan.outputs))
        self.long = long
        self.blocks = blocks
        self._native = runner()
        self._call = self._native.call

    def renewed(self, tape: Tape, shapes: Sequence[tuple[int, ...]]) -> CpuPlan:
        """Return the plan for other sizes, with their tape and output shapes."""
        other = CpuPlan.__new__(CpuPlan)
        other.tape, other.arena_bytes, other.arenas = tape, self.arena_bytes, self.arenas
        other.threads, other.regions, other.long, other.blocks = self.threads, self.regions, self.long, self.blocks
        other._native, other._call = self._native, self._call
        other._outputs = tuple([(place, shape, dtype) for (place, _, dtype), shape in zip(self._outputs, shapes)])
        return other

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
        if into and not self.blocks:  # else an abandoned helper may still be writing
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
        failed = self._run_in_slices(arena, (inputs, copies, outputs)) if self.long else self._call(arena.call_at)
        self.arenas.give(arena)
        if failed:
            raise ExecutionError("an index is out of range")
        return outputs

    def _run_in_slices(self, arena: Arena, arrays: object) -> int:
        """Make the same call in time slices, between which Ctrl-C can end it; `arrays` must stay alive."""
        words = arena.call[FIRST_REGION : FIRST_REGION + self.tape.regions]
        regions = [*words[:FIRST_FREE], *map(address_of_word, words[FIRST_FREE:])]
        run = partial(self.tape.run, regions, self.threads, keep=(arena, arrays))
        if self.blocks:
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

    def __init__(self, section: NativeSection, constants: Mapping[Value, Any], executable: CpuExecutable) -> None:
        super().__init__(section, constants, executable.budget, physical_memory())
        self.threads = executable.threads
        self.code = executable.code
        self.arenas = executable.arenas
        self.input_symbols = executable.input_symbols
        self.renewals: SectionRenewals | None = None
        self.templates: SectionTemplates | None = None

    def load_plan(self, sizes: Mapping[str, int]) -> CpuPlan:
        """Return the plan for these sizes: a remembered one, one renewed from other sizes, or a new one."""
        latest = self._latest
        key = tuple([sizes[name] for name in self.symbols])
        if latest is not None and latest is self._plans.get(key):
            return latest
        renewals = self.renewals
        if renewals is not None:
            plan = renewals.find(key)
            if plan is not None:
                return plan
        plan = super().load_plan(sizes)
        if len(self._plans) > 1 and not plan.long and self.budget.limit is None:
            if renewals is None:
                from weft.backends.cpu.renewals import SectionRenewals

                with self._lock:
                    first = next(iter(self._plans))
                self.renewals = renewals = SectionRenewals(self, first)
            renewals.note(key)
        return plan

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

    def _build_plan(self, sizes: Mapping[str, int]) -> CpuPlan:
        if len(self._plans) < FEW_SIZES or not self.symbols:
            return self._load(self.make_plan(sizes))
        key = tuple([sizes[name] for name in self.symbols])
        if self.templates is None:
            from weft.backends.cpu.templates import SectionTemplates

            self.templates = SectionTemplates(self, key)
        cpu_plan = self.templates.find(key) if self.templates.is_of_use else None
        if cpu_plan is None:
            plan = self.make_plan(sizes)
            cpu_plan = self._load(plan)
            if self.templates.is_of_use:
                self.templates.note(key, plan, cpu_plan.tape)
        return cpu_plan

    def _load(self, plan: Plan) -> CpuPlan:
        count = len(self.section.inputs)
        threads = self.threads if is_worth_waking(plan.launches, assumed_peak()) else 1
        blocks = may_block(plan.launches, assumed_peak())
        long = blocks or is_long(plan.launches, assumed_peak())
        return CpuPlan(self.make_tape(plan), plan, count, self.arenas, threads, long, blocks)

    def make_roomy(self, sizes: Mapping[str, int], roomy: Owners) -> tuple[CpuPlan, Plan]:
        """Plan the section for these sizes, with room for some of its values and workspaces to grow."""
        from weft.plan.sections import make_plan

        plan = make_plan(self.section, self.constants, sizes, None, self.alignment, roomy)
        return self._load(plan), plan

    def _count_launches(self, plan: CpuPlan) -> int:
        return plan.tape.count

    def _plan(self, sizes: Mapping[str, int], steps: Sequence[Sequence[int]] | None = None) -> Plan:
        """Plan tasks to run in parallel where that saves time and stays within the memory budget."""
        plan = super()._plan(sizes, steps)
        if self.threads == 1:
            return plan
        order = [task for step in plan.steps for task in step]
        from weft.plan.schedule import side_by_side

        steps = side_by_side(self.section, order, DimEvaluator(sizes), assumed_peak(), self.threads)
        if len(steps) == len(order):
            return plan
        other = super()._plan(sizes, steps)
        return other if self.budget.may_grow or other.arena_bytes <= plan.arena_bytes else plan

    def make_tape(self, plan: Plan) -> Tape:
        """Build the tape of a plan's launches."""
        peak = assumed_peak()
        launches: list[TapeLaunch | TapeLoop] = []
        for entry, is_joined in zip(plan.launches, find_sequences(plan.launches, peak)):
            if isinstance(entry, Repeated):
                inside = tuple(self._tape_launch(launch, peak) for launch in entry.launches)
                launches.append(TapeLoop(inside, entry.shifts, entry.count))
            else:
                launches.append(replace(self._tape_launch(entry, peak), joined=is_joined))
        return Tape(launches, keep=(self.code, plan.constants))

    def _tape_launch(self, planned: PlannedLaunch, peak: Peak) -> TapeLaunch:
        return TapeLaunch(
            self.code.addresses[planned.kernel.name],
            planned.blocks,
            planned.buffers,
            planned.parameters,
            parallel=is_worth_sharing(planned, peak),
            after=planned.after,
            most=blocks_between_checks(planned, peak),
            origin=planned.origin,
        )
