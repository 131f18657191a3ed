"""Results of benchmarks: records, their JSON form, and comparisons of two. Times are in seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.bench.rounds import Spread, geometric_mean
from weft.errors import InputError
from weft.records import dataclass

FORMAT = 1
DIGITS = 6
SUBJECT = "weft"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a new process: seconds of loading and of the first run, and the peak memory since the import.

    `imports` are the seconds of importing the engine; None in results of older versions.
    """

    load: float
    first_run: float
    memory: int | None
    imports: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One engine on one model: its timed runs, and its starts without and with cached code."""

    engine: str
    run: Spread
    cold: Start
    cached: Start
    difference: float | None  # from the reference engine's outputs, relative; None without one
    agrees: bool | None
    share_of_peak: float | None
    plan: float | None = None  # seconds of planning memory and launches for these sizes; weft only


FIGURES: dict[str, Callable[[Measurement], float | None]] = {
    "importing": lambda measurement: measurement.cached.imports,
    "loading, cold": lambda measurement: measurement.cold.load,
    "loading, cached": lambda measurement: measurement.cached.load,
    "first run, cached": lambda measurement: measurement.cached.first_run,
    "planning": lambda measurement: measurement.plan,
}
"""Durations besides the runs, in seconds."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    model: str
    inputs: dict[str, str]
    flops: int | None
    measurements: tuple[Measurement, ...]
    failures: dict[str, str]  # engine -> reason

    def of(self, engine: str) -> Measurement | None:
        return next((measurement for measurement in self.measurements if measurement.engine == engine), None)

    def ratio(self, engine: str) -> float | None:
        """Return the engine's time divided by weft's."""
        subject, peer = self.of(SUBJECT), self.of(engine)
        return peer.run.median / subject.run.median if subject is not None and peer is not None else None


@dataclass(frozen=True, slots=True)
class BenchReport:
    machine: dict[str, Any]
    settings: dict[str, Any]
    models: tuple[ModelResult, ...]
    left_out: dict[str, str]  # model -> reason

    def engines(self) -> list[str]:
        return list(dict.fromkeys(measurement.engine for model in self.models for measurement in model.measurements))


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of an engine's times divided by weft's, with the worst and best models."""

    engine: str
    ratio: float
    models: int
    worst: tuple[str, float]
    best: tuple[str, float]


def mean_ratios(report: BenchReport) -> Iterator[Mean]:
    for engine in report.engines():
        ratios = [(model.model, ratio) for model in report.models if (ratio := model.ratio(engine)) is not None]
        if engine != SUBJECT and ratios:
            ordered = sorted(ratios, key=lambda pair: pair[1])
            yield Mean(engine, geometric_mean(ratio for _, ratio in ratios), len(ratios), ordered[0], ordered[-1])


def find_mismatches(models: Sequence[ModelResult]) -> Iterator[tuple[str, Measurement]]:
    """Yield (model, measurement) for each engine whose outputs differ from the reference."""
    for model in models:
        for measurement in model.measurements:
            if measurement.agrees is False:
                yield model.model, measurement


# -- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """weft on one model before and after; `ratio` is before / after, so above 1 is faster."""

    model: str
    before: Spread
    after: Spread
    ratio: float
    verdict: str  # "faster" or "slower" if the quartile ranges do not overlap, else "same"


@dataclass(frozen=True, slots=True)
class Comparison:
    changes: tuple[Change, ...]
    figures: dict[str, tuple[float, int]]  # of FIGURES -> mean of before / after of weft, and the number of models
    drift: dict[str, float]  # engine -> mean of before / after; for peers, the noise of the machine
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def compare(before: BenchReport, after: BenchReport) -> Comparison:
    old, new = ({model.model: model for model in report.models} for report in (before, after))
    both = [name for name in old if name in new]
    changes = tuple(
        _compare_runs(name, left.run, right.run)
        for name in both
        if (left := old[name].of(SUBJECT)) is not None and (right := new[name].of(SUBJECT)) is not None
    )
    drift: dict[str, float] = {}
    for engine in before.engines():
        pairs = [(old[name].of(engine), new[name].of(engine)) for name in both]
        ratios = [left.run.median / right.run.median for left, right in pairs if left and right]
        if ratios:
            drift[engine] = geometric_mean(ratios)
    only_before, only_after = (
        tuple(name for name in one if name not in other) for one, other in ((old, new), (new, old))
    )
    subjects = [(was, now) for name in both if (was := old[name].of(SUBJECT)) and (now := new[name].of(SUBJECT))]
    figures: dict[str, tuple[float, int]] = {}
    for figure, get in FIGURES.items():
        ratios = [seconds / then for was, now in subjects if (seconds := get(was)) and (then := get(now))]
        if ratios:
            figures[figure] = geometric_mean(ratios), len(ratios)
    return Comparison(changes, figures, drift, only_before, only_after)


def _compare_runs(model: str, before: Spread, after: Spread) -> Change:
    verdict = "faster" if after.upper < before.lower else "slower" if after.lower > before.upper else "same"
    return Change(model, before, after, before.median / after.median, verdict)


# -- JSON ------------------------------------------------------------------------------------------------------------


def to_json(report: BenchReport) -> str:
    return as_json({"format": FORMAT, **asdict(report)})


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(_round_numbers(data), indent=1, allow_nan=False) + "\n"


def read_report(path: Path) -> BenchReport:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise InputError(
                f"{path}: the format of the results is {data['format']}, not {FORMAT}", hint="measure again"
            )
        models = tuple(_parse_model(entry) for entry in data["models"])
        return BenchReport(data["machine"], data["settings"], models, data["left_out"])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: not the results of a benchmark: {error}", hint="write them with weft bench --json"
        ) from error


def _parse_model(entry: Mapping[str, Any]) -> ModelResult:
    return ModelResult(
        entry["model"],
        entry["inputs"],
        entry["flops"],
        tuple(map(_parse_measurement, entry["measurements"])),
        entry["failures"],
    )


def _parse_measurement(entry: Mapping[str, Any]) -> Measurement:
    parts = {"run": Spread(**entry["run"]), "cold": Start(**entry["cold"]), "cached": Start(**entry["cached"])}
    return Measurement(**{**entry, **parts})


def _round_numbers(data: Any) -> Any:
    """Round floats to significant digits; NaN and infinities become null."""
    match data:
        case dict():
            return {key: _round_numbers(value) for key, value in data.items()}
        case list() | tuple():
            return [_round_numbers(value) for value in data]
        case float():
            return float(f"{data:.{DIGITS}g}") if math.isfinite(data) else None
        case _:
            return data
