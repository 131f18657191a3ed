"""A native section on a GPU: its launches recorded for each set of sizes that it has met.

All memory of a run but the weights is one buffer: arena, errors, inputs, outputs. It serves all sections of a program,
one run at a time. Inputs are written or copied into it; outputs are copied out of it: to the host, or to tensors that
stay on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.webgpu.gpu import Buffer, Gpu, Recording
from weft.backends.webgpu.launches import PARAMETER_STRIDE, Binder
from weft.backends.webgpu.shader import Shader
from weft.backends.webgpu.tensor import GpuTensor
from weft.backends.webgpu.weights import Spot, Weights
from weft.errors import ExecutionError
from weft.ir.compiled import section_constants, section_symbols
from weft.ir.numbers import Numbers
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Place, PlannedLaunch, Repeated, unrolled
from weft.plan.limits import MemoryBudget, check_fits
from weft.plan.sections import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan, make_plan
from weft.threads import reentrant_lock

Array = np.ndarray[Any, Any]
REMEMBERED_PLANS = 64  # sets of sizes for which a section keeps its launches
_LONG = 0.1  # seconds of a run that somebody may want to end before
_APART = 256  # regions start at multiples of it, whatever an adapter asks for


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A section for one set of sizes, and where its regions start in the memory of a run."""

    plan: Plan
    starts: tuple[int, ...]  # of the arena, the errors, inputs and outputs
    size: int
    reports: bool  # whether kernels tell of data that is at fault


class RunMemory:
    """The buffer that runs of a program work in, one at a time; it grows where a run needs more."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.lock = reentrant_lock()
        self.buffer: Buffer | None = None
        self.recordings: WeakKeyDictionary[_Prepared, Recording] = WeakKeyDictionary()  # what is bound to the buffer

    def reserve(self, size: int) -> Buffer:
        """A buffer of at least so many bytes; where it is another than before, nothing is bound to it."""
        if self.buffer is None or self.buffer.size < size:
            self.recordings.clear()  # they hold on to the buffer, and the two need not fit at the same time
            if self.buffer is not None:
                self.buffer.release()
            self.buffer = None
            self.buffer = self.gpu.buffer(size, "arena")
        return self.buffer


class SectionRunner:
    """Runs one native section. Several threads may call `run`; one at a time gets the device."""

    def __init__(
        self,
        section: NativeSection,
        constants: Mapping[Value, Any],
        shaders: Mapping[str, Shader],
        weights: Weights,
        memory: RunMemory,
        budget: MemoryBudget,
        stays: frozenset[Value],
    ) -> None:
        """`stays` are the outputs that other sections want on the device."""
        self.section = section
        self.shaders = shaders
        self.weights = weights
        self.memory = memory
        self.budget = budget
        self.gpu = memory.gpu
        self.stays = stays
        self.symbols = section_symbols(section) if section.symbols is None else section.symbols
        self.constants = section_constants(section, constants)
        self._plans: OrderedDict[tuple[int, ...], _Prepared] = OrderedDict()

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        """The section's outputs, those to `keep` and those that stay on the device as tensors there."""
        with self.memory.lock:
            prepared = self._prepared(sizes)
            memory = self.memory.reserve(prepared.size)
            recording = self.memory.recordings.get(prepared)
            if recording is None:
                recording = self.memory.recordings[prepared] = self._record(prepared, memory)
            return self._run(prepared, recording, memory, inputs, keep | self.stays)

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Compile what runs need, those of other sizes too where bindings are alike, and upload constants."""
        with self.memory.lock:
            prepared = self._prepared(sizes)
            binder = self._binder(prepared, None)
            binder.pipelines(binder.bind(prepared.plan.launches, idle=True))

    def make_plan(self, sizes: Mapping[str, int]) -> Plan:
        """Memory and launches for given sizes."""
        try:
            plan = make_plan(self.section, self.constants, sizes, alignment=self.gpu.limits.offset_alignment)
        except ZeroDivisionError:  # by a size that is 0: a program for these very sizes may do without it
            raise
        except ArithmeticError as error:
            raise ExecutionError(f"sizes cannot be computed: {error}") from error
        check_fits(plan, self.budget, self.gpu.limits.max_buffer_bytes)
        return plan

    # -- for a set of sizes ------------------------------------------------------------------------------------------

    def _prepared(self, sizes: Mapping[str, int]) -> _Prepared:
        key = tuple([sizes[name] for name in self.symbols])
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._prepare(sizes)
            while len(self._plans) > REMEMBERED_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return found

    def _prepare(self, sizes: Mapping[str, int]) -> _Prepared:
        plan = self.make_plan(sizes)
        self.weights.add(plan.constants)
        reports = any(place.region == ERRORS for launch in _launches(plan) for place in launch.buffers)
        return _Prepared(plan, *self._regions(plan, sizes), reports)

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
        return size - plan.arena_bytes - sum(_output_bytes(plan)) + launches * PARAMETER_STRIDE

    def _record(self, prepared: _Prepared, memory: Buffer) -> Recording:
        binder = self._binder(prepared, memory)
        return binder.record(binder.bind(prepared.plan.launches))

    def _binder(self, prepared: _Prepared, memory: Buffer | None) -> Binder:
        def find(place: Place, size: int) -> Spot:
            if place.region == ABSOLUTE:
                return self.weights.find(place.offset)
            return Spot(memory, prepared.starts[place.region - ARENA] + place.offset, max(size, 4))

        return Binder(self.gpu, self.shaders, find)

    # -- a run -------------------------------------------------------------------------------------------------------

    def _run(
        self,
        prepared: _Prepared,
        recording: Recording,
        memory: Buffer,
        inputs: Sequence[Any],
        keep: frozenset[Value],
    ) -> list[Any]:
        first = FIRST_FREE - ARENA
        copies: list[tuple[Buffer, int, Buffer, int, int]] = []
        for start, content in zip(prepared.starts[first:], inputs):
            if isinstance(content, GpuTensor):
                copies.append((content.buffer_on(self.gpu), 0, memory, start, content.nbytes))
            else:
                array = np.ascontiguousarray(content)
                if array.nbytes:
                    self.gpu.write(memory, start, array)
        errors = prepared.starts[ERRORS - ARENA]
        results: list[Any] = []
        reads: list[tuple[Buffer, int, int]] = [(memory, errors, 4)] if prepared.reports else []
        after: list[tuple[Buffer, int, Buffer, int, int]] = []
        places = prepared.starts[first + len(self.section.inputs) :]
        for value, start, (shape, dtype) in zip(self.section.outputs, places, prepared.plan.outputs):
            size = prod(shape) * dtype.itemsize
            if value in keep:
                tensor = GpuTensor(self.gpu, self.gpu.buffer(size, "tensor"), shape, dtype)
                after.append((memory, start, tensor.buffer_on(self.gpu), 0, size))
                results.append(tensor)
            else:
                results.append((shape, dtype))
                reads.append((memory, start, size))

        def encode(encoder: Any) -> None:
            if prepared.reports:
                encoder.clear_buffer(memory.handle, errors, 4)
            _copy(encoder, copies)
            recording(encoder)
            _copy(encoder, after)

        if reads:
            began = perf_counter()
            content = self.gpu.run(encode, reads, long=recording.seconds > _LONG)
            recording.seconds = perf_counter() - began
            return self._read(content, prepared.reports, results)
        self.gpu.submit(encode)
        return results

    @staticmethod
    def _read(content: list[Array], reports: bool, results: list[Any]) -> list[Any]:
        found = iter(content)
        if reports and next(found).any():
            raise ExecutionError("an index is out of range")
        return [
            result if isinstance(result, GpuTensor) else next(found).view(result[1]).reshape(result[0])
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


def _copy(encoder: Any, copies: Sequence[tuple[Buffer, int, Buffer, int, int]]) -> None:
    for source, start, target, place, size in copies:
        if size:
            whole = -(-size // 4) * 4
            encoder.copy_buffer_to_buffer(source.handle, start, target.handle, place, whole)
