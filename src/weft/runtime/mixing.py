"""What of a model runs on which of several devices: their calibrations and likely sizes, put to `placement/`.

On devices that are named together, everything may run where it is expected to be quickest. A device that is named alone
gives away only steps that it has no kernels for, to the host's processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.backends.device import CompilingDriver
from weft.cost.calibration import Calibration, Transfer
from weft.cost.roofline import Peak
from weft.errors import DeviceError
from weft.fuse.host import host_by_nature
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram, HostGroup
from weft.ir.program import TensorProgram, step_name
from weft.ir.target import Target
from weft.placement.partition import best_single, divided, without_lacking
from weft.placement.schedule import Schedule
from weft.placement.units import Candidate, Problem, problem
from weft.runtime.calibrate import calibrated
from weft.runtime.choice import likely_sizes

_NAMED = 8  # steps that an error names
_NEAR_RUN, _FAR_RUN = 1e-5, 1e-4  # seconds of a run on the host's memory, and on a device with memory of its own
_FAR_TRANSFER = Transfer(2e-5, 5e9)


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """A schedule of a program's units on several devices, and the sizes that it was made for."""

    problem: Problem
    schedule: Schedule
    sizes: Mapping[str, int]

    @property
    def is_divided(self) -> bool:
        return len({part.device for part in self.schedule.parts}) > 1


def quickest_mix(
    program: TensorProgram, drivers: Sequence[CompilingDriver], precision: str, threads: int | None
) -> Mix:
    """Everything where it is expected to be quickest: on several devices if that pays, or all on the best one."""
    sizes = likely_sizes(program, {})
    found = problem(program, _candidates(drivers, precision, threads), sizes)
    return Mix(found, divided(found) or best_single(found), sizes)


def helped_mix(program: TensorProgram, device: CompilingDriver, helper: CompilingDriver, precision: str) -> Mix:
    """Everything on one device, but what it lacks kernels for on another, as far as that pays.

    Nothing is measured for that: by any numbers, numpy is slower at a kernel's work than a processor's kernels are.
    """
    sizes = likely_sizes(program, {})
    candidates = [_nominal(driver, driver.target(precision)) for driver in (device, helper)]
    found = problem(program, candidates, sizes)
    return Mix(found, without_lacking(found), sizes)


def lacking_steps(fused: FusedProgram) -> list[tuple[str, str]]:
    """The nodes that a device has no kernels for, though they are no work for the host, and why."""
    return [
        (step.origin or step_name(step), group.reason)
        for group in fused.groups
        if isinstance(group, HostGroup)
        for step in group.steps
        if host_by_nature(step) is None
    ]


def refused(device: str, steps: Sequence[tuple[str, str]]) -> DeviceError:
    """What `strict` says to steps that would run elsewhere."""
    named = "; ".join(f"{node}: {reason}" for node, reason in steps[:_NAMED])
    more = f"; and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    problem = f"{len(steps)} steps would not run on {device}: {named}{more}"
    return DeviceError(problem, hint="load it without strict, or on another device")


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


def _candidates(drivers: Sequence[CompilingDriver], precision: str, threads: int | None) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(driver.name, driver.target(precision), calibrated(driver.name, threads), driver.has_memory)
        for driver in drivers
    )
