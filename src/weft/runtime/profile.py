"""Where a model's time and memory go: records of several runs -> one `Profile`.

Times of kernels are medians over the runs. Spans, tensors and live bytes are those of the median run. All times are
seconds, in spans since the start of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from os import PathLike
from typing import Any

import numpy as np

from weft.cost.roofline import Peak, TileArithmetic, tile_arithmetic
from weft.errors import WeftError
from weft.ir.arrays import Array
from weft.ir.graph import Graph, ops_by_node
from weft.ir.program import ORIGINS
from weft.ir.run_record import HostRecord, NativeRecord, RunRecord
from weft.quantities import format_plural, format_seconds, join_few, shorten
from weft.records import dataclass
from weft.tables import ShownAsTables, Table

HOST = -1  # the "thread" of steps in Python
WARM_UPS = 2  # runs that are not counted
UNNAMED = "%"  # prefix of values without a name in the file; they are shown by the node that computes them
_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The launches of one task in one run, or a host step: its nodes and its cost.

    `flops` and `bytes` are the least that the task needs. An algorithm with less arithmetic, or data that stays in
    caches, can therefore exceed the machine's peak.
    """

    name: str
    nodes: tuple[str, ...]
    launches: int
    seconds: float  # from start to end, summed over launches
    busy: float  # seconds, summed over threads
    share: float  # of the time of all kernels
    flops: float
    bytes: float
    roofline: float | None  # the least time the machine allows, as a fraction of the time taken; None on the host
    bound: str  # what limits it: "arithmetic" or "memory", "host" for a host step
    tiles: str = ""  # the type of tile products (tensor cores) whose peak it is compared with

    def __repr__(self) -> str:
        nodes = join_few(map(shorten, self.nodes), 2)
        cost = f"seconds={self.seconds:.3g}, share={self.share:.3f}, bound={self.bound!r}"
        return f"KernelProfile(name={shorten(self.name)!r}, nodes=({nodes}), {cost})"

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A thread's work on a launch: `kernel` is an index into the profile's kernels, `name` the launched kernel's."""

    kernel: int
    name: str
    thread: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TensorProfile:
    """An allocation in the arena, from the start of the first launch that uses it to the end of the last."""

    name: str
    nodes: tuple[str, ...]
    offset: int
    size: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes of the arena that are live from `start` on, when kernel number `kernel` runs."""

    start: float
    bytes: int
    kernel: int


@dataclass(frozen=True, slots=True)
class Profile(ShownAsTables):
    """Where the time and memory of a model's runs go: what `model.profile()` returns.

    `print` shows a table of the slowest kernels, `save` writes a page, a trace or data.
    """

    file: str
    device: str
    threads: int
    runs: tuple[float, ...]  # the time of each
    kernels: tuple[KernelProfile, ...]  # the slowest first
    spans: tuple[TimeSpan, ...]  # the launches of each thread, in the median run
    occupancy: tuple[float, ...]  # the fraction of the run in which each thread was busy
    tensors: tuple[TensorProfile, ...]  # the allocations in the arena
    memory: tuple[LiveBytes, ...]  # live bytes of the arena over time
    arena_bytes: int
    machine: Peak  # the measured peak of the machine
    ops: Mapping[str, str] = field(default_factory=dict, hash=False)  # the operators of nodes, by name

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile as a page for a browser (.html), as data (.json), or for Perfetto and Chrome (.trace).

        The page is self-contained; it shows the timeline of each thread, the arena, and all kernels.
        """
        from weft.report.profile_files import save_profile

        save_profile(self, path)

    def __repr__(self) -> str:
        median = f"{format_seconds(self.seconds)} (median of {format_plural(len(self.runs), 'run')})"
        kernels, threads = format_plural(len(self.kernels), "kernel"), format_plural(self.threads, "thread")
        return f"<weft.Profile {shorten(self.file)} on {self.device}: {median}, {kernels}, {threads}>"

    def _tables(self) -> Iterable[Table]:
        from weft.runtime.profile_tables import profile_tables

        return profile_tables(self)

    @property
    def seconds(self) -> float:
        """The time of the median run."""
        return _lower_median(self.runs)

    @property
    def flops(self) -> float:
        """The floating-point operations of all kernels of one run."""
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def peak_memory(self) -> LiveBytes | None:
        """The first moment with the most live bytes in the arena; None if it is not used."""
        return max(self.memory, key=lambda point: point.bytes, default=None)


def profile_runs(
    file: str, device: str, threads: int, machine: Peak, record: Callable[[], RunRecord], repeat: int
) -> Profile:
    """Run `repeat` times after some warm-up runs, and summarize the records."""
    for _ in range(WARM_UPS):
        record()
    records = [record() for _ in range(repeat)]
    runs = tuple((run.end - run.start) / _SECOND for run in records)
    median_run = records[runs.index(_lower_median(runs))]
    comparable = [run for run in records if _run_structure(run) == _run_structure(median_run)]
    entries = _group_launches(median_run)
    order, kernels = _summarize_kernels(entries, comparable, machine)
    spans = tuple(_list_spans(median_run, order))
    busy = [sum(span.end - span.start for span in spans if span.thread == thread) for thread in range(threads)]
    length = max((median_run.end - median_run.start) / _SECOND, 1e-9)
    natives = [part for part in median_run.parts if isinstance(part, NativeRecord)]
    return Profile(
        file=file,
        device=device,
        threads=threads,
        runs=runs,
        kernels=kernels,
        spans=spans,
        occupancy=tuple(seconds / length for seconds in busy),
        tensors=tuple(tensor for part in natives for tensor in _list_tensors(part, median_run.start)),
        memory=tuple(point for part in natives for point in _live_bytes(part, median_run.start, order)),
        arena_bytes=max((part.arena_bytes for part in natives), default=0),
        machine=machine,
    )


def with_operators(profile: Profile, graph: Callable[[], Graph]) -> Profile:
    """Add the operators of nodes, if the graph can still be read."""
    try:
        ops = ops_by_node(graph())
    except WeftError:
        return profile
    nodes = {node for kernel in profile.kernels for node in kernel.nodes}
    nodes.update(node for tensor in profile.tensors for node in tensor.nodes)
    return replace(profile, ops={node: op for node, op in ops.items() if node in nodes})


def _lower_median(times: Sequence[float]) -> float:
    """Return the median; of an even number the lower one, so that it is the time of a run."""
    return sorted(times)[(len(times) - 1) // 2]


# -- kernels ---------------------------------------------------------------------------------------------------------

Key = tuple[Any, ...]  # of one line in the list of kernels


@dataclass(slots=True)
class _Entry:
    """The launches of one line: (part, launch) in a record; (part, None) for a host step."""

    names: dict[str, None]
    nodes: tuple[str, ...]
    positions: list[tuple[int, int | None]]
    flops: float = 0.0
    bytes: float = 0.0
    tiles: TileArithmetic | None = None


def _launch_key(part: NativeRecord | HostRecord, launch: int | None) -> Key:
    if isinstance(part, HostRecord) or launch is None:
        assert isinstance(part, HostRecord)
        return (part.step, part.origin)
    return (part.section, part.launches[launch].task)


def _group_launches(record: RunRecord) -> dict[Key, _Entry]:
    entries: dict[Key, _Entry] = {}
    for number, part in enumerate(record.parts):
        if isinstance(part, HostRecord):
            entry = entries.setdefault(_launch_key(part, None), _Entry({part.step: None}, node_names(part.origin), []))
            entry.positions.append((number, None))
            continue
        for index, launch in enumerate(part.launches):
            entry = entries.setdefault(_launch_key(part, index), _Entry({}, node_names(launch.origin), []))
            entry.names[plain_name(launch.kernel.name)] = None
            entry.positions.append((number, index))
            entry.flops += launch.flops
            entry.bytes += launch.bytes
            entry.tiles = entry.tiles or tile_arithmetic(launch.kernel)
    return entries


def _summarize_kernels(
    entries: dict[Key, _Entry], records: Sequence[RunRecord], machine: Peak
) -> tuple[dict[Key, int], tuple[KernelProfile, ...]]:
    """Return the index of each entry, slowest first, and the kernels in that order."""
    walls, busy = zip(*(_part_times(record) for record in records), strict=True)

    def typical(times: Sequence[Sequence[Array]], entry: _Entry) -> float:
        sums = [sum(float(run[part][launch or 0]) for part, launch in entry.positions) for run in times]
        return float(np.median(sums)) / _SECOND

    seconds = {key: typical(walls, entry) for key, entry in entries.items()}
    total = sum(seconds.values()) or 1.0
    keys = sorted(entries, key=lambda key: -seconds[key])
    kernels = []
    for key in keys:
        entry, time = entries[key], seconds[key]
        native = entry.positions[0][1] is not None
        least = machine.roofline(entry.flops, entry.bytes, entry.tiles)
        kernels.append(
            KernelProfile(
                name=joined_names(list(entry.names)),
                nodes=entry.nodes,
                launches=len(entry.positions),
                seconds=time,
                busy=typical(busy, entry),
                share=time / total,
                flops=entry.flops,
                bytes=entry.bytes,
                roofline=(least / time if time else 0.0) if native else None,
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
    """Return for each part the nanoseconds of its launches: from start to end, and summed over threads."""
    walls, busy = [], []
    for part in record.parts:
        if isinstance(part, HostRecord):
            seconds = np.array([part.end - part.start - part.inside])
            walls.append(seconds)
            busy.append(seconds)
        else:
            starts, ends = _bounds(part)
            walls.append(ends - starts)
            busy.append((part.times[:, :, 1] - part.times[:, :, 0]).sum(1))
    return walls, busy


def _bounds(part: NativeRecord) -> tuple[Array, Array]:
    """Return when each launch started and ended; an empty launch starts and ends with the one before."""
    ran = part.times[:, :, 1] > 0
    starts = np.where(ran, part.times[:, :, 0], np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    ends = np.maximum(part.times[:, :, 1].max(1, initial=0), part.start)
    ends = np.where(ran.any(1), ends, np.maximum.accumulate(ends))
    return np.where(ran.any(1), starts, ends), ends


def plain_name(kernel: str) -> str:
    """Return a kernel's name without its distinguishing number."""
    stem, _, number = kernel.rpartition("_")
    return stem if stem and number.isalnum() and any(c.isdigit() for c in number) else kernel


def joined_names(names: Sequence[str]) -> str:
    """Join names; a common first word is written once."""
    stems = {name.partition("_")[0] for name in names}
    if len(names) > 1 and len(stems) == 1 and all("_" in name for name in names):
        return f"{stems.pop()} ({', '.join(name.partition('_')[2] for name in names)})"
    return ORIGINS.join(names)


def node_names(origin: str) -> tuple[str, ...]:
    """Split an origin into its nodes."""
    return tuple(part for part in origin.split(ORIGINS) if part)


def _run_structure(record: RunRecord) -> list[Key]:
    """Return what was run; it is the same for all runs unless control flow depends on data."""
    return [
        (part.step, part.origin) if isinstance(part, HostRecord) else (part.section, len(part.launches))
        for part in record.parts
    ]


# -- the median run --------------------------------------------------------------------------------------------------


def _list_spans(record: RunRecord, order: dict[Key, int]) -> Iterator[TimeSpan]:
    for part in record.parts:
        if isinstance(part, HostRecord):
            start, end = ((when - record.start) / _SECOND for when in (part.start, part.end))
            yield TimeSpan(order[_launch_key(part, None)], part.step, HOST, start, end)
            continue
        for launch, thread in zip(*np.nonzero(part.times[:, :, 1])):
            start, end = ((int(when) - record.start) / _SECOND for when in part.times[launch, thread])
            name = plain_name(part.launches[launch].kernel.name)
            yield TimeSpan(order[_launch_key(part, int(launch))], name, int(thread), start, end)


def _list_tensors(part: NativeRecord, origin: int) -> Iterator[TensorProfile]:
    starts, ends = _bounds(part)
    for allocation in part.allocations:
        if allocation.size and allocation.first < len(starts):
            start = (int(starts[allocation.first]) - origin) / _SECOND
            end = (int(ends[min(allocation.last, len(ends) - 1)]) - origin) / _SECOND
            nodes = node_names(allocation.origin)
            name = nodes[-1] if nodes and allocation.name.startswith(UNNAMED) else allocation.name
            yield TensorProfile(name, nodes, allocation.offset, allocation.size, start, end)


def _live_bytes(part: NativeRecord, origin: int, order: dict[Key, int]) -> Iterator[LiveBytes]:
    """Yield the live bytes during each launch, and 0 after the last."""
    starts, _ = _bounds(part)
    changes = [0] * (len(starts) + 1)
    for allocation in part.allocations:
        if allocation.first < len(starts):
            changes[allocation.first] += allocation.size
            changes[min(allocation.last + 1, len(starts))] -= allocation.size
    kernel = 0
    for launch, live in enumerate(accumulate(changes[:-1])):
        kernel = order[_launch_key(part, launch)]
        yield LiveBytes((int(starts[launch]) - origin) / _SECOND, live, kernel)
    if len(starts):
        yield LiveBytes((part.end - origin) / _SECOND, 0, kernel)
