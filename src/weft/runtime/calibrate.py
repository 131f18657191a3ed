"""What devices were measured to do: measured once, kept on disk, and measured again when anything of it changed.

In: the name of a device. Out: its `Calibration`. Runs of small programs (probes.py) are timed, of which the quickest
counts: nothing makes a device faster than it is. What is kept is named by hardware, driver, threads and weft itself;
a file that is damaged, or that others could have written, is as good as none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from math import inf
from pathlib import Path
from typing import Any

from weft.backends.device import CompilingDriver, KeepingDriver, Runner, RunOptions
from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cache.sources import package_digest
from weft.cost.calibration import Calibration, Transfer, WorkKind, from_record, to_record
from weft.cost.roofline import Peak
from weft.errors import DeviceError, WeftError
from weft.fuse import fuse
from weft.ir.dtypes import DType
from weft.ir.target import Target, ThreadTarget
from weft.kernels.sections import build_sections
from weft.logs import DEVICES
from weft.records import dataclass
from weft.runtime import probes
from weft.runtime.devices import choose, driver
from weft.runtime.probes import Probe
from weft.threads import lock, usable_cores

ENOUGH = 2e-2  # seconds that the runs of a probe take together, unless the first alone takes longer
FEWEST_RUNS, MOST_RUNS = 2, 50
BUDGET = 1.6  # seconds after which types that are left are taken for as fast as float32
LEAST = 1e-8  # seconds that anything takes
MOST_UNITS = 1 << 16
SHARING = (0.25e-6, 0.75e-6)  # seconds for each thread that work is shared with, at least and at most
LEAST_REACHED = 0.46  # of a CPU's peak, which each core was measured at alone: less is what others left of it just then
REAL_RUNS = 2.0  # times longer than the smallest, over and over, do runs of models keep a device with its own memory
SATURATION = 4e-4  # seconds of work that leaves nothing idle where threads wait for memory
VECTORS_REACH = {  # of the speed of large products, about, where lanes are elements of vectors
    WorkKind.PRODUCT: 0.78,
    WorkKind.CONVOLUTION: 0.73,
    WorkKind.TRANSFORMED: 1.28,
    WorkKind.ATTENTION: 0.8,
    WorkKind.DEPTHWISE: 0.22,
    WorkKind.ROWS: 0.4,
    WorkKind.MAP: 0.4,
    WorkKind.REDUCE: 0.4,
    WorkKind.POOL: 0.4,
    WorkKind.CUMULATE: 0.05,
    WorkKind.SORT: 0.05,
    WorkKind.SCATTER: 0.05,
}
THREADS_REACH = {  # and where they are threads
    WorkKind.CONVOLUTION: 0.6,
    WorkKind.ATTENTION: 0.6,
    WorkKind.DEPTHWISE: 0.3,
    WorkKind.ROWS: 0.1,
    WorkKind.MAP: 0.1,
    WorkKind.REDUCE: 0.1,
    WorkKind.POOL: 0.1,
    WorkKind.CUMULATE: 0.1,
    WorkKind.SORT: 0.1,
    WorkKind.SCATTER: 0.1,
}
Progress = Callable[[str], None]

_known: dict[str, Calibration] = {}
_measuring = lock()


def calibrated(device: str, threads: int | None = None) -> Calibration:
    """A device's calibration as it was measured before, or now; DeviceError where it cannot be measured."""
    with _measuring:
        found = known_calibration(device, threads)
        return _measured(device, threads, lambda _: None) if found is None else found


def recalibrated(device: str, threads: int | None = None, progress: Progress = lambda _: None) -> Calibration:
    """The same, measured again; `progress` hears what is being measured."""
    with _measuring:
        return _measured(device, threads, progress)


def known_calibration(device: str, threads: int | None) -> Calibration | None:
    """A device's calibration, if it was measured before."""
    identity = device_identity(device, threads)
    if identity not in _known:
        path = _path(identity)
        kept = None if path is None else _read(path, identity)
        if kept is None:
            return None
        _known[identity] = kept
    return _known[identity]


def device_identity(device: str, threads: int | None) -> str:
    """What measurements hold for: hardware and driver, threads, and weft."""
    found = choose(device)
    opened = driver(found.name)
    what = (found.name, found.description, found.kind, found.driver)
    code = ""
    if isinstance(opened, KeepingDriver):
        with suppress(Exception):  # whatever a driver of someone else's raises; to be said by whoever uses it
            code = opened.identity()
    return key_of("calibration 3", *what, code, str(usable_cores()), str(threads), package_digest() or "")


def _measured(device: str, threads: int | None, progress: Progress) -> Calibration:
    opened = driver(choose(device).name)
    if not isinstance(opened, CompilingDriver):
        raise DeviceError(f"device {device!r} cannot be measured: it compiles nothing", hint="choose another device")
    identity = device_identity(device, threads)
    found = _known[identity] = _Measurement(opened, threads, progress).calibration(identity)
    DEVICES.info("%s was measured, for the choice of a device", device)
    path = _path(identity)
    if path is not None and package_digest() is not None:
        with suppress(OSError):
            write_file(path, json.dumps(to_record(found)).encode())
    return found


def _path(identity: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "calibrations" / f"{identity}.json"


def _read(path: Path, identity: str) -> Calibration | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = from_record(json.loads(read_file(path)))
        if found.identity == identity:
            return found
    return None


# -- measuring -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Measurement:
    """One device at its probes."""

    opened: CompilingDriver
    threads: int | None
    progress: Progress
    began: float = field(default_factory=time.perf_counter)

    def calibration(self, identity: str) -> Calibration:
        """All of it."""
        opened = self.opened
        target = opened.target("float32")
        is_threads = isinstance(target, ThreadTarget)
        waits = isinstance(target, ThreadTarget) and target.sharing_pays  # for memory, as software does not
        units = 1 if is_threads else min(self.threads or MOST_UNITS, usable_cores())
        self.progress("arithmetic and memory")
        peak = opened.calibrate(self.threads or usable_cores())
        self.progress("runs and launches")
        smallest = self._time(probes.smallest())
        launch = _positive((self._time(probes.chain()) - smallest) / (probes.CHAIN - 1))
        iteration = _positive((self._time(probes.iterations()) - smallest) / probes.ITERATIONS)
        upload, download = self._transfers(smallest, launch) if opened.has_memory else (Transfer(), Transfer())
        moved = upload.seconds + download.seconds
        interruption = _positive(self._time(probes.host_step()) - smallest - moved)
        there = self._time(probes.smallest(), placed=True)
        column = self._time(probes.column_sums(), placed=True) - there
        self.progress("products of float32")
        large = probes.products(DType.float32, peak)
        rate = large.flops / _positive(self._time(large, placed=True) - there)
        rate = rate if is_threads else max(rate, LEAST_REACHED * peak.flops)
        return Calibration(
            device=opened.name,
            identity=identity,
            peak=peak,
            products=((DType.float32, rate), *self._other_types(peak, there, target)),
            reached=tuple((THREADS_REACH if is_threads else VECTORS_REACH).items()),
            saturation=SATURATION if waits else 0.0,
            units=units,
            share_seconds=self._sharing(units, rate) if units > 1 else 0.0,
            launch_seconds=launch,
            serial_seconds=max(column / probes.COLUMN, 0.0) if waits else 0.0,
            iteration_seconds=iteration,
            run_seconds=_positive(smallest - moved) * (REAL_RUNS if opened.has_memory else 1.0),
            host_step_seconds=interruption,
            upload=upload,
            download=download,
        )

    def _transfers(self, smallest: float, launch: float) -> tuple[Transfer, Transfer]:
        """What it costs to bring tensors there and back."""
        self.progress("transfers")
        several = probes.MANY - 1
        inputs = (self._time(probes.many_inputs()) - smallest) / several
        outputs = (self._time(probes.many_outputs()) - smallest) / several - launch
        large = [self._time(probe) - smallest for probe in (probes.large_input(), probes.large_output())]
        up, down = (probes.LARGE_BYTES / _positive(seconds) for seconds in large)
        return Transfer(max(inputs, 0.0), up), Transfer(max(outputs, 0.0), down)

    def _sharing(self, units: int, rate: float) -> float:
        """What it takes so many threads to share work: as measured, or as is likely where others disturbed that."""
        small = probes.small_products()
        alone = small.flops / (rate * VECTORS_REACH[WorkKind.PRODUCT])
        measured = (self._time(small) - self._time(probes.smallest()) - alone) / probes.LAYERS
        low, high = (each * (units - 1) for each in SHARING)
        return min(max(measured, low), high)

    def _other_types(self, peak: Peak, there: float, target: Target) -> Iterator[tuple[DType, float]]:
        """Operations a second of products of types other than float32, as far as there is time."""
        others: Mapping[DType, Callable[[], Probe]] = {
            DType.int8: lambda: probes.byte_products(peak),
            DType.float16: lambda: probes.products(DType.float16, peak),
            DType.bfloat16: lambda: probes.products(DType.bfloat16, peak, 0.5),
            DType.float64: lambda: probes.products(DType.float64, peak, 0.5),
        }
        for dtype, make in others.items():
            if dtype not in target.missing_types and time.perf_counter() - self.began < BUDGET:
                self.progress(f"products of {dtype}")
                with suppress(WeftError):
                    probe = make()
                    yield dtype, probe.flops / _positive(self._time(probe, placed=True) - there)

    def _time(self, probe: Probe, *, placed: bool = False) -> float:
        """The seconds of a run; `placed`: on inputs that are on the device already."""
        target = self.opened.target("float32")
        sections = build_sections(fuse(probe.program, target), target)
        compiled = self.opened.compile(probe.program, sections, True, lambda *_: None)
        runner = self.opened.start(compiled, RunOptions(self.threads))
        there = placed and self.opened.has_memory
        return _quickest(runner, list(map(self.opened.place, probe.inputs)) if there else probe.inputs)


def _positive(seconds: float) -> float:
    return max(seconds, LEAST)


def _quickest(runner: Runner, inputs: Sequence[Any]) -> float:
    """The least seconds of some runs, the first of which, with all that it gets ready, left out."""
    runner.run(inputs)
    fewest = spent = inf
    runs = 0
    while runs < FEWEST_RUNS or (runs < MOST_RUNS and spent < ENOUGH):
        start = time.perf_counter()
        runner.run(inputs)
        seconds = time.perf_counter() - start
        fewest = min(fewest, seconds)
        spent = seconds if runs == 0 else spent + seconds
        runs += 1
    return fewest
