"""Rank devices by how fast they run a model: by the predictions of their calibrations, or by timed runs.

In: names of devices, best guess first, and the model's groups or a trial run for each. Out: a `Ranking`, the best
first, with seconds and reasons; a device that cannot be measured, or that fails, comes last with its reason. Rankings
are cached on disk by the model's content, its sizes and the devices' calibrations; a damaged entry is ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from weft.backends.reference.sizes import GuardError, check_guards
from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.calibration import Calibration, Seconds
from weft.cost.prediction import PortionCache, Prediction, build_workload, guess_fastest, predict
from weft.errors import WeftError
from weft.fuse import adapted
from weft.ir.groups import FusedProgram
from weft.ir.program import TensorProgram
from weft.plan.usual_sizes import usual_sizes
from weft.quantities import format_plural, format_seconds
from weft.records import dataclass
from weft.runtime.calibrate import get_calibration
from weft.runtime.device_history import is_device_error
from weft.runtime.devices import compiling

Run = Callable[[], object]
Shapes = Mapping[str, tuple[int, ...]]

BENCHMARK_SECONDS = 2.0  # of timed runs, for all devices together
TURN_SECONDS = 2e-2  # of one device, before the next one has its turn
WARM_SECONDS = 5e-3  # of untimed runs before each turn
TURN_RUNS = 3  # at least, unless they take long
FEWEST_TURNS, MOST_TURNS = 3, 12
PREDICTION_TOLERANCE = 1.1  # predictions within this factor of the least count as equal
DROP_FACTOR = 3.0  # a device this many times slower than the best is not timed further
CLEAR_FACTOR = 1.1  # the order is settled when a device's best turn is this much slower than the best one's worst


class ModelPrograms(Protocol):
    """A model that is not compiled yet; a SessionPool is one."""

    def program(self) -> TensorProgram:
        """Return the optimised program for any shapes."""
        ...

    def fused(self, device: str) -> FusedProgram:
        """Return its groups for a device."""
        ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """A device with the seconds of a run there, predicted or measured; None with a reason."""

    device: str
    seconds: float | None
    reason: str
    parts: Seconds | None = None  # of a prediction


@dataclass(frozen=True, slots=True)
class Ranking:
    """Devices, the best first, and how they were ranked: by "order", "cost" or "benchmark"."""

    by: str
    entries: tuple[Ranked, ...]

    @property
    def best(self) -> str:
        return self.entries[0].device

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(entry.device for entry in self.entries)


# -- by cost ---------------------------------------------------------------------------------------------------------


def rank_by_cost(
    devices: Sequence[str],
    model: ModelPrograms,
    sizes: Mapping[str, int],
    calibrations: Mapping[str, Calibration],
) -> Ranking:
    """Rank devices by the predicted time of a run with these sizes; those without a calibration come last."""
    calibrated_devices = [device for device in devices if device in calibrations]
    predictions: dict[str, Prediction] = {}
    if calibrated_devices:
        likely = guess_fastest(model.program(), sizes, {device: calibrations[device] for device in calibrated_devices})
        groups = model.fused(likely)
        portions: PortionCache = {}
        for device in calibrated_devices:
            device_groups = groups if device == likely else _adapt_groups(groups, device)
            predictions[device] = predict(build_workload(device_groups, portions), sizes, calibrations[device])
    least = min((prediction.seconds for prediction in predictions.values()), default=inf)

    def sort_key(device: str) -> tuple[bool, bool, float]:
        """Among devices with equal predictions, prefer one that uses the host's memory: it copies no data."""
        seconds = predictions[device].seconds
        is_near = seconds <= PREDICTION_TOLERANCE * least
        return not is_near, is_near and compiling(device).has_memory, seconds

    entries = [_rank_predicted(device, predictions[device]) for device in sorted(calibrated_devices, key=sort_key)]
    unknown = [Ranked(device, None, "it is not calibrated") for device in devices if device not in calibrations]
    return Ranking("cost", (*entries, *unknown))


def calibrate_devices(devices: Sequence[str], threads: int | None) -> tuple[dict[str, Calibration], dict[str, str]]:
    """Return the calibrations of devices, measured now if needed, and the problems of those that cannot be measured."""
    calibrations: dict[str, Calibration] = {}
    problems: dict[str, str] = {}
    for device in devices:
        try:
            calibrations[device] = get_calibration(device, threads)
        except Exception as error:  # any error of a foreign driver
            problems[device] = _describe_error(error)
    return calibrations, problems


def likely_sizes(program: TensorProgram, user_sizes: Mapping[str, int]) -> dict[str, int]:
    """Complete the sizes of dynamic dims with typical ones for which the program's guards hold."""
    likely: dict[str, int] = {}
    for number, sizes in enumerate(usual_sizes(program.inputs, program.guards, user_sizes)):
        likely = sizes if number == 0 else likely
        with suppress(GuardError, ArithmeticError):
            check_guards(program.guards, sizes)
            return sizes
    return likely


def _adapt_groups(groups: FusedProgram, device: str) -> FusedProgram:
    """Adapt groups of another device: what this one lacks is left to the host."""
    return adapted(groups, compiling(device).target("float32"))


def _rank_predicted(device: str, prediction: Prediction) -> Ranked:
    parts = {name: getattr(prediction.parts, name) for name in Seconds.__slots__}
    most = max(parts, key=lambda name: parts[name])
    reason = f"about {format_seconds(prediction.seconds)}, most of it {most}"
    return Ranked(device, prediction.seconds, reason, prediction.parts)


# -- by benchmark ----------------------------------------------------------------------------------------------------


def rank_by_benchmark(
    devices: Sequence[str],
    prepare: Callable[[str], Run],
    runs: int = TURN_RUNS * FEWEST_TURNS,
    seconds: float = BENCHMARK_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Ranking:
    """Rank devices by the median of timed runs, in turns; `prepare` compiles for a device and returns a trial run.

    Each device runs at least `runs` times unless the seconds are over; timing ends when the order is clear. A device
    that fails to compile or run is listed last, with its reason.
    """
    racing: dict[str, Run] = {}
    times: dict[str, list[list[float]]] = {}
    failed: list[Ranked] = []
    for device in devices:
        try:
            run = prepare(device)
            run()
            racing[device], times[device] = run, [[_time_run(run, clock)]]
        except Exception as error:
            failed.append(_rank_failed(device, error))
    least = -(-runs // FEWEST_TURNS)
    end = clock() + seconds
    for number in range(MOST_TURNS):
        if len(racing) < 2 or (number and clock() >= end) or (number >= FEWEST_TURNS and _is_clear(times)):
            break
        for device in sorted(racing, reverse=number % 2 == 1):
            try:
                turn = _time_turn(racing[device], least, end, clock)
            except Exception as error:
                failed.append(_rank_failed(device, error))
                del racing[device], times[device]
                continue
            times[device] = [*times[device], turn] if number else [turn]  # drop the warm-up run
        best = min(map(_median, times.values()), default=inf)
        racing = {device: run for device, run in racing.items() if _median(times[device]) <= DROP_FACTOR * best}
    order = sorted(times, key=lambda device: _median(times[device]))
    entries = [_rank_measured(device, times[device]) for device in order]
    return Ranking("benchmark", (*entries, *failed))


def _time_turn(run: Run, least: int, end: float, clock: Callable[[], float]) -> list[float]:
    """Time consecutive runs after some warm-up runs; only one when the time is over."""
    warm = clock() + WARM_SECONDS
    run()
    while clock() < min(warm, end):
        run()
    times: list[float] = []
    start = clock()
    while not times or (clock() < end and (clock() - start < TURN_SECONDS or len(times) < least)):
        times.append(_time_run(run, clock))
    return times


def _time_run(run: Run, clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _median(turns: Sequence[Sequence[float]]) -> float:
    return median(seconds for turn in turns for seconds in turn)


def _is_clear(times: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether the best device was faster than every other in all turns."""
    turns = {device: [median(turn) for turn in device_times] for device, device_times in times.items()}
    best = min(turns, key=lambda device: median(turns[device]))
    return all(min(turns[device]) > CLEAR_FACTOR * max(turns[best]) for device in turns if device != best)


def _rank_measured(device: str, turns: Sequence[Sequence[float]]) -> Ranked:
    seconds, count = _median(turns), sum(map(len, turns))
    return Ranked(device, seconds, f"{format_seconds(seconds)}, the median of {format_plural(count, 'run')}")


def _rank_failed(device: str, error: Exception) -> Ranked:
    """Return the entry of a device that failed; raise an error that other devices would have, too."""
    if not is_device_error(error):
        raise error
    return Ranked(device, None, _describe_error(error))


def _describe_error(error: Exception) -> str:
    return error.problem if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"


# -- the cache ------------------------------------------------------------------------------------------------------


class RankingCache:
    """Rankings on disk, for the model with this digest; without one nothing is cached.

    A ranking depends on the devices, the shapes of the sample, and the `facts` that it was made from: calibrations, or
    the identities of devices.
    """

    def __init__(self, model: str | None) -> None:
        folder = cache_folder()
        self._folder = None if folder is None or model is None else folder / "choices"
        self._model = model or ""

    def get(self, by: str, devices: Sequence[str], shapes: Shapes | None, facts: str) -> Ranking | None:
        """Return the cached ranking of these devices under the same conditions."""
        path = self._path(by, devices, shapes, facts)
        if path is not None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                return _from_record(json.loads(read_file(path)), by, devices)
        return None

    def put(self, ranking: Ranking, devices: Sequence[str], shapes: Shapes | None, facts: str) -> None:
        path = self._path(ranking.by, devices, shapes, facts)
        if path is not None:
            with suppress(OSError):
                write_file(path, json.dumps(_to_record(ranking)).encode())

    def _path(self, by: str, devices: Sequence[str], shapes: Shapes | None, facts: str) -> Path | None:
        if self._folder is None:
            return None
        sample = None if shapes is None else sorted(shapes.items())
        return self._folder / f"{key_of('choice 1', self._model, by, repr(tuple(devices)), repr(sample), facts)}.json"


def _to_record(ranking: Ranking) -> list[Any]:
    return [
        [entry.device, entry.seconds, entry.reason, None if entry.parts is None else list(_field_values(entry.parts))]
        for entry in ranking.entries
    ]


def _from_record(record: Any, by: str, devices: Sequence[str]) -> Ranking:
    entries = []
    for device, seconds, reason, parts in record:
        if not isinstance(reason, str) or not (seconds is None or 0 <= seconds < inf):
            raise ValueError("not a ranking")
        entries.append(Ranked(device, seconds, reason, None if parts is None else Seconds(*map(float, parts))))
    if sorted(entry.device for entry in entries) != sorted(devices):
        raise ValueError("a ranking of other devices")
    return Ranking(by, tuple(entries))


def _field_values(parts: Seconds) -> tuple[float, ...]:
    return tuple(getattr(parts, name) for name in Seconds.__slots__)


def with_reasons(ranking: Ranking, problems: Mapping[str, str]) -> Ranking:
    """Add the reasons why devices are not calibrated."""
    entries = tuple(
        replace(entry, reason=problems[entry.device]) if entry.device in problems else entry
        for entry in ranking.entries
    )
    return replace(ranking, entries=entries)
