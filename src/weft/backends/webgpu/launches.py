"""Planned launches -> dispatches: pipelines, bind groups and parameters, made once for a plan.

A buffer is bound from the last aligned place at or before its start; the rest of the way is a parameter. Launches that
are repeated at other places are bound to all of these, and have parameters for each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Find
from weft.backends.webgpu.bindings import Binding, module_text
from weft.backends.webgpu.gpu import Gpu, GpuBuffer
from weft.backends.webgpu.moving import MovableDispatch, MovableRegions, MovedRange, movable_regions
from weft.backends.webgpu.recordings import READ, UNIFORM, WRITE, ComputePipeline, Dispatch, Recording, ShaderSource
from weft.backends.webgpu.shader import Shader, shared_buffers
from weft.backends.webgpu.trip_counts import MOST_TRIPS, most_trips
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir import kernel as form
from weft.ir.compiled import CompiledProgram
from weft.ir.work import Place, PlannedLaunch, Repeated
from weft.plan.plan import ABSOLUTE
from weft.records import dataclass

Array = np.ndarray[Any, Any]
PARAMETER_STRIDE = 256  # bytes between the parameters of launches, so that any adapter can bind them
MOST = 2**31 - 1
MOST_ELEMENTS = MOST - 2**16  # of a buffer: lanes beyond the last one, which do nothing, must have a number too


Key = tuple[str, tuple[Binding, ...], bool]
"""A kernel's name, its buffers' bindings, and whether dispatches have just as many groups as there are blocks."""


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A launch whose buffers have their bindings: how, where, and the first element's place in each."""

    launch: PlannedLaunch
    bindings: tuple[Binding, ...]
    slices: tuple[BufferSlice, ...]  # of each buffer that is no alias
    regions: tuple[int, ...]  # the same ones'
    written: frozenset[int]  # regions
    bases: tuple[tuple[int, ...], ...]  # of each time it is run, of each buffer


class LaunchBinder:
    """Binds the launches of plans; `find` tells where a place is, given the bytes from there on that are used."""

    def __init__(self, gpu: Gpu, shaders: Mapping[str, Shader], find: Find) -> None:
        self.gpu = gpu
        self.shaders = shaders
        self.find = find

    def bind(self, entries: Sequence[PlannedLaunch | Repeated], *, idle: bool = False) -> list[list[BoundLaunch]]:
        """Launches by entry; those without blocks, which other sizes may need, only if they are asked for."""
        found = []
        for entry in entries:
            if isinstance(entry, PlannedLaunch):
                launches, shifts, count = [entry], [(0,) * len(entry.buffers)], 1
            else:
                launches, shifts, count = list(entry.launches), list(entry.shifts), entry.count
            pairs = zip(launches, shifts)
            found.append(
                [self._bound(launch, own, count) for launch, own in pairs if count and (launch.blocks or idle)]
            )
        return found

    def _check_loops(self, launch: PlannedLaunch) -> None:
        if not self.gpu.limits.is_software or not launch.blocks:
            return
        loops = self.shaders[launch.kernel.name].loops
        trips = most_trips(loops, launch.kernel, launch.blocks, launch.parameters)
        if trips > MOST_TRIPS:
            raise ExecutionError(
                f"kernel {launch.kernel.name!r} may take {trips:,} turns of its loops, of which {self.gpu.name} does "
                f"no more than {MOST_TRIPS:,}",
                node=launch.origin or None,
                hint="use a real GPU, or device='cpu'",
            )

    def _bound(self, launch: PlannedLaunch, shifts: Sequence[int], count: int) -> BoundLaunch:
        self._check_loops(launch)
        buffers = shared_buffers(launch.kernel)
        alignment = self.gpu.limits.offset_alignment
        slices: dict[str, BufferSlice] = {}  # by the buffer that has the binding
        homes: dict[tuple[int, int, int, Any], str] = {}
        aliases: dict[str, str] = {}
        regions: dict[str, int] = {}
        bases: list[list[int]] = []
        for buffer, place, shift, size in zip(buffers, launch.buffers, shifts, launch.sizes, strict=True):
            span = self._span(place, shift, size, count)
            start = span.offset // alignment * alignment
            first = span.offset - start + (-shift * (count - 1) if shift < 0 else 0)
            bases.append([(first + shift * time) // buffer.dtype.numpy.itemsize for time in range(count)])
            whole = BufferSlice(span.buffer, start, span.size + span.offset - start)
            home = homes.setdefault((id(span.buffer), span.offset, shift, buffer.dtype), buffer.name)
            if home != buffer.name and place.region != ABSOLUTE:
                aliases[buffer.name] = home
                slices[home] = max(slices[home], whole, key=lambda each: each.size)  # one may be a part of the other
            else:
                slices[buffer.name] = whole
                regions[buffer.name] = place.region
            elements = whole.size // buffer.dtype.numpy.itemsize
            if elements > MOST_ELEMENTS and launch.blocks:
                raise ExecutionError(
                    f"a tensor of {elements:,} elements: this device's kernels count up to {MOST_ELEMENTS:,}",
                    node=launch.origin or None,
                    hint="use a smaller batch, or device='cpu'",
                )
        runs = self.shaders[launch.kernel.name].runs
        bindings = []
        for buffer, place, own in zip(buffers, launch.buffers, bases):
            aligned = all(base % runs[buffer.name] == 0 for base in own)
            if buffer.name in aliases:
                bindings.append(Binding(alias=aliases[buffer.name], aligned=aligned))
            else:
                constant = place.region == ABSOLUTE and not buffer.written
                bindings.append(self._binding(buffer, slices[buffer.name], aligned, constant))
        self._check_bindings(launch, bindings, slices)
        written = frozenset(place.region for buffer, place in zip(buffers, launch.buffers) if buffer.written)
        times = tuple(zip(*bases)) if bases else ((),) * count
        return BoundLaunch(launch, tuple(bindings), tuple(slices.values()), tuple(regions.values()), written, times)

    def _check_bindings(
        self, launch: PlannedLaunch, bindings: Sequence[Binding], slices: Mapping[str, BufferSlice]
    ) -> None:
        """OutOfMemoryError if tensors are so large that a kernel cannot see all of them at once."""
        count = sum(binding.segments for binding in bindings if binding.alias is None)
        most = self.gpu.limits.max_bindings
        if count > most and any(binding.segments > 1 for binding in bindings):
            raise OutOfMemoryError(
                f"a kernel works on {sum(part.size for part in slices.values()):,} bytes, for which it would need "
                f"{count} bindings; {self.gpu.name} has {most}",
                node=launch.origin or None,
                hint="use smaller inputs, or another device: see weft.devices()",
            )

    def _span(self, place: Place, shift: int, size: int, count: int) -> BufferSlice:
        """All that a buffer is, each time a launch is repeated."""
        if not shift:
            return self.find(place, size)
        far = shift * (count - 1)
        return self.find(Place(place.region, place.offset + min(far, 0)), size + abs(far))

    def _binding(self, buffer: form.Buffer, part: BufferSlice, aligned: bool, constant: bool) -> Binding:
        """A buffer that is larger than a binding may be takes several."""
        most = self._most_bytes()
        count = -(-part.size // most)
        if count <= 1:
            return Binding(aligned=aligned, constant=constant)
        return Binding(None, count, most // buffer.dtype.numpy.itemsize, aligned, constant)

    # -- what runs ---------------------------------------------------------------------------------------------------

    def record(self, entries: Sequence[Sequence[BoundLaunch]], movable: range = range(0)) -> Recording:
        """What runs on the device, in order; regions that are `movable` may be bound to other places."""
        pipelines = self.pipelines(entries)
        rows: list[tuple[BoundLaunch, tuple[int, ...]]] = []
        for entry in entries:
            for time in range(len(entry[0].bases) if entry else 0):
                rows += [(bound, bound.bases[time]) for bound in entry]
        parameters = self._parameters(rows)
        homes = {region: self.find(Place(region, 0), 0) for region in movable}
        found, moving = [], []
        for number, (bound, _) in enumerate(rows):
            pipeline = pipelines[self._key(bound)]
            ranges = [(parameters, number * PARAMETER_STRIDE, PARAMETER_STRIDE), *self._ranges(bound)]
            moved = self._moved(bound, ranges, homes)
            group: Any
            if moved:
                kinds = zip(ranges, (UNIFORM, *_kinds(bound.bindings)))
                constant = frozenset(part[0].live_memory().serial for part, kind in kinds if kind == READ)
                moving.append(MovableDispatch(self.gpu, pipeline, ranges, moved, constant))
                group = moving[-1].slot
            else:
                group = self.gpu.bind_group(pipeline, ranges)
            found.append(Dispatch(pipeline, group, *self._grid(bound.launch)))
        return Recording(found, self._regions(entries, moving, homes))

    def _moved(
        self, bound: BoundLaunch, ranges: Sequence[tuple[GpuBuffer, int, int]], homes: Mapping[int, BufferSlice]
    ) -> list[MovedRange]:
        """Which of a launch's bindings move, and with what."""
        bindings = [binding for binding in bound.bindings if binding.alias is None]
        regions = [region for binding, region in zip(bindings, bound.regions) for _ in range(binding.segments)]
        return [
            MovedRange(number, region, ranges[number][1] - homes[region].offset)
            for number, region in enumerate(regions, 1)
            if region in homes
        ]

    def _regions(
        self,
        entries: Sequence[Sequence[BoundLaunch]],
        moving: Sequence[MovableDispatch],
        homes: Mapping[int, BufferSlice],
    ) -> MovableRegions | None:
        if not moving:
            return None
        written = frozenset(region for entry in entries for bound in entry for region in bound.written)
        return movable_regions(self.gpu.alignment, moving, homes, written)

    def _key(self, bound: BoundLaunch) -> Key:
        x, y = self._grid(bound.launch)
        return bound.launch.kernel.name, bound.bindings, x * y == bound.launch.blocks

    def pipelines(self, entries: Sequence[Sequence[BoundLaunch]]) -> dict[Key, ComputePipeline]:
        """What launches need."""
        sources: dict[Key, ShaderSource] = {}
        for bound in (bound for entry in entries for bound in entry):
            kernel = bound.launch.kernel
            key = self._key(bound)
            if key not in sources:
                named = {buffer.name: binding for buffer, binding in zip(shared_buffers(kernel), bound.bindings)}
                shader = self.shaders[kernel.name]
                text = module_text(kernel, shader, named, self.gpu.abilities, key[-1])
                kinds = (UNIFORM, *_kinds(bound.bindings))
                sources[key] = ShaderSource(text, kinds, shared_bytes=shader.shared_bytes)
        names = {f"{key[0]}.{number}": key for number, key in enumerate(sources)}
        made = self.gpu.pipelines({name: sources[key] for name, key in names.items()})
        return {key: made[name] for name, key in names.items()}

    def _parameters(self, rows: Sequence[tuple[BoundLaunch, tuple[int, ...]]]) -> GpuBuffer:
        """All launches' parameters, one after the other; each launch comes with where its buffers start."""
        block = np.zeros((max(len(rows), 1), PARAMETER_STRIDE // 4), np.int64)
        for number, (bound, bases) in enumerate(rows):
            row = (bound.launch.blocks, *bases, *bound.launch.parameters)
            if len(row) > block.shape[1]:
                raise ExecutionError(f"a kernel with {len(row)} parameters, where a launch has room for 64")
            block[number, : len(row)] = row
        largest = np.abs(block).max(axis=1)
        if largest.max() > MOST:
            raise ExecutionError(
                f"a size of {largest.max():,}: this device's kernels count up to {MOST:,}",
                node=rows[int(largest.argmax())][0].launch.origin or None,
                hint="use a smaller batch, or device='cpu'",
            )
        buffer = self.gpu.uniform(block.shape[0] * PARAMETER_STRIDE)
        self.gpu.write(buffer, 0, block.astype(np.int32))
        return buffer

    def _ranges(self, bound: BoundLaunch) -> list[tuple[GpuBuffer, int, int]]:
        """The bindings of the buffers, in order."""
        most = self._most_bytes()
        ranges = []
        bindings = [binding for binding in bound.bindings if binding.alias is None]
        for binding, whole in zip(bindings, bound.slices, strict=True):
            for segment in range(binding.segments):
                size = min(most, whole.size - segment * most) if binding.segments > 1 else whole.size
                ranges.append((whole.buffer, whole.offset + segment * most, max(-(-size // 16) * 16, 16)))
        return ranges

    def _most_bytes(self) -> int:
        """Of a binding, such that the next one starts where it may."""
        return self.gpu.limits.max_binding_bytes // PARAMETER_STRIDE * PARAMETER_STRIDE

    def _grid(self, launch: PlannedLaunch) -> tuple[int, int]:
        most = self.gpu.limits.max_groups
        rows = max(-(-launch.blocks // most), 1)
        if rows > most:
            raise ExecutionError(f"{launch.blocks} blocks, more than a dispatch can have on this device")
        return -(-launch.blocks // rows), rows


def _kinds(bindings: Sequence[Binding]) -> tuple[str, ...]:
    return tuple(
        READ if binding.constant else WRITE
        for binding in bindings
        if binding.alias is None
        for _ in range(binding.segments)
    )


@dataclass(frozen=True, slots=True, eq=False)
class GpuLaunches:
    """The launches of one program's plans as dispatches, from the shaders of its kernels."""

    gpu: Gpu
    shaders: Mapping[str, Shader]
    parameter_bytes: int = PARAMETER_STRIDE

    def compile(self, launches: Sequence[PlannedLaunch | Repeated], find: Find) -> None:
        binder = LaunchBinder(self.gpu, self.shaders, find)
        binder.pipelines(binder.bind(launches, idle=True))

    def record(self, launches: Sequence[PlannedLaunch | Repeated], find: Find, movable: range = range(0)) -> Recording:
        binder = LaunchBinder(self.gpu, self.shaders, find)
        return binder.record(binder.bind(launches), movable)


def gpu_launches(program: CompiledProgram, gpu: Gpu) -> GpuLaunches:
    """Those of a compiled program."""
    codes = zip(kernel_names(program.sections), program.objects, strict=True)
    return GpuLaunches(gpu, {name: Shader.decode(code) for name, code in codes})
