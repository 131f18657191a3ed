"""What of a model runs on which of several devices, decided once: TensorProgram and drivers -> MixedProgram.

On devices that are named together, everything may run where it is quickest: calibrations say what to try, and runs that
are timed decide between that and each device alone. A device that is named alone gives away only steps that it has no
kernels for, to the host's processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.device import CompilingDriver, RunOptions
from weft.backends.mixed.driver import JOINED, MixedDriver
from weft.backends.reference.sizes import GuardError
from weft.cost.calibration import Calibration, Transfer
from weft.cost.roofline import Peak
from weft.errors import DeviceError, ExecutionError, InputError
from weft.fuse.host import host_by_nature
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram, HostGroup
from weft.ir.mixed import MixedProgram
from weft.ir.program import TensorProgram, step_name
from weft.ir.specs import spec
from weft.ir.target import Target
from weft.opset.tensor import OnlyAtRunError
from weft.placement.compile import compile_pieces
from weft.placement.partition import best_single, divided, on_one, without_lacking
from weft.placement.place import record_of
from weft.placement.schedule import Rules, Schedule, schedule
from weft.placement.units import Candidate, Problem, problem
from weft.records import dataclass
from weft.runtime.calibrate import calibrated
from weft.runtime.choice import Run, by_benchmark, likely_sizes
from weft.runtime.explain import explain
from weft.runtime.generated_inputs import generate_inputs
from weft.runtime.inputs import InputBinder
from weft.runtime.memory import bind_shapes

FAR = 8.0  # times the prediction of the best: a device alone that is further behind is not tried
CLEARLY_AHEAD = 0.95  # of the time on one device, that several may take
MEASURED_SECONDS = 1.0  # of timed runs of all that is tried

Times = tuple[tuple[str, float], ...]
"""Seconds of a run, by what ran it."""

_NAMED = 8  # steps that an error names
_NEAR_RUN, _FAR_RUN = 1e-5, 1e-4  # seconds of a run on the host's memory, and on a device with memory of its own
_FAR_TRANSFER = Transfer(2e-5, 5e9)

CompilePiece = Callable[[TensorProgram, CompilingDriver], CompiledProgram]
"""Takes a program, or a piece of one, through all stages for a device."""


@dataclass(frozen=True, slots=True)
class MixOptions:
    """What a user said that counts: where `strict` allows no step elsewhere, and inputs like those to come."""

    precision: str
    strict: bool
    sample: Mapping[str, Any] | None
    run: RunOptions


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """A schedule of a program's units on several devices, and the sizes that it was made for."""

    problem: Problem
    schedule: Schedule
    sizes: Mapping[str, int]

    @property
    def is_divided(self) -> bool:
        return len({part.device for part in self.schedule.parts}) > 1


class Mixer:
    """Puts the programs of one model on several devices."""

    def __init__(
        self, file: str, options: MixOptions, compile_piece: CompilePiece, decided: MixedProgram | None = None
    ) -> None:
        """What was decided for the model holds for its programs to come: those for other shapes, or fewer outputs."""
        self._file = file
        self._options = options
        self._compile_piece = compile_piece
        self._decided = None if decided is None else decided.placement

    def quickest(self, program: TensorProgram, drivers: Sequence[CompilingDriver]) -> MixedProgram:
        """The program where it is expected to be quickest, on several devices if that pays."""
        return self._compiled(self._expected(program, drivers), drivers)

    def measured(self, program: TensorProgram, drivers: Sequence[CompilingDriver]) -> MixedProgram:
        """The program on several devices, or on one alone, whichever runs it quickest; nothing is decided twice."""
        mix = self._expected(program, drivers)
        if self._decided is not None:
            return self._compiled(mix, drivers)
        if self._options.strict and mix.is_divided:
            return self._compiled(mix, drivers)  # which says what it refuses
        tried = contenders(mix)
        made: dict[str, MixedProgram] = {}

        def ready(name: str) -> Run:
            made[name] = self._compiled(tried[name], drivers)
            runner = MixedDriver(drivers).start(made[name], self._options.run)
            inputs = self._inputs(program, drivers[0].name)

            def run() -> object:
                try:
                    return runner.run(inputs)
                except (GuardError, ArithmeticError, OnlyAtRunError) as error:
                    raise ExecutionError(f"made-up inputs do not fit: {error}") from error

            return run

        best, times = self._quickest_of(list(tried), ready)
        found = made[best] if best in made else self._compiled(tried[best], drivers)
        return replace(found, placement=replace(found.placement, measured=times))

    def _quickest_of(self, names: Sequence[str], ready: Callable[[str], Run]) -> tuple[str, Times]:
        """Who ran quickest, and what each took; the likeliest where none could be run."""
        try:
            return _best(names, ready) if len(names) > 1 else (names[0], ())
        except (InputError, ExecutionError):
            if self._options.sample is not None:
                raise
            return names[0], ()  # no data can be made up that the model takes

    def helped(
        self, program: TensorProgram, fused: FusedProgram, drivers: Sequence[CompilingDriver]
    ) -> MixedProgram | None:
        """Everything on the first device, but what it lacks kernels for on the second, as far as that pays.

        None where the first one does it all, or better alone. Nothing is measured for that: by any numbers, numpy is
        slower at a kernel's work than a processor's kernels are.
        """
        lacking = lacking_steps(fused)
        if not lacking:
            return None
        if self._options.strict:
            raise refused(drivers[0].name, lacking, self._file)
        sizes = self._sizes(program)
        candidates = [_nominal(driver, driver.target(self._options.precision)) for driver in drivers]
        found = problem(program, candidates, sizes)
        mix = Mix(found, without_lacking(found), sizes)
        return self._compiled(mix, drivers) if mix.is_divided else None

    def _expected(self, program: TensorProgram, drivers: Sequence[CompilingDriver]) -> Mix:
        sizes, options = self._sizes(program), self._options
        found = problem(program, [_calibrated(driver, options) for driver in drivers], sizes)
        return Mix(found, self._as_decided(found) or divided(found) or best_single(found), sizes)

    def _as_decided(self, found: Problem) -> Schedule | None:
        """A program like the one that was decided about, in the same way; None where that says nothing of it."""
        if self._decided is None:
            return None
        numbers = {candidate.name: number for number, candidate in enumerate(found.candidates)}
        assignment = [numbers[name] for name in self._decided.assignment if name in numbers]
        if len(set(assignment)) == 1:
            return on_one(found, assignment[0])
        same = len(assignment) == len(found.units)
        return schedule(found, tuple(assignment), Rules(numbers[self._decided.primary])) if same else None

    def _compiled(self, mix: Mix, drivers: Sequence[CompilingDriver]) -> MixedProgram:
        """All pieces, each for its device."""
        by_name = {driver.name: driver for driver in drivers}
        if self._options.strict and mix.is_divided:
            moved = record_of(mix.problem, mix.schedule, mix.sizes, [0] * len(mix.schedule.parts)).moved
            steps = [(step.node or step.step, step.reason) for step in moved]
            raise refused(mix.problem.candidates[mix.schedule.primary].name, steps, self._file)
        return compile_pieces(
            mix.problem, mix.schedule, mix.sizes, lambda name, program: self._compile_piece(program, by_name[name])
        )

    def _sizes(self, program: TensorProgram) -> dict[str, int]:
        """Sizes as in the sample, and where that does not tell usual ones."""
        names = {value.name for value in program.inputs}
        shapes = {name: np.shape(content) for name, content in (self._options.sample or {}).items() if name in names}
        return likely_sizes(program, bind_shapes(program.inputs, shapes, self._file)[0])

    def _inputs(self, program: TensorProgram, home: str) -> list[Any]:
        """The sample, or inputs that are made up; InputError where none fit."""
        specs = tuple(spec(value.name, value.type) for value in program.inputs)
        sample = self._options.sample or generate_inputs(specs, self._sizes(program))
        given = {one.name: sample[one.name] for one in specs if one.name in sample}
        bound = InputBinder(specs, (), self._file, home, lambda _: None)(given, None)
        return [bound.arrays[value.name] for value in program.inputs]


def contenders(mix: Mix) -> dict[str, Mix]:
    """What may turn out to be the quickest, by name, the likeliest first: predictions are not exact."""
    names = [candidate.name for candidate in mix.problem.candidates]
    alone = {name: replace(mix, schedule=on_one(mix.problem, number)) for number, name in enumerate(names)}
    found = {JOINED.join(names): mix} if mix.is_divided else {}
    least = min(single.schedule.seconds for single in alone.values())
    likely = {name: single for name, single in alone.items() if single.schedule.seconds <= FAR * least}
    return found | dict(sorted(likely.items(), key=lambda entry: entry[1].schedule.seconds))


def lacking_steps(fused: FusedProgram) -> list[tuple[str, str]]:
    """The nodes that a device has no kernels for, though they are no work for the host, and why."""
    return [
        (step.origin or step_name(step), group.reason)
        for group in fused.groups
        if isinstance(group, HostGroup)
        for step in group.steps
        if host_by_nature(step) is None
    ]


def check_strict(device: str, program: CompiledProgram | MixedProgram, file: str) -> None:
    """Raise DeviceError where steps of a program do not run on the one device that was asked for."""
    if isinstance(program, MixedProgram):
        steps = [(step.node or step.step, step.reason) for step in program.placement.moved]
        device = program.placement.primary
    else:
        steps = [(step.node or step.step, step.reason) for step in explain(program) if not step.by_nature]
    if steps:
        raise refused(device, steps, file)


def refused(device: str, steps: Sequence[tuple[str, str]], file: str) -> DeviceError:
    """What `strict` says to steps that would run elsewhere."""
    named = "; ".join(f"{node}: {reason}" for node, reason in steps[:_NAMED])
    more = f"; and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    problem = f"{len(steps)} steps would not run on {device}: {named}{more}"
    return DeviceError(problem, hint="load it without strict, or on another device", file=file)


def _best(names: Sequence[str], ready: Callable[[str], Run]) -> tuple[str, Times]:
    """Who ran quickest, and what each took; several devices must be clearly ahead of one. If none ran, the first."""
    entries = by_benchmark(names, ready, seconds=MEASURED_SECONDS).entries
    times = {entry.device: entry.seconds for entry in entries if entry.seconds is not None}
    if not times:
        return names[0], ()
    best = min(times, key=lambda name: times[name] / (CLEARLY_AHEAD if JOINED in name else 1.0))
    return best, tuple(times.items())


def _calibrated(driver: CompilingDriver, options: MixOptions) -> Candidate:
    """A device as it was measured."""
    found = calibrated(driver.name, options.run.threads)
    return Candidate(driver.name, driver.target(options.precision), found, driver.has_memory)


def _nominal(driver: CompilingDriver, target: Target) -> Candidate:
    """A device as its class is known, whatever this one was measured to do."""
    rates = target.rates
    flops = rates.compute_units * rates.unit_flops
    run, moved = (_FAR_RUN, _FAR_TRANSFER) if driver.has_memory else (_NEAR_RUN, Transfer())
    calibration = Calibration(
        device=driver.name,
        identity="nominal",
        peak=Peak(flops, rates.memory_bandwidth),
        products=((DType.float32, flops),),
        launch_seconds=rates.launch_seconds,
        iteration_seconds=rates.launch_seconds,
        run_seconds=run,
        host_step_seconds=run,
        upload=moved,
        download=moved,
    )
    return Candidate(driver.name, target, calibration, driver.has_memory)
