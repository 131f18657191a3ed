"""A native section on a device with its own memory: its launches are recorded once for each set of sizes.

All memory of a run except the weights is one buffer: arena, errors, inputs, outputs. It serves all sections of a
program, one run at a time. Arrays are written into it, and outputs read from it. Tensors that are on the device, or
stay there, are bound in place if the device can, and otherwise copied into and out of the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from weft.backends.device_section import DeviceSection
from weft.backends.host.numbers import compute_natively
from weft.backends.resident.device import BufferSlice, Commands, Copy, Find, MemoryDevice, Read
from weft.backends.resident.tensor import ResidentTensor, resident
from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.program import Value
from weft.ir.work import NativeSection, Place, unrolled
from weft.plan.limits import choose_capacity
from weft.plan.plan import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan
from weft.plan.plan_numbers import Compute, PlanNumbers, SizedNumbers
from weft.records import dataclass
from weft.threads import make_reentrant_lock

if TYPE_CHECKING:
    from weft.backends.resident.executable import ResidentExecutable

Outputs = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
"""The shape and dtype of each output."""

_LONG = 0.1  # seconds; Ctrl-C interrupts the wait for a longer run
_BIND_ALIGNMENT = 16  # bytes; the widest access of a kernel to a tensor that is bound in place
_REGION_ALIGNMENT = 256  # bytes; enough for every device


@dataclass(frozen=True, eq=False)
class ResidentPlan:
    """The plan of a section with its numbers for one set of sizes, and the offsets of its regions in a run's buffer."""

    slots: PlanNumbers
    numbers: SizedNumbers
    outputs: Outputs
    starts: tuple[int, ...]  # of the arena, the errors, inputs and outputs
    size: int  # of the buffer: its capacity
    reports: bool  # whether kernels report indices out of range
    launches: int


class RunMemory:
    """The buffer of a program's runs, one at a time; it grows where a run needs more."""

    def __init__(self, device: MemoryDevice) -> None:
        self.device = device
        self.lock = make_reentrant_lock()
        self.buffer: Any = None
        self.recordings: WeakKeyDictionary[ResidentPlan, Any] = WeakKeyDictionary()  # bound to the buffer

    def reserve(self, size: int) -> Any:
        """Return a buffer of at least this many bytes; a new one drops all recordings."""
        if self.buffer is None or self.buffer.size < size:
            self.recordings.clear()  # they refer to the old buffer, which is freed before the new one is allocated
            if self.buffer is not None:
                self.buffer.release()
            self.buffer = None
            self.buffer = self.device.buffer(size, "arena")
        return self.buffer


class ResidentSection(DeviceSection[ResidentPlan]):
    """One native section on the device. Several threads may call `run`; one at a time gets the device."""

    def __init__(self, section: NativeSection, constants: Mapping[Value, Any], executable: ResidentExecutable) -> None:
        super().__init__(section, constants, executable.budget, executable.device.largest_buffer, executable.program)
        self.alignment = executable.device.alignment
        self.device = executable.device
        self.memory = executable.memory
        self.resident_outputs = executable.residency.outputs[id(section)]  # that stay on the device for other sections
        self._launches = executable.launches
        self._weights = executable.weights
        self._uploaded: WeakSet[PlanNumbers] = WeakSet()  # plans whose constants are on the device

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        with self.memory.lock:
            plan = self.load_plan(sizes)
            memory = self.memory.reserve(plan.size)
            recording = self.memory.recordings.get(plan)
            if recording is None:
                recording = self.memory.recordings[plan] = self._record(plan, memory)
            return self._run(plan, recording, inputs, keep | self.resident_outputs)

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Compile the launches for these sizes, and for others with the same bindings, and upload constants."""
        with self.memory.lock:
            plan = self.load_plan(sizes)
            self._launches.compile(plan.slots, plan.numbers, self._make_finder(plan, None))

    # -- for a set of sizes ------------------------------------------------------------------------------------------

    def _compute(self) -> Compute:
        return compute_natively

    def _load_numbers(self, slots: PlanNumbers, numbers: SizedNumbers) -> ResidentPlan:
        if slots not in self._uploaded:
            self._weights.add(slots.plan.constants)
            self._uploaded.add(slots)
        outputs = numbers.outputs
        starts, size = self._place_regions(numbers.arena_bytes, outputs, numbers.sizes)
        reports = bool((slots.regions == ERRORS).any())
        return ResidentPlan(slots, numbers, outputs, starts, size, reports, _count_launches(slots, numbers))

    def _count_launches(self, plan: ResidentPlan) -> int:
        return plan.launches

    def _place_regions(
        self, arena_bytes: int, outputs: Outputs, sizes: Mapping[str, int]
    ) -> tuple[tuple[int, ...], int]:
        """Return the offset of each region in a run's buffer, and the capacity of the buffer."""
        number = DimEvaluator(sizes)
        inputs = [number(value.nbytes) for value in self.section.inputs]
        starts, size = [], 0
        for region in (arena_bytes, 4, *inputs, *_output_bytes(outputs)):
            starts.append(size)
            size += -(-max(region, 16) // _REGION_ALIGNMENT) * _REGION_ALIGNMENT
        if self.symbols and self.budget.limit is None:
            capacity = choose_capacity(size, _REGION_ALIGNMENT)
            size = max(size, min(capacity, self.device.largest_buffer))
        return tuple(starts), size

    def workspace(self, plan: Plan, sizes: Mapping[str, int]) -> int:
        """Return the bytes of a run besides weights, arena and outputs.

        These are copies of inputs, parameters, and the unused part of the buffer's capacity.
        """
        _, size = self._place_regions(plan.arena_bytes, plan.outputs, sizes)
        launches = sum(1 for _ in unrolled(plan.launches))
        return size - plan.arena_bytes - sum(_output_bytes(plan.outputs)) + launches * self._launches.parameter_bytes

    def _record(self, plan: ResidentPlan, memory: Any) -> Any:
        count = len(self.section.inputs) + len(self.section.outputs)
        movable = range(FIRST_FREE, FIRST_FREE + count) if self.device.binds_in_place else range(0)
        return self._launches.record(plan.slots, plan.numbers, self._make_finder(plan, memory), movable)

    def _make_finder(self, plan: ResidentPlan, memory: Any) -> Find:
        def find(place: Place, size: int) -> BufferSlice:
            if place.region == ABSOLUTE:
                return self._weights.find(place.offset)
            return BufferSlice(memory, plan.starts[place.region - ARENA] + place.offset, max(size, 4))

        return find

    # -- a run -------------------------------------------------------------------------------------------------------

    def _run(self, plan: ResidentPlan, recording: Any, inputs: Sequence[Any], keep: frozenset[Value]) -> list[Any]:
        memory = self.memory.buffer
        first = FIRST_FREE - ARENA
        before: list[Copy] = []
        bound: dict[int, BufferSlice] = {}
        for region, (start, content) in enumerate(zip(plan.starts[first:], inputs), FIRST_FREE):
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
        errors = [BufferSlice(memory, plan.starts[ERRORS - ARENA], 4)] if plan.reports else []
        results: list[Any] = []
        reads: list[Read] = [(error.buffer, error.offset, error.size) for error in errors]
        after: list[Copy] = []
        places = plan.starts[first + len(self.section.inputs) :]
        outputs = zip(self.section.outputs, places, plan.outputs)
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
        contents = self.device.execute(
            Commands(errors, before, recording, after), reads, long=recording.seconds > _LONG
        )
        if reads:
            recording.seconds = perf_counter() - began
        return self._read(contents, plan.reports, results)

    def _can_bind(self, place: BufferSlice) -> bool:
        return self.device.binds_in_place and place.offset % _BIND_ALIGNMENT == 0

    @staticmethod
    def _read(contents: list[Array], reports: bool, results: list[Any]) -> list[Any]:
        remaining = iter(contents)
        if reports and next(remaining).any():
            raise ExecutionError("an index is out of range")
        return [
            result if isinstance(result, ResidentTensor) else next(remaining).view(result[1]).reshape(result[0])
            for result in results
        ]


def _output_bytes(outputs: Outputs) -> list[int]:
    return [prod(shape) * dtype.itemsize for shape, dtype in outputs]


def _count_launches(slots: PlanNumbers, numbers: SizedNumbers) -> int:
    """Return the number of launches of a run, those of loops as often as they are repeated."""
    repeated = sum((numbers.loop_count(loop) - 1) * (loop.stop - loop.first) for loop in slots.loops)
    return len(slots.launches) + repeated
