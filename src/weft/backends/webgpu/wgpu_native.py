"""Call wgpu-native, the C library of wgpu, directly: for unchecked shaders, and for speed.

wgpu's Python API has no unchecked shaders, and is several times slower for bind groups, encoding and mapping. It is
used if a release of wgpu does not expose the library (`DIRECT` is False).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu

from weft.ir.arrays import Array
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.webgpu.recordings import Dispatch

Slice = tuple[Any, int, int]  # wgpu's buffer, offset, size


class BindGroup:
    """A bind group of wgpu; its handle is None once memory that it binds is freed."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class _BindGroupHandle:
    """A handle of wgpu-native, released with the last reference to it, unless the process exits."""

    __slots__ = ("_internal",)

    def __init__(self, handle: Any) -> None:
        self._internal = handle

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be gone by then
        if not is_exiting() and _process == os.getpid() and hasattr(self, "_internal"):
            lib.wgpuBindGroupRelease(self._internal)


class GroupSlot:
    """The bind group that a dispatch uses when it is encoded."""

    __slots__ = ("group",)

    def __init__(self, group: BindGroup) -> None:
        self.group = group


try:
    from wgpu.backends.wgpu_native import GPUShaderModule, ffi, lib
    from wgpu.backends.wgpu_native._api import libf  # the functions of lib, with errors as exceptions

    _NEEDED = (
        "wgpuBindGroupRelease",
        "wgpuBufferGetMappedRange",
        "wgpuBufferMapAsync",
        "wgpuBufferUnmap",
        "wgpuCommandBufferRelease",
        "wgpuCommandEncoderBeginComputePass",
        "wgpuCommandEncoderClearBuffer",
        "wgpuCommandEncoderCopyBufferToBuffer",
        "wgpuCommandEncoderFinish",
        "wgpuCommandEncoderRelease",
        "wgpuCommandEncoderResolveQuerySet",
        "wgpuComputePassEncoderDispatchWorkgroups",
        "wgpuComputePassEncoderEnd",
        "wgpuComputePassEncoderRelease",
        "wgpuComputePassEncoderSetBindGroup",
        "wgpuComputePassEncoderSetImmediates",
        "wgpuComputePassEncoderSetPipeline",
        "wgpuComputePassEncoderWriteTimestamp",
        "wgpuDeviceCreateBindGroup",
        "wgpuDeviceCreateCommandEncoder",
        "wgpuDeviceCreateShaderModuleTrusted",
        "wgpuDevicePoll",
        "wgpuQueueSubmitForIndex",
        "wgpuQueueWriteBuffer",
    )
    DIRECT = all(hasattr(lib, name) and hasattr(libf, name) for name in _NEEDED)
except ImportError:
    DIRECT = False


class _Quiet(logging.Filter):
    """Suppresses wgpu's log messages about errors that weft handles, inside `with QUIET`."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = threading.local()
        logging.getLogger("wgpu").addFilter(self)

    def __enter__(self) -> None:
        self._threads.depth = getattr(self._threads, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        self._threads.depth -= 1

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002
        return not getattr(self._threads, "depth", 0)


QUIET = _Quiet()
_callbacks: list[Any] = []
_process = os.getpid()


def keep_callbacks(device: Any) -> None:
    """Keep the callbacks of a device alive: it may call them when its last buffer is freed; wgpu frees them before."""
    names = ("_device_lost_callback", "_uncaptured_error_callback")
    _callbacks.extend(getattr(device, name, None) for name in names)


def create_shader_module(device: Any, name: str, source: str, checked: bool) -> Any:
    """Create a shader module; unless `checked`, without bounds checks of indices and loops."""
    if checked or not DIRECT:
        return device.create_shader_module(label=name, code=source)
    code, label = ffi.new("char[]", source.encode()), ffi.new("char[]", name.encode())
    wgsl = ffi.new("WGPUShaderSourceWGSL *")
    wgsl.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    wgsl.code.data, wgsl.code.length = code, len(code) - 1
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wgsl)
    descriptor.label.data, descriptor.label.length = label, len(label) - 1
    module = libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)
    return GPUShaderModule(name, module, device)


@dataclass(frozen=True, slots=True, eq=False)
class BindGroupEntries:
    """The bindings of many bind groups, one group after the other: a memory, offset and size for each."""

    counts: Array  # of the bindings of each group
    memories: Sequence[Any]  # wgpu's buffers
    memory: Array  # indices of `memories`
    offset: Array
    size: Array

    def slices(self, group: int) -> list[Slice]:
        """Return the bindings of a group as slices of wgpu's buffers."""
        first = int(self.counts[:group].sum())
        part = slice(first, first + int(self.counts[group]))
        columns = self.memory[part].tolist(), self.offset[part].tolist(), self.size[part].tolist()
        return [(self.memories[memory], offset, size) for memory, offset, size in zip(*columns)]


def bind_group(device: Any, layout: Any, slices: Sequence[Slice]) -> Any:
    """Create a bind group with slices of buffers as bindings 0, 1, …"""
    if not DIRECT:
        entries = [
            {"binding": number, "resource": {"buffer": buffer, "offset": offset, "size": size}}
            for number, (buffer, offset, size) in enumerate(slices)
        ]
        return device.create_bind_group(layout=layout, entries=entries)
    table = ffi.new("WGPUBindGroupEntry[]", len(slices))
    for number, (buffer, offset, size) in enumerate(slices):
        entry = table[number]
        entry.binding, entry.buffer, entry.offset, entry.size = number, buffer._internal, offset, size
    descriptor = ffi.new("WGPUBindGroupDescriptor *")
    descriptor.layout, descriptor.entries, descriptor.entryCount = layout._internal, table, len(slices)
    return _BindGroupHandle(libf.wgpuDeviceCreateBindGroup(device._internal, descriptor))


def bind_groups(device: Any, layouts: Sequence[Any], entries: BindGroupEntries) -> list[Any]:
    """Create bind groups, one for each layout."""
    firsts = np.cumsum(entries.counts) - entries.counts
    if not DIRECT:
        return [bind_group(device, layout, entries.slices(group)) for group, layout in enumerate(layouts)]
    table = ffi.new("WGPUBindGroupEntry[]", len(entries.memory))
    rows = np.frombuffer(ffi.buffer(table), _ENTRY)
    rows["binding"] = np.arange(len(rows)) - np.repeat(firsts, entries.counts)
    rows["buffer"] = _addresses([buffer._internal for buffer in entries.memories])[entries.memory]
    rows["offset"], rows["size"] = entries.offset, entries.size
    descriptors = ffi.new("WGPUBindGroupDescriptor[]", len(layouts))
    columns = np.frombuffer(ffi.buffer(descriptors), _DESCRIPTOR)
    columns["layout"] = _addresses([layout._internal for layout in layouts])
    columns["entries"] = int(ffi.cast("uintptr_t", table)) + ffi.sizeof("WGPUBindGroupEntry") * firsts
    columns["entryCount"] = entries.counts
    create, handle = libf.wgpuDeviceCreateBindGroup, device._internal
    return [_BindGroupHandle(create(handle, descriptors + number)) for number in range(len(layouts))]


def _addresses(handles: Sequence[Any]) -> Array:
    addresses = {handle: int(ffi.cast("uintptr_t", handle)) for handle in set(handles)}
    return np.array([addresses[handle] for handle in handles], np.uintp)


def _struct_type(name: str, **fields: str) -> np.dtype[Any]:
    """Return some fields of a C struct as a dtype."""
    offsets = [ffi.offsetof(name, field) for field in fields]
    return np.dtype(
        {"names": [*fields], "formats": [*fields.values()], "offsets": offsets, "itemsize": ffi.sizeof(name)}
    )


if DIRECT:
    _ENTRY = _struct_type("WGPUBindGroupEntry", binding="u4", buffer="u8", offset="u8", size="u8")
    _DESCRIPTOR = _struct_type("WGPUBindGroupDescriptor", layout="u8", entries="u8", entryCount="u8")


def write(queue: Any, buffer: Any, offset: int, data: memoryview) -> None:
    """Write bytes, a multiple of 4, before later submissions."""
    if not DIRECT:
        queue.write_buffer(buffer, offset, data)
        return
    with ffi.from_buffer(data) as content:  # CPython crashes if a traceback keeps an open buffer of a memoryview alive
        libf.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, content, len(data))


class Encoder:
    """A command encoder with the interface of wgpu's own."""

    __slots__ = ("_internal",)

    def __init__(self, device: Any) -> None:
        self._internal = lib.wgpuDeviceCreateCommandEncoder(device._internal, ffi.NULL)

    def copy_buffer_to_buffer(
        self, source: Any, source_offset: int, target: Any, target_offset: int, size: int
    ) -> None:
        copy = lib.wgpuCommandEncoderCopyBufferToBuffer
        copy(self._internal, source._internal, source_offset, target._internal, target_offset, size)

    def clear_buffer(self, buffer: Any, offset: int, size: int) -> None:
        lib.wgpuCommandEncoderClearBuffer(self._internal, buffer._internal, offset, size)

    def resolve_query_set(self, query: Any, first: int, count: int, target: Any, offset: int) -> None:
        resolve = lib.wgpuCommandEncoderResolveQuerySet
        resolve(self._internal, query._internal, first, count, target._internal, offset)

    def begin_compute_pass(self) -> ComputePass:
        return ComputePass(lib.wgpuCommandEncoderBeginComputePass(self._internal, ffi.NULL))

    def finish(self) -> Any:
        """Return the command buffer, or raise the error of any of its commands."""
        commands = libf.wgpuCommandEncoderFinish(self._internal, ffi.NULL)
        return ffi.gc(commands, lib.wgpuCommandBufferRelease)

    def __del__(self) -> None:
        if _process == os.getpid() and hasattr(self, "_internal"):  # not if Ctrl-C interrupted the constructor
            lib.wgpuCommandEncoderRelease(self._internal)


class ComputePass:
    """A compute pass of an encoder."""

    __slots__ = ("_internal",)

    def __init__(self, handle: Any) -> None:
        self._internal = handle

    def end(self) -> None:
        lib.wgpuComputePassEncoderEnd(self._internal)

    def __del__(self) -> None:
        if _process == os.getpid() and hasattr(self, "_internal"):
            lib.wgpuComputePassEncoderRelease(self._internal)


def encoder(device: Any) -> Any:
    """Create a command encoder."""
    return Encoder(device) if DIRECT else device.create_command_encoder()


def submit(queue: Any, commands: Any) -> Any:
    """Submit a command buffer, and return a submission to wait for."""
    if not DIRECT:
        queue.submit([commands])
        return None
    handles = ffi.new("WGPUCommandBuffer[]", [commands])
    return ffi.new("WGPUSubmissionIndex *", libf.wgpuQueueSubmitForIndex(queue._internal, 1, handles))


def wait(device: Any, submission: Any) -> None:
    """Wait until a submission is done."""
    if submission is None:
        device.queue.on_submitted_work_done_sync()
        return
    libf.wgpuDevicePoll(device._internal, True, submission)


class Steps:
    """Dispatches, prepared to be encoded repeatedly. Pipelines and bind groups are set where they change."""

    __slots__ = ("_dispatches", "_steps")

    def __init__(self, dispatches: Sequence[Dispatch]) -> None:
        self._dispatches = dispatches  # keeps the objects of the handles alive
        self._steps: list[tuple[Any, ...]] = []
        if not DIRECT:
            return
        offsets = ffi.new("uint32_t[]", [entry.offset or 0 for entry in dispatches])
        last: tuple[Any, ...] = (None, None, None)
        for number, (pipeline, slot, x, y, z, offset, immediates) in enumerate(dispatches):
            handle = None if pipeline is last[0] else pipeline.handle._internal
            is_bound = slot is last[1] and offset == last[2] and handle is None
            place = (ffi.NULL, 0) if offset is None else (offsets + number, 1)
            content = ffi.from_buffer(immediates) if immediates else None
            self._steps.append((handle, None if is_bound else slot, *place, content, x, y, z, offsets))
            last = (pipeline, slot, offset)

    def encode(self, compute_pass: Any) -> None:
        if not DIRECT:
            for step in self._dispatches:
                _encode(compute_pass, step)
            return
        set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
        set_immediates = lib.wgpuComputePassEncoderSetImmediates
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        handle = compute_pass._internal
        for pipeline, slot, offsets, count, immediates, x, y, z, _ in self._steps:
            if pipeline is not None:
                set_pipeline(handle, pipeline)
            if slot is not None:
                set_group(handle, 0, slot.group.handle._internal, count, offsets)
            if immediates:
                set_immediates(handle, 0, immediates, len(immediates))
            dispatch(handle, x, y, z)

    def encode_timed(self, compute_pass: Any, query: Any) -> None:
        """Encode with a timestamp before each dispatch and after the last."""
        stamp = lib.wgpuComputePassEncoderWriteTimestamp
        for number, step in enumerate(self._dispatches):
            stamp(compute_pass._internal, query._internal, number)
            Steps([step]).encode(compute_pass)
        stamp(compute_pass._internal, query._internal, len(self._dispatches))


def _encode(compute_pass: Any, step: Dispatch) -> None:
    """Encode a dispatch through wgpu's Python API."""
    compute_pass.set_pipeline(step.pipeline.handle)
    compute_pass.set_bind_group(0, step.slot.group.handle, () if step.offset is None else (step.offset,))
    if step.immediates:
        compute_pass.set_immediates(0, step.immediates, 0, len(step.immediates))
    compute_pass.dispatch_workgroups(step.x, step.y, step.z)


_pending_mappings: set[Mapping] = set()  # referenced by the device


class Mapping:
    """A buffer mapped for reading after a submission.

    Any thread that polls the device may run the callback, hence the event. For a `long` run another thread polls, so
    that Ctrl-C can interrupt the main one; then the device continues, and the mapping is kept until it is done.
    """

    def __init__(self, device: Any, buffer: Any, size: int, submission: Any, long: bool = False) -> None:
        self._buffer = buffer
        self._size = size
        if not DIRECT:
            buffer.map_sync(wgpu.MapMode.READ, 0, size)
            return
        self._status = 0
        self._interrupt: BaseException | None = None
        self._done = threading.Event()
        self._self = ffi.new_handle(self)
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode, info.callback, info.userdata1 = lib.WGPUCallbackMode_AllowProcessEvents, _mapped, self._self
        _pending_mappings.add(self)
        libf.wgpuBufferMapAsync(buffer._internal, lib.WGPUMapMode_Read, 0, size, info[0])
        if long and threading.get_ident() == threading.main_thread().ident:
            self._poll_in_thread(device, submission)
        else:
            libf.wgpuDevicePoll(device._internal, True, submission)
        while not self._done.wait(0 if self._status else 0.001):
            libf.wgpuDevicePoll(device._internal, False, ffi.NULL)
        if self._interrupt is not None:
            raise self._interrupt
        if self._status != lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"a buffer cannot be read: status {self._status}")

    def _poll_in_thread(self, device: Any, submission: Any) -> None:
        """Poll in another thread; in this one if no thread can be started."""

        def poll() -> None:
            with suppress(Exception), QUIET:  # the main thread gets the error of a lost device as well
                lib.wgpuDevicePoll(device._internal, True, submission)

        poller = threading.Thread(target=poll, name="weft-wait", daemon=True)
        try:
            poller.start()
        except RuntimeError:
            poll()
        else:
            poller.join()

    def content(self) -> Array:
        """Return the bytes, which are valid until `close`."""
        if not DIRECT:
            return np.frombuffer(self._buffer.read_mapped(0, self._size, copy=False), np.uint8)
        address = libf.wgpuBufferGetMappedRange(self._buffer._internal, 0, self._size)
        return np.frombuffer(ffi.buffer(address, self._size), np.uint8)

    def close(self) -> None:
        if not DIRECT:
            self._buffer.unmap()
            return
        libf.wgpuBufferUnmap(self._buffer._internal)


if DIRECT:

    def _record_interrupt(kind: Any, error: BaseException, at: Any) -> None:  # noqa: ARG001
        """Keep an exception that a signal handler raised at the start of `_mapped`: the waiting thread raises it."""
        arguments = at.tb_frame.f_locals
        ffi.from_handle(arguments["mapping"])._interrupt = error
        _finish_mapping(arguments["status"], arguments["mapping"])

    @ffi.callback(  # type: ignore[untyped-decorator]
        "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", onerror=_record_interrupt
    )
    def _mapped(status: int, message: Any, mapping: Any, _: Any) -> None:  # noqa: ARG001
        _finish_mapping(status, mapping)

    def _finish_mapping(status: int, mapping: Any) -> None:
        waiting = ffi.from_handle(mapping)
        waiting._status = status
        waiting._done.set()
        _pending_mappings.discard(waiting)


def timestamp_period(queue: Any) -> float:
    """Return the nanoseconds per timestamp tick."""
    return float(lib.wgpuQueueGetTimestampPeriod(queue._internal)) if DIRECT else 1.0
