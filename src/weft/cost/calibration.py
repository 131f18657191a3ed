"""Calibrations: measurements of one device, and estimates of time from them.

A `Calibration` decides where work runs, never what is computed: kernels and bits follow from the static rates of a
target. It extends a measured `Peak` by what real runs add: the fraction of the peak that kernels of each kind reach,
and the cost of launches, runs, transfers and host steps.

An `Amount` is one group's work at given sizes. Its time consists of its launches, the longer of arithmetic and memory
traffic, on as many of the device's units as there is work for, and of reading weights that are in no cache.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from enum import Enum
from math import inf, isfinite, sqrt
from typing import Any, Literal

from weft.cost.roofline import Peak
from weft.ir.dtypes import DType
from weft.records import dataclass

REACHED_BANDWIDTH = 0.6  # of the measured read bandwidth, which kernels reach
Direction = Literal["up", "down"]  # from the host to the device, and back


class WorkKind(str, Enum):
    """Kinds of work with different efficiency."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    TRANSFORMED = "transformed"  # a Winograd convolution
    DEPTHWISE = "depthwise"
    ATTENTION = "attention"
    ROWS = "rows"
    MAP = "map"
    REDUCE = "reduce"
    POOL = "pool"
    CUMULATE = "cumulate"
    SORT = "sort"
    SCATTER = "scatter"

    __str__ = str.__str__


HEAVY = frozenset(
    (WorkKind.PRODUCT, WorkKind.CONVOLUTION, WorkKind.TRANSFORMED, WorkKind.ATTENTION, WorkKind.DEPTHWISE)
)
LIGHT_WORK_FACTOR = 8.0  # factor on `saturation` for work with little arithmetic per element


@dataclass(frozen=True, slots=True)
class Amount:
    """One group's work: operations of a type, bytes read and written, and launches that wait for each other.

    `far` are the bytes that cannot be cached: weights of a model that is larger than the cache. `serial` is the number
    of operations that a lane does sequentially, if lanes do not share a reduction.
    """

    kind: WorkKind
    dtype: DType
    flops: float
    bytes: float
    launches: float = 1
    far: float = 0.0
    serial: float = 0.0


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time by cause. Arithmetic and memory traffic overlap: for each group only the longer counts."""

    arithmetic: float = 0.0
    memory: float = 0.0
    launches: float = 0.0
    transfers: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return self.arithmetic + self.memory + self.launches + self.transfers + self.host

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Seconds)))

    def __mul__(self, times: float) -> Seconds:
        return Seconds(*(getattr(self, field.name) * times for field in fields(Seconds)))


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of a transfer to or from a device: latency in seconds, and bytes per second."""

    seconds: float = 0.0
    bandwidth: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measurements of one device with all its threads; `identity` names hardware, driver, threads and weft version.

    `products` are the operations per second that large products of a type reach, `reached` the fraction of that (of
    float32's, if a type has none) for work of other kinds at typical sizes. Work shorter than `saturation` leaves some
    of a GPU idle. On a CPU, one of its `units` does short work alone; dividing longer work takes `share_seconds`.
    """

    device: str
    identity: str
    peak: Peak
    products: tuple[tuple[DType, float], ...]
    reached: tuple[tuple[WorkKind, float], ...] = ()
    saturation: float = 0.0  # seconds
    units: float = 1.0
    share_seconds: float = 0.0
    launch_seconds: float  # of one launch in a run
    serial_seconds: float = 0.0  # of an operation that depends on the previous one
    iteration_seconds: float  # of a launch in a scan
    run_seconds: float  # overhead of a run: submission, waiting, Python
    host_step_seconds: float  # overhead of interrupting the device for a host step
    upload: Transfer = Transfer()
    download: Transfer = Transfer()

    def flops(self, kind: WorkKind, dtype: DType) -> float:
        """Return the operations per second that work of a kind reaches with all units."""
        rates = dict(self.products)
        rate = rates.get(dtype, rates.get(DType.float32, self.peak.flops))
        return rate * dict(self.reached).get(kind, 1.0)

    def bandwidth(self, bytes: float) -> float:
        """Return the bandwidth for work on this many bytes."""
        peak = self.peak
        return max(peak.cache_bandwidth, peak.bandwidth) if bytes <= peak.cache_bytes else peak.bandwidth


def work_seconds(amount: Amount, calibration: Calibration, *, iterated: bool = False) -> Seconds:
    """Estimate the time of one group's work; `iterated` says that it is in a scan's body."""
    per_launch = calibration.iteration_seconds if iterated else calibration.launch_seconds
    launches = amount.launches * per_launch
    busy = amount.flops / calibration.flops(amount.kind, amount.dtype)
    idle = sqrt(busy * calibration.saturation * (1.0 if amount.kind in HEAVY else LIGHT_WORK_FACTOR))
    arithmetic = max(busy, idle, amount.serial * calibration.serial_seconds)
    near = amount.bytes - amount.far
    memory = near / (REACHED_BANDWIDTH * calibration.bandwidth(near))
    waiting = amount.far / (REACHED_BANDWIDTH * calibration.peak.bandwidth)
    longer = _divide_work(max(arithmetic, memory), calibration)
    if arithmetic >= memory:
        return Seconds(arithmetic=longer, memory=waiting, launches=launches)
    return Seconds(memory=longer + waiting, launches=launches)


def transfer_seconds(bytes: float, calibration: Calibration, direction: Direction) -> float:
    """Estimate the time of one transfer; 0 for devices that use host memory."""
    transfer = calibration.upload if direction == "up" else calibration.download
    return transfer.seconds + bytes / transfer.bandwidth


def _divide_work(seconds: float, calibration: Calibration) -> float:
    """Return the time of work: divided among all units, or done by one of them, whichever is faster."""
    return min(seconds * calibration.units, seconds + calibration.share_seconds)


# -- JSON records ----------------------------------------------------------------------------------------------------


def to_record(calibration: Calibration) -> dict[str, Any]:
    """Convert a calibration to JSON types."""
    record = asdict(calibration)
    for name in ("upload", "download"):  # JSON has no infinity
        if not isfinite(record[name]["bandwidth"]):
            record[name]["bandwidth"] = None
    return record


def from_record(record: Any) -> Calibration:
    """Read the result of `to_record`; raise ValueError, TypeError or KeyError for anything else."""
    numbers = {field.name: record[field.name] for field in fields(Calibration)}
    for name in ("upload", "download"):
        seconds, bandwidth = record[name]["seconds"], record[name]["bandwidth"]
        numbers[name] = Transfer(_read_number(seconds), inf if bandwidth is None else _read_rate(bandwidth))
    peak = record["peak"]
    caches = _read_number(peak["cache_bytes"]), _read_number(peak["cache_bandwidth"])
    numbers["peak"] = Peak(_read_rate(peak["flops"]), _read_rate(peak["bandwidth"]), *caches)
    numbers["products"] = tuple((DType(name), _read_rate(rate)) for name, rate in record["products"])
    numbers["reached"] = tuple((WorkKind(name), _read_rate(rate)) for name, rate in record["reached"])
    for name in _NUMBERS:
        numbers[name] = _read_number(record[name])
    if not all(isinstance(record[name], str) for name in ("device", "identity")):
        raise TypeError("device and identity must be strings")
    return Calibration(**numbers)


_NUMBERS = (
    "saturation", "units", "share_seconds", "launch_seconds", "serial_seconds", "iteration_seconds", "run_seconds",
    "host_step_seconds",
)  # fmt: skip


def _read_number(content: Any) -> float:
    if isinstance(content, bool) or not isinstance(content, (int, float)) or not 0 <= content < inf:
        raise ValueError(f"{content!r} is not a measurement")
    return float(content)


def _read_rate(content: Any) -> float:
    if not _read_number(content):
        raise ValueError("a rate must not be 0")
    return float(content)
