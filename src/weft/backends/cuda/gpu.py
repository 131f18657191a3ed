"""An open GPU: memory, stream and code. Driver errors become weft errors.

A process has one `CudaGpu` per GPU, shared by all models, in the primary context that other libraries use too. All work
is submitted to one stream. After a fatal driver error the GPU stays lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import Structure, byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p, string_at
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.backends.cuda.discovery import GpuProperties, find_gpu
from weft.backends.cuda.interop import CudaTensor
from weft.backends.cuda.library import (
    OUT_OF_MEMORY,
    DriverError,
    DriverLibrary,
    address_space_error,
    address_space_limit,
    check_process,
    is_own_process,
    library,
)
from weft.backends.resident.device import BufferSlice, Commands, Copy
from weft.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError, WeftError
from weft.ir.arrays import Array
from weft.threads import make_lock

ALIGNMENT = 256
_NOT_READY = 600
LEGACY_STREAM = 1  # CU_STREAM_LEGACY, the default stream of most libraries
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no implicit synchronization with the legacy stream
_NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING
_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED_BYTES = 48 << 10  # launches that need more set the attribute
_POOL_SHARE = 16  # the pool keeps freed memory up to 1/16 of all memory
_MOST_SPARE_BYTES = 64 << 20  # freed memory kept here, without returning it to the pool
_LEAST_BUFFER = 16
_SPIN_SECONDS = 2e-2  # of a wait that may be long, before it sleeps between polls
_STAGING_STEP = 1 << 12  # bytes
_POLL_SECONDS = 2e-3  # how often a long wait gives Ctrl-C a chance


class _PoolProperties(Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("place_kind", c_int),
        ("place", c_int),
        ("security", c_void_p),
        ("most", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_char * 54),
    )


class CudaBuffer:
    """GPU memory at `address`. It is freed by `release`, or with the last reference to it."""

    __slots__ = ("__weakref__", "_gpu", "_owner", "address", "size")

    def __init__(self, gpu: CudaGpu, address: int, size: int, owner: Any = None) -> None:
        """`owner`: the object that owns foreign memory; it is kept alive, and nothing is freed."""
        self._gpu = gpu
        self._owner = owner
        self.address = address
        self.size = size
        if owner is None:
            gpu.count(size)

    def release(self) -> None:
        """Free the memory after all work submitted so far."""
        address, self.address = self.address, 0
        if self._owner is not None:
            owner, self._owner = self._owner, None
            self._gpu.hold_until_idle(owner)
        elif address:
            self._gpu.free(address, self.size)

    def __del__(self) -> None:
        if hasattr(self, "size"):  # not if Ctrl-C interrupted the constructor
            self.release()


class CudaFunction:
    """A kernel loaded on a GPU."""

    __slots__ = ("__weakref__", "_gpu", "_module", "handle", "shared_bytes")

    def __init__(self, gpu: CudaGpu, module: int, handle: int, shared_bytes: int) -> None:
        self._gpu = gpu
        self._module = module
        self.handle = handle
        self.shared_bytes = shared_bytes  # dynamic shared memory of launches

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            self._gpu.unload(self._module)


class _ActiveContext:
    """See `CudaGpu.activate`. A generator would cost as much as a driver call."""

    __slots__ = ("_gpu",)

    def __init__(self, gpu: CudaGpu) -> None:
        self._gpu = gpu

    def __enter__(self) -> DriverLibrary:
        gpu = self._gpu
        code = gpu.push(gpu.context)
        if code:
            raise gpu.driver.fault("cuCtxPushCurrent", code)
        return gpu.driver

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._gpu.pop(byref(c_void_p()))


class _Staging:
    """Host memory that the GPU copies to without blocking the caller, and the event after its last copy."""

    __slots__ = ("event", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = c_void_p()
        self.event = c_void_p()

    @property
    def address(self) -> int:
        return self.memory.value or 0


class _Guard(_ActiveContext):
    """See `CudaGpu.guard`."""

    __slots__ = ("_action", "_error")

    def __init__(self, gpu: CudaGpu, action: str, error: type[DeviceError]) -> None:
        super().__init__(gpu)
        self._action = action
        self._error = error

    def __enter__(self) -> DriverLibrary:
        self._gpu.raise_if_lost()
        try:
            return super().__enter__()
        except DriverError as fault:
            raise self._gpu.translate_fault(self._action, fault, self._error) from fault

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._gpu.pop(byref(c_void_p()))
        if isinstance(error, DriverError):
            raise self._gpu.translate_fault(self._action, error, self._error) from error


class CudaGpu:
    """An open GPU. `allocated` is the size of all its buffers in bytes, `peak` the largest it has been."""

    tensor_kind = CudaTensor

    def __init__(self, properties: GpuProperties, driver: DriverLibrary) -> None:
        self.properties = properties
        self.name = properties.name
        self.device = properties.device
        self.driver = driver
        self.allocated = 0
        self.peak = 0
        self.lost: str | None = None
        self._is_own = is_own_process
        self.alignment = ALIGNMENT
        self.binds_in_place = True
        self.largest_buffer = properties.memory_bytes
        self.functions: WeakValueDictionary[Any, CudaFunction] = WeakValueDictionary()
        self._lock = make_lock()
        self.context = c_void_p()
        self.push = driver.function("cuCtxPushCurrent_v2")
        self.pop = driver.function("cuCtxPopCurrent_v2")
        self._spare: dict[int, list[int]] = {}  # size -> addresses of freed memory
        self._spare_bytes = 0
        self._staging: list[_Staging] = []  # unused; it lives as long as the process
        self._foreign_in_use: list[tuple[c_void_p, Any]] = []  # (event of the last use, owner)
        self._uses_foreign_memory = False  # whether the next run may read foreign memory
        self._pool = c_void_p()
        self._stream = c_void_p()
        try:
            device = c_int()
            driver("cuDeviceGet", byref(device), properties.number)
            driver("cuDevicePrimaryCtxRetain", byref(self.context), device)
            with self.activate():
                driver("cuStreamCreate", byref(self._stream), _NON_BLOCKING)
                if properties.pools:
                    self._create_pool(device.value)
        except DriverError as fault:
            limited = address_space_error(f"{self.name} cannot be opened", fault) if fault.is_out_of_memory else None
            raise limited or self.translate_fault("opening it", fault) from fault

    def __repr__(self) -> str:
        return f"<CudaGpu {self.properties}>"

    def _create_pool(self, device: int) -> None:
        properties = _PoolProperties(kind=1, place_kind=1, place=device)
        self.driver("cuMemPoolCreate", byref(self._pool), byref(properties))
        threshold = c_uint64(self.properties.memory_bytes // _POOL_SHARE)
        self.driver("cuMemPoolSetAttribute", self._pool, 4, byref(threshold))  # RELEASE_THRESHOLD

    # ---- the driver

    def activate(self) -> _ActiveContext:
        """Make this GPU's context current in a `with` block, which gets the driver."""
        return _ActiveContext(self)

    def guard(self, action: str, error: type[DeviceError] = DeviceError) -> _Guard:
        """Like `activate`, with driver errors raised as weft errors that name the action."""
        return _Guard(self, action, error)

    def translate_fault(self, action: str, fault: DriverError, error: type[DeviceError] = DeviceError) -> WeftError:
        """Translate a driver error to a weft error: of type `error`, unless memory ran out or the GPU is lost."""
        if fault.is_fatal:
            self.lost = self.lost or str(fault)
            return self._lost_error()
        if fault.code == OUT_OF_MEMORY:
            problem = f"{action} failed: {self.name} is out of memory; weft uses {self.allocated:,} bytes of it"
            hint = "use smaller inputs, or another device: see weft.devices()"
            limit = address_space_limit()
            if limit is not None:
                hint += f"; the address space of this process is also limited, to {limit:,} bytes (`ulimit -v`)"
            return OutOfMemoryError(problem, hint=hint)
        return error(f"{action}, on {self.name}: {fault}", hint=fault.hint)

    def is_usable(self) -> bool:
        """Tell whether destructors may call the driver."""
        return self.lost is None and self._is_own()

    def raise_if_lost(self) -> None:
        """Raise DeviceLostError if an earlier call lost the GPU, DeviceError in a forked process."""
        check_process()
        if self.lost is not None:
            raise self._lost_error()

    def _lost_error(self) -> DeviceLostError:
        hint = "no library can use this GPU in this process any longer: start another process, or choose another device"
        return DeviceLostError(f"{self.name} is lost: {self.lost}", hint=hint)

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        with self.guard("the device") as driver:
            code = driver.function("cuStreamQuery")(self._stream)
            if code not in (0, _NOT_READY):
                raise driver.fault("cuStreamQuery", code)

    @property
    def stream(self) -> c_void_p:
        """The stream that all work is submitted to."""
        return self._stream

    # ---- memory

    def buffer(self, size: int, label: str = "") -> CudaBuffer:  # noqa: ARG002
        """Allocate zeroed memory; OutOfMemoryError if there is not enough."""
        size = max(_LEAST_BUFFER, -(-size // 16) * 16)
        buffer = self.unset_buffer(size)
        with self.guard("clearing a buffer") as driver:
            driver("cuMemsetD8Async", c_uint64(buffer.address), 0, c_size_t(size), self._stream)
        return buffer

    def unset_buffer(self, size: int) -> CudaBuffer:
        """Allocate uninitialized memory, or reuse memory freed earlier on the stream."""
        size = max(_LEAST_BUFFER, -(-size // 16) * 16)
        with self._lock:
            spare = self._spare.get(size)
            spare_address = spare.pop() if spare else None
            self._spare_bytes -= size if spare_address else 0
        if spare_address:
            return CudaBuffer(self, spare_address, size)
        address = c_uint64()
        with self.guard(f"allocating a buffer of {size:,} bytes") as driver:
            self._allocate(driver, address, size)
        return CudaBuffer(self, address.value, size)

    def _allocate(self, driver: DriverLibrary, address: c_uint64, size: int) -> None:
        if not self._pool:
            driver("cuMemAlloc_v2", byref(address), c_size_t(size))
            return
        allocate = driver.function("cuMemAllocFromPoolAsync")
        code = allocate(byref(address), c_size_t(size), self._pool, self._stream)
        if code == OUT_OF_MEMORY:  # retry after returning all freed memory to the driver
            with self._lock:
                spare, self._spare, self._spare_bytes = self._spare, {}, 0
            for spare_address in (spare_address for addresses in spare.values() for spare_address in addresses):
                self._free_memory(spare_address)
            driver("cuStreamSynchronize", self._stream)
            driver("cuMemPoolTrimTo", self._pool, c_size_t(0))
            code = allocate(byref(address), c_size_t(size), self._pool, self._stream)
        if code:
            raise driver.fault("cuMemAllocFromPoolAsync", code)

    def free(self, address: int, size: int) -> None:
        """Free memory, or keep it to be reused; do nothing if the driver cannot be called."""
        self.count(-size)
        if not self.is_usable():
            return
        with self._lock:
            if self._spare_bytes + size <= _MOST_SPARE_BYTES:
                self._spare_bytes += size
                self._spare.setdefault(size, []).append(address)
                return
        self._free_memory(address)

    def _free_memory(self, address: int) -> None:
        with suppress(DriverError), self.activate() as driver:
            if self._pool:
                driver("cuMemFreeAsync", c_uint64(address), self._stream)
            else:
                driver("cuStreamSynchronize", self._stream)
                driver("cuMemFree_v2", c_uint64(address))

    def count(self, size: int) -> None:
        with self._lock:
            self.allocated += size
            self.peak = max(self.peak, self.allocated)

    def write(self, buffer: CudaBuffer, offset: int, data: Any) -> None:
        """Write a contiguous buffer or array; it may be changed as soon as this returns."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        with self.guard("writing to a buffer") as driver:
            target = c_uint64(buffer.address + offset)
            driver("cuMemcpyHtoDAsync_v2", target, c_void_p(array.ctypes.data), c_size_t(array.nbytes), self._stream)
            if array.nbytes > 1 << 16:  # the driver copies smaller ones before it returns
                driver("cuStreamSynchronize", self._stream)

    def read(self, reads: Sequence[tuple[CudaBuffer, int, int]]) -> list[Array]:
        """Read slices (buffer, offset, size), each into a new array of bytes."""
        with self.guard("reading a buffer") as driver:
            return self._read(driver, reads, long=False)

    def start_read(self, reads: Sequence[tuple[CudaBuffer, int, int]]) -> Callable[[], list[Array]]:
        """Read slices as they are after all work submitted so far; return a function that waits for that, no longer."""
        sizes = [size for _, _, size in reads]
        with self.guard("reading a buffer") as driver:
            staging = self._take_staging(driver, sum(sizes))
            address = staging.address
            for buffer, offset, size in reads:
                if size:
                    source = c_uint64(buffer.address + offset)
                    driver("cuMemcpyDtoHAsync_v2", c_void_p(address), source, c_size_t(size), self._stream)
                address += size
            driver("cuEventRecord", staging.event, self._stream)

        def finish() -> list[Array]:
            with self.guard("reading a buffer") as driver:
                driver("cuEventSynchronize", staging.event)
            content = np.frombuffer(string_at(staging.address, sum(sizes)), np.uint8)
            with self._lock:
                self._staging.append(staging)
            return np.split(content.copy(), np.cumsum(sizes)[:-1])

        return finish

    def _take_staging(self, driver: DriverLibrary, size: int) -> _Staging:
        """Return unused staging memory of at least this size, or allocate it."""
        with self._lock:
            for number, staging in enumerate(self._staging):
                if staging.size >= size:
                    return self._staging.pop(number)
        staging = _Staging(-(-max(size, 1) // _STAGING_STEP) * _STAGING_STEP)
        driver("cuMemHostAlloc", byref(staging.memory), c_size_t(staging.size), c_uint(0))
        driver("cuEventCreate", byref(staging.event), _NO_TIMES)
        return staging

    def _read(self, driver: DriverLibrary, reads: Sequence[tuple[CudaBuffer, int, int]], long: bool) -> list[Array]:
        results = [np.empty(size, np.uint8) for _, _, size in reads]
        if long:
            self._poll(driver)
        for (buffer, offset, size), result in zip(reads, results):
            if size:
                source = c_uint64(buffer.address + offset)
                driver("cuMemcpyDtoHAsync_v2", c_void_p(result.ctypes.data), source, c_size_t(size), self._stream)
        driver("cuStreamSynchronize", self._stream)
        return results

    # ---- code

    def load(self, key: Any, name: str, code: bytes, shared_bytes: int) -> CudaFunction:
        """Load an assembled kernel, or return the one loaded before under the same key."""
        with self._lock:
            loaded = self.functions.get(key)
        if loaded is not None:
            return loaded
        module, handle = c_void_p(), c_void_p()
        with self.guard(f"kernel {name!r}", KernelError) as driver:
            driver("cuModuleLoadData", byref(module), code)
            function = CudaFunction(self, module.value or 0, 0, shared_bytes)
            driver("cuModuleGetFunction", byref(handle), module, name.encode())
            function.handle = handle.value or 0
            if shared_bytes > _DEFAULT_SHARED_BYTES:
                driver("cuFuncSetAttribute", handle, _SHARED_ATTRIBUTE, shared_bytes)
        with self._lock:
            return self.functions.setdefault(key, function)

    def unload(self, module: int) -> None:
        if module and self.is_usable():
            with suppress(DriverError), self.activate() as driver:
                driver("cuModuleUnload", c_void_p(module))

    # ---- running

    def execute(
        self, commands: Commands, reads: Sequence[tuple[CudaBuffer, int, int]], long: bool = False
    ) -> list[Array]:
        """Run a program's commands and read slices; do not wait if there is nothing to read."""
        with self.guard("running kernels") as driver:
            for cleared in commands.cleared:
                target = c_uint64(cleared.buffer.address + cleared.offset)
                driver("cuMemsetD8Async", target, 0, c_size_t(cleared.size), self._stream)
            self._copy(driver, commands.before)
            commands.recording.launch(driver, self._stream)
            self._copy(driver, commands.after)
            if self._uses_foreign_memory:  # later writes to it, on the legacy stream, must wait for this run
                self._uses_foreign_memory = False
                self._order_streams(driver, self._stream, c_void_p(LEGACY_STREAM))
            return self._read(driver, reads, long) if reads else []

    def _copy(self, driver: DriverLibrary, copies: Sequence[Copy]) -> None:
        for source, source_offset, target, target_offset, size in copies:
            if size:
                addresses = c_uint64(target.address + target_offset), c_uint64(source.address + source_offset)
                driver("cuMemcpyDtoDAsync_v2", *addresses, c_size_t(size), self._stream)

    def copy(self, source: BufferSlice, target: BufferSlice) -> None:
        """Submit a copy from one slice to another."""
        with self.guard("copying a tensor") as driver:
            self._copy(driver, [(source.buffer, source.offset, target.buffer, target.offset, source.size)])

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        with self.guard("waiting for kernels") as driver:
            driver("cuStreamSynchronize", self._stream)

    def _poll(self, driver: DriverLibrary) -> None:
        """Wait in a way that Ctrl-C can interrupt; the device continues.

        At first this spins, as the driver does: the first run of some sizes is not known to be long.
        """
        query = driver.function("cuStreamQuery")
        end = time.perf_counter() + _SPIN_SECONDS
        while (code := query(self._stream)) == _NOT_READY:
            if time.perf_counter() > end:
                time.sleep(_POLL_SECONDS)
        if code:
            raise driver.fault("cuStreamQuery", code)

    def timed(self, recording: Any) -> Any:
        """Return a recording of the same launches that measures each."""
        return recording.timed()

    def check_can_time(self) -> None:
        """CUDA can always measure launches."""

    # ---- memory and streams of other libraries

    def adopt_memory(self, address: int, size: int, owner: Any) -> CudaBuffer:
        """Wrap foreign memory as a buffer, which keeps `owner` alive until no run uses it any longer."""
        self._release_idle()
        self._uses_foreign_memory = True
        return CudaBuffer(self, address, size, owner)

    def hold_until_idle(self, owner: Any) -> None:
        """Keep the owner of foreign memory alive until all submitted work is done."""
        if not self.is_usable():
            return
        event = c_void_p()
        with suppress(DriverError), self.activate() as driver:
            driver("cuEventCreate", byref(event), _NO_TIMES)
            driver("cuEventRecord", event, self._stream)
            if driver.function("cuEventQuery")(event) == _NOT_READY:
                with self._lock:
                    self._foreign_in_use.append((event, owner))
            else:
                driver("cuEventDestroy_v2", event)

    def _release_idle(self) -> None:
        with self._lock:
            pending, self._foreign_in_use = self._foreign_in_use, []
        if not pending:
            return
        still_in_use = []
        with self.guard("releasing memory of other libraries") as driver:
            for event, owner in pending:
                if driver.function("cuEventQuery")(event) == _NOT_READY:
                    still_in_use.append((event, owner))
                else:
                    driver.function("cuEventDestroy_v2")(event)
        with self._lock:
            self._foreign_in_use += still_in_use

    def wait_for_stream(self, stream: int) -> None:
        """Run later work after all work submitted to another stream so far."""
        with self.guard("ordering streams") as driver:
            self._order_streams(driver, c_void_p(stream), self._stream)

    def make_stream_wait(self, stream: int) -> None:
        """Let later work of another stream run after all work submitted here so far."""
        with self.guard("ordering streams") as driver:
            self._order_streams(driver, self._stream, c_void_p(stream))

    def _order_streams(self, driver: DriverLibrary, first: c_void_p, second: c_void_p) -> None:
        event = c_void_p()
        driver("cuEventCreate", byref(event), _NO_TIMES)
        try:
            driver("cuEventRecord", event, first)
            driver("cuStreamWaitEvent", second, event, c_uint(0))
        finally:
            driver("cuEventDestroy_v2", event)


def elapsed_nanoseconds(driver: DriverLibrary, first: c_void_p, second: c_void_p) -> float:
    """Return the time between two completed events."""
    milliseconds = c_float()
    driver("cuEventElapsedTime", byref(milliseconds), first, second)
    return milliseconds.value * 1e6


_open: dict[int, CudaGpu] = {}
_opening = make_lock()


def open_gpu(selector: str = "") -> CudaGpu:
    """Open a GPU by number or name; each GPU is opened once per process."""
    check_process()
    properties = find_gpu(selector)
    with _opening:
        gpu = _open.get(properties.number)
        if gpu is None:
            gpu = _open[properties.number] = CudaGpu(properties, library())
        return gpu
