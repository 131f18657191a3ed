"""Planned launches -> a CUDA graph: a node for each launch, an edge for each that it waits for, made once for a plan.

A launch's parameters are the addresses of its buffers and its numbers, all of 64 bits. Where a buffer starts at a place
that a run decides (inputs and outputs of the caller's), `bind` writes the new address into the nodes that have it.
Kernels come with 32-bit positions and buffers that start at multiples of what is read at once; where a launch's are
not so, other code is compiled for it. Plans of very many launches are launched one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Structure, addressof, byref, c_uint, c_uint64, c_void_p
from dataclasses import field, replace
from math import inf
from typing import Any

import numpy as np

from weft.backends.cuda.compile import KernelCode, compile_kernels
from weft.backends.cuda.gpu import CudaFunction, CudaGpu, elapsed_nanoseconds
from weft.backends.cuda.library import DriverError, DriverLibrary
from weft.backends.cuda.processors import processor_of, thread_lanes
from weft.backends.llvm.thread_lanes import LARGEST_ACCESS, ThreadLanes
from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Find
from weft.errors import ExecutionError
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.work import PlannedLaunch, Repeated, unrolled
from weft.records import dataclass

Array = np.ndarray[Any, Any]
_MOST_SHORT = 2**31 - 2**16  # elements, positions and parameters that 32 bits count; lanes beyond the last one too
_MOST_NODES = 1 << 15  # of a graph; beyond that launches are submitted one by one
_MOST_BLOCKS = 2**31 - 1
_MOST_REDUCED = 1 << 12  # launches of a plan in which waits for the same are looked for


class _KernelNode(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        *((f"{what}_{axis}", c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", c_uint),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Movable:
    """A parameter that is an address in a region which a run decides: of which launch, which one, how far inside."""

    launch: int
    parameter: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class GraphLaunch:
    """A launch with all that the driver wants of it."""

    function: CudaFunction
    blocks: int
    lanes: int
    words: Array  # uint64: addresses, then numbers
    pointers: Any  # to each of these
    after: tuple[int, ...] | None  # numbers of launches here; None: all before

    def node(self) -> _KernelNode:
        return _KernelNode(
            function=self.function.handle,
            grid_x=self.blocks,
            grid_y=1,
            grid_z=1,
            block_x=self.lanes,
            block_y=1,
            block_z=1,
            shared_bytes=self.function.shared_bytes,
            parameters=addressof(self.pointers),
        )

    def submit(self, driver: DriverLibrary, stream: c_void_p) -> None:
        grid = (self.blocks, 1, 1, self.lanes, 1, 1, self.function.shared_bytes)
        driver("cuLaunchKernel", c_void_p(self.function.handle), *grid, stream, self.pointers, None)


def bound_launch(
    function: CudaFunction, blocks: int, lanes: int, values: Sequence[int], after: tuple[int, ...] | None = None
) -> GraphLaunch:
    """A launch with these addresses and numbers as its parameters."""
    words = np.array([value % 2**64 for value in values], np.uint64)
    start = words.ctypes.data
    pointers = (c_void_p * len(words))(*(start + 8 * number for number in range(len(words))))
    return GraphLaunch(function, blocks, lanes, words, pointers, after)


@dataclass(eq=False)
class GraphRecording:
    """The launches of a plan, bound to memory."""

    gpu: CudaGpu
    launches: Sequence[GraphLaunch]
    movable: Mapping[int, Sequence[Movable]]  # by region
    seconds: float = inf  # that the last run took
    _graph: LaunchGraph | None = None
    _bound: dict[int, int] = field(default_factory=dict)  # addresses that regions were moved to

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Let regions that a run decides start elsewhere."""
        changed: set[int] = set()
        for region, place in regions.items():
            address = place.buffer.address + place.offset
            if self._bound.get(region) == address:
                continue
            self._bound[region] = address
            for use in self.movable.get(region, ()):
                self.launches[use.launch].words[use.parameter] = address + use.offset
                changed.add(use.launch)
        if changed and self._graph is not None:
            self._graph.update(sorted(changed))

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        """Submit all; the GPU is the current one."""
        if len(self.launches) > _MOST_NODES:
            for launch in self.launches:
                launch.submit(driver, stream)
            return
        if self._graph is None:
            self._graph = LaunchGraph(self.gpu, self.launches)
        self._graph.launch(driver, stream)

    def timed(self) -> TimedGraphRecording:
        return TimedGraphRecording(self.gpu, self.launches, self.movable)


class TimedGraphRecording(GraphRecording):
    """The same one after the other, with the time at which each began."""

    _events: list[c_void_p]

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._graph is None:
            self._events = [_event(driver) for _ in range(len(self.launches) + 1)]
            self._graph = LaunchGraph(self.gpu, self.launches, self._events)
        self._graph.launch(driver, stream)

    def ticks(self) -> Array:
        """The nanoseconds at which each launch of the last run began, and the last ended."""
        with self.gpu.at_work("reading times") as driver:
            found = [elapsed_nanoseconds(driver, self._events[0], event) for event in self._events]
        return np.array(found).astype(np.int64)


def _event(driver: DriverLibrary) -> c_void_p:
    event = c_void_p()
    driver("cuEventCreate", byref(event), c_uint(0))
    return event


def direct_waits(waits: Sequence[tuple[int, ...] | None]) -> list[tuple[int, ...]]:
    """What each launch has to wait for, those left out that another one of them waits for; None: for all before."""
    found: list[tuple[int, ...]] = []
    known: list[int] = []  # of each: all that are done when it is, as bits
    ends: set[int] = set()  # launches that nobody waits for yet
    for number, after in enumerate(waits):
        given = tuple(sorted(ends)) if after is None else after
        behind = 0
        for other in given if len(waits) <= _MOST_REDUCED else ():
            behind |= known[other]
        direct = tuple(other for other in given if not behind >> other & 1)
        found.append(direct)
        for other in direct:
            behind |= known[other] | 1 << other
        known.append(behind if len(waits) <= _MOST_REDUCED else 0)
        ends = {*(ends - set(given)), number}
    return found


class LaunchGraph:
    """A graph of launches that the driver has made ready. Between `events`, if there are any, they run one by one."""

    def __init__(self, gpu: CudaGpu, launches: Sequence[GraphLaunch], events: Sequence[c_void_p] = ()) -> None:
        self._gpu = gpu
        self._launches = launches  # whose functions must stay, and whose words are read again for updates
        self._executable = c_void_p()
        self._nodes: list[c_void_p] = []
        self._graph = c_void_p()
        self._events = events
        with gpu.current() as driver:
            driver("cuGraphCreate", byref(self._graph), c_uint(0))
            if events:
                self._add_timed(driver)
            else:
                self._add(driver)
            driver("cuGraphInstantiateWithFlags", byref(self._executable), self._graph, c_uint64(0))

    def _add(self, driver: DriverLibrary) -> None:
        for launch, after in zip(self._launches, direct_waits([launch.after for launch in self._launches])):
            self._nodes.append(self._kernel(driver, launch, [self._nodes[other] for other in after]))

    def _add_timed(self, driver: DriverLibrary) -> None:
        last = self._record(driver, self._events[0], [])
        for launch, event in zip(self._launches, self._events[1:]):
            self._nodes.append(self._kernel(driver, launch, [last]))
            last = self._record(driver, event, [self._nodes[-1]])

    def _kernel(self, driver: DriverLibrary, launch: GraphLaunch, after: Sequence[c_void_p]) -> c_void_p:
        node, given = c_void_p(), (c_void_p * len(after))(*after)
        parameters = launch.node()
        driver("cuGraphAddKernelNode_v2", byref(node), self._graph, given, c_uint64(len(after)), byref(parameters))
        return node

    def _record(self, driver: DriverLibrary, event: c_void_p, after: Sequence[c_void_p]) -> c_void_p:
        node, given = c_void_p(), (c_void_p * len(after))(*after)
        driver("cuGraphAddEventRecordNode", byref(node), self._graph, given, c_uint64(len(after)), event)
        return node

    def update(self, numbers: Sequence[int]) -> None:
        """Take over the words of these launches."""
        with self._gpu.at_work("binding memory") as driver:
            for number in numbers:
                parameters = self._launches[number].node()
                driver("cuGraphExecKernelNodeSetParams_v2", self._executable, self._nodes[number], byref(parameters))

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._launches:
            driver("cuGraphLaunch", self._executable, stream)

    def __del__(self) -> None:
        if not hasattr(self, "_events") or not self._gpu.is_usable():  # the former where Ctrl-C came early
            return
        try:
            with self._gpu.current() as driver:
                if self._executable:
                    driver.function("cuGraphExecDestroy")(self._executable)
                if self._graph:
                    driver.function("cuGraphDestroy")(self._graph)
                for event in self._events:
                    driver.function("cuEventDestroy_v2")(event)
        except DriverError:
            pass  # the driver is gone before us


class CudaLaunches:
    """The launches of one program's plans, from the code of its kernels."""

    parameter_bytes = 0

    def __init__(self, gpu: CudaGpu, codes: Mapping[str, KernelCode]) -> None:
        self.gpu = gpu
        self.codes = codes
        self._usual = thread_lanes(processor_of(gpu.described))
        self._functions: dict[tuple[str, ThreadLanes], CudaFunction] = {}

    def compile(self, launches: Sequence[PlannedLaunch | Repeated], find: Find) -> None:  # noqa: ARG002
        """Bring the code of these launches onto the GPU."""
        for entry in launches:
            for launch in entry.launches if isinstance(entry, Repeated) else (entry,):
                self._function(launch.kernel, self._usual)

    def record(
        self, launches: Sequence[PlannedLaunch | Repeated], find: Find, movable: range = range(0)
    ) -> GraphRecording:
        """The launches in order; regions that are `movable` may be bound to other places later."""
        bound: list[GraphLaunch] = []
        moved: dict[int, list[Movable]] = {}
        ends: list[tuple[int, ...]] = []  # of each entry: the launches here that are done when it is
        for entry in launches:
            if isinstance(entry, Repeated):
                for launch in unrolled([entry]):
                    done = self._bind(launch, None, find, movable, bound, moved)
                ends.append(done if entry.count and entry.launches else tuple(range(len(bound))))
                continue
            after = None if entry.after is None else {number for other in entry.after for number in ends[other]}
            ends.append(self._bind(entry, after, find, movable, bound, moved))
        return GraphRecording(self.gpu, bound, moved)

    def _bind(
        self,
        launch: PlannedLaunch,
        after: set[int] | None,
        find: Find,
        movable: range,
        bound: list[GraphLaunch],
        moved: dict[int, list[Movable]],
    ) -> tuple[int, ...]:
        """Add a launch, unless it has no blocks; the launches that are done when it is."""
        if not launch.blocks:
            return tuple(range(len(bound))) if after is None else tuple(sorted(after))
        if launch.blocks > _MOST_BLOCKS:
            raise ExecutionError(f"{launch.blocks} blocks, more than a launch can have", node=launch.origin or None)
        slices = [find(place, size) for place, size in zip(launch.buffers, launch.sizes, strict=True)]
        number = len(bound)
        for parameter, place in enumerate(launch.buffers):
            if place.region in movable:
                moved.setdefault(place.region, []).append(Movable(number, parameter, place.offset))
        function = self._function(launch.kernel, self._lanes(launch, slices))
        values = [*(part.buffer.address + part.offset for part in slices), *launch.parameters]
        waits = None if after is None else tuple(sorted(after))
        bound.append(bound_launch(function, launch.blocks, launch.kernel.lanes, values, waits))
        return (number,)

    def _lanes(self, launch: PlannedLaunch, slices: Sequence[BufferSlice]) -> ThreadLanes:
        """How the kernel's lanes must be written for these buffers and parameters."""
        shared = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
        sizes = [part.size // buffer.dtype.numpy.itemsize for buffer, part in zip(shared, slices)]
        large = max((*sizes, *map(abs, launch.parameters), launch.blocks), default=0) > _MOST_SHORT
        runs = self.codes[launch.kernel.name].runs
        unaligned = [
            buffer.name
            for buffer, part in zip(shared, slices)
            if buffer.name in runs
            and (part.buffer.address + part.offset)
            % min(runs[buffer.name] * max(buffer.dtype.numpy.itemsize, 1), LARGEST_ACCESS)
        ]
        if not large and not unaligned:
            return self._usual
        return replace(self._usual, index_bits=64 if large else 32, unaligned=frozenset(unaligned))

    def _function(self, kernel: Kernel, lanes: ThreadLanes) -> CudaFunction:
        key = kernel.name, lanes
        found = self._functions.get(key)
        if found is None:
            code = self.codes[kernel.name]
            if lanes != self._usual:
                (code,) = compile_kernels([(code.kernel, lanes)], self.gpu)
            found = self.gpu.load(key, kernel.name, code.code, code.shared_bytes)
            self._functions[key] = found
        return found


def cuda_launches(program: CompiledProgram, gpu: CudaGpu) -> CudaLaunches:
    """Those of a compiled program."""
    codes = zip(kernel_names(program.sections), program.objects, strict=True)
    return CudaLaunches(gpu, {name: KernelCode.decode(code) for name, code in codes})
