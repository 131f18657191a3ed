"""What devices were measured to do: measured once, kept on disk, and measured again when anything of it changed.

In: the name of a device. Out: its `Calibration`. Runs of small programs (probes.py) are timed, of which the quickest
counts: nothing makes a device faster than it is. What is kept is named by hardware, driver, threads and weft itself;
a file that is damaged, or that others could have written, is as good as none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from weft.backends.device import CompilingDriver, Runner, RunOptions
from weft.cache.digests import key_of, package_digest
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.blocks import BLOCK_SECONDS
from weft.cost.calibration import Calibration, Transfer, WorkKind, from_record, to_record
from weft.cost.prediction import workload
from weft.cost.roofline import Peak
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
Progress = Callable[[str], None]

_known: dict[str, Calibration] = {}
_measuring = lock()


def calibrated(device: str, threads: int | None = None) -> Calibration:
    """A device's calibration as it was measured before, or now; DeviceError where it cannot be measured."""
    identity = calibration_identity(device, threads)
    with _measuring:
        if identity not in _known:
            path = _path(identity)
            kept = None if path is None else _read(path, identity)
            _known[identity] = kept or _measured(device, threads, identity, lambda _: None)
        return _known[identity]


def recalibrated(device: str, threads: int | None = None, progress: Progress = lambda _: None) -> Calibration:
    """The same, measured again; `progress` hears what is being measured."""
    identity = calibration_identity(device, threads)
    with _measuring:
        _known[identity] = _measured(device, threads, identity, progress)
        return _known[identity]


def calibration_identity(device: str, threads: int | None) -> str:
    """What a calibration holds for: hardware and driver, threads, and weft."""
    found = choose(device)
    opened = driver(found.name)
    if not isinstance(opened, CompilingDriver):
        raise DeviceError(f"device {device!r} cannot be measured: it compiles nothing", hint="choose another device")
    what = (found.name, found.description, found.kind, found.driver, opened.identity())
    return key_of("calibration 1", *what, str(usable_cores()), str(threads), package_digest() or "")


def _measured(device: str, threads: int | None, identity: str, progress: Progress) -> Calibration:
    opened = driver(choose(device).name)
    assert isinstance(opened, CompilingDriver)
    found = _Measurement(opened, threads, progress).calibration(identity)
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
        opened = self.opened
        target = opened.target("float32")
        self.progress("arithmetic and memory")
        peak = opened.calibrate(self.threads or usable_cores())
        self.progress("runs and launches")
        smallest, _ = self._time(probes.smallest())
        chained, launches = self._time(probes.chain())
        iterated, iterations = self._time(probes.iterations())
        interrupted, _ = self._time(probes.host_step())
        launch = max((chained - smallest) / (launches - 1), LEAST)
        upload, download = self._transfers(smallest, launch) if opened.has_memory else (Transfer(), Transfer())
        moved = upload.seconds + download.seconds
        products, reached = self._rates(peak, smallest, target)
        is_threads = isinstance(target, ThreadTarget)
        return Calibration(
            device=opened.name,
            identity=identity,
            peak=peak,
            products=tuple(products.items()),
            reached=tuple(reached.items()),
            units=target.rates.compute_units if is_threads else min(self.threads or inf, usable_cores()),
            grain=0.0 if is_threads else BLOCK_SECONDS,
            launch_seconds=launch,
            iteration_seconds=max((iterated - smallest) / iterations, LEAST),
            run_seconds=max(smallest - moved, LEAST),
            host_step_seconds=max(interrupted - smallest - moved, LEAST),
            upload=upload,
            download=download,
        )

    def _transfers(self, smallest: float, launch: float) -> tuple[Transfer, Transfer]:
        """What it costs to bring tensors there and back."""
        self.progress("transfers")
        several = probes.MANY - 1
        inputs = (self._time(probes.many_inputs())[0] - smallest) / several
        outputs = (self._time(probes.many_outputs())[0] - smallest) / several - launch
        up, down = (self._time(probe)[0] - smallest for probe in (probes.large_input(), probes.large_output()))
        rates = [probes.LARGE_BYTES / max(seconds, LEAST) for seconds in (up, down)]
        return Transfer(max(inputs, 0.0), rates[0]), Transfer(max(outputs, 0.0), rates[1])

    def _rates(self, peak: Peak, smallest: float, target: Target) -> tuple[dict[DType, float], dict[WorkKind, float]]:
        """Operations a second of products by type, and what part of float32's convolutions reach."""

        def rate(probe: Probe) -> float:
            return probe.flops / max(self._time(probe, placed=True)[0] - smallest, LEAST)

        self.progress("products of float32")
        products = {DType.float32: rate(probes.products(DType.float32, peak))}
        self.progress("convolutions")
        convolutions = {
            WorkKind.CONVOLUTION: probes.convolutions(peak, stride=2),
            WorkKind.TRANSFORMED: probes.convolutions(peak),
            WorkKind.DEPTHWISE: probes.depthwise_convolutions(peak),
        }
        reached = {kind: rate(probe) / products[DType.float32] for kind, probe in convolutions.items()}
        others: Mapping[DType, Callable[[], Probe]] = {
            DType.float16: lambda: probes.products(DType.float16, peak),
            DType.int8: lambda: probes.byte_products(peak),
            DType.bfloat16: lambda: probes.products(DType.bfloat16, peak, 0.5),
            DType.float64: lambda: probes.products(DType.float64, peak, 0.5),
        }
        for dtype, probe in others.items():
            if dtype not in target.missing_types and time.perf_counter() - self.began < BUDGET:
                self.progress(f"products of {dtype}")
                with suppress(WeftError):
                    products[dtype] = rate(probe())
        return products, reached

    def _time(self, probe: Probe, *, placed: bool = False) -> tuple[float, float]:
        """The seconds of a run, and how many launches it has; `placed`: on inputs that are on the device already."""
        target = self.opened.target("float32")
        fused = fuse(probe.program, target)
        compiled = self.opened.compile(probe.program, build_sections(fused, target), True, lambda *_: None)
        runner = self.opened.start(compiled, RunOptions(self.threads))
        portions = workload(fused).portions
        launches = sum(portion.launches * int(str(portion.times)) for portion in portions)
        there = placed and self.opened.has_memory
        return _quickest(runner, list(map(self.opened.place, probe.inputs)) if there else probe.inputs), launches


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
