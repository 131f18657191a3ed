"""Record the launches of a plan as dispatches, with pipelines, bind groups and parameters.

A plan has one buffer of parameters for all sizes, which dispatches read at dynamic offsets. For other sizes arrays are
computed (launch_table.py) and bind groups created, about 6 µs for each launch in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.naming import kernel_names
from weft.backends.resident.device import Find
from weft.backends.webgpu.bindings import Binding, write_module
from weft.backends.webgpu.gpu import Gpu
from weft.backends.webgpu.launch_table import PARAMETER_STRIDE, BoundLaunches, LaunchTable
from weft.backends.webgpu.rebinding import MovableBinding, MovableDispatch, MovableRegions, build_movable_regions
from weft.backends.webgpu.recordings import (
    DYNAMIC,
    READ,
    WRITE,
    ComputePipeline,
    Dispatch,
    ParameterBuffer,
    Recording,
    ShaderSource,
)
from weft.backends.webgpu.shader import Shader, list_bound_buffers
from weft.backends.webgpu.wgpu_native import BindGroup, BindGroupEntries, GroupSlot
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.work import Place
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers
from weft.records import dataclass

PipelineKey = tuple[str, tuple[Binding, ...], bool]
"""A kernel's name, its buffers' bindings, and whether dispatches have exactly as many workgroups as blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class _LaunchGroups:
    """The launches that run, with their pipelines and bind groups; `buffers` are those of the entries in order."""

    launches: list[int]
    pipelines: list[ComputePipeline]
    groups: list[BindGroup]
    entries: BindGroupEntries
    buffers: Array


class PlanRecorder:
    """Records the launches of one plan, for any sizes."""

    def __init__(self, gpu: Gpu, shaders: Mapping[str, Shader], slots: PlanNumbers) -> None:
        self.gpu = gpu
        self.shaders = shaders
        self.table = LaunchTable(slots, shaders)
        self._variants: list[dict[bytes, ComputePipeline]] = [{} for _ in slots.launches]
        self._parameters: ParameterBuffer | None = None

    def compile(self, numbers: SizedNumbers, find: Find) -> None:
        """Compile the pipelines for some sizes, including those of launches that only other sizes need."""
        self._choose_pipelines(self._bind(numbers, find), range(len(self.table.launches)))

    def record(self, numbers: SizedNumbers, find: Find, movable: range = range(0)) -> Recording:
        """Record the launches for some sizes; `movable` regions may be bound to other memory later."""
        bound = self._bind(numbers, find)
        order, rows = self.table.list_rows(numbers, bound)
        if self._parameters is None or self._parameters.buffer.size < rows.nbytes:
            self._parameters = ParameterBuffer(self.gpu, rows.nbytes)
        groups = self._create_groups(bound, self._parameters)
        slots, regions = self._find_slots(bound, groups, find, movable)
        grids = zip(bound.x[groups.launches].tolist(), bound.y[groups.launches].tolist())
        parts = dict(zip(groups.launches, zip(groups.pipelines, slots, grids)))
        dispatches = []
        for row, launch in enumerate(order.tolist()):
            if launch in parts:
                pipeline, slot, (x, y) = parts[launch]
                dispatches.append(Dispatch(pipeline, slot, x, y, 1, row * PARAMETER_STRIDE))
        return Recording(dispatches, regions, (self._parameters, rows))

    def _bind(self, numbers: SizedNumbers, find: Find) -> BoundLaunches:
        if self.gpu.limits.is_software:
            self.table.check_trips(numbers, self.gpu.name)
        bound = self.table.bind(numbers, find, self.gpu.limits)
        self.table.check_bindings(bound, self.gpu.limits.max_bindings, self.gpu.name)
        return bound

    # -- pipelines ---------------------------------------------------------------------------------------------------

    def _choose_pipelines(self, bound: BoundLaunches, launches: Sequence[int]) -> list[ComputePipeline]:
        """Return the pipelines of some launches; compiles those that are new."""
        codes = [code.tobytes() for code in self.table.encode_variants(bound)]
        new = [launch for launch in launches if codes[launch] not in self._variants[launch]]
        if new:
            keys = [self._find_key(bound, launch) for launch in new]
            kernels = {key: self.table.launches[launch].kernel for key, launch in zip(keys, new)}
            pipelines = self._compile(kernels)
            for launch, key in zip(new, keys):
                self._variants[launch][codes[launch]] = pipelines[key]
        return [self._variants[launch][codes[launch]] for launch in launches]

    def _find_key(self, bound: BoundLaunches, launch: int) -> PipelineKey:
        bindings = self.table.list_bindings(bound, launch)
        return self.table.launches[launch].kernel.name, bindings, bool(bound.is_exact[launch])

    def _compile(self, kernels: Mapping[PipelineKey, Kernel]) -> dict[PipelineKey, ComputePipeline]:
        sources: dict[str, ShaderSource] = {}
        for number, (key, kernel) in enumerate(kernels.items()):
            name, bindings, is_exact = key
            shader = self.shaders[name]
            named = {buffer.name: binding for buffer, binding in zip(list_bound_buffers(kernel), bindings)}
            text = write_module(kernel, shader, named, self.gpu.abilities, is_exact)
            kinds = (DYNAMIC, *_list_kinds(bindings))
            sources[f"{name}.{number}"] = ShaderSource(text, kinds, shared_bytes=shader.shared_bytes)
        return dict(zip(kernels, self.gpu.pipelines(sources).values()))

    # -- bind groups -------------------------------------------------------------------------------------------------

    def _create_groups(self, bound: BoundLaunches, parameters: ParameterBuffer) -> _LaunchGroups:
        launches = np.flatnonzero(bound.active).tolist()
        pipelines = self._choose_pipelines(bound, launches)
        memories = [memory.live_handle() for memory in (parameters.buffer, *bound.memories[1:])]
        entries, buffers = self.table.list_entries(bound, memories)
        return _LaunchGroups(launches, pipelines, self.gpu.bind_groups(pipelines, entries), entries, buffers)

    def _find_slots(
        self, bound: BoundLaunches, groups: _LaunchGroups, find: Find, movable: range
    ) -> tuple[list[GroupSlot], MovableRegions | None]:
        """Return the slots of bind groups; those of movable regions may change."""
        table = self.table
        slots = [GroupSlot(group) for group in groups.groups]
        regions = table.regions[groups.buffers]
        is_movable = (regions >= movable.start) & (regions < movable.stop)
        homes = {region: find(Place(region, 0), 0) for region in movable}
        ends = np.cumsum(groups.entries.counts - 1)
        dispatches = []
        for number in np.unique(np.searchsorted(ends, np.flatnonzero(is_movable), side="right")).tolist():
            part = slice(int(ends[number] - groups.entries.counts[number] + 1), int(ends[number]))
            ranges = groups.entries.slices(number)
            moved = [
                MovableBinding(binding, region, ranges[binding][1] - homes[region].offset)
                for binding, region in enumerate(regions[part].tolist(), 1)
                if region in homes
            ]
            constants = groups.buffers[part][table.is_constant[groups.buffers[part]]]
            read_only = frozenset(bound.memories[index].live_memory().serial for index in bound.memory[constants])
            pipeline, group = groups.pipelines[number], groups.groups[number]
            dispatches.append(MovableDispatch(self.gpu, pipeline, ranges, group, moved, read_only))
            slots[number] = dispatches[-1].slot
        if not dispatches:
            return slots, None
        is_written = table.is_written & bound.active[table.launch_of]
        written = frozenset(table.regions[is_written].tolist())
        return slots, build_movable_regions(self.gpu.alignment, dispatches, homes, written)


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
    _recorders: WeakKeyDictionary[PlanNumbers, PlanRecorder] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def from_program(cls, program: CompiledProgram, gpu: Gpu) -> WebGpuLaunchCompiler:
        codes = zip(kernel_names(program.sections), program.objects, strict=True)
        return cls(gpu, {name: Shader.decode(code) for name, code in codes})

    def compile(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find) -> None:
        self._find_recorder(slots).compile(numbers, find)

    def record(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find, movable: range = range(0)) -> Recording:
        return self._find_recorder(slots).record(numbers, find, movable)

    def _find_recorder(self, slots: PlanNumbers) -> PlanRecorder:
        recorder = self._recorders.get(slots)
        if recorder is None:
            recorder = self._recorders[slots] = PlanRecorder(self.gpu, self.shaders, slots)
        return recorder
