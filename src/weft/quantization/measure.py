"""A model before and after: bytes of its files, time of a run, and how far outputs and layers are from what they were.

Runs of both alternate, so that what slows a machine down for a while slows both.
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

from weft.quantization.running import GraphValues, Runs, Sample
from weft.report.deviation import difference

SECONDS = 4.0  # that timing takes, about
LEAST_RUNS, MOST_RUNS = 5, 200
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class OutputError:
    """An output of all samples: the largest difference, relative to the largest magnitude, and the root of the mean
    squared one, relative to that of the output; `agreement` is the share of rows whose largest element is the same.
    """

    name: str
    error: float
    noise: float
    agreement: float


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Bytes of a model's files, and of its weights."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a run, in the median."""

    before: float
    after: float
    runs: int


def file_bytes(path: Path, external: Mapping[str, Any]) -> int:
    """The bytes of a model's own file, and of those beside it."""
    return path.stat().st_size + sum(len(content) for content in external.values())


def output_errors(before: Runs, after: Runs, samples: Sequence[Sample]) -> tuple[OutputError, ...]:
    """Of the outputs of two models that take the same."""
    totals: dict[str, _Total] = {}
    for sample in samples:
        expected, found = before.run(sample), after.run(sample)
        for name, content in expected.items():
            totals.setdefault(name, _Total()).add(content, found.get(name))
    return tuple(OutputError(name, total.error, total.noise, total.agreement) for name, total in totals.items())


def value_errors(before: GraphValues, after: GraphValues, samples: Sequence[Sample]) -> dict[str, float]:
    """How far values of one graph are from those of another, where both have them, in batches of theirs."""
    totals: dict[str, _Total] = {}
    for names in after.batches:
        found_runner, expected_runner = after.runner(names), before.runner(names)
        for sample in samples:
            expected, found = expected_runner.run(sample), found_runner.run(sample)
            for name in names:
                totals.setdefault(name, _Total()).add(expected[name], found[name])
    return {name: total.error for name, total in totals.items()}


class _Total:
    """Differences of one value, sample after sample."""

    def __init__(self) -> None:
        self._error = 0.0  # of the largest difference, before it is relative
        self._scale = 0.0
        self._squares = np.zeros(2)
        self._rows = np.zeros(2, np.int64)
        self._is_broken = False

    def add(self, expected: Any, found: Any) -> None:
        distance = difference(expected, found)
        if not math.isfinite(distance.error):
            self._is_broken = True
            return
        self._error = max(self._error, distance.error * distance.scale)
        self._scale = max(self._scale, distance.scale)
        if not isinstance(expected, np.ndarray) or not expected.size or expected.dtype.kind not in "fiuV":
            return
        left, right = (np.asarray(content, np.float64) for content in (expected, found))
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


def run_times(before: Runs, after: Runs, sample: Sample) -> Times:
    """Two models, loaded as a user would, in turn."""
    models = (before, after)
    inputs = dict(sample)
    for model in models:
        for _ in range(WARM_UP):
            model.run(inputs)
    taken: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(taken[0]) < LEAST_RUNS or (len(taken[0]) < MOST_RUNS and time.perf_counter() - started < SECONDS):
        for model, seconds in zip(models, taken):
            begun = time.perf_counter()
            model.run(inputs)
            seconds.append(time.perf_counter() - begun)
    return Times(median(taken[0]), median(taken[1]), len(taken[0]))
