"""Choose an order of a section's tasks with a low memory peak.

Candidates are the file's own order, greedy orders from the inputs forward and from the outputs backward, and depth
first. The best of them is improved by moving single tasks past the step with the peak, a bounded number of times. The
result never needs more memory than the file's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from weft.ir.compiled import read_operands
from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.work import NativeSection, ScanTask
from weft.records import dataclass

MOST_MOVES = 40
CHOICE = 24  # ready tasks among which the next one is chosen
MOST_VISITS = 40_000  # of tasks in the search for a better order


@dataclass(frozen=True, slots=True)
class SizeEstimates:
    """Functions for one set of sizes: the value of a dim, and the bytes of values and of scan bodies."""

    number: Callable[[Dim], int]
    value_bytes: Callable[[Value], int]
    scan_bytes: Callable[[ScanTask], int]


@dataclass(slots=True)
class _Node:
    """A task: the values it writes and reads, by number, and the memory it needs only while it runs."""

    writes: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    workspace: int = 0
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Graph:
    nodes: list[_Node]
    sizes: list[int]  # of values; 0 for external ones
    readers: list[int]  # how many tasks read each


def choose_order(section: NativeSection, sizes: SizeEstimates, is_external: Callable[[Value], bool]) -> list[int]:
    """Choose an order of task numbers; values that are external are not in the arena and do not count."""
    return _choose(_build_graph(section, sizes, is_external))


def _choose(graph: _Graph) -> list[int]:
    section_order = list(range(len(graph.nodes)))
    best, lowest_peak = section_order, peak_of(graph, section_order)
    if len(section_order) < 3 or all(len(node.after) <= 1 and len(node.before) <= 1 for node in graph.nodes):
        return best
    bound = _lower_bound(graph)
    for make in (_forward, _depth_first, _backward):
        if lowest_peak <= bound:
            return best
        order = make(graph)
        needed = peak_of(graph, order)
        if needed < lowest_peak:
            best, lowest_peak = order, needed
    return best if lowest_peak <= bound else _improve(graph, best, lowest_peak)


def _lower_bound(graph: _Graph) -> int:
    """Return the bytes that some task needs in any order: its results, operands and workspace."""
    sizes = graph.sizes
    return max([sum([sizes[value] for value in (*n.writes, *n.reads)]) + n.workspace for n in graph.nodes], default=0)


def peak_of(graph: _Graph, order: Sequence[int]) -> int:
    return max(_use(graph, order), default=0)


def _use(graph: _Graph, order: Sequence[int]) -> list[int]:
    """List the bytes in use while each task of an order runs."""
    left, sizes = list(graph.readers), graph.sizes
    alive = 0
    use = []
    for number in order:
        node = graph.nodes[number]
        for value in node.writes:
            alive += sizes[value]
        use.append(alive + node.workspace)
        for value in node.writes:
            if not left[value]:
                alive -= sizes[value]
        for value in node.reads:
            left[value] -= 1
            if not left[value]:
                alive -= sizes[value]
    return use


def _build_graph(section: NativeSection, sizes: SizeEstimates, is_external: Callable[[Value], bool]) -> _Graph:
    numbers: dict[Value, int] = {}
    graph = _Graph([], [], [])
    makers: dict[int, int] = {}
    for task in section.tasks:
        node = _Node()
        task_number = len(graph.nodes)
        for value in read_operands(task):
            while value not in numbers and value in section.aliases:
                value = section.aliases[value]
            if value in numbers and numbers[value] not in node.reads:
                node.reads.append(numbers[value])
        for value in task.results:
            numbers[value] = len(graph.sizes)
            node.writes.append(numbers[value])
            makers[numbers[value]] = task_number
            elsewhere = is_external(value) or value in section.aliases
            graph.sizes.append(0 if elsewhere else sizes.value_bytes(value))
            graph.readers.append(0)
        for number in node.reads:
            graph.readers[number] += 1
            node.before.add(makers[number])
            graph.nodes[makers[number]].after.add(task_number)
        if isinstance(task, ScanTask):
            node.workspace = sizes.scan_bytes(task)
        else:
            spaces = task.work.workspaces
            node.workspace = sum(sizes.number(space.size) * space.dtype.numpy.itemsize for space in spaces)
        graph.nodes.append(node)
    return graph


def _forward(graph: _Graph) -> list[int]:
    """Choose next the task that frees the most memory, or takes the least."""
    left = list(graph.readers)
    waiting = [len(node.before) for node in graph.nodes]
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []

    def cost(number: int) -> tuple[int, int, int]:
        node = graph.nodes[number]
        allocated = sum(graph.sizes[value] for value in node.writes if left[value])
        freed = sum(graph.sizes[value] for value in node.reads if left[value] == 1)
        return allocated - freed, allocated + node.workspace, number

    while ready:
        number = min(ready[:CHOICE], key=cost) if len(ready) > 1 else ready[0]
        ready.remove(number)
        order.append(number)
        node = graph.nodes[number]
        for value in node.reads:
            left[value] -= 1
        for other in sorted(node.after):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


def _backward(graph: _Graph) -> list[int]:
    """Choose backward from the outputs the task that frees the most memory, or takes the least."""
    waiting = [len(node.after) for node in graph.nodes]
    needed = [False] * len(graph.sizes)
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []

    def cost(number: int) -> tuple[int, int, int]:
        node = graph.nodes[number]
        allocated = sum(graph.sizes[value] for value in node.reads if not needed[value])
        freed = sum(graph.sizes[value] for value in node.writes if needed[value])
        return allocated - freed, allocated + node.workspace, -number

    while ready:
        number = min(ready[:CHOICE], key=cost) if len(ready) > 1 else ready[0]
        ready.remove(number)
        order.append(number)
        node = graph.nodes[number]
        for value in node.reads:
            needed[value] = True
        for other in sorted(node.before):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order[::-1]


def _depth_first(graph: _Graph) -> list[int]:
    """Put the producers of a task right before it, those that need the most memory first."""
    order: list[int] = []
    done = [False] * len(graph.nodes)

    def result_bytes(number: int) -> int:
        return sum(graph.sizes[value] for value in graph.nodes[number].writes)

    for last in (number for number, node in enumerate(graph.nodes) if not node.after):
        pending = [last]
        while pending:
            number = pending[-1]
            missing = [other for other in graph.nodes[number].before if not done[other]]
            if done[number] or not missing:
                pending.pop()
                if not done[number]:
                    done[number] = True
                    order.append(number)
                continue
            if len(missing) > 1:
                missing.sort(key=lambda other: (graph.nodes[other].workspace + result_bytes(other), -other))
            pending.append(missing[-1])
    return order


def _improve(graph: _Graph, order: list[int], lowest_peak: int) -> list[int]:
    """Move tasks past the step with the peak, as long as that helps."""
    moves = min(MOST_MOVES, MOST_VISITS // max(len(order), 1))
    while moves > 0:
        use = _use(graph, order)
        step = use.index(lowest_peak)
        better = None
        for candidate in _list_moves(graph, order, step):
            moves -= 1
            needed = peak_of(graph, candidate)
            if needed < lowest_peak:
                better, lowest_peak = candidate, needed
                break
            if moves <= 0:
                break
        if better is None:
            break
        order = better
    return order


def _list_moves(graph: _Graph, order: Sequence[int], step: int) -> list[list[int]]:
    """List orders in which one task moves from before the busiest step to after it, or the other way round."""
    places = {number: place for place, number in enumerate(order)}
    candidates: list[tuple[int, list[int]]] = []
    for place, number in enumerate(order):
        node = graph.nodes[number]
        if place < step:
            to = min((places[other] for other in node.after), default=len(order)) - 1
            gain = sum(graph.sizes[value] for value in node.writes)
            if to >= step and gain:
                candidates.append((gain, [*order[:place], *order[place + 1 : to + 1], number, *order[to + 1 :]]))
        elif place > step:
            to = max((places[other] for other in node.before), default=-1) + 1
            gain = sum(graph.sizes[value] for value in node.reads if graph.readers[value] == 1)
            if to <= step and gain:
                candidates.append((gain, [*order[:to], number, *order[to:place], *order[place + 1 :]]))
    candidates.sort(key=lambda entry: -entry[0])
    return [order for _, order in candidates[:12]]
