"""An open GPU: buffers, shaders and queue. wgpu's errors become weft errors.

A process has one `Gpu` per adapter, shared by all models and threads; after a loss `open_gpu` opens another. It cannot
be used in a forked child: see adapters.py.
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
from weft.backends.webgpu import wgpu_native
from weft.backends.webgpu.adapters import Adapter, Limits, check_process, find_adapter
from weft.backends.webgpu.allocations import GpuMemory, SpareMemory
from weft.backends.webgpu.readback import Readback, split_into_batches
from weft.backends.webgpu.recordings import (
    DYNAMIC,
    UNIFORM,
    ComputePipeline,
    Encode,
    Recording,
    ShaderSource,
    TimedRecording,
)
from weft.backends.webgpu.wgpu_native import QUIET, BindGroup, GroupSlot
from weft.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError, WeftError
from weft.ir.arrays import Array
from weft.threads import HelperPool, make_lock

_CHUNK = 16 << 20  # bytes of one write
_IN_FLIGHT = 4 * _CHUNK  # bytes written before waiting for them
_SUBMISSIONS = 32  # that may be queued
_PIPELINES = 4096  # that are cached
_LEAST_BUFFER = 16
_MOST_SPARE_BYTES = 64 << 20  # of freed tensors, kept to be reused
_TENSOR_STEP = 16  # bytes; bindings of tensors end at a multiple of it


class GpuBuffer:
    """GPU memory. It is freed by `release` or with the last reference to it; if `spared`, it is kept to be reused."""

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

    def live_handle(self) -> Any:
        if self.handle is None:
            raise DeviceError("a buffer is used after its release")
        return self.handle

    def live_memory(self) -> GpuMemory:
        if self._memory is None:
            raise DeviceError("a buffer is used after its release")
        return self._memory

    def release(self) -> None:
        """Free the memory once no bind group or submission uses it.

        It is not destroyed explicitly: wgpu aborts the process if a destroyed buffer is submitted.
        """
        memory, self._memory, self.handle = self._memory, None, None
        if memory is not None:
            self._gpu._count(-self.size)
            if self._spared:
                self._gpu._spare(memory)

    def __del__(self) -> None:
        if hasattr(self, "size"):  # not if Ctrl-C interrupted the constructor
            self.release()


class Gpu:
    """An open adapter. `allocated` is the size of all its buffers in bytes, `peak` the largest it has been.

    Neither counts spare memory, which is freed when memory runs out.
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
        self._lock = make_lock()  # guards the attributes below
        self._in_flight = 0
        self._submissions: deque[Any] = deque()
        self._readback = Readback(self)
        self._spares = SpareMemory(_MOST_SPARE_BYTES)
        self._pipelines: OrderedDict[ShaderSource, ComputePipeline] = OrderedDict()
        self._layouts: dict[tuple[tuple[str, ...], int], tuple[Any, Any]] = {}
        try:
            with QUIET:
                options = {
                    "required_features": sorted(adapter.features),
                    "required_limits": dict(adapter.handle.limits),
                }
                self.handle = adapter.handle.request_device_sync(**options)
        except Exception as error:  # wgpu raises many types
            raise DeviceError(f"{adapter} cannot be opened: {_error_text(error)}") from error
        wgpu_native.keep_callbacks(self.handle)
        self.queue = self.handle.queue

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
        """Allocate zeroed memory for shaders; OutOfMemoryError if there is not enough."""
        size = max(_LEAST_BUFFER, -(-size // 4) * 4)
        if size > self.limits.max_buffer_bytes:
            problem = f"a buffer of {size:,} bytes: {self.name} allows {self.limits.max_buffer_bytes:,}"
            raise OutOfMemoryError(problem, hint="choose another device: see weft.devices()")
        flags = usage or wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        create = partial(self.handle.create_buffer, label=label, size=size, usage=flags)
        action = f"allocating a buffer of {size:,} bytes"
        try:
            return GpuBuffer(self, GpuMemory(self.call(action, create), size))
        except OutOfMemoryError:
            if not self._spares.clear():
                raise
        self.wait()
        return GpuBuffer(self, GpuMemory(self.call(action, create), size))

    def unset_buffer(self, size: int) -> GpuBuffer:
        """Allocate uninitialized memory, a multiple of 16 bytes, if possible from spare memory."""
        size = max(_LEAST_BUFFER, -(-size // _TENSOR_STEP) * _TENSOR_STEP)
        self._raise_if_lost()
        spare = self._spares.take(size)
        if spare is not None:
            return GpuBuffer(self, spare, spared=True)
        buffer = self.buffer(size, "tensor")
        self._spares.lend(buffer.live_memory())
        buffer._spared = True
        return buffer

    def _spare(self, memory: GpuMemory) -> None:
        """Keep unused memory to be reused; in a forked child do nothing, since wgpu must not be called there."""
        if self._process == os.getpid():
            (self._spares.put if self._lost is None else self._spares.forget)(memory)

    def uniform(self, size: int) -> GpuBuffer:
        """Allocate memory for UNIFORM bindings."""
        return self.buffer(size, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)

    def write(self, buffer: GpuBuffer, offset: int, data: Any) -> None:
        """Write a contiguous buffer or array at a multiple of 4; up to 3 bytes after it may become 0.

        Large data is written in chunks, with a limit on the bytes in flight.
        """
        view = memoryview(data).cast("B") if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8).data
        aligned_size = len(view) & ~3
        for start in range(0, aligned_size, _CHUNK):
            self._write(buffer, offset + start, view[start : min(start + _CHUNK, aligned_size)])
        if aligned_size < len(view):
            self._write(buffer, offset + aligned_size, memoryview(bytes(view[aligned_size:]).ljust(4, b"\0")))

    def _write(self, buffer: GpuBuffer, offset: int, chunk: memoryview) -> None:
        self.call("writing to a buffer", wgpu_native.write, self.queue, buffer.live_handle(), offset, chunk)
        self._in_flight += len(chunk)
        if self._in_flight >= _IN_FLIGHT:
            self.flush()

    def flush(self) -> None:
        """Wait until all writes and submitted work are done."""
        self.submit(None)
        self.wait()

    def read(self, reads: Sequence[tuple[GpuBuffer, int, int]]) -> list[Array]:
        """Read slices (buffer, offset, size), each into a new array of bytes."""
        return self.run(None, reads)

    def start_read(self, reads: Sequence[tuple[GpuBuffer, int, int]]) -> Callable[[], list[Array]]:
        """Read slices as they are after all work submitted so far; return a function that waits for that, no longer."""
        results = [np.empty(size, np.uint8) for _, _, size in reads]
        pending = [self._readback.start(batch, results, None, long=False) for batch in split_into_batches(reads)]

        def finish() -> list[Array]:
            for finish_batch in pending:
                finish_batch()
            return results

        return finish

    # ---- shaders

    def pipelines(self, shaders: Mapping[str, ShaderSource]) -> dict[str, ComputePipeline]:
        """Compile shaders in parallel, or find equal ones in the cache; KernelError with the compiler's message."""
        with self._lock:
            pipelines = {shader: self._pipelines[shader] for shader in shaders.values() if shader in self._pipelines}
        missing = {shader: name for name, shader in shaders.items() if shader not in pipelines}
        for shader, name in missing.items():
            if shader.shared_bytes > self.limits.shared_bytes:
                problem = f"kernel {name!r} needs {shader.shared_bytes:,} bytes of workgroup memory"
                raise KernelError(f"{problem}: {self.name} has {self.limits.shared_bytes:,}")
            self._layout(shader, name)
        if len(missing) > 1:
            with HelperPool(min(len(missing), os.cpu_count() or 1)) as team:
                new_pipelines = list(team.map(self._compile, missing.values(), missing))
        else:
            new_pipelines = [self._compile(name, shader) for shader, name in missing.items()]
        with self._lock:
            for shader, pipeline in zip(missing, new_pipelines):
                pipelines[shader] = self._pipelines.setdefault(shader, pipeline)
            while len(self._pipelines) > _PIPELINES:
                self._pipelines.popitem(last=False)
        return {name: pipelines[shader] for name, shader in shaders.items()}

    def _compile(self, name: str, shader: ShaderSource) -> ComputePipeline:
        group_layout, layout = self._layout(shader, name)
        action = f"kernel {name!r}"
        source = name, shader.source, shader.checked
        module = self.call(action, wgpu_native.create_shader_module, self.handle, *source, raises=KernelError)
        options = {"label": name, "layout": layout, "compute": {"module": module, "entry_point": "main"}}
        handle = self.call(action, self.handle.create_compute_pipeline, **options, raises=KernelError)
        return ComputePipeline(name, handle, group_layout)

    def _layout(self, shader: ShaderSource, name: str) -> tuple[Any, Any]:
        """Return the layouts of a shader's bind group and of its pipeline."""
        key = shader.bindings, shader.immediate_bytes
        layouts = self._layouts.get(key)
        if layouts is not None:
            return layouts
        stage = wgpu.ShaderStage.COMPUTE
        entries = [
            {
                "binding": number,
                "visibility": stage,
                "buffer": {"type": UNIFORM if kind == DYNAMIC else kind, "has_dynamic_offset": kind == DYNAMIC},
            }
            for number, kind in enumerate(shader.bindings)
        ]
        action, device = f"kernel {name!r}", self.handle
        group = self.call(action, device.create_bind_group_layout, entries=entries, raises=KernelError)
        options = {"bind_group_layouts": [group], "immediate_size": shader.immediate_bytes}
        layout = self.call(action, device.create_pipeline_layout, **options, raises=KernelError)
        return self._layouts.setdefault(key, (group, layout))

    def bind_group(self, pipeline: ComputePipeline, slices: Sequence[tuple[GpuBuffer, int, int]]) -> GroupSlot:
        """Create a bind group from a slice (buffer, offset, size) per binding, aligned as the limits require.

        A group can be used by all pipelines with the same bindings.
        """
        handles = [(buffer.live_handle(), offset, size) for buffer, offset, size in slices]
        return GroupSlot(self.bind_handles(pipeline, handles))

    def bind_handles(self, pipeline: ComputePipeline, slices: Sequence[wgpu_native.Slice]) -> BindGroup:
        """Create a bind group from slices of wgpu's buffers."""
        action = "creating a bind group"
        return BindGroup(self.call(action, wgpu_native.bind_group, self.handle, pipeline.layout, slices))

    def bind_groups(
        self, pipelines: Sequence[ComputePipeline], entries: wgpu_native.BindGroupEntries
    ) -> list[BindGroup]:
        """Create a bind group for each pipeline."""
        layouts = [pipeline.layout for pipeline in pipelines]
        groups = self.call("creating bind groups", wgpu_native.bind_groups, self.handle, layouts, entries)
        return [BindGroup(group) for group in groups]

    # ---- running

    def run(
        self, encode: Encode | None, reads: Sequence[tuple[GpuBuffer, int, int]] = (), long: bool = False
    ) -> list[Array]:
        """Run commands, wait for them and read slices of buffers, in one submission if the slices are small.

        Ctrl-C ends the wait for a `long` run; the device continues.
        """
        results = [np.empty(size, np.uint8) for _, _, size in reads]
        batches = split_into_batches(reads)
        if not batches:
            self._wait(self.submit(encode))
        for number, batch in enumerate(batches):
            is_first = number == 0
            self._readback.start(batch, results, encode if is_first else None, long and is_first)()
        return results

    def execute(
        self, commands: Commands, reads: Sequence[tuple[GpuBuffer, int, int]], long: bool = False
    ) -> list[Array]:
        """Run a program's commands and read slices; do not wait if there is nothing to read."""

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
        """Wait until all submitted work is done."""
        with self._lock:
            submissions, self._submissions = self._submissions, deque()
            self._in_flight = 0
        if submissions:
            self._wait(submissions[-1])

    def time(self, recording: Recording) -> list[float]:
        """Run dispatches and return the seconds of each; DeviceError if the adapter has no timestamps."""
        timed = self.timed(recording)
        self.run(timed)
        return [float(span) * 1e-9 for span in np.diff(timed.ticks())]

    def timed(self, recording: Recording) -> TimedRecording:
        """Return a recording of the same dispatches that measures each; DeviceError without timestamps."""
        return TimedRecording(self, recording)

    def check_can_time(self) -> None:
        """Raise DeviceError if the adapter has no timestamps."""
        if not self.limits.timestamps or not wgpu_native.DIRECT:
            raise DeviceError(f"{self.name} cannot time its kernels", hint="choose another device")

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        self.call("checking the device", lambda: wgpu_native.encoder(self.handle).finish())

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def destroy(self) -> None:
        """Destroy the device: later use raises DeviceLostError."""
        with self._lock, QUIET:
            self._lost = self._lost or "it was destroyed"
            self._readback.clear()
            self._spares.clear()
            self.handle.destroy()

    def submit(self, encode: Encode | None) -> Any:
        """Submit commands after earlier ones, and return the submission; waits only if too many are queued."""
        self._raise_if_lost()
        try:
            with QUIET:
                encoder = wgpu_native.encoder(self.handle)
                if encode is not None:
                    encode(encoder)
                with self._lock:  # submitting to a lost device would abort the process; `finish` raises first
                    submission = wgpu_native.submit(self.queue, encoder.finish())
                    self._submissions.append(submission)
                    oldest = self._submissions.popleft() if len(self._submissions) > _SUBMISSIONS else None
        except WeftError:
            raise
        except Exception as error:
            raise self._translate_error("running kernels", error, DeviceError) from error
        if oldest is not None:
            self._wait(oldest)
        return submission

    def _wait(self, submission: Any) -> None:
        self.call("waiting for kernels", wgpu_native.wait, self.handle, submission)

    # ---- failures

    def call(
        self,
        action: str,
        function: Callable[..., Any],
        *arguments: Any,
        raises: type[DeviceError] = DeviceError,
        **named: Any,
    ) -> Any:
        """Call a function of wgpu; its errors are raised as weft errors that name the action."""
        self._raise_if_lost()
        try:
            with QUIET:
                return function(*arguments, **named)
        except WeftError:
            raise
        except Exception as error:
            raise self._translate_error(action, error, raises) from error

    def _raise_if_lost(self) -> None:
        if self._process != os.getpid():
            check_process()
        if self._lost is not None:
            raise DeviceLostError(f"{self.name} is lost: {self._lost}", hint="load the model again")

    def _translate_error(self, action: str, error: Exception, raises: type[DeviceError]) -> WeftError:
        """Translate wgpu's error to a weft error: of type `raises`, unless memory ran out or the GPU is lost."""
        message = _error_text(error)
        if self._is_device_lost():
            self._lost = self._lost or message
            return DeviceLostError(f"{self.name} is lost: {self._lost}", hint="load the model again")
        if isinstance(error, (wgpu.GPUOutOfMemoryError, MemoryError)) or "memory left" in message:
            problem = f"{action} failed: {self.name} is out of memory; weft uses {self.allocated:,} bytes of it"
            return OutOfMemoryError(problem, hint="use smaller inputs, or another device: see weft.devices()")
        return raises(f"{action}, on {self.name}: {message}")

    def _is_device_lost(self) -> bool:
        try:
            wgpu_native.encoder(self.handle).finish()
        except Exception as error:
            return "device is lost" in _error_text(error).lower()
        return False

    def _count(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


def _copy(encoder: Any, copies: Sequence[Copy]) -> None:
    for source, source_offset, target, target_offset, size in copies:
        if size:
            padded = -(-size // 4) * 4
            encoder.copy_buffer_to_buffer(source.handle, source_offset, target.handle, target_offset, padded)


def _error_text(error: Exception) -> str:
    """Format wgpu's error as one paragraph, without its headings."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = [line for line in lines if line and line not in ("Validation Error", "Caused by:")]
    return "\n  ".join(text) or type(error).__name__


_open: dict[tuple[str, str, int], Gpu] = {}
_opening = make_lock()


def open_gpu(selector: str = "") -> Gpu:
    """Open a GPU by number or name; each is opened once per process, and again after a loss."""
    check_process()
    adapter = find_adapter(selector)
    key = adapter.name, adapter.backend, adapter.number
    with _opening:
        gpu = _open.get(key)
        if gpu is None or gpu.is_lost:
            gpu = _open[key] = Gpu(adapter)
        return gpu
