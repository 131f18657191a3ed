"""The order of a section's tasks: among those that the data allow, one that needs little memory at a time.

Several orders are made: the file's own, greedy ones from the inputs on and from the outputs back, and depth first. The
best of them is improved by moving single tasks past the step that needs most, a bounded number of times. What comes out
never needs more than the file's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from weft.ir.compiled import read_operands
from weft.ir.program import Value
from weft.ir.work import NativeSection, ScanTask
from weft.plan.storage import Sizes
from weft.records import dataclass

MOST_MOVES = 40
CHOICE = 24  # tasks that are ready, among which the next one is chosen
MOST_VISITS = 40_000  # of tasks, in the search for a better order


@dataclass(slots=True)
class _Node:
    """A task: the values it makes and reads, by number, and the memory it needs only while it runs."""

    made: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    workspace: int = 0
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Graph:
    nodes: list[_Node]
    sizes: list[int]  # of values; 0 for those that lie elsewhere
    readers: list[int]  # how many tasks read each


def choose_order(section: NativeSection, sizes: Sizes, given: Callable[[Value], bool]) -> list[int]:
    """Numbers of tasks; values that are `given` lie elsewhere and do not count."""
    return _chosen(_graph(section, sizes, given))


class OrderChoice:
    """What `choose_order` finds for a section, for size after size. Not for several threads at once."""

    def __init__(self, section: NativeSection, sizes: Sizes, given: Callable[[Value], bool]) -> None:
        self._graph = _graph(section, sizes, given)

    def choose(self, value_bytes: list[int], workspaces: Sequence[int]) -> list[int]:
        """The order for these bytes of the tasks' results, one after the other, and of each task's workspaces."""
        for node, workspace in zip(self._graph.nodes, workspaces):
            node.workspace = workspace
        return _chosen(_Graph(self._graph.nodes, value_bytes, self._graph.readers))


def _chosen(graph: _Graph) -> list[int]:
    own = list(range(len(graph.nodes)))
    best, least = own, peak_of(graph, own)
    if len(own) < 3 or all(len(node.after) <= 1 and len(node.before) <= 1 for node in graph.nodes):
        return best
    bound = _least(graph)
    for make in (_forward, _depth_first, _backward):
        if least <= bound:
            return best
        order = make(graph)
        needed = peak_of(graph, order)
        if needed < least:
            best, least = order, needed
    return best if least <= bound else _improved(graph, best, least)


def _least(graph: _Graph) -> int:
    """Bytes in use while some task runs, in any order: what it makes and reads, and its workspace."""
    sizes = graph.sizes
    return max([sum([sizes[value] for value in (*n.made, *n.read)]) + n.workspace for n in graph.nodes], default=0)


def peak_of(graph: _Graph, order: Sequence[int]) -> int:
    return max(_use(graph, order), default=0)


def _use(graph: _Graph, order: Sequence[int]) -> list[int]:
    """Bytes in use while each task of an order runs."""
    left, sizes = list(graph.readers), graph.sizes
    alive = 0
    found = []
    for number in order:
        node = graph.nodes[number]
        for value in node.made:
            alive += sizes[value]
        found.append(alive + node.workspace)
        for value in node.made:
            if not left[value]:
                alive -= sizes[value]
        for value in node.read:
            left[value] -= 1
            if not left[value]:
                alive -= sizes[value]
    return found


def _graph(section: NativeSection, sizes: Sizes, given: Callable[[Value], bool]) -> _Graph:
    numbers: dict[Value, int] = {}
    graph = _Graph([], [], [])
    makers: dict[int, int] = {}
    for task in section.tasks:
        node = _Node()
        here = len(graph.nodes)
        for value in read_operands(task):
            while value in section.aliases:
                value = section.aliases[value]
            if value in numbers and numbers[value] not in node.read:
                node.read.append(numbers[value])
        for value in task.results:
            numbers[value] = len(graph.sizes)
            node.made.append(numbers[value])
            makers[numbers[value]] = here
            graph.sizes.append(0 if given(value) else sizes.value_bytes(value))
            graph.readers.append(0)
        for number in node.read:
            graph.readers[number] += 1
            node.before.add(makers[number])
            graph.nodes[makers[number]].after.add(here)
        if isinstance(task, ScanTask):
            node.workspace = sizes.scan_bytes(task)
        else:
            spaces = task.work.workspaces
            node.workspace = sum(sizes.number(space.size) * space.dtype.numpy.itemsize for space in spaces)
        graph.nodes.append(node)
    return graph


def _forward(graph: _Graph) -> list[int]:
    """Whatever frees most, or takes least, comes next."""
    left = list(graph.readers)
    waiting = [len(node.before) for node in graph.nodes]
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []

    def cost(number: int) -> tuple[int, int, int]:
        node = graph.nodes[number]
        taken = sum(graph.sizes[value] for value in node.made if left[value])
        freed = sum(graph.sizes[value] for value in node.read if left[value] == 1)
        return taken - freed, taken + node.workspace, number

    while ready:
        number = min(ready[:CHOICE], key=cost) if len(ready) > 1 else ready[0]
        ready.remove(number)
        order.append(number)
        node = graph.nodes[number]
        for value in node.read:
            left[value] -= 1
        for other in sorted(node.after):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


def _backward(graph: _Graph) -> list[int]:
    """From the outputs back: whatever makes most of what is needed, or needs least that is not, comes before."""
    waiting = [len(node.after) for node in graph.nodes]
    needed = [False] * len(graph.sizes)
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []

    def cost(number: int) -> tuple[int, int, int]:
        node = graph.nodes[number]
        taken = sum(graph.sizes[value] for value in node.read if not needed[value])
        freed = sum(graph.sizes[value] for value in node.made if needed[value])
        return taken - freed, taken + node.workspace, -number

    while ready:
        number = min(ready[:CHOICE], key=cost) if len(ready) > 1 else ready[0]
        ready.remove(number)
        order.append(number)
        node = graph.nodes[number]
        for value in node.read:
            needed[value] = True
        for other in sorted(node.before):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order[::-1]


def _depth_first(graph: _Graph) -> list[int]:
    """What is needed for a task right before it, the parts that need most memory first."""
    order: list[int] = []
    done = [False] * len(graph.nodes)

    def made_bytes(number: int) -> int:
        return sum(graph.sizes[value] for value in graph.nodes[number].made)

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
                missing.sort(key=lambda other: (graph.nodes[other].workspace + made_bytes(other), -other))
            pending.append(missing[-1])
    return order


def _improved(graph: _Graph, order: list[int], least: int) -> list[int]:
    """The order with tasks moved past the step that needs most, as long as that helps."""
    moves = min(MOST_MOVES, MOST_VISITS // max(len(order), 1))
    while moves > 0:
        use = _use(graph, order)
        step = use.index(least)
        better = None
        for moved in _moves(graph, order, step):
            moves -= 1
            needed = peak_of(graph, moved)
            if needed < least:
                better, least = moved, needed
                break
            if moves <= 0:
                break
        if better is None:
            break
        order = better
    return order


def _moves(graph: _Graph, order: Sequence[int], step: int) -> list[list[int]]:
    """Orders in which one task is done later than the busiest step instead of before it, or the other way round."""
    places = {number: place for place, number in enumerate(order)}
    found: list[tuple[int, list[int]]] = []
    for place, number in enumerate(order):
        node = graph.nodes[number]
        if place < step:
            to = min((places[other] for other in node.after), default=len(order)) - 1
            gain = sum(graph.sizes[value] for value in node.made)
            if to >= step and gain:
                found.append((gain, [*order[:place], *order[place + 1 : to + 1], number, *order[to + 1 :]]))
        elif place > step:
            to = max((places[other] for other in node.before), default=-1) + 1
            gain = sum(graph.sizes[value] for value in node.read if graph.readers[value] == 1)
            if to <= step and gain:
                found.append((gain, [*order[:to], number, *order[to:place], *order[place + 1 :]]))
    found.sort(key=lambda entry: -entry[0])
    return [order for _, order in found[:12]]
