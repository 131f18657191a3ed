"""What a benchmark found: records that go to JSON and back, and the comparison of two of them. Times are seconds."""

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
    """Of a fresh process: seconds of loading and of the first run, and the most bytes above those after importing.

    `imports` are the seconds of importing the engine, which come before; None in results from before they were noted.
    """

    load: float
    first_run: float
    memory: int | None
    imports: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One engine on one model: its runs in turns, and how it started without any code cached and then with it."""

    engine: str
    run: Spread
    cold: Start
    cached: Start
    difference: float | None  # from the judge's outputs, relative; None where there is no judge
    agrees: bool | None
    share_of_peak: float | None
    plan: float | None = None  # seconds of planning memory and launches for these sizes; of weft alone


FIGURES: dict[str, Callable[[Measurement], float | None]] = {
    "importing": lambda found: found.cached.imports,
    "loading, cold": lambda found: found.cold.load,
    "loading, cached": lambda found: found.cached.load,
    "first run, cached": lambda found: found.cached.first_run,
    "planning": lambda found: found.plan,
}
"""What is to be fast beside the runs themselves, in seconds."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    model: str
    inputs: dict[str, str]
    flops: int | None
    measurements: tuple[Measurement, ...]
    failures: dict[str, str]  # engine -> why it has no measurement

    def of(self, engine: str) -> Measurement | None:
        return next((found for found in self.measurements if found.engine == engine), None)

    def ratio(self, engine: str) -> float | None:
        """The engine's time over weft's."""
        subject, peer = self.of(SUBJECT), self.of(engine)
        return peer.run.median / subject.run.median if subject is not None and peer is not None else None


@dataclass(frozen=True, slots=True)
class BenchReport:
    machine: dict[str, Any]
    settings: dict[str, Any]
    models: tuple[ModelResult, ...]
    left_out: dict[str, str]  # model -> why

    def engines(self) -> list[str]:
        return list(dict.fromkeys(found.engine for model in self.models for found in model.measurements))


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of an engine's times over weft's, and the models at the ends."""

    engine: str
    ratio: float
    models: int
    worst: tuple[str, float]
    best: tuple[str, float]


def means(report: BenchReport) -> Iterator[Mean]:
    for engine in report.engines():
        found = [(model.model, ratio) for model in report.models if (ratio := model.ratio(engine)) is not None]
        if engine != SUBJECT and found:
            ordered = sorted(found, key=lambda pair: pair[1])
            yield Mean(engine, geometric_mean(ratio for _, ratio in found), len(found), ordered[0], ordered[-1])


def mismatches(models: Sequence[ModelResult]) -> Iterator[tuple[str, Measurement]]:
    """Every engine whose outputs are not the judge's."""
    for model in models:
        for found in model.measurements:
            if found.agrees is False:
                yield model.model, found


# -- two of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """weft on one model, before and after. `ratio` is the time before over the time after: above 1 is faster."""

    model: str
    before: Spread
    after: Spread
    ratio: float
    verdict: str  # "faster" or "slower" where the quartiles do not even touch, else "same"


@dataclass(frozen=True, slots=True)
class Comparison:
    changes: tuple[Change, ...]
    figures: dict[str, tuple[float, int]]  # of FIGURES -> the mean ratio of weft's before over after, and of how many
    drift: dict[str, float]  # engine -> the mean ratio of times before over after; of peers it is the machine's mood
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def compare(before: BenchReport, after: BenchReport) -> Comparison:
    old, new = ({model.model: model for model in report.models} for report in (before, after))
    both = [name for name in old if name in new]
    changes = tuple(
        _change(name, left.run, right.run)
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
        tuple(name for name in here if name not in there) for here, there in ((old, new), (new, old))
    )
    subjects = [(was, now) for name in both if (was := old[name].of(SUBJECT)) and (now := new[name].of(SUBJECT))]
    figures: dict[str, tuple[float, int]] = {}
    for figure, of in FIGURES.items():
        ratios = [seconds / then for was, now in subjects if (seconds := of(was)) and (then := of(now))]
        if ratios:
            figures[figure] = geometric_mean(ratios), len(ratios)
    return Comparison(changes, figures, drift, only_before, only_after)


def _change(model: str, before: Spread, after: Spread) -> Change:
    verdict = "faster" if after.upper < before.lower else "slower" if after.lower > before.upper else "same"
    return Change(model, before, after, before.median / after.median, verdict)


# -- JSON ------------------------------------------------------------------------------------------------------------


def to_json(report: BenchReport) -> str:
    return as_json({"format": FORMAT, **asdict(report)})


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(_plain(data), indent=1, allow_nan=False) + "\n"


def read_report(path: Path) -> BenchReport:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise InputError(f"{path}: results of format {data['format']}, not {FORMAT}", hint="measure again")
        models = tuple(_model(entry) for entry in data["models"])
        return BenchReport(data["machine"], data["settings"], models, data["left_out"])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: not the results of a benchmark: {error}", hint="weft bench --json writes them"
        ) from error


def _model(entry: Mapping[str, Any]) -> ModelResult:
    return ModelResult(
        entry["model"],
        entry["inputs"],
        entry["flops"],
        tuple(map(_measurement, entry["measurements"])),
        entry["failures"],
    )


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    parts = {"run": Spread(**entry["run"]), "cold": Start(**entry["cold"]), "cached": Start(**entry["cached"])}
    return Measurement(**{**entry, **parts})


def _plain(data: Any) -> Any:
    """Fractions with the digits that a measurement has; those that JSON lacks as null."""
    match data:
        case dict():
            return {key: _plain(value) for key, value in data.items()}
        case list() | tuple():
            return [_plain(value) for value in data]
        case float():
            return float(f"{data:.{DIGITS}g}") if math.isfinite(data) else None
        case _:
            return data
