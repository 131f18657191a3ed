"""What one device was measured to do, and how long a piece of work takes there by it.

A `Calibration` decides where work runs, never what is computed: kernels and bits follow from the static rates of a
target. It extends the `Peak` that profiles show by what real runs add to it: what kernels of each kind reach of that
peak, what launches, runs, transfers and steps on the host cost.

An `Amount` is one group's work at given sizes. Its time is that of its launches, of its arithmetic or memory traffic,
whichever is longer, on as many of the device's units as there is work for, and of waiting for weights from afar.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from enum import Enum
from math import inf, isfinite, sqrt
from typing import Any, Literal

from weft.cost.roofline import Peak
from weft.ir.dtypes import DType
from weft.records import dataclass

REACHED_BANDWIDTH = 0.6  # of what a loop that only reads is measured to do, about what kernels reach
Direction = Literal["up", "down"]  # from the host to the device, and back


class WorkKind(str, Enum):
    """Kinds of work that kernels do at speeds of their own."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    TRANSFORMED = "transformed"  # a convolution on transformed tiles, which saves products
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
LIGHTER = 8.0  # times as long must work take that does little to each element, to leave nothing of a GPU idle


@dataclass(frozen=True, slots=True)
class Amount:
    """One group's work: operations of a type, bytes read and written, and launches that wait for each other.

    `far` are those of the bytes that no cache can have: weights of a model that is larger than it. `serial` is how many
    operations a lane does one after the other, where lanes do not share what is reduced.
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
    """Where time goes. Arithmetic and memory traffic overlap, so that of a piece of work only the longer counts."""

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
    """What it takes to bring bytes to a device or back: seconds to begin with, and bytes a second."""

    seconds: float = 0.0
    bandwidth: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Of one device, with all its threads. `identity` names what it holds for: hardware, driver, threads, weft.

    `products` are the operations a second that large products of a type reach, `reached` what part of that (float32's,
    if a type has none) work of other kinds does, of models' sizes. Work that takes less than `saturation` leaves some
    of a GPU idle, the more the shorter it is. On a CPU, one of its `units` does short work alone; it takes
    `share_seconds` to divide longer work among them.
    """

    device: str
    identity: str
    peak: Peak
    products: tuple[tuple[DType, float], ...]
    reached: tuple[tuple[WorkKind, float], ...] = ()
    saturation: float = 0.0  # seconds
    units: float = 1.0
    share_seconds: float = 0.0
    launch_seconds: float  # of a launch after another in the same run
    serial_seconds: float = 0.0  # of an operation that a lane does for itself, after the one before
    iteration_seconds: float  # of a launch in a scan, which does the same over and over
    run_seconds: float  # of a run beside its work: submission, waiting, the way through Python
    host_step_seconds: float  # of interrupting the device for a step on the host, the step itself left out
    upload: Transfer = Transfer()
    download: Transfer = Transfer()

    def flops(self, kind: WorkKind, dtype: DType) -> float:
        """Operations a second that work of a kind reaches with all units."""
        rates = dict(self.products)
        rate = rates.get(dtype, rates.get(DType.float32, self.peak.flops))
        return rate * dict(self.reached).get(kind, 1.0)

    def bandwidth(self, bytes: float) -> float:
        """Bytes a second that work on so many reads and writes."""
        peak = self.peak
        return max(peak.cache_bandwidth, peak.bandwidth) if bytes <= peak.cache_bytes else peak.bandwidth


def work_seconds(amount: Amount, calibration: Calibration, *, iterated: bool = False) -> Seconds:
    """How long a device takes for one group's work; `iterated`: as a part of a scan's body."""
    each = calibration.iteration_seconds if iterated else calibration.launch_seconds
    launches = amount.launches * each
    busy = amount.flops / calibration.flops(amount.kind, amount.dtype)
    idle = sqrt(busy * calibration.saturation * (1.0 if amount.kind in HEAVY else LIGHTER))
    arithmetic = max(busy, idle, amount.serial * calibration.serial_seconds)
    near = amount.bytes - amount.far
    memory = near / (REACHED_BANDWIDTH * calibration.bandwidth(near))
    waiting = amount.far / (REACHED_BANDWIDTH * calibration.peak.bandwidth)
    taken = _divided(max(arithmetic, memory), calibration)
    if arithmetic >= memory:
        return Seconds(arithmetic=taken, memory=waiting, launches=launches)
    return Seconds(memory=taken + waiting, launches=launches)


def transfer_seconds(bytes: float, calibration: Calibration, direction: Direction) -> float:
    """How long one transfer of so many bytes takes; nothing where the device works on the host's memory."""
    transfer = calibration.upload if direction == "up" else calibration.download
    return transfer.seconds + bytes / transfer.bandwidth


def _divided(seconds: float, calibration: Calibration) -> float:
    """The time of work that takes all units so long if they share it evenly: they do, or one of them does it all."""
    return min(seconds * calibration.units, seconds + calibration.share_seconds)


# -- as a record on disk ---------------------------------------------------------------------------------------------


def to_record(calibration: Calibration) -> dict[str, Any]:
    """The calibration in JSON's types."""
    record = asdict(calibration)
    for name in ("upload", "download"):  # JSON knows no infinity
        if not isfinite(record[name]["bandwidth"]):
            record[name]["bandwidth"] = None
    return record


def from_record(record: Any) -> Calibration:
    """The calibration that `to_record` gave; ValueError, TypeError or KeyError for anything else."""
    numbers = {field.name: record[field.name] for field in fields(Calibration)}
    for name in ("upload", "download"):
        seconds, bandwidth = record[name]["seconds"], record[name]["bandwidth"]
        numbers[name] = Transfer(_number(seconds), inf if bandwidth is None else _rate(bandwidth))
    peak = record["peak"]
    caches = _number(peak["cache_bytes"]), _number(peak["cache_bandwidth"])
    numbers["peak"] = Peak(_rate(peak["flops"]), _rate(peak["bandwidth"]), *caches)
    numbers["products"] = tuple((DType(name), _rate(rate)) for name, rate in record["products"])
    numbers["reached"] = tuple((WorkKind(name), _rate(rate)) for name, rate in record["reached"])
    for name in _PLAIN:
        numbers[name] = _number(record[name])
    if not all(isinstance(record[name], str) for name in ("device", "identity")):
        raise TypeError("a device and what it is are texts")
    return Calibration(**numbers)


_PLAIN = (
    "saturation", "units", "share_seconds", "launch_seconds", "serial_seconds", "iteration_seconds", "run_seconds",
    "host_step_seconds",
)  # fmt: skip


def _number(content: Any) -> float:
    if isinstance(content, bool) or not isinstance(content, (int, float)) or not 0 <= content < inf:
        raise ValueError(f"{content!r} is no measurement")
    return float(content)


def _rate(content: Any) -> float:
    if not _number(content):
        raise ValueError("a rate of nothing")
    return float(content)
