"""An opened GPU: its memory, its stream, its code, with failures as weft errors.

There is one for each GPU and process, which all models share, on the context that other libraries in the process use
too. Work is done in the order of one stream. After a fault that the driver does not recover from it stays lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from ctypes import Structure, byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.backends.cuda.gpus import NvidiaGpu, find_gpu
from weft.backends.cuda.interop import CudaTensor
from weft.backends.cuda.library import (
    OUT_OF_MEMORY,
    DriverError,
    DriverLibrary,
    address_space_limit,
    check_process,
    is_own_process,
    library,
    limit_error,
)
from weft.backends.resident.device import BufferSlice, Commands, Copy
from weft.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError, WeftError
from weft.threads import lock

Array = np.ndarray[Any, Any]
ALIGNMENT = 256
_NOT_READY = 600
LEGACY_STREAM = 1  # the one without a name, on which most libraries work
_NON_BLOCKING = 1  # a stream that does not wait for the one without a name
_NO_TIMES = 2  # an event that is not asked when it was
_SHARED_ATTRIBUTE = 8  # of a function: bytes of shared memory that launches may bring
_SHARED_WITHOUT_ASKING = 48 << 10
_KEPT_FREE = 16  # a part of all memory: so much that was freed stays with the pool, for what is asked for next
_MOST_SPARE = 64 << 20  # bytes of freed memory that are not even given back to the pool
_LEAST_BUFFER = 16
_POLL = 2e-3  # seconds between looks at a run that Ctrl-C may end


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
    """Memory of a GPU, from `address` on. It is freed by `release`, or with the last reference to it."""

    __slots__ = ("__weakref__", "_gpu", "_owner", "address", "size")

    def __init__(self, gpu: CudaGpu, address: int, size: int, owner: Any = None) -> None:
        """`owner`: whose memory it is, if not ours; it is held, and nothing is freed."""
        self._gpu = gpu
        self._owner = owner
        self.address = address
        self.size = size
        if owner is None:
            gpu.count(size)

    def release(self) -> None:
        """Free it, once all that was submitted before is done."""
        address, self.address = self.address, 0
        if self._owner is not None:
            owner, self._owner = self._owner, None
            self._gpu.retire(owner)
        elif address:
            self._gpu.free(address, self.size)

    def __del__(self) -> None:
        if hasattr(self, "size"):  # unless Ctrl-C came while it was made
            self.release()


class CudaFunction:
    """A kernel's code on a GPU."""

    __slots__ = ("__weakref__", "_gpu", "_module", "handle", "shared_bytes")

    def __init__(self, gpu: CudaGpu, module: int, handle: int, shared_bytes: int) -> None:
        self._gpu = gpu
        self._module = module
        self.handle = handle
        self.shared_bytes = shared_bytes  # that a launch brings

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            self._gpu.unload(self._module)


class _Current:
    """See `CudaGpu.current`; a class of its own since a generator would cost as much as a call of the driver."""

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


class _AtWork(_Current):
    """See `CudaGpu.at_work`."""

    __slots__ = ("_kind", "_what")

    def __init__(self, gpu: CudaGpu, what: str, kind: type[DeviceError]) -> None:
        super().__init__(gpu)
        self._what = what
        self._kind = kind

    def __enter__(self) -> DriverLibrary:
        self._gpu.refuse_if_lost()
        try:
            return super().__enter__()
        except DriverError as fault:
            raise self._gpu.failure(self._what, fault, self._kind) from fault

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._gpu.pop(byref(c_void_p()))
        if isinstance(error, DriverError):
            raise self._gpu.failure(self._what, error, self._kind) from error


class CudaGpu:
    """An opened GPU. `allocated` are the bytes of its buffers now, `peak` the most there have been."""

    tensor_kind = CudaTensor

    def __init__(self, described: NvidiaGpu, driver: DriverLibrary) -> None:
        self.described = described
        self.name = described.name
        self.device = described.device
        self.driver = driver
        self.allocated = 0
        self.peak = 0
        self.lost: str | None = None
        self._is_own = is_own_process
        self.alignment = ALIGNMENT
        self.binds_in_place = True
        self.largest_buffer = described.memory_bytes
        self.functions: WeakValueDictionary[Any, CudaFunction] = WeakValueDictionary()
        self._lock = lock()
        self.context = c_void_p()
        self.push = driver.function("cuCtxPushCurrent_v2")
        self.pop = driver.function("cuCtxPopCurrent_v2")
        self._spare: dict[int, list[int]] = {}  # addresses of freed memory, by size
        self._spare_bytes = 0
        self._retired: list[tuple[c_void_p, Any]] = []  # what others own, each with the event of its last use here
        self._has_foreign = False  # whether the next run may read memory of others
        self._pool = c_void_p()
        self._stream = c_void_p()
        try:
            device = c_int()
            driver("cuDeviceGet", byref(device), described.number)
            driver("cuDevicePrimaryCtxRetain", byref(self.context), device)
            with self.current():
                driver("cuStreamCreate", byref(self._stream), _NON_BLOCKING)
                if described.pools:
                    self._make_pool(device.value)
        except DriverError as fault:
            limited = limit_error(f"{self.name} cannot be opened", fault) if fault.is_for_want_of_memory else None
            raise limited or self.failure("opening it", fault) from fault

    def __repr__(self) -> str:
        return f"<CudaGpu {self.described}>"

    def _make_pool(self, device: int) -> None:
        properties = _PoolProperties(kind=1, place_kind=1, place=device)
        self.driver("cuMemPoolCreate", byref(self._pool), byref(properties))
        threshold = c_uint64(self.described.memory_bytes // _KEPT_FREE)
        self.driver("cuMemPoolSetAttribute", self._pool, 4, byref(threshold))  # RELEASE_THRESHOLD

    # ---- the driver

    def current(self) -> _Current:
        """The driver with this GPU as the one that calls are about, whatever it was before."""
        return _Current(self)

    def at_work(self, what: str, kind: type[DeviceError] = DeviceError) -> _AtWork:
        """The same, with faults as weft's errors that say at what."""
        return _AtWork(self, what, kind)

    def failure(self, what: str, fault: DriverError, otherwise: type[DeviceError] = DeviceError) -> WeftError:
        """What the driver's fault is to weft's users."""
        if fault.is_fatal:
            self.lost = self.lost or str(fault)
            return self._lost_error()
        if fault.code == OUT_OF_MEMORY:
            problem = f"{what} cannot be had: {self.name} is out of memory, with {self.allocated:,} bytes of weft's"
            hint = "use smaller inputs, or another device: see weft.devices()"
            limit = address_space_limit()
            if limit is not None:
                hint += f"; the address space of this process is limited to {limit:,} bytes, too (`ulimit -v`)"
            return OutOfMemoryError(problem, hint=hint)
        return otherwise(f"{what}, on {self.name}: {fault}", hint=fault.hint)

    def is_usable(self) -> bool:
        """Whether the driver may be told of what is let go of."""
        return self.lost is None and self._is_own()

    def refuse_if_lost(self) -> None:
        """Raise DeviceLostError if it is known to be lost, DeviceError in a forked process."""
        check_process()
        if self.lost is not None:
            raise self._lost_error()

    def _lost_error(self) -> DeviceLostError:
        hint = "no library can use this GPU in this process any more: start another process, or choose another device"
        return DeviceLostError(f"{self.name} is lost: {self.lost}", hint=hint)

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        with self.at_work("the device") as driver:
            code = driver.function("cuStreamQuery")(self._stream)
            if code not in (0, _NOT_READY):
                raise driver.fault("cuStreamQuery", code)

    @property
    def stream(self) -> c_void_p:
        """On which all work is done."""
        return self._stream

    # ---- memory

    def buffer(self, size: int, label: str = "") -> CudaBuffer:  # noqa: ARG002
        """Memory, zero at first; OutOfMemoryError if it cannot be had."""
        size = max(_LEAST_BUFFER, -(-size // 16) * 16)
        buffer = self.unset_buffer(size)
        with self.at_work("clearing a buffer") as driver:
            driver("cuMemsetD8Async", c_uint64(buffer.address), 0, c_size_t(size), self._stream)
        return buffer

    def unset_buffer(self, size: int) -> CudaBuffer:
        """The same with anything in it. What was freed before serves again, in the order of the stream."""
        size = max(_LEAST_BUFFER, -(-size // 16) * 16)
        with self._lock:
            spare = self._spare.get(size)
            known = spare.pop() if spare else None
            self._spare_bytes -= size if known else 0
        if known:
            return CudaBuffer(self, known, size)
        address = c_uint64()
        with self.at_work(f"a buffer of {size:,} bytes") as driver:
            self._allocate(driver, address, size)
        return CudaBuffer(self, address.value, size)

    def _allocate(self, driver: DriverLibrary, address: c_uint64, size: int) -> None:
        if not self._pool:
            driver("cuMemAlloc_v2", byref(address), c_size_t(size))
            return
        get = driver.function("cuMemAllocFromPoolAsync")
        code = get(byref(address), c_size_t(size), self._pool, self._stream)
        if code == OUT_OF_MEMORY:  # what was freed may come back once all is done
            with self._lock:
                spare, self._spare, self._spare_bytes = self._spare, {}, 0
            for address_ in (address_ for addresses in spare.values() for address_ in addresses):
                self._give_back(address_)
            driver("cuStreamSynchronize", self._stream)
            driver("cuMemPoolTrimTo", self._pool, c_size_t(0))
            code = get(byref(address), c_size_t(size), self._pool, self._stream)
        if code:
            raise driver.fault("cuMemAllocFromPoolAsync", code)

    def free(self, address: int, size: int) -> None:
        """Give memory back; nothing is raised where the driver is gone."""
        self.count(-size)
        if not self.is_usable():
            return
        with self._lock:
            if self._spare_bytes + size <= _MOST_SPARE:
                self._spare_bytes += size
                self._spare.setdefault(size, []).append(address)
                return
        self._give_back(address)

    def _give_back(self, address: int) -> None:
        with suppress(DriverError), self.current() as driver:
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
        """Write anything with bytes in a row; they are taken before this returns."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        with self.at_work("writing to a buffer") as driver:
            place = c_uint64(buffer.address + offset)
            driver("cuMemcpyHtoDAsync_v2", place, c_void_p(array.ctypes.data), c_size_t(array.nbytes), self._stream)
            if array.nbytes > 1 << 16:  # smaller ones the driver has copied already
                driver("cuStreamSynchronize", self._stream)

    def read(self, reads: Sequence[tuple[CudaBuffer, int, int]]) -> list[Array]:
        """Bytes of slices, each an array of its own."""
        with self.at_work("reading a buffer") as driver:
            return self._read(driver, reads, long=False)

    def _read(self, driver: DriverLibrary, reads: Sequence[tuple[CudaBuffer, int, int]], long: bool) -> list[Array]:
        results = [np.empty(size, np.uint8) for _, _, size in reads]
        if long:
            self._wait_patiently(driver)
        for (buffer, offset, size), result in zip(reads, results):
            if size:
                place = c_uint64(buffer.address + offset)
                driver("cuMemcpyDtoHAsync_v2", c_void_p(result.ctypes.data), place, c_size_t(size), self._stream)
        driver("cuStreamSynchronize", self._stream)
        return results

    # ---- code

    def load(self, key: Any, name: str, code: bytes, shared_bytes: int) -> CudaFunction:
        """A kernel's assembled code as a function; that of an equal key is shared."""
        with self._lock:
            known = self.functions.get(key)
        if known is not None:
            return known
        module, handle = c_void_p(), c_void_p()
        with self.at_work(f"kernel {name!r}", KernelError) as driver:
            driver("cuModuleLoadData", byref(module), code)
            made = CudaFunction(self, module.value or 0, 0, shared_bytes)
            driver("cuModuleGetFunction", byref(handle), module, name.encode())
            made.handle = handle.value or 0
            if shared_bytes > _SHARED_WITHOUT_ASKING:
                driver("cuFuncSetAttribute", handle, _SHARED_ATTRIBUTE, shared_bytes)
        with self._lock:
            return self.functions.setdefault(key, made)

    def unload(self, module: int) -> None:
        if module and self.is_usable():
            with suppress(DriverError), self.current() as driver:
                driver("cuModuleUnload", c_void_p(module))

    # ---- running

    def execute(
        self, commands: Commands, reads: Sequence[tuple[CudaBuffer, int, int]], long: bool = False
    ) -> list[Array]:
        """Run a program's commands and read slices; where there are none to read, do not wait."""
        with self.at_work("running kernels") as driver:
            for cleared in commands.cleared:
                place = c_uint64(cleared.buffer.address + cleared.offset)
                driver("cuMemsetD8Async", place, 0, c_size_t(cleared.size), self._stream)
            self._copy(driver, commands.before)
            commands.recording.launch(driver, self._stream)
            self._copy(driver, commands.after)
            if self._has_foreign:  # whoever writes to it next, on the usual stream, has to wait
                self._has_foreign = False
                self._order(driver, self._stream, c_void_p(LEGACY_STREAM))
            return self._read(driver, reads, long) if reads else []

    def _copy(self, driver: DriverLibrary, copies: Sequence[Copy]) -> None:
        for source, start, target, place, size in copies:
            if size:
                ends = c_uint64(target.address + place), c_uint64(source.address + start)
                driver("cuMemcpyDtoDAsync_v2", *ends, c_size_t(size), self._stream)

    def copy(self, source: BufferSlice, target: BufferSlice) -> None:
        """Copy bytes from one place to another, after what was submitted before."""
        with self.at_work("copying a tensor") as driver:
            self._copy(driver, [(source.buffer, source.offset, target.buffer, target.offset, source.size)])

    def wait(self) -> None:
        """Wait until all that was submitted is done."""
        with self.at_work("waiting for kernels") as driver:
            driver("cuStreamSynchronize", self._stream)

    def _wait_patiently(self, driver: DriverLibrary) -> None:
        """The same so that Ctrl-C can end the wait; the device goes on."""
        query = driver.function("cuStreamQuery")
        while (code := query(self._stream)) == _NOT_READY:
            time.sleep(_POLL)
        if code:
            raise driver.fault("cuStreamQuery", code)

    def timed(self, recording: Any) -> Any:
        """The same launches, with times."""
        return recording.timed()

    def check_can_time(self) -> None:
        """It always can."""

    # ---- what other libraries have on the same GPU

    def foreign(self, address: int, size: int, owner: Any) -> CudaBuffer:
        """Memory of someone else's as a buffer; `owner` is held as long as that is, and until runs are done with it."""
        self._drop_retired()
        self._has_foreign = True
        return CudaBuffer(self, address, size, owner)

    def retire(self, owner: Any) -> None:
        """Hold someone else's memory until all that was submitted is done."""
        if not self.is_usable():
            return
        event = c_void_p()
        with suppress(DriverError), self.current() as driver:
            driver("cuEventCreate", byref(event), _NO_TIMES)
            driver("cuEventRecord", event, self._stream)
            if driver.function("cuEventQuery")(event) == _NOT_READY:
                with self._lock:
                    self._retired.append((event, owner))
            else:
                driver("cuEventDestroy_v2", event)

    def _drop_retired(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
        if not retired:
            return
        kept = []
        with self.at_work("looking after memory of others") as driver:
            for event, owner in retired:
                if driver.function("cuEventQuery")(event) == _NOT_READY:
                    kept.append((event, owner))
                else:
                    driver.function("cuEventDestroy_v2")(event)
        with self._lock:
            self._retired += kept

    def after_stream(self, stream: int) -> None:
        """What is submitted from now on runs after all that another stream has been given."""
        with self.at_work("ordering streams") as driver:
            self._order(driver, c_void_p(stream), self._stream)

    def before_stream(self, stream: int) -> None:
        """What another stream is given from now on runs after all that was submitted here."""
        with self.at_work("ordering streams") as driver:
            self._order(driver, self._stream, c_void_p(stream))

    def _order(self, driver: DriverLibrary, first: c_void_p, second: c_void_p) -> None:
        event = c_void_p()
        driver("cuEventCreate", byref(event), _NO_TIMES)
        try:
            driver("cuEventRecord", event, first)
            driver("cuStreamWaitEvent", second, event, c_uint(0))
        finally:
            driver("cuEventDestroy_v2", event)


def elapsed_nanoseconds(driver: DriverLibrary, first: c_void_p, second: c_void_p) -> float:
    """Between two events that have both happened."""
    milliseconds = c_float()
    driver("cuEventElapsedTime", byref(milliseconds), first, second)
    return milliseconds.value * 1e6


_open: dict[int, CudaGpu] = {}
_opening = lock()


def open_gpu(wanted: str = "") -> CudaGpu:
    """The GPU that a number or name means, opened if it is not."""
    check_process()
    described = find_gpu(wanted)
    with _opening:
        gpu = _open.get(described.number)
        if gpu is None:
            gpu = _open[described.number] = CudaGpu(described, library())
        return gpu
