"""Record planned launches as a CUDA graph, once per plan: a node per launch, an edge per dependency.

A launch's parameters are the addresses of its buffers and its numbers, all of 64 bits. `bind` updates the nodes that
use inputs or outputs whose addresses change from run to run. Kernels are compiled for 32-bit indices and aligned runs;
a launch that needs 64 bits or has unaligned buffers gets another variant of the code. Plans with more launches than a
graph should have are submitted launch by launch.
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
from weft.backends.cuda.processors import choose_lanes, choose_processor
from weft.backends.llvm.thread_lanes import LARGEST_ACCESS, ThreadLanes
from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Find
from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.work import PlannedLaunch, Repeated, unrolled
from weft.records import dataclass

_MOST_SHORT = 2**31 - 2**16  # largest size with 32-bit indices: idle lanes beyond the end need indices too
_MOST_NODES = 1 << 15  # plans with more launches are not recorded as graphs
_MOST_BLOCKS = 2**31 - 1
_MOST_REDUCED = 1 << 12  # plans with more launches keep redundant edges


class KernelNodeParams(Structure):
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
class MovableParameter:
    """A parameter that is an address in a region which may be rebound."""

    launch: int
    parameter: int
    offset: int  # from the start of the region


@dataclass(frozen=True, slots=True, eq=False)
class GraphLaunch:
    """A launch in the form that the driver takes."""

    function: CudaFunction
    blocks: int
    lanes: int
    words: Array  # uint64: addresses, then numbers
    pointers: Any  # to each word
    after: tuple[int, ...] | None  # launches of the same graph to wait for; None: all before

    def node_params(self) -> KernelNodeParams:
        return KernelNodeParams(
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


def bind_launch(
    function: CudaFunction, blocks: int, lanes: int, values: Sequence[int], after: tuple[int, ...] | None = None
) -> GraphLaunch:
    """Build a launch from its parameters, addresses and then numbers."""
    words = np.array([value % 2**64 for value in values], np.uint64)
    start = words.ctypes.data
    pointers = (c_void_p * len(words))(*(start + 8 * number for number in range(len(words))))
    return GraphLaunch(function, blocks, lanes, words, pointers, after)


@dataclass(eq=False)
class GraphRecording:
    """The launches of a plan, bound to memory."""

    gpu: CudaGpu
    launches: Sequence[GraphLaunch]
    movable: Mapping[int, Sequence[MovableParameter]]  # by region
    seconds: float = inf  # duration of the last run
    _graph: LaunchGraph | None = None
    _bound: dict[int, int] = field(default_factory=dict)  # region -> current address

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Move regions to other addresses."""
        changed: set[int] = set()
        for region, memory in regions.items():
            address = memory.buffer.address + memory.offset
            if self._bound.get(region) == address:
                continue
            self._bound[region] = address
            for use in self.movable.get(region, ()):
                self.launches[use.launch].words[use.parameter] = address + use.offset
                changed.add(use.launch)
        if changed and self._graph is not None:
            self._graph.update(sorted(changed))

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        """Submit all launches; the GPU's context must be current."""
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
    """A recording that runs the launches one after the other and records when each starts."""

    _events: list[c_void_p]

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._graph is None:
            self._events = [_create_event(driver) for _ in range(len(self.launches) + 1)]
            self._graph = LaunchGraph(self.gpu, self.launches, self._events)
        self._graph.launch(driver, stream)

    def ticks(self) -> Array:
        """Return when each launch of the last run began and the last one ended, in nanoseconds."""
        with self.gpu.guard("reading times") as driver:
            times = [elapsed_nanoseconds(driver, self._events[0], event) for event in self._events]
        return np.array(times).astype(np.int64)


def _create_event(driver: DriverLibrary) -> c_void_p:
    event = c_void_p()
    driver("cuEventCreate", byref(event), c_uint(0))
    return event


def reduce_waits(waits: Sequence[tuple[int, ...] | None]) -> list[tuple[int, ...]]:
    """Compute the transitive reduction of waits; None waits for all launches before."""
    reduced: list[tuple[int, ...]] = []
    ancestors: list[int] = []  # bit sets
    leaves: set[int] = set()  # launches that no other waits for yet
    for number, after in enumerate(waits):
        parents = tuple(sorted(leaves)) if after is None else after
        reachable = 0
        for parent in parents if len(waits) <= _MOST_REDUCED else ():
            reachable |= ancestors[parent]
        direct = tuple(parent for parent in parents if not reachable >> parent & 1)
        reduced.append(direct)
        for parent in direct:
            reachable |= ancestors[parent] | 1 << parent
        ancestors.append(reachable if len(waits) <= _MOST_REDUCED else 0)
        leaves = {*(leaves - set(parents)), number}
    return reduced


class LaunchGraph:
    """An instantiated graph of launches; with `events`, it runs them one by one and records an event after each."""

    def __init__(self, gpu: CudaGpu, launches: Sequence[GraphLaunch], events: Sequence[c_void_p] = ()) -> None:
        self._gpu = gpu
        self._launches = launches  # keeps their functions alive; updates read their words again
        self._executable = c_void_p()
        self._nodes: list[c_void_p] = []
        self._graph = c_void_p()
        self._events = events
        with gpu.activate() as driver:
            driver("cuGraphCreate", byref(self._graph), c_uint(0))
            if events:
                self._add_timed_kernels(driver)
            else:
                self._add_kernels(driver)
            driver("cuGraphInstantiateWithFlags", byref(self._executable), self._graph, c_uint64(0))

    def _add_kernels(self, driver: DriverLibrary) -> None:
        for launch, after in zip(self._launches, reduce_waits([launch.after for launch in self._launches])):
            self._nodes.append(self._add_kernel_node(driver, launch, [self._nodes[parent] for parent in after]))

    def _add_timed_kernels(self, driver: DriverLibrary) -> None:
        last = self._add_event_node(driver, self._events[0], [])
        for launch, event in zip(self._launches, self._events[1:]):
            self._nodes.append(self._add_kernel_node(driver, launch, [last]))
            last = self._add_event_node(driver, event, [self._nodes[-1]])

    def _add_kernel_node(self, driver: DriverLibrary, launch: GraphLaunch, after: Sequence[c_void_p]) -> c_void_p:
        node, parents = c_void_p(), (c_void_p * len(after))(*after)
        parameters = launch.node_params()
        driver("cuGraphAddKernelNode_v2", byref(node), self._graph, parents, c_uint64(len(after)), byref(parameters))
        return node

    def _add_event_node(self, driver: DriverLibrary, event: c_void_p, after: Sequence[c_void_p]) -> c_void_p:
        node, parents = c_void_p(), (c_void_p * len(after))(*after)
        driver("cuGraphAddEventRecordNode", byref(node), self._graph, parents, c_uint64(len(after)), event)
        return node

    def update(self, numbers: Sequence[int]) -> None:
        """Copy the current words of launches to their nodes."""
        with self._gpu.guard("binding memory") as driver:
            for number in numbers:
                parameters = self._launches[number].node_params()
                driver("cuGraphExecKernelNodeSetParams_v2", self._executable, self._nodes[number], byref(parameters))

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._launches:
            driver("cuGraphLaunch", self._executable, stream)

    def __del__(self) -> None:
        if not hasattr(self, "_events") or not self._gpu.is_usable():  # Ctrl-C may interrupt the constructor
            return
        try:
            with self._gpu.activate() as driver:
                if self._executable:
                    driver.function("cuGraphExecDestroy")(self._executable)
                if self._graph:
                    driver.function("cuGraphDestroy")(self._graph)
                for event in self._events:
                    driver.function("cuEventDestroy_v2")(event)
        except DriverError:
            pass  # the driver shut down first


class CudaLaunchCompiler:
    """Records the plans of one program, whose compiled kernels it has."""

    parameter_bytes = 0

    def __init__(self, gpu: CudaGpu, codes: Mapping[str, KernelCode]) -> None:
        self.gpu = gpu
        self.codes = codes
        self._default_lanes = choose_lanes(choose_processor(gpu.properties))
        self._functions: dict[tuple[str, ThreadLanes], CudaFunction] = {}

    @classmethod
    def from_program(cls, program: CompiledProgram, gpu: CudaGpu) -> CudaLaunchCompiler:
        codes = zip(kernel_names(program.sections), program.objects, strict=True)
        return cls(gpu, {name: KernelCode.decode(code) for name, code in codes})

    def compile(self, launches: Sequence[PlannedLaunch | Repeated], find: Find) -> None:  # noqa: ARG002
        """Load the kernels of these launches."""
        for entry in launches:
            for launch in entry.launches if isinstance(entry, Repeated) else (entry,):
                self._load(launch.kernel, self._default_lanes)

    def record(
        self, launches: Sequence[PlannedLaunch | Repeated], find: Find, movable: range = range(0)
    ) -> GraphRecording:
        """Record launches in order; `movable` regions may be rebound later."""
        graph_launches: list[GraphLaunch] = []
        moved: dict[int, list[MovableParameter]] = {}
        ends: list[tuple[int, ...]] = []  # for each entry, the launches to wait for
        for entry in launches:
            if isinstance(entry, Repeated):
                for launch in unrolled([entry]):
                    last = self._add_launch(launch, None, find, movable, graph_launches, moved)
                ends.append(last if entry.count and entry.launches else tuple(range(len(graph_launches))))
                continue
            after = None if entry.after is None else {number for parent in entry.after for number in ends[parent]}
            ends.append(self._add_launch(entry, after, find, movable, graph_launches, moved))
        return GraphRecording(self.gpu, graph_launches, moved)

    def _add_launch(
        self,
        launch: PlannedLaunch,
        after: set[int] | None,
        find: Find,
        movable: range,
        graph_launches: list[GraphLaunch],
        moved: dict[int, list[MovableParameter]],
    ) -> tuple[int, ...]:
        """Add a launch unless it has no blocks, and return the launches to wait for to have its results."""
        if not launch.blocks:
            return tuple(range(len(graph_launches))) if after is None else tuple(sorted(after))
        if launch.blocks > _MOST_BLOCKS:
            problem = f"a launch with {launch.blocks:,} blocks: CUDA allows {_MOST_BLOCKS:,}"
            raise ExecutionError(problem, node=launch.origin or None)
        slices = [find(place, size) for place, size in zip(launch.buffers, launch.sizes, strict=True)]
        number = len(graph_launches)
        for parameter, place in enumerate(launch.buffers):
            if place.region in movable:
                moved.setdefault(place.region, []).append(MovableParameter(number, parameter, place.offset))
        function = self._load(launch.kernel, self._choose_lanes(launch, slices))
        values = [*(memory.buffer.address + memory.offset for memory in slices), *launch.parameters]
        waits = None if after is None else tuple(sorted(after))
        graph_launches.append(bind_launch(function, launch.blocks, launch.kernel.lanes, values, waits))
        return (number,)

    def _choose_lanes(self, launch: PlannedLaunch, slices: Sequence[BufferSlice]) -> ThreadLanes:
        """Choose the index width and the aligned buffers of a kernel's code for these buffers and parameters."""
        buffers = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
        sizes = [memory.size // buffer.dtype.numpy.itemsize for buffer, memory in zip(buffers, slices)]
        is_large = max((*sizes, *map(abs, launch.parameters), launch.blocks), default=0) > _MOST_SHORT
        runs = self.codes[launch.kernel.name].runs
        unaligned = [
            buffer.name
            for buffer, memory in zip(buffers, slices)
            if buffer.name in runs
            and (memory.buffer.address + memory.offset)
            % min(runs[buffer.name] * max(buffer.dtype.numpy.itemsize, 1), LARGEST_ACCESS)
        ]
        if not is_large and not unaligned:
            return self._default_lanes
        return replace(self._default_lanes, index_bits=64 if is_large else 32, unaligned=frozenset(unaligned))

    def _load(self, kernel: Kernel, lanes: ThreadLanes) -> CudaFunction:
        key = kernel.name, lanes
        function = self._functions.get(key)
        if function is None:
            code = self.codes[kernel.name]
            if lanes != self._default_lanes:
                (code,) = compile_kernels([(code.kernel, lanes)], self.gpu)
            function = self.gpu.load(key, kernel.name, code.code, code.shared_bytes)
            self._functions[key] = function
        return function
