"""Record planned launches: as a table that native code submits, and as a CUDA graph for sizes that repeat.

A launch's parameters are the addresses of its buffers and its numbers, all of 64 bits. `bind` updates the words of
inputs and outputs whose addresses change from run to run, and the nodes that use them. Kernels are compiled for 32-bit
indices and aligned runs; a launch that needs 64 bits or has unaligned buffers gets another variant of the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint, c_void_p
from dataclasses import replace
from functools import partial
from math import inf
from weakref import WeakKeyDictionary, ref

import numpy as np

from weft.backends.cuda.compile import KernelCode, compile_kernels
from weft.backends.cuda.gpu import CudaFunction, CudaGpu, elapsed_nanoseconds
from weft.backends.cuda.graphs import LaunchGraph
from weft.backends.cuda.launch_form import NO_MOVABLE_WORDS, LaunchForm, LoadedKernel, MovableWords
from weft.backends.cuda.launch_table import FUNCTION, SHARED_BYTES, LaunchTable
from weft.backends.cuda.library import DriverLibrary
from weft.backends.cuda.processors import choose_lanes, choose_processor
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Find
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers

_RUNS_BEFORE_GRAPH = 8  # of the same sizes; building a graph takes as long as tens of runs
_RUNS_IN_A_ROW = 2  # the same, with no other sizes between them
_MOST_NODES = 1 << 15  # plans with more launches are never recorded as graphs
_MOST_NODES_TOGETHER = 1 << 14  # of all graphs of a program, unless a single one has more


class GraphLimit:
    """Limits the graphs of a program: those that were used least recently are dropped."""

    def __init__(self) -> None:
        self._nodes: WeakKeyDictionary[CudaRecording, int] = WeakKeyDictionary()  # the last used is the last

    def use(self, recording: CudaRecording, nodes: int) -> None:
        """Note the use of a recording's graph, which may be a new one."""
        is_new = self._nodes.pop(recording, None) is None
        self._nodes[recording] = nodes
        if is_new:
            total = sum(self._nodes.values())
            for other, count in list(self._nodes.items())[:-1]:
                if total <= _MOST_NODES_TOGETHER:
                    break
                total -= self._nodes.pop(other, count)
                other.drop_graph()


class BoundLaunches:
    """Launches that are bound to memory, and their graph."""

    def __init__(self, gpu: CudaGpu, table: LaunchTable, movable: MovableWords = NO_MOVABLE_WORDS) -> None:
        self.gpu, self.table, self.movable = gpu, table, movable
        self.seconds = inf  # duration of the last run
        self._graph: LaunchGraph | None = None
        self._bound = dict(movable.starts)  # region -> current address

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Move regions to other addresses."""
        bound, changed = self._bound, []
        for region, memory in regions.items():
            address = memory.buffer.address + memory.offset
            if bound.get(region) != address:
                bound[region] = address
                changed.append(region)
        if not changed:
            return
        movable = self.movable
        starts = np.zeros(max(bound) + 1, np.int64)
        starts[list(bound)] = list(bound.values())
        self.table.words[movable.words] = (starts[movable.regions] + movable.offsets).view(np.uint64)
        if self._graph is not None:
            self._graph.update(sorted(set(movable.launches[np.isin(movable.regions, changed)].tolist())))


class CudaRecording(BoundLaunches):
    """The launches of a plan for one set of sizes."""

    def __init__(
        self,
        gpu: CudaGpu,
        table: LaunchTable,
        movable: MovableWords,
        form: LaunchForm,
        loop_counts: Sequence[int],
        limit: GraphLimit,
    ) -> None:
        super().__init__(gpu, table, movable)
        self._form, self._loop_counts, self._limit = form, loop_counts, limit
        self._self = ref(self)
        self._runs = self._runs_in_a_row = 0

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        """Submit all launches; the GPU's context must be current."""
        self._count_run()
        if self._graph is None and not self._is_worth_a_graph():
            self.table.submit(driver, stream, partial(self._form.describe, self._loop_counts))
            return
        if self._graph is None:
            waits = self._form.list_waits(self._loop_counts, self.table)
            self._graph = LaunchGraph(self.gpu, self.table, waits)
        self._limit.use(self, self._graph.node_count)
        self._graph.launch(driver, stream)

    def _count_run(self) -> None:
        self._runs += 1
        self._runs_in_a_row = self._runs_in_a_row + 1 if self._form.latest is self._self else 1
        self._form.latest = self._self

    def _is_worth_a_graph(self) -> bool:
        repeats = self._runs > _RUNS_BEFORE_GRAPH or self._runs_in_a_row > _RUNS_IN_A_ROW
        return repeats and len(self.table.rows) <= _MOST_NODES

    def drop_graph(self) -> None:
        """Free the graph; if these sizes repeat again, there will be another."""
        self._graph, self._runs, self._runs_in_a_row = None, 0, 0

    def timed(self) -> TimedRecording:
        return TimedRecording(self.gpu, self.table, self.movable)


class TimedRecording(BoundLaunches):
    """A recording that runs the launches one after the other and records when each starts."""

    _events: list[c_void_p]

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._graph is None:
            self._events = [_create_event(driver) for _ in range(len(self.table.list_filled()) + 1)]
            self._graph = LaunchGraph(self.gpu, self.table, events=self._events)
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


class CudaLaunchCompiler:
    """Records the plans of one program, whose compiled kernels it has."""

    parameter_bytes = 0

    def __init__(self, gpu: CudaGpu, codes: Mapping[str, KernelCode]) -> None:
        self.gpu = gpu
        self.codes = codes
        self._default_lanes = choose_lanes(choose_processor(gpu.properties))
        self._functions: dict[tuple[str, ThreadLanes], CudaFunction] = {}
        self._forms: WeakKeyDictionary[PlanNumbers, LaunchForm] = WeakKeyDictionary()
        self._limit = GraphLimit()

    @classmethod
    def from_program(cls, program: CompiledProgram, gpu: CudaGpu) -> CudaLaunchCompiler:
        codes = zip(kernel_names(program.sections), program.objects, strict=True)
        return cls(gpu, {name: KernelCode.decode(code) for name, code in codes})

    def compile(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find) -> None:  # noqa: ARG002
        """Load the kernels of a plan."""
        self._make_form(slots)

    def record(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find, movable: range = range(0)) -> CudaRecording:
        """Record the launches of a plan for some sizes; `movable` regions may be rebound later."""
        form = self._make_form(slots)
        table, movable_words, unusual = form.fill(numbers, find, movable)
        if unusual:
            functions = list(table.functions)
            for number, kernel, is_large, unaligned in unusual:
                bits = 64 if is_large else 32
                function = self._load(kernel, replace(self._default_lanes, index_bits=bits, unaligned=unaligned))
                table.rows[number, [FUNCTION, SHARED_BYTES]] = function.handle, function.shared_bytes
                functions.append(function)
            table = replace(table, functions=functions)
        return CudaRecording(self.gpu, table, movable_words, form, form.count_loops(numbers), self._limit)

    def _make_form(self, slots: PlanNumbers) -> LaunchForm:
        form = self._forms.get(slots)
        if form is None:
            kernels = {launch.kernel.name: launch.kernel for launch in slots.launches}
            loaded = {
                name: LoadedKernel(self._load(kernel, self._default_lanes), self.codes[name].runs)
                for name, kernel in kernels.items()
            }
            form = self._forms[slots] = LaunchForm(slots, loaded)
        return form

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
