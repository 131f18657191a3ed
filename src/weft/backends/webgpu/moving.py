"""Regions of a recording that a run decides: its inputs and outputs, bound where the caller's tensors lie.

Only the dispatches that have such a region get other bind groups, and these are kept for places that come again. A
tensor that cannot be bound, or that too many dispatches would have to be bound to, is copied from or to the place that
its region has in the memory of runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from weft.backends.resident.device import BufferSlice
from weft.backends.webgpu.allocations import GpuMemory
from weft.backends.webgpu.native import BindGroup, GroupSlot
from weft.errors import DeviceError
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.webgpu.gpu import Gpu, GpuBuffer
    from weft.backends.webgpu.recordings import ComputePipeline

_MOST_KEPT = 16  # bind groups of a dispatch
_MOST_USES = 64  # dispatches that are bound anew for one region


class MovedRange(NamedTuple):
    """A binding of a dispatch that lies in a region that moves, so many bytes behind its start."""

    binding: int
    region: int
    distance: int


class _Where(NamedTuple):
    """Where a region is bound; it keeps nothing alive."""

    memory: ref[GpuMemory]
    serial: int
    offset: int
    size: int

    def live(self) -> GpuMemory:
        memory = self.memory()
        if memory is None:
            raise DeviceError("a buffer is used after its release")
        return memory


class MovableDispatch:
    """The bind groups of a dispatch: the one in `slot` is used."""

    def __init__(
        self,
        gpu: Gpu,
        pipeline: ComputePipeline,
        ranges: Sequence[tuple[GpuBuffer, int, int]],
        moved: Sequence[MovedRange],
        read_only: frozenset[int],
    ) -> None:
        """`ranges` are those of all bindings, where they are at first; `read_only` are serials of memory."""
        self.read_only = read_only
        self.moved = moved
        self.ranges = ranges
        self.regions = tuple(dict.fromkeys(part.region for part in moved))
        self._gpu = gpu
        self._pipeline = pipeline
        self._first = BindGroup(gpu.bind_group(pipeline, ranges))
        self._kept: OrderedDict[tuple[tuple[int, int] | None, ...], BindGroup] = OrderedDict()
        self.slot = GroupSlot(self._first)

    def bind(self, places: Mapping[int, _Where]) -> None:
        """Use the group for these places; regions without one are where they were at first."""
        found = [places.get(region) for region in self.regions]
        if not any(found):
            self.slot.group = self._first
            return
        key = tuple(None if place is None else (place.serial, place.offset) for place in found)
        group = self._kept.pop(key, None)
        if group is None or group.handle is None:
            group = self._made(places)
        self._kept[key] = group
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        self.slot.group = group

    def _made(self, places: Mapping[int, _Where]) -> BindGroup:
        entries = [(buffer.handle, offset, size) for buffer, offset, size in self.ranges]
        used: list[GpuMemory] = []
        for part in self.moved:
            place = places.get(part.region)
            if place is not None:
                memory = place.live()
                entries[part.binding] = memory.handle, place.offset + part.distance, entries[part.binding][2]
                used.append(memory)
        group = BindGroup(self._gpu.bind_handles(self._pipeline, entries))
        for memory in used:
            memory.tie(group)
        return group


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """A region that moves: where it is at first, and who uses it."""

    home: BufferSlice
    written: bool
    uses: list[MovableDispatch]
    reach: int  # bytes from its start to the end of what is bound
    read_only: frozenset[int]  # serials of what the same dispatches have bound so, which cannot be bound otherwise too

    def can_bind(self, memory: GpuMemory, place: BufferSlice, alignment: int) -> bool:
        fits = place.offset % alignment == 0 and place.offset + self.reach <= memory.size
        return fits and len(self.uses) <= _MOST_USES and memory.serial not in self.read_only


class MovableRegions:
    """All regions of a recording that move."""

    def __init__(self, alignment: int, regions: Mapping[int, _Region]) -> None:
        self._alignment = alignment
        self._regions = regions
        self._last: dict[int, tuple[int, int]] = {}  # what each was bound to last
        self._places: dict[int, _Where] = {}  # of those that are bound elsewhere
        self._copied: dict[int, _Where] = {}  # of those that are copied

    def bind(self, places: Mapping[int, BufferSlice]) -> None:
        """Let regions be elsewhere from now on."""
        changed: dict[MovableDispatch, None] = {}
        try:
            for number, place in places.items():
                region = self._regions.get(number)
                if region is not None and self._move(number, region, place):
                    changed.update(dict.fromkeys(region.uses))
            for dispatch in changed:
                dispatch.bind(self._places)
        except BaseException:
            self._last.clear()  # some are bound and some are not
            raise

    def _move(self, number: int, region: _Region, place: BufferSlice) -> bool:
        """Whether dispatches have to be bound anew."""
        memory: GpuMemory = place.buffer.live_memory()
        last = memory.serial, place.offset
        known = self._last.get(number)
        if known == last:
            return False
        self._last[number] = last
        self._copied.pop(number, None)
        before = self._places.pop(number, None)
        if place.buffer is not region.home.buffer or place.offset != region.home.offset:
            where = _Where(ref(memory), memory.serial, place.offset, place.size)
            if region.can_bind(memory, place, self._alignment):
                self._places[number] = where
                return True
            self._copied[number] = where
        return before is not None or known is None

    def copy_in(self, encoder: Any) -> None:
        """Encode the copies of inputs, before the dispatches."""
        for home, where in self._copies(written=False):
            source = where.live().handle
            encoder.copy_buffer_to_buffer(source, where.offset, home.buffer.handle, home.offset, _whole(where.size))

    def copy_out(self, encoder: Any) -> None:
        """Encode the copies of outputs, after the dispatches."""
        for home, where in self._copies(written=True):
            target = where.live().handle
            encoder.copy_buffer_to_buffer(home.buffer.handle, home.offset, target, where.offset, _whole(where.size))

    def _copies(self, written: bool) -> Iterator[tuple[BufferSlice, _Where]]:
        for number, where in self._copied.items():
            region = self._regions[number]
            if region.written == written and where.size:
                yield region.home, where


def movable_regions(
    alignment: int, dispatches: Iterable[MovableDispatch], homes: Mapping[int, BufferSlice], written: frozenset[int]
) -> MovableRegions:
    """The regions that dispatches use, each with its place in the memory of runs."""
    uses: dict[int, list[MovableDispatch]] = {}
    for dispatch in dispatches:
        for number in dispatch.regions:
            uses.setdefault(number, []).append(dispatch)
    regions = {}
    for number, own in uses.items():
        parts = [
            (part.distance, dispatch.ranges[part.binding][2])
            for dispatch in own
            for part in dispatch.moved
            if part.region == number
        ]
        constant = frozenset(serial for dispatch in own for serial in dispatch.read_only)
        reach = max(distance + size for distance, size in parts)
        regions[number] = _Region(homes[number], number in written, own, reach, constant)
    return MovableRegions(alignment, regions)


def _whole(size: int) -> int:
    """Bytes that a copy takes."""
    return -(-size // 4) * 4
