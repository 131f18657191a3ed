"""Compare a model before and after quantization: size of files, time of a run, errors of outputs and layers.

Timed runs of both models alternate, so that other load on the machine affects both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from weft.quantization.graph_runs import GraphValues, Runs, Sample
from weft.report.deviation import difference

SECONDS = 4.0  # of timing, approximately
LEAST_RUNS, MOST_RUNS = 5, 200
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of an output over all samples.

    `error` is the largest difference relative to the largest magnitude, `noise` the root mean square of differences
    relative to that of the output, `agreement` the share of rows whose largest element is at the same position.
    """

    name: str
    error: float
    noise: float
    agreement: float


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Bytes of a model's files, including external data."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a run (median)."""

    before: float
    after: float
    runs: int


def count_file_bytes(path: Path, external: Mapping[str, Any]) -> int:
    """Count the bytes of a model's file and of its external data."""
    return path.stat().st_size + sum(len(content) for content in external.values())


def measure_outputs(before: Runs, after: Runs, samples: Sequence[Sample]) -> tuple[OutputError, ...]:
    """Compare the outputs of two models with the same inputs."""
    totals: dict[str, _ErrorTotal] = {}
    for sample in samples:
        expected, results = before.run(sample), after.run(sample)
        for name, content in expected.items():
            totals.setdefault(name, _ErrorTotal()).add(content, results.get(name))
    return tuple(OutputError(name, total.error, total.noise, total.agreement) for name, total in totals.items())


def measure_values(before: GraphValues, after: GraphValues, samples: Sequence[Sample]) -> dict[str, float]:
    """Compare the values of two graphs; all values of `after` must be in both."""
    totals: dict[str, _ErrorTotal] = {}
    for names in after.batches:
        result_runner, expected_runner = after.runner(names), before.runner(names)
        for sample in samples:
            expected, results = expected_runner.run(sample), result_runner.run(sample)
            for name in names:
                totals.setdefault(name, _ErrorTotal()).add(expected[name], results[name])
    return {name: total.error for name, total in totals.items()}


class _ErrorTotal:
    """Accumulates the differences of one value over samples."""

    def __init__(self) -> None:
        self._error = 0.0  # the largest absolute difference
        self._scale = 0.0
        self._squares = np.zeros(2)
        self._rows = np.zeros(2, np.int64)
        self._is_broken = False

    def add(self, expected: Any, result: Any) -> None:
        distance = difference(expected, result)
        if not math.isfinite(distance.error):
            self._is_broken = True
            return
        self._error = max(self._error, distance.error * distance.scale)
        self._scale = max(self._scale, distance.scale)
        if not isinstance(expected, np.ndarray) or not expected.size or expected.dtype.kind not in "fiuV":
            return
        left, right = (np.asarray(content, np.float64) for content in (expected, result))
        finite = np.isfinite(left) & np.isfinite(right)
        self._squares += ((left - right)[finite] ** 2).sum(), (left[finite] ** 2).sum()
        if left.ndim and left.shape[-1] > 1:
            same = left.argmax(axis=-1) == right.argmax(axis=-1)
            self._rows += int(same.sum()), same.size

    @property
    def error(self) -> float:
        if self._is_broken:
            return math.inf
        return self._error / self._scale if self._scale else 0.0

    @property
    def noise(self) -> float:
        if self._is_broken:
            return math.inf
        error, size = np.sqrt(self._squares)
        return float(error / size) if size else 0.0

    @property
    def agreement(self) -> float:
        return float(self._rows[0] / self._rows[1]) if self._rows[1] else 1.0


def time_runs(before: Runs, after: Runs, sample: Sample) -> Times:
    """Time runs of two models, alternately."""
    models = (before, after)
    inputs = dict(sample)
    for model in models:
        for _ in range(WARM_UP):
            model.run(inputs)
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while len(times[0]) < LEAST_RUNS or (len(times[0]) < MOST_RUNS and time.perf_counter() < end):
        for model, seconds in zip(models, times):
            start = time.perf_counter()
            model.run(inputs)
            seconds.append(time.perf_counter() - start)
    return Times(median(times[0]), median(times[1]), len(times[0]))
