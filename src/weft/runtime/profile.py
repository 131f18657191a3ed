"""Where a model's time and memory go: records of a few runs -> one `Profile`.

Times of kernels are medians over the runs. What is drawn (spans, tensors, live bytes) is the run whose length is the
median. All times are seconds, in spans from the start of the run on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from itertools import accumulate
from os import PathLike
from typing import Any

import numpy as np

from weft.cost.roofline import Peak, TileArithmetic, tile_arithmetic
from weft.errors import WeftError
from weft.ir.graph import Graph, ops_by_node
from weft.ir.program import ORIGINS
from weft.ir.record import HostRecord, NativeRecord, RunRecord
from weft.quantities import counted, few, format_seconds, shortened
from weft.records import dataclass
from weft.tables import ShownTable, Tabled

Array = np.ndarray[Any, Any]
HOST = -1  # the thread of what runs in Python
WARM_UPS = 2  # runs before those that count
UNNAMED = "%"  # the names of values that no file names begin with it; they go by the node that makes them
_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The launches of one piece of work in one run, or a host step: what it is and comes from, and what it took.

    `flops` and `bytes` are what it has to do at least, so that an algorithm with less arithmetic, or data that stays in
    caches, shows as more than the machine's peak.
    """

    name: str
    nodes: tuple[str, ...]
    launches: int
    seconds: float  # from start to end, of all launches together
    busy: float  # of all threads together
    share: float  # of the time of all
    flops: float
    bytes: float
    roofline: float | None  # the shortest time the machine allows, as a part of the time it took; None on the host
    bound: str  # what keeps that from being shorter: "arithmetic" or "memory", "host" for a host step
    tiles: str = ""  # what tiles are of that are multiplied as wholes: the arithmetic that it is held against

    def __repr__(self) -> str:
        nodes = few(map(shortened, self.nodes), 2)
        took = f"seconds={self.seconds:.3g}, share={self.share:.3f}, bound={self.bound!r}"
        return f"KernelProfile(name={shortened(self.name)!r}, nodes=({nodes}), {took})"

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A thread's work on a launch: `kernel` is a number in the profile's list, `name` that of the launch's own."""

    kernel: int
    name: str
    thread: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TensorProfile:
    """A piece of the arena, from the start of the first launch that needs it to the end of the last."""

    name: str
    nodes: tuple[str, ...]
    offset: int
    size: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes of the arena that are needed from `start` on, where kernel number `kernel` runs."""

    start: float
    bytes: int
    kernel: int


@dataclass(frozen=True, slots=True)
class Profile(Tabled):
    """Where the time and the memory of a model's runs go, as `model.profile()` measures it.

    `str` of it is a table of the slowest kernels, `save` writes all of it as a page, as a trace or as data.
    """

    file: str
    device: str
    threads: int
    runs: tuple[float, ...]  # the time of each
    kernels: tuple[KernelProfile, ...]  # the slowest first
    spans: tuple[TimeSpan, ...]  # what each thread did when, in the run that is drawn
    occupancy: tuple[float, ...]  # of each thread: the part of the run in which it had work
    tensors: tuple[TensorProfile, ...]  # what lies in the arena, where, and how long
    memory: tuple[LiveBytes, ...]  # bytes of the arena that are needed, over time
    arena_bytes: int  # how large the arena is
    machine: Peak  # what the machine can do at most, as measured
    ops: Mapping[str, str] = field(default_factory=dict, hash=False)  # the operators of nodes, by name

    def save(self, path: str | PathLike[str]) -> None:
        """Write it: as a page for a browser (.html), as data (.json), or for Perfetto and Chrome's tracing (.trace).

        The page needs nothing else; it shows when each thread did what, the arena, and all kernels.
        """
        import_module("weft.report.profile_files").save_profile(self, path)

    def __repr__(self) -> str:
        median = f"{format_seconds(self.seconds)} (median of {counted(len(self.runs), 'run')})"
        kernels, threads = counted(len(self.kernels), "kernel"), counted(self.threads, "thread")
        return f"<weft.Profile {shortened(self.file)} on {self.device}: {median}, {kernels}, {threads}>"

    def _tables(self) -> Iterable[ShownTable]:
        from weft.runtime.profile_tables import profile_tables

        return profile_tables(self)

    @property
    def seconds(self) -> float:
        """The time of the run that is drawn: the median."""
        return _middle(self.runs)

    @property
    def flops(self) -> float:
        """The arithmetic of all kernels of one run, as operations on floats."""
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def peak_memory(self) -> LiveBytes | None:
        """The first moment at which most bytes of the arena are needed; None where nothing needs any."""
        return max(self.memory, key=lambda point: point.bytes, default=None)


def profile_runs(
    file: str, device: str, threads: int, machine: Peak, record: Callable[[], RunRecord], repeat: int
) -> Profile:
    """Run `repeat` times, after a few runs that do not count, and sum up."""
    for _ in range(WARM_UPS):
        record()
    records = [record() for _ in range(repeat)]
    runs = tuple((run.end - run.start) / _SECOND for run in records)
    shown = records[runs.index(_middle(runs))]
    alike = [run for run in records if _structure(run) == _structure(shown)]
    entries = _entries(shown)
    order, kernels = _kernels(entries, alike, machine)
    spans = tuple(_spans(shown, order))
    busy = [sum(span.end - span.start for span in spans if span.thread == thread) for thread in range(threads)]
    length = max((shown.end - shown.start) / _SECOND, 1e-9)
    natives = [part for part in shown.parts if isinstance(part, NativeRecord)]
    return Profile(
        file=file,
        device=device,
        threads=threads,
        runs=runs,
        kernels=kernels,
        spans=spans,
        occupancy=tuple(seconds / length for seconds in busy),
        tensors=tuple(tensor for part in natives for tensor in _tensors(part, shown.start)),
        memory=tuple(point for part in natives for point in _live_bytes(part, shown.start, order)),
        arena_bytes=max((part.arena_bytes for part in natives), default=0),
        machine=machine,
    )


def with_operators(profile: Profile, graph: Callable[[], Graph]) -> Profile:
    """The same with the operators of its nodes, where the graph can still be read."""
    try:
        ops = ops_by_node(graph())
    except WeftError:
        return profile
    nodes = {node for kernel in profile.kernels for node in kernel.nodes}
    nodes.update(node for tensor in profile.tensors for node in tensor.nodes)
    return replace(profile, ops={node: op for node, op in ops.items() if node in nodes})


def _middle(times: Sequence[float]) -> float:
    """The median, of an even number the lower one of two, so that it is the time of a run."""
    return sorted(times)[(len(times) - 1) // 2]


# -- kernels ---------------------------------------------------------------------------------------------------------

Key = tuple[Any, ...]  # of what is one line in the list of kernels


@dataclass(slots=True)
class _Entry:
    """Where the launches of one line are: (part, launch) of a record; (part, None) for a host step."""

    names: dict[str, None]
    nodes: tuple[str, ...]
    places: list[tuple[int, int | None]]
    flops: float = 0.0
    bytes: float = 0.0
    tiles: TileArithmetic | None = None


def _key(part: NativeRecord | HostRecord, launch: int | None) -> Key:
    if isinstance(part, HostRecord) or launch is None:
        assert isinstance(part, HostRecord)
        return (part.step, part.origin)
    return (part.section, part.launches[launch].task)


def _entries(record: RunRecord) -> dict[Key, _Entry]:
    entries: dict[Key, _Entry] = {}
    for number, part in enumerate(record.parts):
        if isinstance(part, HostRecord):
            entry = entries.setdefault(_key(part, None), _Entry({part.step: None}, node_names(part.origin), []))
            entry.places.append((number, None))
            continue
        for index, launch in enumerate(part.launches):
            entry = entries.setdefault(_key(part, index), _Entry({}, node_names(launch.origin), []))
            entry.names[plain_name(launch.kernel.name)] = None
            entry.places.append((number, index))
            entry.flops += launch.flops
            entry.bytes += launch.bytes
            entry.tiles = entry.tiles or tile_arithmetic(launch.kernel)
    return entries


def _kernels(
    entries: dict[Key, _Entry], records: Sequence[RunRecord], machine: Peak
) -> tuple[dict[Key, int], tuple[KernelProfile, ...]]:
    """The number of each entry, the slowest first, and what there is to say of them."""
    walls, busy = zip(*(_part_times(record) for record in records), strict=True)

    def typical(times: Sequence[Sequence[Array]], entry: _Entry) -> float:
        sums = [sum(float(run[part][launch or 0]) for part, launch in entry.places) for run in times]
        return float(np.median(sums)) / _SECOND

    seconds = {key: typical(walls, entry) for key, entry in entries.items()}
    total = sum(seconds.values()) or 1.0
    keys = sorted(entries, key=lambda key: -seconds[key])
    kernels = []
    for key in keys:
        entry, taken = entries[key], seconds[key]
        native = entry.places[0][1] is not None
        least = machine.roofline(entry.flops, entry.bytes, entry.tiles)
        kernels.append(
            KernelProfile(
                name=joined_names(list(entry.names)),
                nodes=entry.nodes,
                launches=len(entry.places),
                seconds=taken,
                busy=typical(busy, entry),
                share=taken / total,
                flops=entry.flops,
                bytes=entry.bytes,
                roofline=(least / taken if taken else 0.0) if native else None,
                bound=machine.bound(entry.flops, entry.bytes, entry.tiles) if native else "host",
                tiles=_tiles_text(entry.tiles),
            )
        )
    return {key: number for number, key in enumerate(keys)}, tuple(kernels)


def _tiles_text(tiles: TileArithmetic | None) -> str:
    if tiles is None:
        return ""
    return tiles.kind if tiles.times == 1 else f"{tiles.kind} × {tiles.times:g}"


def _part_times(record: RunRecord) -> tuple[list[Array], list[Array]]:
    """For each part, the nanoseconds of its launches: from start to end, and of all threads together."""
    walls, busy = [], []
    for part in record.parts:
        if isinstance(part, HostRecord):
            own = np.array([part.end - part.start - part.inside])
            walls.append(own)
            busy.append(own)
        else:
            starts, ends = _bounds(part)
            walls.append(ends - starts)
            busy.append((part.times[:, :, 1] - part.times[:, :, 0]).sum(1))
    return walls, busy


def _bounds(part: NativeRecord) -> tuple[Array, Array]:
    """When each launch started and ended; one that had nothing to do starts and ends with the one before."""
    ran = part.times[:, :, 1] > 0
    starts = np.where(ran, part.times[:, :, 0], np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    ends = np.maximum(part.times[:, :, 1].max(1, initial=0), part.start)
    ends = np.where(ran.any(1), ends, np.maximum.accumulate(ends))
    return np.where(ran.any(1), starts, ends), ends


def plain_name(kernel: str) -> str:
    """A kernel's name without the number that tells it from others of its kind."""
    stem, _, number = kernel.rpartition("_")
    return stem if stem and number.isalnum() and any(c.isdigit() for c in number) else kernel


def joined_names(names: Sequence[str]) -> str:
    """Names as one; those that begin with the same word say it once."""
    stems = {name.partition("_")[0] for name in names}
    if len(names) > 1 and len(stems) == 1 and all("_" in name for name in names):
        return f"{stems.pop()} ({', '.join(name.partition('_')[2] for name in names)})"
    return ORIGINS.join(names)


def node_names(origin: str) -> tuple[str, ...]:
    """The nodes that something came from."""
    return tuple(part for part in origin.split(ORIGINS) if part)


def _structure(record: RunRecord) -> list[Key]:
    """What was run: the same for all runs, unless the data decides otherwise."""
    return [
        (part.step, part.origin) if isinstance(part, HostRecord) else (part.section, len(part.launches))
        for part in record.parts
    ]


# -- the run that is drawn -------------------------------------------------------------------------------------------


def _spans(record: RunRecord, order: dict[Key, int]) -> Iterator[TimeSpan]:
    for part in record.parts:
        if isinstance(part, HostRecord):
            start, end = ((when - record.start) / _SECOND for when in (part.start, part.end))
            yield TimeSpan(order[_key(part, None)], part.step, HOST, start, end)
            continue
        for launch, thread in zip(*np.nonzero(part.times[:, :, 1])):
            start, end = ((int(when) - record.start) / _SECOND for when in part.times[launch, thread])
            name = plain_name(part.launches[launch].kernel.name)
            yield TimeSpan(order[_key(part, int(launch))], name, int(thread), start, end)


def _tensors(part: NativeRecord, origin: int) -> Iterator[TensorProfile]:
    starts, ends = _bounds(part)
    for piece in part.allocations:
        if piece.size and piece.first < len(starts):
            start = (int(starts[piece.first]) - origin) / _SECOND
            end = (int(ends[min(piece.last, len(ends) - 1)]) - origin) / _SECOND
            nodes = node_names(piece.origin)
            name = nodes[-1] if nodes and piece.name.startswith(UNNAMED) else piece.name
            yield TensorProfile(name, nodes, piece.offset, piece.size, start, end)


def _live_bytes(part: NativeRecord, origin: int, order: dict[Key, int]) -> Iterator[LiveBytes]:
    """The bytes that are needed while each launch runs, and none after the last."""
    starts, _ = _bounds(part)
    changes = [0] * (len(starts) + 1)
    for piece in part.allocations:
        if piece.first < len(starts):
            changes[piece.first] += piece.size
            changes[min(piece.last + 1, len(starts))] -= piece.size
    kernel = 0
    for launch, live in enumerate(accumulate(changes[:-1])):
        kernel = order[_key(part, launch)]
        yield LiveBytes((int(starts[launch]) - origin) / _SECOND, live, kernel)
    if len(starts):
        yield LiveBytes((part.end - origin) / _SECOND, 0, kernel)
