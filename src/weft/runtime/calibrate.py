"""Calibrate devices: measure each once, keep the result on disk, and measure again when the device or weft changes.

In: the name of a device. Out: its `Calibration`. Small programs (probes.py) are timed, and the fastest run counts:
noise only makes runs slower. The file is keyed by hardware, driver, threads and weft itself; one that is damaged, or
that other users could have written, is ignored.
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

from weft.backends.device import CompilingDriver, Executable, LoadingDriver, RunOptions
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
from weft.threads import make_lock, usable_cores

PROBE_SECONDS = 2e-2  # of all runs of a probe, unless the first alone takes longer
FEWEST_RUNS, MOST_RUNS = 2, 50
BUDGET = 1.6  # seconds, after which the remaining types count as fast as float32
LEAST_SECONDS = 1e-8  # lower bound of every measured time
MOST_UNITS = 1 << 16
SHARING = (0.25e-6, 0.75e-6)  # seconds for each thread that shares work, at least and at most
LEAST_EFFICIENCY = 0.46  # of a CPU's peak; a lower measurement means that other processes were running
REAL_RUN_FACTOR = 2.0  # overhead of a model's run on a device with its own memory, relative to the smallest probe
SATURATION = 4e-4  # seconds of work that keep a device busy whose threads wait for memory
VECTOR_EFFICIENCY = {  # relative to large products, where lanes are elements of vectors
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
THREAD_EFFICIENCY = {  # where lanes are threads
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

_calibrations: dict[str, Calibration] = {}
_measuring = make_lock()


def get_calibration(device: str, threads: int | None = None) -> Calibration:
    """Return a device's calibration, measured now if it is not known; DeviceError if it cannot be measured."""
    with _measuring:
        calibration = known_calibration(device, threads)
        return _measure(device, threads, lambda _: None) if calibration is None else calibration


def measure_calibration(device: str, threads: int | None = None, progress: Progress = lambda _: None) -> Calibration:
    """Measure a device again; `progress` is called with what is measured."""
    with _measuring:
        return _measure(device, threads, progress)


def known_calibration(device: str, threads: int | None) -> Calibration | None:
    """Return a device's calibration if it was measured before."""
    identity = device_identity(device, threads)
    if identity not in _calibrations:
        path = _calibration_path(identity)
        calibration = None if path is None else _read_calibration(path, identity)
        if calibration is None:
            return None
        _calibrations[identity] = calibration
    return _calibrations[identity]


def device_identity(device: str, threads: int | None) -> str:
    """Return a digest of everything that measurements depend on: hardware, driver, threads and weft."""
    info = choose(device)
    opened = driver(info.name)
    hardware = (info.name, info.description, info.kind, info.driver)
    code = ""
    if isinstance(opened, LoadingDriver):
        with suppress(Exception):  # any error of a foreign driver; using the device reports it
            code = opened.identity()
    return key_of("calibration 3", *hardware, code, str(usable_cores()), str(threads), package_digest() or "")


def _measure(device: str, threads: int | None, progress: Progress) -> Calibration:
    opened = driver(choose(device).name)
    if not isinstance(opened, CompilingDriver):
        raise DeviceError(f"device {device!r} cannot be measured: it compiles no kernels", hint="choose another device")
    identity = device_identity(device, threads)
    calibration = _calibrations[identity] = _Measurement(opened, threads, progress).calibration(identity)
    DEVICES.info("%s was calibrated, for the choice of a device", device)
    path = _calibration_path(identity)
    if path is not None and package_digest() is not None:
        with suppress(OSError):
            write_file(path, json.dumps(to_record(calibration)).encode())
    return calibration


def _calibration_path(identity: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "calibrations" / f"{identity}.json"


def _read_calibration(path: Path, identity: str) -> Calibration | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        calibration = from_record(json.loads(read_file(path)))
        if calibration.identity == identity:
            return calibration
    return None


# -- measuring -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Measurement:
    """Times the probes on one device."""

    opened: CompilingDriver
    threads: int | None
    progress: Progress
    start: float = field(default_factory=time.perf_counter)

    def calibration(self, identity: str) -> Calibration:
        """Measure all numbers of a calibration."""
        opened = self.opened
        target = opened.target("float32")
        is_threads = isinstance(target, ThreadTarget)
        waits = isinstance(target, ThreadTarget) and target.sharing_pays  # a real GPU waits for memory
        units = 1 if is_threads else min(self.threads or MOST_UNITS, usable_cores())
        self.progress("arithmetic and memory")
        peak = opened.calibrate(self.threads or usable_cores())
        self.progress("runs and launches")
        smallest = self._time_probe(probes.smallest())
        launch = _clamp_seconds((self._time_probe(probes.chain()) - smallest) / (probes.CHAIN - 1))
        iteration = _clamp_seconds((self._time_probe(probes.iterations()) - smallest) / probes.ITERATIONS)
        upload, download = self._measure_transfers(smallest, launch) if opened.has_memory else (Transfer(), Transfer())
        transfer_seconds = upload.seconds + download.seconds
        interruption = _clamp_seconds(self._time_probe(probes.host_step()) - smallest - transfer_seconds)
        overhead = self._time_probe(probes.smallest(), placed=True)
        column = self._time_probe(probes.column_sums(), placed=True) - overhead
        self.progress("products of float32")
        large = probes.products(DType.float32, peak)
        rate = large.flops / _clamp_seconds(self._time_probe(large, placed=True) - overhead)
        rate = rate if is_threads else max(rate, LEAST_EFFICIENCY * peak.flops)
        return Calibration(
            device=opened.name,
            identity=identity,
            peak=peak,
            products=((DType.float32, rate), *self._measure_other_types(peak, overhead, target)),
            reached=tuple((THREAD_EFFICIENCY if is_threads else VECTOR_EFFICIENCY).items()),
            saturation=SATURATION if waits else 0.0,
            units=units,
            share_seconds=self._measure_sharing(units, rate) if units > 1 else 0.0,
            launch_seconds=launch,
            serial_seconds=max(column / probes.COLUMN, 0.0) if waits else 0.0,
            iteration_seconds=iteration,
            run_seconds=_clamp_seconds(smallest - transfer_seconds) * (REAL_RUN_FACTOR if opened.has_memory else 1.0),
            host_step_seconds=interruption,
            upload=upload,
            download=download,
        )

    def _measure_transfers(self, smallest: float, launch: float) -> tuple[Transfer, Transfer]:
        """Measure the cost of copying tensors to the device and back."""
        self.progress("transfers")
        several = probes.MANY - 1
        inputs = (self._time_probe(probes.many_inputs()) - smallest) / several
        outputs = (self._time_probe(probes.many_outputs()) - smallest) / several - launch
        large = [self._time_probe(probe) - smallest for probe in (probes.large_input(), probes.large_output())]
        up, down = (probes.LARGE_BYTES / _clamp_seconds(seconds) for seconds in large)
        return Transfer(max(inputs, 0.0), up), Transfer(max(outputs, 0.0), down)

    def _measure_sharing(self, units: int, rate: float) -> float:
        """Measure the seconds it takes threads to share work, clamped to the likely range."""
        small = probes.small_products()
        alone = small.flops / (rate * VECTOR_EFFICIENCY[WorkKind.PRODUCT])
        measured = (self._time_probe(small) - self._time_probe(probes.smallest()) - alone) / probes.LAYERS
        low, high = (seconds * (units - 1) for seconds in SHARING)
        return min(max(measured, low), high)

    def _measure_other_types(self, peak: Peak, overhead: float, target: Target) -> Iterator[tuple[DType, float]]:
        """Measure operations per second of products of other types, within the time budget."""
        others: Mapping[DType, Callable[[], Probe]] = {
            DType.int8: lambda: probes.byte_products(peak),
            DType.float16: lambda: probes.products(DType.float16, peak),
            DType.bfloat16: lambda: probes.products(DType.bfloat16, peak, 0.5),
            DType.float64: lambda: probes.products(DType.float64, peak, 0.5),
        }
        for dtype, make in others.items():
            if dtype not in target.missing_types and time.perf_counter() - self.start < BUDGET:
                self.progress(f"products of {dtype}")
                with suppress(WeftError):
                    probe = make()
                    yield dtype, probe.flops / _clamp_seconds(self._time_probe(probe, placed=True) - overhead)

    def _time_probe(self, probe: Probe, *, placed: bool = False) -> float:
        """Measure the seconds of a run; `placed`: on inputs that are on the device already."""
        target = self.opened.target("float32")
        sections = build_sections(fuse(probe.program, target), target)
        compiled = self.opened.compile(probe.program, sections, True, lambda *_: None)
        executable = self.opened.start(compiled, RunOptions(self.threads))
        on_device = placed and self.opened.has_memory
        return _time_fastest(executable, list(map(self.opened.place, probe.inputs)) if on_device else probe.inputs)


def _clamp_seconds(seconds: float) -> float:
    return max(seconds, LEAST_SECONDS)


def _time_fastest(executable: Executable, inputs: Sequence[Any]) -> float:
    """Return the least seconds of some runs after a warm-up run."""
    executable.run(inputs)
    fewest = spent = inf
    runs = 0
    while runs < FEWEST_RUNS or (runs < MOST_RUNS and spent < PROBE_SECONDS):
        start = time.perf_counter()
        executable.run(inputs)
        seconds = time.perf_counter() - start
        fewest = min(fewest, seconds)
        spent = seconds if runs == 0 else spent + seconds
        runs += 1
    return fewest
