"""Choose the largest batch of a model by timing runs of random inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.runtime.batch_axes import BatchAxes
from weft.runtime.random_inputs import random_inputs

if TYPE_CHECKING:
    from weft.runtime.model import Model

MOST_ROWS = 64
ENOUGH = 0.95  # of the time of a row: a batch that gains less than the rest is not worth its latency
SECONDS = 1.5  # for all runs that are timed
HANDOVER_SECONDS = 0.0003  # that a server adds to each run: joining requests, and waking a thread and the event loop
REPEATS = 3


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The most rows of a run, and the seconds that a run of one row takes."""

    rows: int
    seconds: float


def choose_batch(model: Model, axes: BatchAxes, limit: int | None, memory: int) -> BatchChoice:
    """Find the smallest batch whose rows take about as little time as in any other.

    limit: the most rows that the user allows, which is the choice then. memory: bytes that a run may take.
    """
    single = _time_run(model, axes, 1)
    if not axes.can_join:
        return BatchChoice(1, single)
    if limit is not None:
        return BatchChoice(limit, single)
    end = time.perf_counter() + SECONDS
    best = single + HANDOVER_SECONDS
    times = {1: single + HANDOVER_SECONDS}
    rows = 2
    while rows <= MOST_ROWS and time.perf_counter() + 2 * REPEATS * best * rows < end:
        inputs = _random_rows(model, axes, rows)
        needed = model.memory({name: array.shape for name, array in inputs.items()})
        if needed.peak - needed.weights > memory:
            break
        times[rows] = (_time_run(model, axes, rows, inputs) + HANDOVER_SECONDS) / rows
        best = min(best, times[rows])
        rows *= 2
    fastest = min(times.values())
    return BatchChoice(next(rows for rows, seconds in times.items() if seconds * ENOUGH <= fastest), single)


def _time_run(model: Model, axes: BatchAxes, rows: int, inputs: dict[str, Any] | None = None) -> float:
    """Return the seconds of a run, the least of several; 0.01 if the model does not take random inputs."""
    try:
        arrays = _random_rows(model, axes, rows) if inputs is None else inputs
        seconds = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            model.run(arrays)
            seconds.append(time.perf_counter() - start)
            if sum(seconds) > SECONDS:
                break
        return min(seconds[1:] or seconds)
    except WeftError:
        return 0.01


def _random_rows(model: Model, axes: BatchAxes, rows: int) -> dict[str, Any]:
    specs = {spec.name: spec for spec in model.inputs}
    sizes = {str((specs[name].shape or ())[axis]): rows for name, axis in axes.inputs.items() if name in specs}
    return random_inputs(model, shapes=sizes)
