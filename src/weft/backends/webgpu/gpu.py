"""An opened GPU: its buffers, shaders and queue, with failures as weft errors.

There is one for each adapter and process, which all models share; after a loss `open_gpu` makes another. Several
threads may use it at once. In a forked child it is of no use: see adapters.py.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import wgpu

from weft.backends.resident.device import Commands, Copy
from weft.backends.webgpu import native
from weft.backends.webgpu.adapters import Adapter, Limits, check_process, find_adapter
from weft.backends.webgpu.allocations import GpuMemory, SpareMemory
from weft.backends.webgpu.native import QUIET
from weft.backends.webgpu.reads import ReadPiece, batches_of
from weft.backends.webgpu.recordings import (
    DYNAMIC,
    UNIFORM,
    ComputePipeline,
    Recording,
    ShaderSource,
)
from weft.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError, WeftError
from weft.threads import Team, lock

Array = np.ndarray[Any, Any]
Encode = Callable[[Any], None]  # records commands with wgpu's encoder

_CHUNK = 16 << 20  # bytes of one write
_IN_FLIGHT = 4 * _CHUNK  # bytes written before they must have arrived
_SPARE_STAGING = 4
_STAGING_STEP = 1 << 12  # sizes of staging buffers are multiples of it
_SUBMISSIONS = 32  # that may wait for the device
_PIPELINES = 4096  # that are kept
_MOST_TIMES = 4096  # timestamps of one query set
_LEAST_BUFFER = 16
_MOST_SPARE = 64 << 20  # bytes of tensors that were freed, for those that come
_TENSOR_STEP = 16  # bytes; a tensor that is bound is bound up to a multiple of it


class GpuBuffer:
    """Memory of a GPU. It is freed by `release`, or with the last reference to it; if `spared`, for another one."""

    __slots__ = ("_gpu", "_memory", "_spared", "handle", "size")

    def __init__(self, gpu: Gpu, memory: GpuMemory, spared: bool = False) -> None:
        self._gpu = gpu
        self._memory: GpuMemory | None = memory
        self._spared = spared
        self.handle = memory.handle
        self.size = memory.size
        gpu._count(self.size)

    @property
    def gpu(self) -> Gpu:
        return self._gpu

    def _live(self) -> Any:
        if self.handle is None:
            raise DeviceError("a buffer is used after its release")
        return self.handle

    def live_memory(self) -> GpuMemory:
        if self._memory is None:
            raise DeviceError("a buffer is used after its release")
        return self._memory

    def release(self) -> None:
        """Let go of it; it is freed once nothing that was bound or submitted uses it.

        It is never destroyed before: wgpu ends the process where that is submitted to.
        """
        memory, self._memory, self.handle = self._memory, None, None
        if memory is not None:
            self._gpu._count(-self.size)
            if self._spared:
                self._gpu._spare(memory)

    def __del__(self) -> None:
        if hasattr(self, "size"):  # unless Ctrl-C came while it was made
            self.release()


class Gpu:
    """An opened adapter. `allocated` are the bytes of its buffers now, `peak` the most there have been.

    What was freed and waits to be used again is not counted: it goes where memory is short.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.name = adapter.name
        self.device = adapter.device
        self.limits: Limits = adapter.limits
        self.abilities = adapter.abilities
        self.allocated = 0
        self.peak = 0
        self._lost: str | None = None
        self._process = os.getpid()
        self._lock = lock()  # of what follows
        self._in_flight = 0
        self._submissions: deque[Any] = deque()
        self._staging: list[GpuBuffer] = []
        self._spares = SpareMemory(_MOST_SPARE)
        self._pipelines: OrderedDict[ShaderSource, ComputePipeline] = OrderedDict()
        self._layouts: dict[tuple[tuple[str, ...], int], tuple[Any, Any]] = {}
        try:
            with QUIET:
                options = {
                    "required_features": sorted(adapter.features),
                    "required_limits": dict(adapter.handle.limits),
                }
                self._device = adapter.handle.request_device_sync(**options)
        except Exception as error:  # wgpu raises what it likes here
            raise DeviceError(f"{adapter} cannot be opened: {_said(error)}") from error
        native.keep_callbacks(self._device)
        self._queue = self._device.queue

    def __repr__(self) -> str:
        return f"<Gpu {self.adapter}>"

    # ---- memory

    @property
    def alignment(self) -> int:
        return self.limits.offset_alignment

    @property
    def largest_buffer(self) -> int:
        return self.limits.max_buffer_bytes

    @property
    def binds_in_place(self) -> bool:
        return True

    def buffer(self, size: int, label: str = "", usage: int = 0) -> GpuBuffer:
        """Memory for shaders to work on, zero at first; OutOfMemoryError if it cannot be had."""
        size = max(_LEAST_BUFFER, -(-size // 4) * 4)
        if size > self.limits.max_buffer_bytes:
            problem = f"a buffer of {size:,} bytes is more than the {self.limits.max_buffer_bytes:,} of {self.name}"
            raise OutOfMemoryError(problem, hint="choose another device: see weft.devices()")
        flags = usage or wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        make = partial(self._device.create_buffer, label=label, size=size, usage=flags)
        what = f"a buffer of {size:,} bytes"
        try:
            return GpuBuffer(self, GpuMemory(self._call(what, make), size))
        except OutOfMemoryError:
            if not self._spares.clear():
                raise
        self.wait()
        return GpuBuffer(self, GpuMemory(self._call(what, make), size))

    def unset_buffer(self, size: int) -> GpuBuffer:
        """The same with anything in it, if possible memory that was freed lately; a multiple of 16 bytes."""
        size = max(_LEAST_BUFFER, -(-size // _TENSOR_STEP) * _TENSOR_STEP)
        self._refuse_if_lost()
        spare = self._spares.take(size)
        if spare is not None:
            return GpuBuffer(self, spare, spared=True)
        made = self.buffer(size, "tensor")
        self._spares.lend(made.live_memory())
        made._spared = True
        return made

    def _spare(self, memory: GpuMemory) -> None:
        """Take back what nobody uses; in a forked child it stays: wgpu must not be asked to free it there."""
        if self._process == os.getpid():
            (self._spares.put if self._lost is None else self._spares.forget)(memory)

    def uniform(self, size: int) -> GpuBuffer:
        """Memory for what shaders see as UNIFORM."""
        return self.buffer(size, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)

    def write(self, buffer: GpuBuffer, offset: int, data: Any) -> None:
        """Write anything with bytes in a row, at a multiple of 4; up to 3 bytes behind may become 0.

        Large data is sent in pieces, each of which arrives before many others are taken along.
        """
        view = memoryview(data).cast("B") if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8).data
        whole = len(view) & ~3
        for start in range(0, whole, _CHUNK):
            self._write(buffer, offset + start, view[start : min(start + _CHUNK, whole)])
        if whole < len(view):
            self._write(buffer, offset + whole, memoryview(bytes(view[whole:]).ljust(4, b"\0")))

    def _write(self, buffer: GpuBuffer, offset: int, piece: memoryview) -> None:
        self._call("writing to a buffer", native.write, self._queue, buffer._live(), offset, piece)
        self._in_flight += len(piece)
        if self._in_flight >= _IN_FLIGHT:
            self.flush()

    def flush(self) -> None:
        """Wait until all that was written and submitted before is done."""
        self.submit(None)
        self.wait()

    def read(self, reads: Sequence[tuple[GpuBuffer, int, int]]) -> list[Array]:
        """Bytes of slices (buffer, offset, size), each an array of its own."""
        return self.run(None, reads)

    # ---- shaders

    def pipelines(self, shaders: Mapping[str, ShaderSource]) -> dict[str, ComputePipeline]:
        """Shaders by name, compiled side by side; KernelError with the compiler's words if one cannot be.

        Those with the same text as one before are the same.
        """
        with self._lock:
            known = {shader: self._pipelines[shader] for shader in shaders.values() if shader in self._pipelines}
        missing = {shader: name for name, shader in shaders.items() if shader not in known}
        for shader, name in missing.items():
            if shader.shared_bytes > self.limits.shared_bytes:
                problem = f"kernel {name!r} shares {shader.shared_bytes:,} bytes within a group"
                raise KernelError(f"{problem}: {self.name} has {self.limits.shared_bytes:,}")
            self._layout(shader, name)
        if len(missing) > 1:
            with Team(min(len(missing), os.cpu_count() or 1)) as team:
                made = list(team.map(self._compile, missing.values(), missing))
        else:
            made = [self._compile(name, shader) for shader, name in missing.items()]
        with self._lock:
            for shader, pipeline in zip(missing, made):
                known[shader] = self._pipelines.setdefault(shader, pipeline)
            while len(self._pipelines) > _PIPELINES:
                self._pipelines.popitem(last=False)
        return {name: known[shader] for name, shader in shaders.items()}

    def _compile(self, name: str, shader: ShaderSource) -> ComputePipeline:
        group_layout, layout = self._layout(shader, name)
        what = f"kernel {name!r}"
        module = self._call(
            what, native.shader_module, self._device, name, shader.source, shader.checked, raises=KernelError
        )
        stage = {"module": module, "entry_point": "main"}
        make = self._device.create_compute_pipeline
        return ComputePipeline(
            name, self._call(what, make, label=name, layout=layout, compute=stage, raises=KernelError), group_layout
        )

    def _layout(self, shader: ShaderSource, name: str) -> tuple[Any, Any]:
        """Of the bind group, and of the pipeline."""
        key = shader.bindings, shader.immediate_bytes
        found = self._layouts.get(key)
        if found is not None:
            return found
        stage = wgpu.ShaderStage.COMPUTE
        entries = [
            {
                "binding": number,
                "visibility": stage,
                "buffer": {"type": UNIFORM if kind == DYNAMIC else kind, "has_dynamic_offset": kind == DYNAMIC},
            }
            for number, kind in enumerate(shader.bindings)
        ]
        what, device = f"kernel {name!r}", self._device
        group = self._call(what, device.create_bind_group_layout, entries=entries, raises=KernelError)
        size = shader.immediate_bytes
        layouts = {"bind_group_layouts": [group], "immediate_size": size}
        layout = self._call(what, device.create_pipeline_layout, **layouts, raises=KernelError)
        return self._layouts.setdefault(key, (group, layout))

    def bind_group(self, pipeline: ComputePipeline, slices: Sequence[tuple[GpuBuffer, int, int]]) -> Any:
        """What gives a pipeline its buffers: for each binding a buffer, an offset and a size, multiples as limits ask.

        A group serves all pipelines with the same bindings.
        """
        return self.bind_handles(pipeline, [(buffer._live(), offset, size) for buffer, offset, size in slices])

    def bind_handles(self, pipeline: ComputePipeline, slices: Sequence[native.Slice]) -> Any:
        """The same of wgpu's own buffers."""
        return self._call("a bind group", native.bind_group, self._device, pipeline.layout, slices)

    # ---- running

    def submit(self, encode: Encode | None) -> None:
        """Run recorded commands after all that was submitted before; does not wait for them, or not much."""
        self._submit(encode)

    def run(
        self, encode: Encode | None, reads: Sequence[tuple[GpuBuffer, int, int]] = (), long: bool = False
    ) -> list[Array]:
        """Run commands, wait for them and read slices of buffers, all as one submission if the slices are not large.

        Ctrl-C ends the wait for what may take `long`; the device goes on with it.
        """
        results = [np.empty(size, np.uint8) for _, _, size in reads]
        batches = batches_of(reads)
        if not batches:
            self._wait(self._submit(encode))
        for number, batch in enumerate(batches):
            self._read_batch(encode if number == 0 else None, batch, results, long and number == 0)
        return results

    def execute(
        self, commands: Commands, reads: Sequence[tuple[GpuBuffer, int, int]], long: bool = False
    ) -> list[Array]:
        """Run a program's commands and read slices; where there are none to read, do not wait."""

        def encode(encoder: Any) -> None:
            for cleared in commands.cleared:
                encoder.clear_buffer(cleared.buffer.handle, cleared.offset, cleared.size)
            _copy(encoder, commands.before)
            commands.recording(encoder)
            _copy(encoder, commands.after)

        if reads:
            return self.run(encode, reads, long)
        self.submit(encode)
        return []

    def wait(self) -> None:
        """Wait until all that was submitted is done."""
        with self._lock:
            waiting, self._submissions = self._submissions, deque()
            self._in_flight = 0
        if waiting:
            self._wait(waiting[-1])

    def time(self, recording: Recording) -> list[float]:
        """Run dispatches and tell how many seconds each took; DeviceError where the adapter has no timestamps."""
        timed = self.timed(recording)
        self.run(timed)
        return [float(span) * 1e-9 for span in np.diff(timed.ticks())]

    def timed(self, recording: Recording) -> TimedRecording:
        """The same dispatches, with times; DeviceError where the adapter has no timestamps."""
        return TimedRecording(self, recording)

    def check_can_time(self) -> None:
        """Raise DeviceError where the adapter has no timestamps."""
        if not self.limits.timestamps or not native.DIRECT:
            raise DeviceError(f"{self.name} cannot time its kernels", hint="choose another device")

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        self._call("the device", lambda: native.encoder(self._device).finish())

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def destroy(self) -> None:
        """Give the device back: what uses it from now on gets a DeviceLostError."""
        with self._lock, QUIET:
            self._lost = self._lost or "it was given back"
            self._staging.clear()
            self._spares.clear()
            self._device.destroy()

    def _submit(self, encode: Encode | None) -> Any:
        self._refuse_if_lost()
        try:
            with QUIET:
                encoder = native.encoder(self._device)
                if encode is not None:
                    encode(encoder)
                with self._lock:  # to submit to a device that is lost would end the process; `finish` raises there
                    submission = native.submit(self._queue, encoder.finish())
                    self._submissions.append(submission)
                    oldest = self._submissions.popleft() if len(self._submissions) > _SUBMISSIONS else None
        except WeftError:
            raise
        except Exception as error:
            raise self._failure("running kernels", error, DeviceError) from error
        if oldest is not None:
            self._wait(oldest)
        return submission

    def _wait(self, submission: Any) -> None:
        self._call("waiting for kernels", native.wait, self._device, submission)

    def _read_batch(
        self, encode: Encode | None, batch: Sequence[ReadPiece], results: Sequence[Array], long: bool
    ) -> None:
        """Read parts through one staging buffer, after other commands of the same submission."""
        starts, total = [], 0
        for part in batch:
            starts.append(total)
            total += -(-part.padded // 8) * 8
        staging = self._take_staging(total)

        def record(encoder: Any) -> None:
            if encode is not None:
                encode(encoder)
            for part, start in zip(batch, starts):
                encoder.copy_buffer_to_buffer(part.buffer._live(), part.first, staging.handle, start, part.padded)

        submission = self._submit(record)
        mapped = self._call("reading a buffer", native.Mapping, self._device, staging.handle, total, submission, long)
        content = mapped.content()
        for part, start in zip(batch, starts):
            begin = start + part.skipped
            results[part.result][part.at : part.at + part.size] = content[begin : begin + part.size]
        del content
        self._call("reading a buffer", mapped.close)
        with self._lock:
            if len(self._staging) < _SPARE_STAGING:
                self._staging.append(staging)

    def _take_staging(self, size: int) -> GpuBuffer:
        """A buffer that can be read here: a spare one if it is large enough, but not very much larger."""
        with self._lock:
            for number, spare in enumerate(self._staging):
                if size <= spare.size:
                    return self._staging.pop(number)
            if len(self._staging) == _SPARE_STAGING:
                self._staging.pop(0)
        flags = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        return self.buffer(-(-size // _STAGING_STEP) * _STAGING_STEP, usage=flags)

    # ---- failures

    def _call(
        self,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        raises: type[DeviceError] = DeviceError,
        **named: Any,
    ) -> Any:
        self._refuse_if_lost()
        try:
            with QUIET:
                return function(*arguments, **named)
        except WeftError:
            raise
        except Exception as error:
            raise self._failure(what, error, raises) from error

    def _refuse_if_lost(self) -> None:
        if self._process != os.getpid():
            check_process()
        if self._lost is not None:
            raise DeviceLostError(f"{self.name} is lost: {self._lost}", hint="load the model again")

    def _failure(self, what: str, error: Exception, otherwise: type[DeviceError]) -> WeftError:
        """What wgpu's error is to weft's users."""
        said = _said(error)
        if self._is_gone():
            self._lost = self._lost or said
            return DeviceLostError(f"{self.name} is lost: {self._lost}", hint="load the model again")
        if isinstance(error, (wgpu.GPUOutOfMemoryError, MemoryError)) or "memory left" in said:
            problem = f"{what} cannot be had: {self.name} is out of memory, with {self.allocated:,} bytes of weft's"
            return OutOfMemoryError(problem, hint="use smaller inputs, or another device: see weft.devices()")
        return otherwise(f"{what}, on {self.name}: {said}")

    def _is_gone(self) -> bool:
        try:
            native.encoder(self._device).finish()
        except Exception as error:
            return "device is lost" in _said(error).lower()
        return False

    def _count(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


class TimedRecording(Recording):
    """The same dispatches, with the times at which each began. Pieces of at most so many as a query set has times."""

    __slots__ = ("_buffer", "_gpu", "_pieces")

    def __init__(self, gpu: Gpu, recording: Recording) -> None:
        dispatches = recording.dispatches
        super().__init__(dispatches, recording.regions)
        gpu.check_can_time()
        self._gpu = gpu
        self._pieces = []
        for first in range(0, self.count, _MOST_TIMES - 1):
            piece = Recording(dispatches[first : first + _MOST_TIMES - 1])
            make = partial(gpu._device.create_query_set, type="timestamp", count=piece.count + 1)
            self._pieces.append((piece, gpu._call("timestamps", make)))
        flags = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._buffer = gpu.buffer(8 * _MOST_TIMES * len(self._pieces), usage=flags)

    def _dispatch(self, encoder: Any) -> None:
        for number, (piece, query) in enumerate(self._pieces):
            compute_pass = encoder.begin_compute_pass()
            piece.steps.encode_timed(compute_pass, query)
            compute_pass.end()
            encoder.resolve_query_set(query, 0, piece.count + 1, self._buffer.handle, 8 * _MOST_TIMES * number)

    def ticks(self) -> Array:
        """The nanoseconds, by the GPU's clock, at which each dispatch of the last run began, and the last ended."""
        if not self.count:
            return np.zeros(1, np.int64)
        content = self._gpu.read([(self._buffer, 0, self._buffer.size)])[0].view(np.int64).reshape(-1, _MOST_TIMES)
        counts = [piece.count for piece, _ in self._pieces]
        found = [*(row[:count] for row, count in zip(content, counts)), content[-1, counts[-1] : counts[-1] + 1]]
        period = native.timestamp_period(self._gpu._queue)
        return (np.concatenate(found) * period).astype(np.int64)


def _copy(encoder: Any, copies: Sequence[Copy]) -> None:
    for source, start, target, place, size in copies:
        if size:
            whole = -(-size // 4) * 4
            encoder.copy_buffer_to_buffer(source.handle, start, target.handle, place, whole)


def _said(error: Exception) -> str:
    """An error's text in one paragraph, without wgpu's way of framing it."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = [line for line in lines if line and line not in ("Validation Error", "Caused by:")]
    return "\n  ".join(text) or type(error).__name__


_open: dict[tuple[str, str, int], Gpu] = {}
_opening = lock()


def open_gpu(wanted: str = "") -> Gpu:
    """The GPU that a number or name means (see adapters.py), opened if it is not, or if it was lost."""
    check_process()
    adapter = find_adapter(wanted)
    key = adapter.name, adapter.backend, adapter.number
    with _opening:
        gpu = _open.get(key)
        if gpu is None or gpu.is_lost:
            gpu = _open[key] = Gpu(adapter)
        return gpu
