"""A fake CUDA driver: it keeps memory on the host, and records launches instead of running kernels.

Functions take the arguments that weft passes to libcuda, so that the whole device path above the driver runs without a
GPU. "Assembled" code is the kernel's name and its number of parameters, after `check` has seen the PTX.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from weft.backends.cuda.discovery import ATTRIBUTES, GpuProperties
from weft.backends.cuda.graphs import KernelNodeParams
from weft.backends.cuda.library import OUT_OF_MEMORY

H200 = GpuProperties(0, "NVIDIA H200", (9, 0), 140 << 30, 13000, 132, 232448, 3201000, 6144, True)
A100 = GpuProperties(0, "NVIDIA A100", (8, 0), 80 << 30, 12000, 108, 166912, 1593000, 5120, True)
L40 = GpuProperties(0, "NVIDIA L40", (8, 9), 48 << 30, 12040, 142, 101376, 9001000, 384, True)
T4 = GpuProperties(0, "Tesla T4", (7, 5), 16 << 30, 12000, 40, 65536, 5001000, 256, True)
_ALIGNMENT = 256
_LAUNCH_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
"""CUresult cuLaunchKernel(CUfunction, 3 × grid, 3 × block, shared bytes, CUstream, void **parameters, void **extra)."""


@dataclass
class Node:
    """A node of a graph: a kernel's launch, or an event."""

    number: int
    after: tuple[int, ...]
    function: int = 0
    blocks: int = 0
    lanes: int = 0
    shared_bytes: int = 0
    words: tuple[int, ...] = ()


@dataclass
class RecordingDriver:
    """Stands in for `weft.backends.cuda.library.DriverLibrary`."""

    parameters: dict[int, int] = field(default_factory=dict)  # how many words a function takes
    check: Callable[[str, str], None] | None = None  # sees each kernel's name and PTX
    fail: dict[str, int] = field(default_factory=dict)  # codes that functions return
    fails_once: dict[str, int] = field(default_factory=dict)  # the same, for their next call alone
    free_bytes: int = 1 << 62  # that can be allocated
    version: int = 13000  # of CUDA
    gpus: tuple[GpuProperties, ...] = ()
    calls: Counter[str] = field(default_factory=Counter)
    memory: dict[int, Any] = field(default_factory=dict)
    host_memory: list[Any] = field(default_factory=list)
    freed: int = 0
    waits: list[tuple[int, int]] = field(default_factory=list)  # (stream, stream that it waits for)
    updated: list[int] = field(default_factory=list)  # nodes whose parameters were set anew
    submitted: list[Node] = field(default_factory=list)  # launches without a graph
    modules: dict[int, bytes] = field(default_factory=dict)
    graphs: dict[int, list[Node]] = field(default_factory=dict)
    launched: list[int] = field(default_factory=list)  # graphs
    names: dict[int, str] = field(default_factory=dict)  # of functions
    texts: list[str] = field(default_factory=list)  # of PTX
    _launch_kernel: Any = None  # the callback that native code calls
    _numbers: Any = field(default_factory=lambda: count(1))
    _linked: dict[int, bytes] = field(default_factory=dict)
    _events: dict[int, int] = field(default_factory=dict)  # the streams that they were recorded on

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.function(name)(*arguments)
        if code:
            raise self.fault(name, code)

    def fault(self, name: str, code: int) -> Exception:
        from weft.backends.cuda.library import DriverError

        return DriverError(name, code, f"fake error (error {code})")

    def function(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            code = self.fails_once.pop(name, 0) or self.fail.get(name, 0)
            if code:
                return code
            own = getattr(self, name.removesuffix("_v2"), None)
            return (own(*arguments) if own is not None else self._assign_handle(name, *arguments)) or 0

        return call

    def _assign_handle(self, name: str, *arguments: Any) -> None:
        """Number created objects."""
        creators = ("Create", "Retain", "cuDeviceGet", "cuModuleLoadData", "cuCtxPopCurrent")
        if name.startswith(creators) or name.endswith(creators) or "Create" in name or "Retain" in name:
            arguments[0]._obj.value = next(self._numbers)

    # -- GPUs --------------------------------------------------------------------------------------------------------

    def cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = self.version

    def cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = len(self.gpus)

    def cuDeviceGet(self, device: Any, number: int) -> None:
        device._obj.value = number

    def cuDeviceGetName(self, text: Any, _: int, device: Any) -> None:
        text.value = self.gpus[device.value].name.encode()

    def cuDeviceTotalMem(self, size: Any, device: Any) -> None:
        size._obj.value = self.gpus[device.value].memory_bytes

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> None:
        properties = self.gpus[device.value]
        capability = dict(zip(("major", "minor"), properties.capability))
        (name,) = (name for name, number in ATTRIBUTES.items() if number == attribute)
        value._obj.value = int(capability[name] if name in capability else getattr(properties, name))

    # -- memory ------------------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes allocated and not freed."""
        return sum(len(content) - _ALIGNMENT for place, content in self.memory.items() if place > 0)

    def holds(self, address: int, size: int) -> bool:
        """Tell whether all of these bytes lie in one allocation."""
        allocations = ((place, len(content) - _ALIGNMENT) for place, content in self.memory.items() if place > 0)
        return any(place <= address and address + size <= place + length for place, length in allocations)

    def cuMemAllocFromPoolAsync(self, address: Any, size: Any, *_: Any) -> int:
        if self.used + size.value > self.free_bytes:
            return OUT_OF_MEMORY
        content = (ctypes.c_char * (size.value + _ALIGNMENT))()
        place = -(-ctypes.addressof(content) // _ALIGNMENT) * _ALIGNMENT
        self.memory[place] = content
        address._obj.value = place
        return 0

    def cuMemHostAlloc(self, address: Any, size: Any, _: Any) -> None:
        self.host_memory.append((ctypes.c_char * size.value)())
        address._obj.value = ctypes.addressof(self.host_memory[-1])

    def cuMemFreeAsync(self, address: Any, _: Any) -> None:
        del self.memory[address.value]
        self.freed += 1

    def cuMemsetD8Async(self, address: Any, value: int, size: Any, _: Any) -> None:
        ctypes.memset(address.value, value, size.value)

    def cuMemcpyHtoDAsync(self, target: Any, source: Any, size: Any, _: Any) -> None:
        ctypes.memmove(target.value, source.value, size.value)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync  # noqa: N815

    # -- code --------------------------------------------------------------------------------------------------------

    def cuLinkCreate(self, *arguments: Any) -> None:
        arguments[-1]._obj.value = next(self._numbers)

    def cuLinkAddData(self, state: Any, _: int, text: Any, *rest: Any) -> None:
        name = rest[1].decode()
        ptx = text.value.decode()
        self.texts.append(ptx)
        if self.check is not None:
            self.check(name, ptx)
        self._linked[state.value] = f"{name} {parameter_count(name, ptx)}".encode()

    def cuLinkComplete(self, state: Any, image: Any, size: Any) -> None:
        code = self._linked[state.value]
        self.memory[-state.value] = image_bytes = ctypes.create_string_buffer(code)
        image._obj.value, size._obj.value = ctypes.addressof(image_bytes), len(code)

    def cuModuleLoadData(self, module: Any, code: bytes) -> None:
        module._obj.value = next(self._numbers)
        self.modules[module._obj.value] = code

    def cuModuleUnload(self, module: Any) -> None:
        del self.modules[module.value]

    def cuModuleGetFunction(self, handle: Any, module: Any, name: bytes) -> None:
        kernel, count = self.modules[module.value].decode().split()
        assert kernel == name.decode()
        handle._obj.value = next(self._numbers)
        self.names[handle._obj.value] = kernel
        self.parameters[handle._obj.value] = int(count)

    def address(self, name: str) -> int:
        """Return the address of cuLaunchKernel, for native code."""
        assert name == "cuLaunchKernel"
        if self._launch_kernel is None:
            self._launch_kernel = _LAUNCH_KERNEL(self.function(name))
        return ctypes.cast(self._launch_kernel, ctypes.c_void_p).value or 0

    def cuLaunchKernel(self, function: int, *grid_and_shared: int) -> None:
        x, y, z, lanes, lanes_y, lanes_z, shared_bytes, stream, parameters, extra = grid_and_shared
        assert (y, z, lanes_y, lanes_z) == (1, 1, 1, 1)
        assert stream
        assert not extra
        assert x > 0
        words = self._read_words(function, parameters)
        self.submitted.append(Node(0, (), function, x, lanes, shared_bytes, words))

    # -- streams -----------------------------------------------------------------------------------------------------

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self._events[event.value] = stream.value or 0

    def cuEventElapsedTime(self, milliseconds: Any, first: Any, second: Any) -> None:
        milliseconds._obj.value = (second.value - first.value) * 1e-3  # events are numbered in order

    def cuStreamWaitEvent(self, stream: Any, event: Any, _: Any) -> None:
        self.waits.append((stream.value or 0, self._events[event.value]))

    # -- graphs ------------------------------------------------------------------------------------------------------

    def cuGraphCreate(self, graph: Any, _: Any) -> None:
        graph._obj.value = next(self._numbers)
        self.graphs[graph._obj.value] = []

    def cuGraphAddKernelNode(self, node: Any, graph: Any, after: Any, count: Any, params: Any) -> None:
        number = node._obj.value = next(self._numbers)
        new_node = Node(number, tuple(after[n] for n in range(count.value)))
        self._fill(new_node, params._obj)
        self.graphs[graph.value].append(new_node)

    def cuGraphAddEventRecordNode(self, node: Any, graph: Any, after: Any, count: Any, _: Any) -> None:
        number = node._obj.value = next(self._numbers)
        self.graphs[graph.value].append(Node(number, tuple(after[n] for n in range(count.value))))

    def cuGraphDestroy(self, graph: Any) -> None:
        del self.graphs[graph.value]

    def cuGraphExecKernelNodeSetParams(self, _: Any, node: Any, params: Any) -> None:
        (match,) = (
            candidate for nodes in self.graphs.values() for candidate in nodes if candidate.number == node.value
        )
        self._fill(match, params._obj)
        self.updated.append(node.value)

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, _: Any) -> None:
        executable._obj.value = graph.value

    def cuGraphLaunch(self, executable: Any, _: Any) -> None:
        self.launched.append(executable.value)

    def _fill(self, node: Node, params: KernelNodeParams) -> None:
        node.function, node.blocks, node.lanes = params.function, params.grid_x, params.block_x
        node.shared_bytes = params.shared_bytes
        node.words = self._read_words(params.function, params.parameters)

    def _read_words(self, function: int, parameters: int) -> tuple[int, ...]:
        count = self.parameters.get(function, 0)
        pointers = (ctypes.c_void_p * count).from_address(parameters) if count else ()
        return tuple(ctypes.c_uint64.from_address(place).value for place in pointers)


def parameter_count(name: str, ptx: str) -> int:
    """Count the parameters of a kernel; all of them have 64 bits."""
    (entry,) = re.findall(rf"\.entry {re.escape(name)}\((.*?)\)", ptx, re.DOTALL)
    return len(re.findall(r"\.param \.[ub]64", entry))
