"""The launches of a plan as arrays: their bindings, grids and parameters for some sizes.

A buffer is bound from the last aligned offset at or before its start; its position in the binding is a parameter.
The launches of a loop are bound to the memory of all iterations, and have parameters for each. What sizes do not change
is collected once per plan, so that other sizes cost a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.resident.device import Find
from weft.backends.webgpu.adapters import Limits
from weft.backends.webgpu.bindings import Binding
from weft.backends.webgpu.shader import Shader, list_bound_buffers
from weft.backends.webgpu.trip_counts import MOST_TRIPS, count_trips
from weft.backends.webgpu.wgpu_native import BindGroupEntries
from weft.errors import ExecutionError, InternalError, OutOfMemoryError
from weft.ir.arrays import Array
from weft.ir.kernel import Kernel
from weft.ir.work import Place
from weft.plan.plan import ABSOLUTE
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers
from weft.records import dataclass

PARAMETER_STRIDE = 256  # bytes between the parameters of launches: an alignment that all adapters support
MOST = 2**31 - 1
MOST_ELEMENTS = MOST - 2**16  # of a buffer: idle lanes beyond the end need indices too
_CELLS = PARAMETER_STRIDE // 4  # parameters of a launch
_PARAMETERS = 0  # the index of the parameters among the memories of bindings


@dataclass(frozen=True, slots=True, eq=False)
class BoundLaunches:
    """The bindings of a plan's launches for some sizes: arrays by launch, by buffer, or by both."""

    # by launch
    active: Array  # whether it runs
    turns: Array  # iterations
    x: Array  # workgroups
    y: Array
    is_exact: Array  # whether there are exactly as many workgroups as blocks

    # by buffer
    memory: Array  # indices of `memories`
    start: Array  # aligned
    size: Array  # bytes from there on, for the buffer and its aliases
    first: Array  # bytes from `start` to the buffer
    shift: Array  # bytes by which an iteration moves it
    alias: Array  # the earlier buffer of the launch that is the same memory, or -1
    is_aligned: Array  # whether it starts at a multiple of its runs, in all iterations
    segments: Array  # bindings; 0 for an alias

    memories: Sequence[Any]  # buffers of the GPU; the first is for the parameters
    segment_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _LoopingKernel:
    """A kernel with loops, and its launches: their numbers, and the places of their parameters."""

    kernel: Kernel
    description: str  # see trip_counts.py
    launches: Array
    parameters: Array


@dataclass(frozen=True, slots=True, eq=False)
class _ConstantSlices:
    """The memory of constants: buffers of the GPU, and for each address a buffer's number, from 1, offset and size."""

    addresses: list[int]
    active: list[bool]  # whether the launches of the addresses run
    memories: Sequence[Any]
    slices: Array


class LaunchTable:
    """The launches of a plan: what does not depend on sizes. It does not keep the plan alive."""

    def __init__(self, slots: PlanNumbers, shaders: Mapping[str, Shader]) -> None:
        self.launches, self.loops, self.regions = slots.launches, slots.loops, slots.regions
        self.buffer_counts = slots.buffers
        count = len(self.launches)
        listed = [list_bound_buffers(launch.kernel) for launch in self.launches]
        self.buffers = [buffer for buffers in listed for buffer in buffers]
        self.launch_of = np.repeat(np.arange(count), slots.buffers)
        self.first_buffer = np.cumsum(slots.buffers) - slots.buffers
        self.position = np.arange(len(self.buffers)) - self.first_buffer[self.launch_of]  # in the launch
        self.itemsize = np.array([buffer.dtype.numpy.itemsize for buffer in self.buffers], np.int64)
        runs = [shaders[launch.kernel.name].runs for launch in self.launches]
        self.run = np.array([runs[n][b.name] for n, b in zip(self.launch_of.tolist(), self.buffers)], np.int64)
        self.is_written = np.array([buffer.written for buffer in self.buffers], bool)
        self.is_constant = (slots.regions == ABSOLUTE) & ~self.is_written
        self._constants = np.flatnonzero(slots.regions == ABSOLUTE)
        self._constant_slices = _ConstantSlices([], [], (), np.zeros((3, 0), np.int64))
        self._regions = [int(region) for region in np.unique(slots.regions) if region != ABSOLUTE]
        self._pairs = self._find_pairs()
        self._width = 1 + slots.buffers + slots.parameters
        self._row = max(int(self._width.max(initial=1)), _CELLS)
        self._base_cells = self.launch_of * self._row + 1 + self.position
        first_parameter = np.cumsum(slots.parameters) - slots.parameters
        parameter_of = np.repeat(np.arange(count), slots.parameters)
        position = np.arange(len(parameter_of)) - first_parameter[parameter_of]
        self._parameter_cells = parameter_of * self._row + 1 + slots.buffers[parameter_of] + position
        self._looping = self._find_looping_kernels(shaders, first_parameter)

    def _find_pairs(self) -> tuple[Array, Array]:
        """Return the pairs of buffers of a launch that may be the same memory; the earliest partner comes last."""
        pairs = []
        for first, count in zip(self.first_buffer.tolist(), self.buffer_counts.tolist()):
            kinds = [(int(self.regions[n]), self.buffers[n].dtype) for n in range(first, first + count)]
            pairs += [
                (first + left, first + right)
                for right in range(count)
                for left in reversed(range(right))
                if kinds[left] == kinds[right] and kinds[left][0] != ABSOLUTE
            ]
        left, right = zip(*pairs) if pairs else ((), ())
        return np.array(left, np.intp), np.array(right, np.intp)

    def _find_looping_kernels(self, shaders: Mapping[str, Shader], first_parameter: Array) -> list[_LoopingKernel]:
        uses: dict[str, list[int]] = {}
        for number, launch in enumerate(self.launches):
            if shaders[launch.kernel.name].loops:
                uses.setdefault(launch.kernel.name, []).append(number)
        kernels = []
        for name, numbers in uses.items():
            kernel = self.launches[numbers[0]].kernel
            parameters = first_parameter[numbers][:, None] + np.arange(len(kernel.parameters))
            kernels.append(_LoopingKernel(kernel, shaders[name].loops, np.array(numbers), parameters))
        return kernels

    # -- bindings ----------------------------------------------------------------------------------------------------

    def bind(self, numbers: SizedNumbers, find: Find, limits: Limits) -> BoundLaunches:
        """Bind the launches for some sizes; `find` returns the memory of a place."""
        turns, shift = self._find_turns(numbers)
        active = numbers.has_blocks & (turns > 0)
        far = np.maximum(turns - 1, 0)[self.launch_of] * shift
        memories, memory, offset, size = self._find_spans(numbers, active, far, find)
        left, right = self._pairs
        alias = np.full(len(self.buffers), -1, np.intp)
        is_same = (offset[left] == offset[right]) & (shift[left] == shift[right])
        alias[right[is_same]] = left[is_same]
        start = offset // limits.offset_alignment * limits.offset_alignment
        first = offset - start
        size = size + first
        self._check_elements(size, active)
        is_alias = alias >= 0
        np.maximum.at(size, alias[is_alias], size[is_alias])
        first = first - np.minimum(far, 0)
        is_aligned = (first // self.itemsize % self.run == 0) & (shift // self.itemsize % self.run == 0)
        segment_bytes = limits.max_binding_bytes // PARAMETER_STRIDE * PARAMETER_STRIDE  # the next one is aligned
        segments = np.where(is_alias, 0, np.maximum(-(-size // segment_bytes), 1))
        x, y = self._choose_grids(numbers, limits.max_groups)
        is_exact = x * y == numbers.blocks
        return BoundLaunches(
            active, turns, x, y, is_exact,
            memory, start, size, first, shift, alias, is_aligned, segments,
            memories, segment_bytes,
        )  # fmt: skip

    def _find_turns(self, numbers: SizedNumbers) -> tuple[Array, Array]:
        """Return the iterations of each launch, and the bytes by which each of them moves each buffer."""
        turns = np.ones(len(self.launches), np.int64)
        shift = np.zeros(len(self.buffers), np.int64)
        for loop in self.loops:
            count = max(numbers.loop_count(loop), 0)
            turns[loop.first : loop.stop] = count
            if count > 1 and loop.stop > loop.first:
                first = int(self.first_buffer[loop.first])
                shift[first : first + len(loop.shifts)] = numbers.loop_shifts(loop)
        return turns, shift

    def _find_spans(
        self, numbers: SizedNumbers, active: Array, far: Array, find: Find
    ) -> tuple[list[Any], Array, Array, Array]:
        """Return memories, and for each buffer the index of its own, the offset there and the bytes in all iterations.

        `far` is how far the last iteration is from the first.
        """
        offset = numbers.offsets + np.minimum(far, 0)
        size = np.maximum(numbers.used + np.abs(far), 4)
        is_active = active[self.launch_of[self._constants]]
        constants = self._find_constants(offset[self._constants].tolist(), is_active.tolist(), find)
        homes = np.zeros((max(self._regions, default=0) + 1, 2), np.int64)
        memories = [None, *constants.memories]
        for region in self._regions:
            home = find(Place(region, 0), 0)
            if memories[-1] is not home.buffer:
                memories.append(home.buffer)
            homes[region] = len(memories) - 1, home.offset
        memory = homes[self.regions, 0]
        offset += homes[self.regions, 1]
        memory[self._constants], offset[self._constants], size[self._constants] = constants.slices
        return memories, memory, offset, size

    def _find_constants(self, addresses: list[int], active: list[bool], find: Find) -> _ConstantSlices:
        """Find the memory of constants, which is where it was unless an address depends on sizes."""
        if (addresses, active) != (self._constant_slices.addresses, self._constant_slices.active):
            memories: list[Any] = []
            rows = []
            for address, is_active in zip(addresses, active):
                try:
                    part = find(Place(ABSOLUTE, address), 0)
                except InternalError:  # the end of a constant, of which a launch without blocks takes nothing
                    if is_active:
                        raise
                    rows.append((_PARAMETERS, 0, 0))
                    continue
                if not any(memory is part.buffer for memory in memories):
                    memories.append(part.buffer)
                index = next(index for index, memory in enumerate(memories, 1) if memory is part.buffer)
                rows.append((index, part.offset, part.size))
            columns = np.array(rows, np.int64).reshape(-1, 3).T
            self._constant_slices = _ConstantSlices(addresses, active, memories, columns)
        return self._constant_slices

    def _choose_grids(self, numbers: SizedNumbers, max_groups: int) -> tuple[Array, Array]:
        rows = np.maximum(-(-numbers.blocks // max_groups), 1)
        if rows.max(initial=1) > max_groups:
            blocks = int(numbers.blocks.max())
            raise ExecutionError(f"a launch with {blocks:,} blocks: this device allows {max_groups * max_groups:,}")
        return -(-numbers.blocks // rows), rows

    def _check_elements(self, size: Array, active: Array) -> None:
        elements = size // self.itemsize * active[self.launch_of]
        if elements.max(initial=0) > MOST_ELEMENTS:
            raise ExecutionError(
                f"a tensor of {elements.max():,} elements: kernels of this device support up to {MOST_ELEMENTS:,}",
                node=self.launches[self.launch_of[elements.argmax()]].origin or None,
                hint="use a smaller batch, or device='cpu'",
            )

    def list_bindings(self, bound: BoundLaunches, launch: int) -> tuple[Binding, ...]:
        """List the bindings of a launch's buffers."""
        bindings = []
        first = int(self.first_buffer[launch])
        for number in range(first, first + int(self.buffer_counts[launch])):
            is_aligned, alias = bool(bound.is_aligned[number]), int(bound.alias[number])
            if alias >= 0:
                bindings.append(Binding(alias=self.buffers[alias].name, aligned=is_aligned))
                continue
            count, is_constant = int(bound.segments[number]), bool(self.is_constant[number])
            segment = bound.segment_bytes // int(self.itemsize[number]) if count > 1 else 0
            bindings.append(Binding(None, count, segment, is_aligned, is_constant))
        return tuple(bindings)

    def encode_variants(self, bound: BoundLaunches) -> Array:
        """Return a row of numbers for each launch; equal ones have the same bindings and the same kind of grid."""
        codes = np.zeros((len(self.launches), 1 + int(self.buffer_counts.max(initial=0))), np.int64)
        codes[:, 0] = bound.is_exact
        alias = np.where(bound.alias < 0, 0, self.position[bound.alias] + 1)
        codes[self.launch_of, 1 + self.position] = bound.is_aligned | alias << 1 | bound.segments << 32
        return codes

    def list_entries(self, bound: BoundLaunches, memories: Sequence[Any]) -> tuple[BindGroupEntries, Array]:
        """Return the bindings of active launches, the parameters first, and the buffers of all others.

        `memories` are the handles of the bound memories.
        """
        counts = bound.segments * bound.active[self.launch_of]
        buffers = np.repeat(np.arange(len(counts)), counts)
        segment = np.arange(len(buffers)) - np.repeat(np.cumsum(counts) - counts, counts)
        skipped = segment * bound.segment_bytes
        bytes_ = np.minimum(bound.size[buffers] - skipped, bound.segment_bytes)
        places = np.arange(len(buffers)) + np.cumsum(bound.active)[self.launch_of[buffers]]
        total = len(buffers) + int(bound.active.sum())
        memory, offset, size = np.full(total, _PARAMETERS), np.zeros(total, np.int64), np.full(total, PARAMETER_STRIDE)
        memory[places] = bound.memory[buffers]
        offset[places] = bound.start[buffers] + skipped
        size[places] = np.maximum(-(-bytes_ // 16) * 16, 16)
        groups = 1 + np.bincount(self.launch_of[buffers], minlength=len(self.launches))[bound.active]
        return BindGroupEntries(groups, memories, memory, offset, size), buffers

    def check_bindings(self, bound: BoundLaunches, max_bindings: int, name: str) -> None:
        """Raise OutOfMemoryError if tensors are so large that their segments need too many bindings."""
        if bound.segments.max(initial=0) <= 1:
            return
        counts = np.bincount(self.launch_of, bound.segments, len(self.launches)).astype(np.int64)
        is_split = np.bincount(self.launch_of, bound.segments > 1, len(self.launches)) > 0
        refused = np.flatnonzero((counts > max_bindings) & is_split)
        if len(refused):
            launch = int(refused[0])
            size = int(bound.size[(self.launch_of == launch) & (bound.alias < 0)].sum())
            raise OutOfMemoryError(
                f"a kernel works on {size:,} bytes and would need {counts[launch]} bindings: {name} has {max_bindings}",
                node=self.launches[launch].origin or None,
                hint="use smaller inputs, or another device: see weft.devices()",
            )

    # -- parameters --------------------------------------------------------------------------------------------------

    def list_rows(self, numbers: SizedNumbers, bound: BoundLaunches) -> tuple[Array, Array]:
        """Return the launch of each row of parameters, and the rows; those of launches that do not run are zero."""
        table = np.zeros((len(self.launches), self._row), np.int64)
        cells = table.reshape(-1)
        table[:, 0] = numbers.blocks
        cells[self._base_cells] = bound.first // self.itemsize
        cells[self._parameter_cells] = numbers.parameters
        table[~bound.active] = 0
        order = np.arange(len(self.launches))
        if self.loops:
            order, turn = self._unroll(bound)
            shifts = np.zeros_like(table)
            shifts.reshape(-1)[self._base_cells] = bound.shift // self.itemsize
            table = table[order] + shifts[order] * turn[:, None]
        self._check_rows(table, order, bound)
        return order, table[:, :_CELLS].astype(np.int32)

    def _unroll(self, bound: BoundLaunches) -> tuple[Array, Array]:
        """Return the launches in order, those of loops in each iteration, and the numbers of the iterations."""
        order, turn, first = [], [], 0
        for loop in self.loops:
            count, length = int(bound.turns[loop.first]) if loop.stop > loop.first else 0, loop.stop - loop.first
            order += [np.arange(first, loop.first), np.tile(np.arange(loop.first, loop.stop), count)]
            turn += [np.zeros(loop.first - first, np.int64), np.repeat(np.arange(count), length)]
            first = loop.stop
        order.append(np.arange(first, len(self.launches)))
        turn.append(np.zeros(len(self.launches) - first, np.int64))
        return np.concatenate(order), np.concatenate(turn)

    def _check_rows(self, table: Array, order: Array, bound: BoundLaunches) -> None:
        width = (self._width * bound.active).max(initial=0)
        if width > _CELLS:
            raise ExecutionError(f"a kernel with {width} parameters: a launch can have {_CELLS}")
        if max(table.max(initial=0), -table.min(initial=0)) > MOST:
            largest = np.abs(table).max(axis=1)
            raise ExecutionError(
                f"a size of {largest.max():,}: kernels of this device support up to {MOST:,}",
                node=self.launches[order[largest.argmax()]].origin or None,
                hint="use a smaller batch, or device='cpu'",
            )

    def check_trips(self, numbers: SizedNumbers, name: str) -> None:
        """Raise ExecutionError if loops have more iterations than a software adapter executes."""
        for looping in self._looping:
            is_running = numbers.has_blocks[looping.launches]
            launches = looping.launches[is_running]
            parameters = numbers.parameters[looping.parameters[is_running]]
            trips = count_trips(looping.description, looping.kernel, numbers.blocks[launches], parameters)
            if trips.max(initial=0) > MOST_TRIPS:
                raise ExecutionError(
                    f"kernel {looping.kernel.name!r} may need {trips.max():,} loop iterations: {name} stops after "
                    f"{MOST_TRIPS:,}",
                    node=self.launches[launches[trips.argmax()]].origin or None,
                    hint="use a real GPU, or device='cpu'",
                )
