"""A native section on a device with memory of its own: its launches recorded for each set of sizes that it has met.

All memory of a run but the weights is one buffer: arena, errors, inputs, outputs. It serves all sections of a program,
one run at a time. Arrays are written into it, and outputs read from it. Tensors that are on the device, and those that
stay there, are bound where they lie if the device can, and otherwise copied into and out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.planned import PlannedSection
from weft.backends.resident.device import (
    Array,
    BufferSlice,
    Commands,
    Copy,
    Find,
    LaunchCompiler,
    MemoryDevice,
    Read,
)
from weft.backends.resident.tensor import ResidentTensor, resident
from weft.backends.resident.weights import ResidentWeights
from weft.errors import ExecutionError
from weft.ir.numbers import Numbers
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Place, PlannedLaunch, Repeated, unrolled
from weft.plan.limits import MemoryBudget
from weft.plan.plan import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan
from weft.records import dataclass
from weft.threads import reentrant_lock

_LONG = 0.1  # seconds of a run that somebody may want to end before
_ALIGNED = 16  # bytes that what is bound in place starts at a multiple of, whatever its kernels read at once
_APART = 256  # regions start at multiples of it, whatever a device asks for


@dataclass(frozen=True, eq=False)
class ResidentPlan:
    """A section for one set of sizes, and where its regions start in the memory of a run."""

    plan: Plan
    starts: tuple[int, ...]  # of the arena, the errors, inputs and outputs
    size: int
    reports: bool  # whether kernels tell of data that is at fault
    launches: int


class RunMemory:
    """The buffer that runs of a program work in, one at a time; it grows where a run needs more."""

    def __init__(self, device: MemoryDevice) -> None:
        self.device = device
        self.lock = reentrant_lock()
        self.buffer: Any = None
        self.recordings: WeakKeyDictionary[ResidentPlan, Any] = WeakKeyDictionary()  # what is bound to the buffer

    def reserve(self, size: int) -> Any:
        """A buffer of at least so many bytes; where it is another than before, nothing is bound to it."""
        if self.buffer is None or self.buffer.size < size:
            self.recordings.clear()  # they hold on to the buffer, and the two need not fit at the same time
            if self.buffer is not None:
                self.buffer.release()
            self.buffer = None
            self.buffer = self.device.buffer(size, "arena")
        return self.buffer


@dataclass(frozen=True, slots=True, eq=False)
class ResidentState:
    """What the sections of one program share on their device."""

    device: MemoryDevice
    launches: LaunchCompiler
    weights: ResidentWeights
    memory: RunMemory
    budget: MemoryBudget


class ResidentSection(PlannedSection[ResidentPlan]):
    """Runs one native section. Several threads may call `run`; one at a time gets the device."""

    def __init__(
        self, section: NativeSection, constants: Mapping[Value, Any], state: ResidentState, stays: frozenset[Value]
    ) -> None:
        """`stays` are the outputs that other sections want on the device."""
        super().__init__(section, constants, state.budget, state.device.largest_buffer)
        self.alignment = state.device.alignment
        self.device = state.device
        self.memory = state.memory
        self.stays = stays
        self._launches = state.launches
        self._weights = state.weights

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        """The section's outputs, those to `keep` and those that stay on the device as tensors there."""
        with self.memory.lock:
            prepared = self.prepared(sizes)
            memory = self.memory.reserve(prepared.size)
            recording = self.memory.recordings.get(prepared)
            if recording is None:
                recording = self.memory.recordings[prepared] = self._record(prepared, memory)
            return self._run(prepared, recording, inputs, keep | self.stays)

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Compile what runs need, those of other sizes too where bindings are alike, and upload constants."""
        with self.memory.lock:
            prepared = self.prepared(sizes)
            self._launches.compile(prepared.plan.launches, self._finder(prepared, None))

    # -- for a set of sizes ------------------------------------------------------------------------------------------

    def _prepare(self, sizes: Mapping[str, int]) -> ResidentPlan:
        plan = self.make_plan(sizes)
        self._weights.add(plan.constants)
        reports = any(place.region == ERRORS for launch in _launches(plan) for place in launch.buffers)
        return ResidentPlan(plan, *self._regions(plan, sizes), reports, sum(1 for _ in unrolled(plan.launches)))

    def _launches_in(self, prepared: ResidentPlan) -> int:
        return prepared.launches

    def _regions(self, plan: Plan, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], int]:
        """Where in the memory of a run each region starts, and how large it is in all."""
        number = Numbers(sizes)
        inputs = [_bytes(value, number) for value in self.section.inputs]
        starts, size = [], 0
        for region in (plan.arena_bytes, 4, *inputs, *_output_bytes(plan)):
            starts.append(size)
            size += -(-max(region, 16) // _APART) * _APART
        return tuple(starts), size

    def workspace(self, plan: Plan, sizes: Mapping[str, int]) -> int:
        """What a run takes on the device beside weights, arena and outputs: copies of inputs, and parameters."""
        _, size = self._regions(plan, sizes)
        launches = sum(1 for _ in unrolled(plan.launches))
        return size - plan.arena_bytes - sum(_output_bytes(plan)) + launches * self._launches.parameter_bytes

    def _record(self, prepared: ResidentPlan, memory: Any) -> Any:
        count = len(self.section.inputs) + len(self.section.outputs)
        movable = range(FIRST_FREE, FIRST_FREE + count) if self.device.binds_in_place else range(0)
        return self._launches.record(prepared.plan.launches, self._finder(prepared, memory), movable)

    def _finder(self, prepared: ResidentPlan, memory: Any) -> Find:
        def find(place: Place, size: int) -> BufferSlice:
            if place.region == ABSOLUTE:
                return self._weights.find(place.offset)
            return BufferSlice(memory, prepared.starts[place.region - ARENA] + place.offset, max(size, 4))

        return find

    # -- a run -------------------------------------------------------------------------------------------------------

    def _run(self, prepared: ResidentPlan, recording: Any, inputs: Sequence[Any], keep: frozenset[Value]) -> list[Any]:
        memory = self.memory.buffer
        first = FIRST_FREE - ARENA
        before: list[Copy] = []
        bound: dict[int, BufferSlice] = {}
        for region, (start, content) in enumerate(zip(prepared.starts[first:], inputs), FIRST_FREE):
            if isinstance(content, ResidentTensor):
                place = content.place_on(self.device)
                if self._can_bind(place):
                    bound[region] = place
                    continue
                before.append((place.buffer, place.offset, memory, start, content.nbytes))
            else:
                array = np.ascontiguousarray(content)
                if array.nbytes:
                    self.device.write(memory, start, array)
            bound[region] = BufferSlice(memory, start, 0)
        errors = [BufferSlice(memory, prepared.starts[ERRORS - ARENA], 4)] if prepared.reports else []
        results: list[Any] = []
        reads: list[Read] = [(error.buffer, error.offset, error.size) for error in errors]
        after: list[Copy] = []
        places = prepared.starts[first + len(self.section.inputs) :]
        outputs = zip(self.section.outputs, places, prepared.plan.outputs)
        for region, (value, start, (shape, dtype)) in enumerate(outputs, FIRST_FREE + len(self.section.inputs)):
            size = prod(shape) * dtype.itemsize
            bound[region] = BufferSlice(memory, start, size)
            if value in keep:
                tensor = resident(self.device, self.device.unset_buffer(size), shape, dtype)
                place = tensor.place_on(self.device)
                if self._can_bind(place):
                    bound[region] = place
                else:
                    after.append((memory, start, place.buffer, place.offset, size))
                results.append(tensor)
            else:
                results.append((shape, dtype))
                reads.append((memory, start, size))
        if self.device.binds_in_place:
            recording.bind(bound)
        began = perf_counter()
        found = self.device.execute(Commands(errors, before, recording, after), reads, long=recording.seconds > _LONG)
        if reads:
            recording.seconds = perf_counter() - began
        return self._read(found, prepared.reports, results)

    def _can_bind(self, place: BufferSlice) -> bool:
        return self.device.binds_in_place and place.offset % _ALIGNED == 0

    @staticmethod
    def _read(content: list[Array], reports: bool, results: list[Any]) -> list[Any]:
        found = iter(content)
        if reports and next(found).any():
            raise ExecutionError("an index is out of range")
        return [
            result if isinstance(result, ResidentTensor) else next(found).view(result[1]).reshape(result[0])
            for result in results
        ]


def _output_bytes(plan: Plan) -> list[int]:
    return [prod(shape) * dtype.itemsize for shape, dtype in plan.outputs]


def _launches(plan: Plan) -> Iterator[PlannedLaunch]:
    for entry in plan.launches:
        yield from entry.launches if isinstance(entry, Repeated) else (entry,)


def _bytes(value: Value, number: Numbers) -> int:
    assert isinstance(value.type, TensorType)
    return prod(map(number, value.type.shape or ())) * value.type.dtype.numpy.itemsize
