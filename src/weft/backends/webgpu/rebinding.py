"""Rebind the inputs and outputs of a recording to the caller's tensors.

Dispatches that use such a region get other bind groups, which are cached for memory that is used again. A tensor that
cannot be bound, or that too many dispatches use, is copied to or from the region's own memory instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from weft.backends.resident.device import BufferSlice
from weft.backends.webgpu.allocations import GpuMemory
from weft.backends.webgpu.wgpu_native import BindGroup, GroupSlot, Slice
from weft.errors import DeviceError
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.webgpu.gpu import Gpu
    from weft.backends.webgpu.recordings import ComputePipeline

_MOST_GROUPS = 16  # cached bind groups per dispatch
_MOST_USES = 64  # dispatches that are rebound for one region


class MovableBinding(NamedTuple):
    """A binding of a dispatch in a movable region."""

    binding: int
    region: int
    distance: int  # bytes from the start of the region


class _Location(NamedTuple):
    """The memory that a region is bound to, which it does not keep alive."""

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
    """The bind groups of a dispatch; `slot` has the current one."""

    def __init__(
        self,
        gpu: Gpu,
        pipeline: ComputePipeline,
        ranges: Sequence[Slice],
        initial: BindGroup,
        moved: Sequence[MovableBinding],
        read_only: frozenset[int],
    ) -> None:
        """`ranges` are those of the initial bind group; `read_only` are serials of memory."""
        self.read_only = read_only
        self.moved = moved
        self.ranges = ranges
        self.regions = tuple(dict.fromkeys(binding.region for binding in moved))
        self._gpu = gpu
        self._pipeline = pipeline
        self._initial = initial
        self._cache: OrderedDict[tuple[tuple[int, int] | None, ...], BindGroup] = OrderedDict()
        self.slot = GroupSlot(self._initial)

    def bind(self, locations: Mapping[int, _Location]) -> None:
        """Use the bind group for these locations of regions; other regions are at their initial ones."""
        slices = [locations.get(region) for region in self.regions]
        if not any(slices):
            self.slot.group = self._initial
            return
        key = tuple(None if location is None else (location.serial, location.offset) for location in slices)
        group = self._cache.pop(key, None)
        if group is None or group.handle is None:
            group = self._create_group(locations)
        self._cache[key] = group
        while len(self._cache) > _MOST_GROUPS:
            self._cache.popitem(last=False)
        self.slot.group = group

    def _create_group(self, locations: Mapping[int, _Location]) -> BindGroup:
        entries = [*self.ranges]
        used: list[GpuMemory] = []
        for number, region, distance in self.moved:
            location = locations.get(region)
            if location is not None:
                memory = location.live()
                entries[number] = memory.handle, location.offset + distance, entries[number][2]
                used.append(memory)
        group = self._gpu.bind_handles(self._pipeline, entries)
        for memory in used:
            memory.attach_group(group)
        return group


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """A movable region: its initial memory, and the dispatches that use it."""

    home: BufferSlice
    written: bool
    uses: list[MovableDispatch]
    extent: int  # bytes from its start to the end of the last binding
    read_only: frozenset[int]  # memory bound read-only by these dispatches, which must not be bound read-write as well

    def can_bind(self, memory: GpuMemory, target: BufferSlice, alignment: int) -> bool:
        fits = target.offset % alignment == 0 and target.offset + self.extent <= memory.size
        return fits and len(self.uses) <= _MOST_USES and memory.serial not in self.read_only


class MovableRegions:
    """All movable regions of a recording."""

    def __init__(self, alignment: int, regions: Mapping[int, _Region]) -> None:
        self._alignment = alignment
        self._regions = regions
        self._last: dict[int, tuple[int, int]] = {}  # (serial, offset) of the last binding
        self._rebound: dict[int, _Location] = {}
        self._copied: dict[int, _Location] = {}

    def bind(self, targets: Mapping[int, BufferSlice]) -> None:
        """Move regions to other memory."""
        changed: dict[MovableDispatch, None] = {}
        try:
            for number, target in targets.items():
                region = self._regions.get(number)
                if region is not None and self._move(number, region, target):
                    changed.update(dict.fromkeys(region.uses))
            for dispatch in changed:
                dispatch.bind(self._rebound)
        except BaseException:
            self._last.clear()  # some may be bound and others not
            raise

    def _move(self, number: int, region: _Region, target: BufferSlice) -> bool:
        """Move a region, and return whether its dispatches must be rebound."""
        memory: GpuMemory = target.buffer.live_memory()
        new = memory.serial, target.offset
        last = self._last.get(number)
        if last == new:
            return False
        self._last[number] = new
        self._copied.pop(number, None)
        before = self._rebound.pop(number, None)
        if target.buffer is not region.home.buffer or target.offset != region.home.offset:
            location = _Location(ref(memory), memory.serial, target.offset, target.size)
            if region.can_bind(memory, target, self._alignment):
                self._rebound[number] = location
                return True
            self._copied[number] = location
        return before is not None or last is None

    def copy_in(self, encoder: Any) -> None:
        """Encode the copies of inputs, before the dispatches."""
        for home, location in self._copies(written=False):
            source = location.live().handle
            size = _padded(location.size)
            encoder.copy_buffer_to_buffer(source, location.offset, home.buffer.handle, home.offset, size)

    def copy_out(self, encoder: Any) -> None:
        """Encode the copies of outputs, after the dispatches."""
        for home, location in self._copies(written=True):
            target = location.live().handle
            size = _padded(location.size)
            encoder.copy_buffer_to_buffer(home.buffer.handle, home.offset, target, location.offset, size)

    def _copies(self, written: bool) -> Iterator[tuple[BufferSlice, _Location]]:
        for number, location in self._copied.items():
            region = self._regions[number]
            if region.written == written and location.size:
                yield region.home, location


def build_movable_regions(
    alignment: int, dispatches: Iterable[MovableDispatch], homes: Mapping[int, BufferSlice], written: frozenset[int]
) -> MovableRegions:
    """Build the movable regions that dispatches use; `homes` is their initial memory."""
    uses: dict[int, list[MovableDispatch]] = {}
    for dispatch in dispatches:
        for number in dispatch.regions:
            uses.setdefault(number, []).append(dispatch)
    regions = {}
    for number, region_uses in uses.items():
        extent = max(
            binding.distance + dispatch.ranges[binding.binding][2]
            for dispatch in region_uses
            for binding in dispatch.moved
            if binding.region == number
        )
        constant = frozenset(serial for dispatch in region_uses for serial in dispatch.read_only)
        regions[number] = _Region(homes[number], number in written, region_uses, extent, constant)
    return MovableRegions(alignment, regions)


def _padded(size: int) -> int:
    """Round up to a multiple of 4, as copies require."""
    return -(-size // 4) * 4
