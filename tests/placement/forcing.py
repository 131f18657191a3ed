"""Placements that no cost decides: units of a program on devices as a test wants them, compiled and started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.device import CompilingDriver, RunOptions
from weft.backends.mixed.runner import MixedRunner
from weft.cost.calibration import Calibration, Transfer
from weft.cost.roofline import Peak
from weft.fuse import fuse
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType
from weft.ir.mixed import MixedProgram
from weft.ir.program import TensorProgram
from weft.kernels.sections import build_sections
from weft.loading import open_pipeline
from weft.placement.compile import compile_pieces
from weft.placement.schedule import Rules, schedule
from weft.placement.units import Candidate, Problem, problem
from weft.runtime.options import LoadOptions


def calibration(device: str, flops: float = 1e11, run: float = 1e-5, moved: Transfer | None = None) -> Calibration:
    """A device of which only the speed, the cost of a run and that of transfers are told."""
    moved = Transfer() if moved is None else moved
    return Calibration(
        device=device,
        identity=device,
        peak=Peak(flops, flops / 10),
        products=((DType.float32, flops),),
        launch_seconds=run / 10,
        iteration_seconds=run / 10,
        run_seconds=run,
        host_step_seconds=run,
        upload=moved,
        download=moved,
    )


def candidates(drivers: Sequence[CompilingDriver]) -> list[Candidate]:
    """All alike."""
    return [Candidate(one.name, one.target("float32"), calibration(one.name), one.has_memory) for one in drivers]


def optimised(model: Any) -> TensorProgram:
    """The program of a model for any shapes."""
    return open_pipeline(model, LoadOptions(device="cpu")).program()


def posed(
    program: TensorProgram, drivers: Sequence[CompilingDriver], sizes: Mapping[str, int] | None = None
) -> Problem:
    """The units of a program for these devices, whatever they cost."""
    return problem(program, candidates(drivers), sizes or {})


def compile_on(driver: CompilingDriver, program: TensorProgram) -> CompiledProgram:
    """A program for one device, by the usual stages."""
    target = driver.target("float32")
    return driver.compile(program, build_sections(fuse(program, target), target), True, lambda *_: None)


def forced(
    found: Problem,
    drivers: Sequence[CompilingDriver],
    choose: Callable[[int], int],
    side_by_side: bool = False,
) -> MixedProgram:
    """The pieces that come of putting each unit, by its number, on the device of the number that `choose` gives."""
    by_name = {driver.name: driver for driver in drivers}
    assignment = tuple(choose(number) for number in range(len(found.units)))
    made = schedule(found, assignment, Rules(0))
    made = replace(made, side_by_side=side_by_side)
    return compile_pieces(found, made, {}, lambda name, program: compile_on(by_name[name], program))


def started(program: MixedProgram, drivers: Sequence[CompilingDriver], limit: int | None = None) -> MixedRunner:
    """What runs the pieces, in so many bytes of memory at most."""
    return MixedRunner(program, {driver.name: driver for driver in drivers}, RunOptions(memory_limit=limit))
