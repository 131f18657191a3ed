"""Which of several devices runs a model fastest: by what their calibrations predict, or by runs that are timed.

In: names of devices, best guess first, and what gives a model's groups or ready runs for each. Out: a `Ranking`, the
best first, with seconds and reasons; a device that cannot be measured, or that fails, comes last and says why. Rankings
are remembered on disk under the model's content, its sizes, and all that is known of the devices, so that whoever
loads the same model again is answered at once; what is damaged there is as good as nothing.
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
from weft.cost.prediction import Known, Prediction, likely_quickest, predict, workload
from weft.errors import WeftError
from weft.fuse import adapted
from weft.ir.groups import FusedProgram
from weft.ir.program import TensorProgram
from weft.plan.usual_sizes import usual_sizes
from weft.records import dataclass
from weft.runtime.attempts import is_the_devices
from weft.runtime.calibrate import calibrated
from weft.runtime.devices import compiling

Run = Callable[[], object]
Shapes = Mapping[str, tuple[int, ...]]

BENCHMARK_SECONDS = 2.0  # of timed runs, for all devices together
TURN_SECONDS = 2e-2  # of one device, before the next one has its turn
WARM_SECONDS = 5e-3  # of runs before them, in which threads and caches get used to it
TURN_RUNS = 3  # at least, unless they take long
FEWEST_TURNS, MOST_TURNS = 3, 12
AS_GOOD = 1.1  # times the least prediction: a difference that predictions cannot tell
FAR_BEHIND = 3.0  # times slower than the best: such a device needs no more runs
CLEARLY = 1.1  # times slower in its best turn than the best device in its worst: the order is settled


class ChoiceSource(Protocol):
    """A model on its way to several devices."""

    def program(self) -> TensorProgram:
        """The optimised program, for any sizes."""
        ...

    def fused(self, device: str) -> FusedProgram:
        """Its groups for a device."""
        ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """One device's place: the seconds of a run there, predicted or measured, or None and the reason."""

    device: str
    seconds: float | None
    reason: str
    parts: Seconds | None = None  # of a prediction


@dataclass(frozen=True, slots=True)
class Ranking:
    """Devices, the best first, and how that was found: by "order", "cost" or "benchmark"."""

    by: str
    entries: tuple[Ranked, ...]
    remembered: bool = False

    @property
    def best(self) -> str:
        return self.entries[0].device

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(entry.device for entry in self.entries)


# -- by cost ---------------------------------------------------------------------------------------------------------


def by_cost(
    devices: Sequence[str],
    source: ChoiceSource,
    sizes: Mapping[str, int],
    calibrations: Mapping[str, Calibration],
) -> Ranking:
    """The devices by what a run with these sizes is predicted to take; those without a calibration last, in order."""
    known = [device for device in devices if device in calibrations]
    found: dict[str, Prediction] = {}
    if known:
        likely = likely_quickest(source.program(), sizes, {device: calibrations[device] for device in known})
        groups = source.fused(likely)
        portions: Known = {}
        there = {device: groups if device == likely else _for_device(groups, device) for device in known}
        for device in known:
            found[device] = predict(workload(there[device], portions), sizes, calibrations[device])
    least = min((prediction.seconds for prediction in found.values()), default=inf)

    def place(device: str) -> tuple[bool, bool, float]:
        """Of devices between which predictions cannot tell, one on the host's memory first: it moves no data."""
        seconds = found[device].seconds
        is_near = seconds <= AS_GOOD * least
        return not is_near, is_near and compiling(device).has_memory, seconds

    entries = [_predicted(device, found[device]) for device in sorted(known, key=place)]
    unknown = [Ranked(device, None, "it is not calibrated") for device in devices if device not in calibrations]
    return Ranking("cost", (*entries, *unknown))


def calibrations_of(devices: Sequence[str], threads: int | None) -> tuple[dict[str, Calibration], dict[str, str]]:
    """What is known of devices, measured now where it is not; and of the others, why it is not known."""
    found: dict[str, Calibration] = {}
    problems: dict[str, str] = {}
    for device in devices:
        try:
            found[device] = calibrated(device, threads)
        except Exception as error:  # whatever a driver of someone else's raises
            problems[device] = _problem(error)
    return found, problems


def likely_sizes(program: TensorProgram, given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of dynamic dims: those given, and for the rest usual ones for which the program works."""
    likely: dict[str, int] = {}
    for number, sizes in enumerate(usual_sizes(program.inputs, program.guards, given)):
        likely = sizes if number == 0 else likely
        with suppress(GuardError, ArithmeticError):
            check_guards(program.guards, sizes)
            return sizes
    return likely


def _for_device(groups: FusedProgram, device: str) -> FusedProgram:
    """Groups that were made for another device, as this one would do them: what it lacks is left to the host."""
    return adapted(groups, compiling(device).target("float32"))


def _predicted(device: str, prediction: Prediction) -> Ranked:
    parts = {name: getattr(prediction.parts, name) for name in Seconds.__slots__}
    most = max(parts, key=lambda name: parts[name])
    reason = f"about {prediction.seconds * 1e3:.3g} ms, most of it {most}"
    return Ranked(device, prediction.seconds, reason, prediction.parts)


# -- by benchmark ----------------------------------------------------------------------------------------------------


def by_benchmark(
    devices: Sequence[str],
    ready: Callable[[str], Run],
    runs: int = TURN_RUNS * FEWEST_TURNS,
    seconds: float = BENCHMARK_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Ranking:
    """The devices by the median of timed runs, in turns; `ready` compiles for one and gives what runs there.

    Each has at least so many `runs`, unless the seconds are over; it ends when the order is clear. A device that fails,
    while it compiles or runs, is out, with its reason.
    """
    racing: dict[str, Run] = {}
    times: dict[str, list[list[float]]] = {}
    failed: list[Ranked] = []
    for device in devices:
        try:
            run = ready(device)
            run()
            racing[device], times[device] = run, [[_timed(run, clock)]]
        except Exception as error:
            failed.append(_failed(device, error))
    least = -(-runs // FEWEST_TURNS)
    end = clock() + seconds
    for number in range(MOST_TURNS):
        if len(racing) < 2 or (number and clock() >= end) or (number >= FEWEST_TURNS and _is_clear(times)):
            break
        for device in sorted(racing, reverse=number % 2 == 1):
            try:
                turn = _turn(racing[device], least, end, clock)
            except Exception as error:
                failed.append(_failed(device, error))
                del racing[device], times[device]
                continue
            times[device] = [*times[device], turn] if number else [turn]  # the first run only warmed it up
        best = min(map(_median, times.values()), default=inf)
        racing = {device: run for device, run in racing.items() if _median(times[device]) <= FAR_BEHIND * best}
    order = sorted(times, key=lambda device: _median(times[device]))
    entries = [_measured(device, times[device]) for device in order]
    return Ranking("benchmark", (*entries, *failed))


def _turn(run: Run, least: int, end: float, clock: Callable[[], float]) -> list[float]:
    """Times of some runs in a row, after some that wake the device; at the end there is only one more."""
    awake = clock() + WARM_SECONDS
    run()
    while clock() < min(awake, end):
        run()
    times: list[float] = []
    began = clock()
    while not times or (clock() < end and (clock() - began < TURN_SECONDS or len(times) < least)):
        times.append(_timed(run, clock))
    return times


def _timed(run: Run, clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _median(turns: Sequence[Sequence[float]]) -> float:
    return median(seconds for turn in turns for seconds in turn)


def _is_clear(times: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether the best device was better than every other in all turns."""
    turns = {device: [median(turn) for turn in found] for device, found in times.items()}
    best = min(turns, key=lambda device: median(turns[device]))
    return all(min(turns[device]) > CLEARLY * max(turns[best]) for device in turns if device != best)


def _measured(device: str, turns: Sequence[Sequence[float]]) -> Ranked:
    found, count = _median(turns), sum(map(len, turns))
    return Ranked(device, found, f"{found * 1e3:.3g} ms, the median of {count} run{'s' if count > 1 else ''}")


def _failed(device: str, error: Exception) -> Ranked:
    """A device that is out; an error that another one would have too is raised."""
    if not is_the_devices(error):
        raise error
    return Ranked(device, None, _problem(error))


def _problem(error: Exception) -> str:
    return error.problem if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"


# -- remembered ------------------------------------------------------------------------------------------------------


class RememberedRankings:
    """Rankings on disk. `model` names the model's content; without one nothing is remembered.

    What a ranking depends on beside that: the devices, the shapes of the sample, and what is `known` of the devices.
    """

    def __init__(self, model: str | None) -> None:
        folder = cache_folder()
        self._folder = None if folder is None or model is None else folder / "choices"
        self._model = model or ""

    def get(self, by: str, devices: Sequence[str], shapes: Shapes | None, known: str) -> Ranking | None:
        """The ranking of these devices that was found before, under the same circumstances."""
        path = self._path(by, devices, shapes, known)
        if path is not None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                return _from_record(json.loads(read_file(path)), by, devices)
        return None

    def put(self, ranking: Ranking, devices: Sequence[str], shapes: Shapes | None, known: str) -> None:
        path = self._path(ranking.by, devices, shapes, known)
        if path is not None:
            with suppress(OSError):
                write_file(path, json.dumps(_to_record(ranking)).encode())

    def _path(self, by: str, devices: Sequence[str], shapes: Shapes | None, known: str) -> Path | None:
        if self._folder is None:
            return None
        taken = None if shapes is None else sorted(shapes.items())
        return self._folder / f"{key_of('choice 1', self._model, by, repr(tuple(devices)), repr(taken), known)}.json"


def _to_record(ranking: Ranking) -> list[Any]:
    return [
        [entry.device, entry.seconds, entry.reason, None if entry.parts is None else list(_numbers(entry.parts))]
        for entry in ranking.entries
    ]


def _from_record(record: Any, by: str, devices: Sequence[str]) -> Ranking:
    entries = []
    for device, seconds, reason, parts in record:
        if not isinstance(reason, str) or not (seconds is None or 0 <= seconds < inf):
            raise ValueError("no ranking")
        entries.append(Ranked(device, seconds, reason, None if parts is None else Seconds(*map(float, parts))))
    if sorted(entry.device for entry in entries) != sorted(devices):
        raise ValueError("a ranking of other devices")
    return Ranking(by, tuple(entries), remembered=True)


def _numbers(parts: Seconds) -> tuple[float, ...]:
    return tuple(getattr(parts, name) for name in Seconds.__slots__)


def with_reasons(ranking: Ranking, problems: Mapping[str, str]) -> Ranking:
    """The same ranking; devices that are not calibrated say why."""
    entries = tuple(
        replace(entry, reason=problems[entry.device]) if entry.device in problems else entry
        for entry in ranking.entries
    )
    return replace(ranking, entries=entries)
