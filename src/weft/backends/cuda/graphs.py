"""Launches as a CUDA graph: a node per launch, an edge per dependency."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_uint, c_uint64, c_void_p

from weft.backends.cuda.gpu import CudaGpu
from weft.backends.cuda.launch_table import LaunchTable
from weft.backends.cuda.library import DriverError, DriverLibrary
from weft.plan.plan import SymbolicLaunch, SymbolicLoop

Waits = Sequence[tuple[int, ...] | None]
"""For each launch, the launches to wait for; None: all before it."""

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


def list_waits(
    entries: Sequence[SymbolicLaunch | SymbolicLoop], loop_counts: Sequence[int], has_blocks: Sequence[bool]
) -> list[tuple[int, ...] | None]:
    """List the waits of the launches that have blocks, numbered without the others.

    `has_blocks` is about every launch of every iteration.
    """
    waits: list[tuple[int, ...] | None] = []
    ends: list[tuple[int, ...]] = []  # for each entry, the launches to wait for to have its results
    filled, counts = iter(has_blocks), iter(loop_counts)
    for entry in entries:
        after: tuple[int, ...] | None = None
        launches = 1
        if isinstance(entry, SymbolicLoop):
            launches = next(counts) * len(entry.launches)
        elif entry.after is not None:
            after = tuple(sorted({number for parent in entry.after for number in ends[parent]}))
        end = tuple(range(len(waits))) if after is None else after
        for _ in range(launches):
            if next(filled):
                end = (len(waits),)
                waits.append(after)
        ends.append(end)
    return waits


def reduce_waits(waits: Waits) -> list[tuple[int, ...]]:
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
    """An instantiated graph of the launches of a table that have blocks.

    With `waits` these may run side by side. With `events` they run one by one, and an event is recorded after each.
    """

    def __init__(
        self, gpu: CudaGpu, table: LaunchTable, waits: Waits | None = None, events: Sequence[c_void_p] = ()
    ) -> None:
        self._gpu = gpu
        self._table = table  # keeps the functions alive; updates read its words again
        self._executable = c_void_p()
        self._nodes: dict[int, c_void_p] = {}  # by the number of the launch
        self._graph = c_void_p()
        self._events = events
        with gpu.activate() as driver:
            driver("cuGraphCreate", byref(self._graph), c_uint(0))
            if waits is None:
                self._add_timed_kernels(driver)
            else:
                self._add_kernels(driver, waits)
            driver("cuGraphInstantiateWithFlags", byref(self._executable), self._graph, c_uint64(0))

    def _add_kernels(self, driver: DriverLibrary, waits: Waits) -> None:
        nodes: list[c_void_p] = []
        for number, after in zip(self._table.list_filled(), reduce_waits(waits), strict=True):
            nodes.append(self._add_kernel_node(driver, number, [nodes[parent] for parent in after]))

    def _add_timed_kernels(self, driver: DriverLibrary) -> None:
        last = self._add_event_node(driver, self._events[0], [])
        for number, event in zip(self._table.list_filled(), self._events[1:], strict=True):
            node = self._add_kernel_node(driver, number, [last])
            last = self._add_event_node(driver, event, [node])

    def _add_kernel_node(self, driver: DriverLibrary, number: int, after: Sequence[c_void_p]) -> c_void_p:
        node, parents = c_void_p(), (c_void_p * len(after))(*after)
        parameters = self._node_params(number)
        driver("cuGraphAddKernelNode_v2", byref(node), self._graph, parents, c_uint64(len(after)), byref(parameters))
        self._nodes[number] = node
        return node

    def _add_event_node(self, driver: DriverLibrary, event: c_void_p, after: Sequence[c_void_p]) -> c_void_p:
        node, parents = c_void_p(), (c_void_p * len(after))(*after)
        driver("cuGraphAddEventRecordNode", byref(node), self._graph, parents, c_uint64(len(after)), event)
        return node

    def _node_params(self, number: int) -> KernelNodeParams:
        function, blocks, lanes, shared_bytes, parameters = self._table.rows[number].tolist()
        return KernelNodeParams(
            function=function,
            grid_x=blocks,
            grid_y=1,
            grid_z=1,
            block_x=lanes,
            block_y=1,
            block_z=1,
            shared_bytes=shared_bytes,
            parameters=parameters,
        )

    @property
    def node_count(self) -> int:
        return len(self._nodes)

    def update(self, numbers: Sequence[int]) -> None:
        """Copy the current words of launches to their nodes; launches without blocks have none."""
        with self._gpu.guard("binding memory") as driver:
            for number in numbers:
                node = self._nodes.get(number)
                if node is not None:
                    parameters = self._node_params(number)
                    driver("cuGraphExecKernelNodeSetParams_v2", self._executable, node, byref(parameters))

    def launch(self, driver: DriverLibrary, stream: c_void_p) -> None:
        if self._nodes:
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
