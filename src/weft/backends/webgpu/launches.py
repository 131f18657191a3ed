"""Record planned launches as dispatches, with pipelines, bind groups and parameters, once per plan.

A buffer is bound from the last aligned offset at or before its start; its position in the binding is a parameter.
Repeated launches are bound to the memory of all repetitions, and have parameters for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Find
from weft.backends.webgpu.bindings import Binding, write_module
from weft.backends.webgpu.gpu import Gpu, GpuBuffer
from weft.backends.webgpu.rebinding import MovableBinding, MovableDispatch, MovableRegions, build_movable_regions
from weft.backends.webgpu.recordings import READ, UNIFORM, WRITE, ComputePipeline, Dispatch, Recording, ShaderSource
from weft.backends.webgpu.shader import Shader, list_bound_buffers
from weft.backends.webgpu.trip_counts import MOST_TRIPS, count_trips
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Buffer
from weft.ir.work import Place, PlannedLaunch, Repeated
from weft.plan.plan import ABSOLUTE
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers
from weft.records import dataclass

PARAMETER_STRIDE = 256  # bytes between the parameters of launches: an alignment that all adapters support
MOST = 2**31 - 1
MOST_ELEMENTS = MOST - 2**16  # of a buffer: idle lanes beyond the end need indices too


Key = tuple[str, tuple[Binding, ...], bool]
"""A kernel's name, its buffers' bindings, and whether dispatches have exactly as many workgroups as blocks."""


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A launch with the bindings of its buffers."""

    launch: PlannedLaunch
    bindings: tuple[Binding, ...]
    slices: tuple[BufferSlice, ...]  # of buffers that are not aliases
    regions: tuple[int, ...]  # of the same buffers
    written: frozenset[int]  # regions
    bases: tuple[tuple[int, ...], ...]  # for each repetition and buffer, the first element in the binding


class LaunchBinder:
    """Binds the launches of plans; `find` returns the memory of a place, given the number of bytes used."""

    def __init__(self, gpu: Gpu, shaders: Mapping[str, Shader], find: Find) -> None:
        self.gpu = gpu
        self.shaders = shaders
        self.find = find

    def bind(self, entries: Sequence[PlannedLaunch | Repeated], *, idle: bool = False) -> list[list[BoundLaunch]]:
        """Bind launches by entry; launches without blocks, which other sizes may need, only if `idle`."""
        bound = []
        for entry in entries:
            if isinstance(entry, PlannedLaunch):
                launches, shifts, count = [entry], [(0,) * len(entry.buffers)], 1
            else:
                launches, shifts, count = list(entry.launches), list(entry.shifts), entry.count
            pairs = zip(launches, shifts) if count else ()
            bound.append(
                [
                    self._bind_launch(launch, launch_bases, count)
                    for launch, launch_bases in pairs
                    if launch.blocks or idle
                ]
            )
        return bound

    def _check_trips(self, launch: PlannedLaunch) -> None:
        if not self.gpu.limits.is_software or not launch.blocks:
            return
        loops = self.shaders[launch.kernel.name].loops
        trips = count_trips(loops, launch.kernel, launch.blocks, launch.parameters)
        if trips > MOST_TRIPS:
            raise ExecutionError(
                f"kernel {launch.kernel.name!r} may need {trips:,} loop iterations: {self.gpu.name} stops after "
                f"{MOST_TRIPS:,}",
                node=launch.origin or None,
                hint="use a real GPU, or device='cpu'",
            )

    def _bind_launch(self, launch: PlannedLaunch, shifts: Sequence[int], count: int) -> BoundLaunch:
        self._check_trips(launch)
        buffers = list_bound_buffers(launch.kernel)
        alignment = self.gpu.limits.offset_alignment
        slices: dict[str, BufferSlice] = {}
        homes: dict[tuple[int, int, int, Any], str] = {}
        aliases: dict[str, str] = {}
        regions: dict[str, int] = {}
        bases: list[list[int]] = []
        for buffer, place, shift, size in zip(buffers, launch.buffers, shifts, launch.sizes, strict=True):
            span = self._find_span(place, shift, size, count)
            start = span.offset // alignment * alignment
            first = span.offset - start + (-shift * (count - 1) if shift < 0 else 0)
            bases.append([(first + shift * turn) // buffer.dtype.numpy.itemsize for turn in range(count)])
            aligned_slice = BufferSlice(span.buffer, start, span.size + span.offset - start)
            home = homes.setdefault((id(span.buffer), span.offset, shift, buffer.dtype), buffer.name)
            if home != buffer.name and place.region != ABSOLUTE:
                aliases[buffer.name] = home
                slices[home] = max(slices[home], aligned_slice, key=lambda memory: memory.size)
            else:
                slices[buffer.name] = aligned_slice
                regions[buffer.name] = place.region
            elements = aligned_slice.size // buffer.dtype.numpy.itemsize
            if elements > MOST_ELEMENTS and launch.blocks:
                raise ExecutionError(
                    f"a tensor of {elements:,} elements: kernels of this device support up to {MOST_ELEMENTS:,}",
                    node=launch.origin or None,
                    hint="use a smaller batch, or device='cpu'",
                )
        runs = self.shaders[launch.kernel.name].runs
        bindings = []
        for buffer, place, buffer_bases in zip(buffers, launch.buffers, bases):
            aligned = all(base % runs[buffer.name] == 0 for base in buffer_bases)
            if buffer.name in aliases:
                bindings.append(Binding(alias=aliases[buffer.name], aligned=aligned))
            else:
                constant = place.region == ABSOLUTE and not buffer.written
                bindings.append(self._choose_binding(buffer, slices[buffer.name], aligned, constant))
        self._check_bindings(launch, bindings, slices)
        written = frozenset(place.region for buffer, place in zip(buffers, launch.buffers) if buffer.written)
        times = tuple(zip(*bases)) if bases else ((),) * count
        return BoundLaunch(launch, tuple(bindings), tuple(slices.values()), tuple(regions.values()), written, times)

    def _check_bindings(
        self, launch: PlannedLaunch, bindings: Sequence[Binding], slices: Mapping[str, BufferSlice]
    ) -> None:
        """Raise OutOfMemoryError if tensors are so large that their segments need too many bindings."""
        count = sum(binding.segments for binding in bindings if binding.alias is None)
        max_bindings = self.gpu.limits.max_bindings
        if count > max_bindings and any(binding.segments > 1 for binding in bindings):
            raise OutOfMemoryError(
                f"a kernel works on {sum(memory.size for memory in slices.values()):,} bytes and would need {count} "
                f"bindings: {self.gpu.name} has {max_bindings}",
                node=launch.origin or None,
                hint="use smaller inputs, or another device: see weft.devices()",
            )

    def _find_span(self, place: Place, shift: int, size: int, count: int) -> BufferSlice:
        """Find the memory of a buffer in all repetitions."""
        if not shift:
            return self.find(place, size)
        far = shift * (count - 1)
        return self.find(Place(place.region, place.offset + min(far, 0)), size + abs(far))

    def _choose_binding(self, buffer: Buffer, memory: BufferSlice, aligned: bool, constant: bool) -> Binding:
        """Split a buffer that is too large for one binding into several."""
        max_bytes = self._max_segment_bytes()
        count = -(-memory.size // max_bytes)
        if count <= 1:
            return Binding(aligned=aligned, constant=constant)
        return Binding(None, count, max_bytes // buffer.dtype.numpy.itemsize, aligned, constant)

    # -- recordings --------------------------------------------------------------------------------------------------

    def record(self, entries: Sequence[Sequence[BoundLaunch]], movable: range = range(0)) -> Recording:
        """Record launches in order; `movable` regions may be rebound later."""
        pipelines = self.pipelines(entries)
        rows: list[tuple[BoundLaunch, tuple[int, ...]]] = []
        for entry in entries:
            for turn in range(len(entry[0].bases) if entry else 0):
                rows += [(bound, bound.bases[turn]) for bound in entry]
        parameters = self._parameters(rows)
        homes = {region: self.find(Place(region, 0), 0) for region in movable}
        dispatches, movable_dispatches = [], []
        for number, (bound, _) in enumerate(rows):
            pipeline = pipelines[self._key(bound)]
            ranges = [(parameters, number * PARAMETER_STRIDE, PARAMETER_STRIDE), *self._ranges(bound)]
            movable_bindings = self._find_movable(bound, ranges, homes)
            group: Any
            if movable_bindings:
                kinds = zip(ranges, (UNIFORM, *_list_kinds(bound.bindings)))
                constant = frozenset(memory.live_memory().serial for (memory, _, _), kind in kinds if kind == READ)
                dispatch = MovableDispatch(self.gpu, pipeline, ranges, movable_bindings, constant)
                movable_dispatches.append(dispatch)
                group = dispatch.slot
            else:
                group = self.gpu.bind_group(pipeline, ranges)
            dispatches.append(Dispatch(pipeline, group, *self._choose_grid(bound.launch)))
        return Recording(dispatches, self._regions(entries, movable_dispatches, homes))

    def _find_movable(
        self, bound: BoundLaunch, ranges: Sequence[tuple[GpuBuffer, int, int]], homes: Mapping[int, BufferSlice]
    ) -> list[MovableBinding]:
        """List the bindings of a launch that are in movable regions."""
        bindings = [binding for binding in bound.bindings if binding.alias is None]
        regions = [region for binding, region in zip(bindings, bound.regions) for _ in range(binding.segments)]
        return [
            MovableBinding(number, region, ranges[number][1] - homes[region].offset)
            for number, region in enumerate(regions, 1)
            if region in homes
        ]

    def _regions(
        self,
        entries: Sequence[Sequence[BoundLaunch]],
        dispatches: Sequence[MovableDispatch],
        homes: Mapping[int, BufferSlice],
    ) -> MovableRegions | None:
        if not dispatches:
            return None
        written = frozenset(region for entry in entries for bound in entry for region in bound.written)
        return build_movable_regions(self.gpu.alignment, dispatches, homes, written)

    def _key(self, bound: BoundLaunch) -> Key:
        x, y = self._choose_grid(bound.launch)
        return bound.launch.kernel.name, bound.bindings, x * y == bound.launch.blocks

    def pipelines(self, entries: Sequence[Sequence[BoundLaunch]]) -> dict[Key, ComputePipeline]:
        """Compile the pipelines of launches."""
        sources: dict[Key, ShaderSource] = {}
        for bound in (bound for entry in entries for bound in entry):
            kernel = bound.launch.kernel
            key = self._key(bound)
            if key not in sources:
                named = {buffer.name: binding for buffer, binding in zip(list_bound_buffers(kernel), bound.bindings)}
                shader = self.shaders[kernel.name]
                text = write_module(kernel, shader, named, self.gpu.abilities, key[-1])
                kinds = (UNIFORM, *_list_kinds(bound.bindings))
                sources[key] = ShaderSource(text, kinds, shared_bytes=shader.shared_bytes)
        names = {f"{key[0]}.{number}": key for number, key in enumerate(sources)}
        pipelines = self.gpu.pipelines({name: sources[key] for name, key in names.items()})
        return {key: pipelines[name] for name, key in names.items()}

    def _parameters(self, rows: Sequence[tuple[BoundLaunch, tuple[int, ...]]]) -> GpuBuffer:
        """Write the parameters of all launches to one buffer."""
        block = np.zeros((max(len(rows), 1), PARAMETER_STRIDE // 4), np.int64)
        for number, (bound, bases) in enumerate(rows):
            row = (bound.launch.blocks, *bases, *bound.launch.parameters)
            if len(row) > block.shape[1]:
                raise ExecutionError(f"a kernel with {len(row)} parameters: a launch can have 64")
            block[number, : len(row)] = row
        largest = np.abs(block).max(axis=1)
        if largest.max() > MOST:
            raise ExecutionError(
                f"a size of {largest.max():,}: kernels of this device support up to {MOST:,}",
                node=rows[int(largest.argmax())][0].launch.origin or None,
                hint="use a smaller batch, or device='cpu'",
            )
        buffer = self.gpu.uniform(block.shape[0] * PARAMETER_STRIDE)
        self.gpu.write(buffer, 0, block.astype(np.int32))
        return buffer

    def _ranges(self, bound: BoundLaunch) -> list[tuple[GpuBuffer, int, int]]:
        """List the slices of all bindings, in order."""
        max_bytes = self._max_segment_bytes()
        ranges = []
        bindings = [binding for binding in bound.bindings if binding.alias is None]
        for binding, whole in zip(bindings, bound.slices, strict=True):
            for segment in range(binding.segments):
                size = min(max_bytes, whole.size - segment * max_bytes) if binding.segments > 1 else whole.size
                ranges.append((whole.buffer, whole.offset + segment * max_bytes, max(-(-size // 16) * 16, 16)))
        return ranges

    def _max_segment_bytes(self) -> int:
        """Return the largest size of a segment, such that the next one is aligned."""
        return self.gpu.limits.max_binding_bytes // PARAMETER_STRIDE * PARAMETER_STRIDE

    def _choose_grid(self, launch: PlannedLaunch) -> tuple[int, int]:
        max_groups = self.gpu.limits.max_groups
        rows = max(-(-launch.blocks // max_groups), 1)
        if rows > max_groups:
            raise ExecutionError(
                f"a launch with {launch.blocks:,} blocks: this device allows {max_groups * max_groups:,}"
            )
        return -(-launch.blocks // rows), rows


def _list_kinds(bindings: Sequence[Binding]) -> tuple[str, ...]:
    return tuple(
        READ if binding.constant else WRITE
        for binding in bindings
        if binding.alias is None
        for _ in range(binding.segments)
    )


@dataclass(frozen=True, slots=True, eq=False)
class WebGpuLaunchCompiler:
    """Records the plans of one program, whose shaders it has."""

    gpu: Gpu
    shaders: Mapping[str, Shader]
    parameter_bytes: int = PARAMETER_STRIDE

    @classmethod
    def from_program(cls, program: CompiledProgram, gpu: Gpu) -> WebGpuLaunchCompiler:
        codes = zip(kernel_names(program.sections), program.objects, strict=True)
        return cls(gpu, {name: Shader.decode(code) for name, code in codes})

    def compile(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find) -> None:
        binder = LaunchBinder(self.gpu, self.shaders, find)
        binder.pipelines(binder.bind(slots.plan.at(numbers.sizes).launches, idle=True))

    def record(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find, movable: range = range(0)) -> Recording:
        binder = LaunchBinder(self.gpu, self.shaders, find)
        return binder.record(binder.bind(slots.plan.at(numbers.sizes).launches), movable)
