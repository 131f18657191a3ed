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
from dataclasses import dataclass, field, replace
from math import inf, log
from pathlib import Path
from typing import Any

from weft.backends.device import CompilingDriver, KeepingDriver, Runner, RunOptions
from weft.cache.digests import key_of, package_digest
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.blocks import BLOCK_SECONDS
from weft.cost.calibration import Calibration, Transfer, WorkKind, from_record, occupied, to_record
from weft.errors import DeviceError, WeftError
from weft.fuse import fuse
from weft.ir.dtypes import DType
from weft.ir.target import Target, ThreadTarget
from weft.kernels.sections import build_sections
from weft.runtime import probes
from weft.runtime.devices import choose, driver
from weft.runtime.probes import Probe
from weft.threads import lock, usable_cores

ENOUGH = 2e-2  # seconds that the runs of a probe take together, unless the first alone takes longer
FEWEST_RUNS, MOST_RUNS = 2, 50
BUDGET = 1.6  # seconds after which types that are left are taken for as fast as float32
LEAST = 1e-8  # seconds that anything takes
SHARED_PART, OCCUPYING_PART = (
    0.5,
    0.25,
)  # of the sides of a large product, those of one that is small for vectors, threads
TRANSFORMED_GAIN = 2.2  # of convolutions on transformed tiles, about
VECTORS_REACH = {  # of the speed of products, about, where lanes are elements of vectors
    WorkKind.ATTENTION: 0.8,
    WorkKind.ROWS: 0.4,
    WorkKind.MAP: 0.4,
    WorkKind.REDUCE: 0.4,
    WorkKind.POOL: 0.2,
    WorkKind.CUMULATE: 0.05,
    WorkKind.SORT: 0.05,
    WorkKind.SCATTER: 0.05,
}
THREADS_REACH = {  # and where they are threads
    WorkKind.ATTENTION: 0.6,
    WorkKind.ROWS: 0.1,
    WorkKind.MAP: 0.1,
    WorkKind.REDUCE: 0.1,
    WorkKind.POOL: 0.1,
    WorkKind.CUMULATE: 0.05,
    WorkKind.SORT: 0.05,
    WorkKind.SCATTER: 0.05,
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
    code = opened.identity() if isinstance(opened, KeepingDriver) else ""
    return key_of("calibration 2", *what, code, str(usable_cores()), str(threads), package_digest() or "")


def _measured(device: str, threads: int | None, progress: Progress) -> Calibration:
    opened = driver(choose(device).name)
    if not isinstance(opened, CompilingDriver):
        raise DeviceError(f"device {device!r} cannot be measured: it compiles nothing", hint="choose another device")
    identity = device_identity(device, threads)
    found = _known[identity] = _Measurement(opened, threads, progress).calibration(identity)
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
    smallest: float = 0.0  # seconds of a run that does next to nothing
    began: float = field(default_factory=time.perf_counter)

    def calibration(self, identity: str) -> Calibration:
        """All of it; what comes first is what later numbers are made with."""
        opened = self.opened
        target = opened.target("float32")
        is_threads = isinstance(target, ThreadTarget)
        self.progress("arithmetic and memory")
        peak = opened.calibrate(self.threads or usable_cores())
        self.progress("runs and launches")
        self.smallest = self._time(probes.smallest())
        launch = self._above(probes.chain()) / (probes.CHAIN - 1)
        iteration = self._above(probes.iterations()) / probes.ITERATIONS
        column = self._time(probes.column_sums(), placed=True) - self.smallest
        interruption = self._above(probes.host_step())
        upload, download = self._transfers(launch) if opened.has_memory else (Transfer(), Transfer())
        moved = upload.seconds + download.seconds
        self.progress("products of float32")
        large = probes.products(DType.float32, peak)
        small = probes.products(DType.float32, peak, OCCUPYING_PART if is_threads else SHARED_PART)
        rate = large.flops / self._above(large)
        found = Calibration(
            device=opened.name,
            identity=identity,
            peak=peak,
            products=((DType.float32, rate),),
            reached=tuple((THREADS_REACH if is_threads else VECTORS_REACH).items()),
            units=1.0 if is_threads else min(self.threads or inf, usable_cores()),
            grain=0.0 if is_threads else BLOCK_SECONDS,
            launch_seconds=launch,
            serial_seconds=max(column / probes.COLUMN, 0.0),
            iteration_seconds=iteration,
            run_seconds=max(self.smallest - moved, LEAST),
            host_step_seconds=max(interruption - moved, LEAST),
            upload=upload,
            download=download,
        )
        each = max(self._above(small) / probes.LAYERS - launch, LEAST)
        few = small.flops / probes.LAYERS
        if is_threads:
            saturation = large.flops / probes.LAYERS
            slower = max(log(rate * each / few), 0.0)
            found = replace(found, saturation=saturation, falloff=min(slower / log(saturation / few), 1.0))
        else:
            found = replace(found, share_seconds=max(each - few / rate, 0.0))
        found = replace(found, reached=tuple({**dict(found.reached), **self._convolutions(found)}.items()))
        return replace(found, products=(*found.products, *self._other_types(found, target)))

    def _transfers(self, launch: float) -> tuple[Transfer, Transfer]:
        """What it costs to bring tensors there and back."""
        self.progress("transfers")
        several = probes.MANY - 1
        inputs = self._above(probes.many_inputs()) / several
        outputs = self._above(probes.many_outputs()) / several - launch
        up, down = (probes.LARGE_BYTES / self._above(probe) for probe in (probes.large_input(), probes.large_output()))
        return Transfer(max(inputs, 0.0), up), Transfer(max(outputs, 0.0), down)

    def _convolutions(self, known: Calibration) -> dict[WorkKind, float]:
        """What part of the speed of products convolutions reach."""
        self.progress("convolutions")
        convolutions = {
            WorkKind.CONVOLUTION: probes.convolution(known.peak),
            WorkKind.DEPTHWISE: probes.depthwise_convolution(known.peak),
        }
        product = dict(known.products)[DType.float32]
        found = {
            kind: probe.flops / self._above(probe) / product / occupied(probe.flops, known)
            for kind, probe in convolutions.items()
        }
        return {**found, WorkKind.TRANSFORMED: TRANSFORMED_GAIN * found[WorkKind.CONVOLUTION]}

    def _other_types(self, known: Calibration, target: Target) -> Iterator[tuple[DType, float]]:
        """Operations a second of products of types other than float32, as far as there is time."""
        peak = known.peak
        others: Mapping[DType, Callable[[], Probe]] = {
            DType.float16: lambda: probes.products(DType.float16, peak),
            DType.int8: lambda: probes.byte_products(peak),
            DType.bfloat16: lambda: probes.products(DType.bfloat16, peak, 0.5),
            DType.float64: lambda: probes.products(DType.float64, peak, 0.5),
        }
        for dtype, make in others.items():
            if dtype not in target.missing_types and time.perf_counter() - self.began < BUDGET:
                self.progress(f"products of {dtype}")
                with suppress(WeftError):
                    probe = make()
                    count = 1 if dtype is DType.int8 else probes.LAYERS
                    yield dtype, probe.flops / self._above(probe) / occupied(probe.flops / count, known)

    def _above(self, probe: Probe) -> float:
        """Seconds of a run beyond those of one that does nothing; arithmetic is timed on what is there already."""
        return max(self._time(probe, placed=probe.flops > 0) - self.smallest, LEAST)

    def _time(self, probe: Probe, *, placed: bool = False) -> float:
        """The seconds of a run; `placed`: on inputs that are on the device already."""
        target = self.opened.target("float32")
        sections = build_sections(fuse(probe.program, target), target)
        compiled = self.opened.compile(probe.program, sections, True, lambda *_: None)
        runner = self.opened.start(compiled, RunOptions(self.threads))
        there = placed and self.opened.has_memory
        return _quickest(runner, list(map(self.opened.place, probe.inputs)) if there else probe.inputs)


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
