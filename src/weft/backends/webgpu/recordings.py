"""Shaders with their bindings, dispatches, and recordings of many dispatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import wgpu

from weft.backends.resident.device import BufferSlice
from weft.backends.webgpu import wgpu_native
from weft.backends.webgpu.wgpu_native import GroupSlot
from weft.ir.arrays import Array
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.webgpu.gpu import Gpu
    from weft.backends.webgpu.rebinding import MovableRegions

Encode = Callable[[Any], None]  # appends commands to wgpu's encoder
_MOST_TIMES = 4096  # timestamps of one query set
READ, WRITE, UNIFORM = "read-only-storage", "storage", "uniform"  # kinds of bindings
DYNAMIC = "dynamic"  # UNIFORM with a dynamic offset


@dataclass(frozen=True, slots=True)
class ShaderSource:
    """WGSL with an entry point `main`, and the kinds of its bindings 0, 1, … of group 0."""

    source: str
    bindings: tuple[str, ...]  # READ, WRITE, UNIFORM; one may be DYNAMIC
    immediate_bytes: int = 0
    shared_bytes: int = 0  # workgroup memory, whose limit wgpu does not check
    checked: bool = False  # whether indices and loops have bounds checks


@dataclass(frozen=True, slots=True, eq=False)
class ComputePipeline:
    """A compiled shader. Pipelines with equal bindings have the same layout, and can share bind groups."""

    name: str
    handle: Any
    layout: Any


class Dispatch(NamedTuple):
    """A launch of x * y * z workgroups. `offset` is that of the DYNAMIC binding, a multiple of 256.

    Immediates are bytes, a multiple of 4. The group of the slot may change.
    """

    pipeline: ComputePipeline
    slot: GroupSlot
    x: int
    y: int = 1
    z: int = 1
    offset: int | None = None
    immediates: bytes = b""


class ParameterBuffer:
    """A uniform buffer with the parameters of one recording at a time."""

    __slots__ = ("_gpu", "_rows", "buffer")

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu = gpu
        self._rows: Array | None = None
        self.buffer = gpu.uniform(size)

    def load(self, rows: Array) -> None:
        """Write parameters for later submissions, unless they are there."""
        if self._rows is not rows:
            self._rows = None
            self._gpu.write(self.buffer, 0, rows)
            self._rows = rows


class Recording:
    """Dispatches in order, prepared to be encoded quickly."""

    __slots__ = ("count", "dispatches", "parameters", "regions", "seconds", "steps")

    def __init__(
        self,
        dispatches: Sequence[Dispatch],
        regions: MovableRegions | None = None,
        parameters: tuple[ParameterBuffer, Array] | None = None,
    ) -> None:
        """`regions` are those that some of the dispatches have slots for; `parameters` are loaded before each run."""
        self.dispatches = dispatches
        self.regions = regions
        self.parameters = parameters
        self.seconds = inf  # duration of the last run
        self.count = len(dispatches)
        self.steps = wgpu_native.Steps(dispatches)

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Move inputs and outputs, by the numbers of their regions, to other memory."""
        if self.regions is not None:
            self.regions.bind(regions)

    def __call__(self, encoder: Any) -> None:
        if self.parameters is not None:
            buffer, rows = self.parameters
            buffer.load(rows)
        if self.regions is not None:
            self.regions.copy_in(encoder)
        if self.count:
            self._dispatch(encoder)
        if self.regions is not None:
            self.regions.copy_out(encoder)

    def _dispatch(self, encoder: Any) -> None:
        compute_pass = encoder.begin_compute_pass()
        self.steps.encode(compute_pass)
        compute_pass.end()


class TimedRecording(Recording):
    """A recording that measures each dispatch; parts of it share a query set."""

    __slots__ = ("_buffer", "_gpu", "_parts")

    def __init__(self, gpu: Gpu, recording: Recording) -> None:
        dispatches = recording.dispatches
        super().__init__(dispatches, recording.regions, recording.parameters)
        gpu.check_can_time()
        self._gpu = gpu
        self._parts = []
        for first in range(0, self.count, _MOST_TIMES - 1):
            part = Recording(dispatches[first : first + _MOST_TIMES - 1])
            create = partial(gpu.handle.create_query_set, type="timestamp", count=part.count + 1)
            self._parts.append((part, gpu.call("creating timestamps", create)))
        flags = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._buffer = gpu.buffer(8 * _MOST_TIMES * len(self._parts), usage=flags)

    def _dispatch(self, encoder: Any) -> None:
        for number, (part, query) in enumerate(self._parts):
            compute_pass = encoder.begin_compute_pass()
            part.steps.encode_timed(compute_pass, query)
            compute_pass.end()
            encoder.resolve_query_set(query, 0, part.count + 1, self._buffer.handle, 8 * _MOST_TIMES * number)

    def ticks(self) -> Array:
        """Return when each dispatch of the last run began and the last one ended, in nanoseconds of the GPU's clock."""
        if not self.count:
            return np.zeros(1, np.int64)
        content = self._gpu.read([(self._buffer, 0, self._buffer.size)])[0].view(np.int64).reshape(-1, _MOST_TIMES)
        counts = [part.count for part, _ in self._parts]
        times = [*(row[:count] for row, count in zip(content, counts)), content[-1, counts[-1] : counts[-1] + 1]]
        period = wgpu_native.timestamp_period(self._gpu.queue)
        return (np.concatenate(times) * period).astype(np.int64)
