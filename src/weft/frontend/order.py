"""Sort nodes so that every value is defined before it is used."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from weft.errors import InvalidModelError
from weft.ir.graph import Node

MAX_CYCLE_NAMES = 10


def sort_nodes(nodes: Sequence[Node], uses: Sequence[Collection[str]]) -> list[Node]:
    """Return the nodes in topological order, as close to their current order as possible.

    `uses[i]` are the names that node i and its subgraphs read; names that no node defines come from outside.
    """
    producer = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    sources = [{producer[name] for name in names if name in producer} for names in uses]
    if all(source < index for index, node_sources in enumerate(sources) for source in node_sources):
        return list(nodes)
    followers: list[list[int]] = [[] for _ in nodes]
    for index, node_sources in enumerate(sources):
        for source in node_sources:
            followers[source].append(index)
    waiting = [len(node_sources) for node_sources in sources]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(nodes):
        raise _cycle_error(nodes, sources, set(order))
    return [nodes[index] for index in order]


def _cycle_error(nodes: Sequence[Node], sources: Sequence[set[int]], sorted_nodes: set[int]) -> InvalidModelError:
    """Return an error that names one cycle: walking back from any unsorted node must reach one."""
    index = next(index for index in range(len(nodes)) if index not in sorted_nodes)
    path: dict[int, int] = {}
    while index not in path:
        path[index] = len(path)
        index = min(source for source in sources[index] if source not in sorted_nodes)
    names = [nodes[member].name for member in list(path)[path[index] :]][::-1]
    shown = [*names[:MAX_CYCLE_NAMES], "…"] if len(names) > MAX_CYCLE_NAMES else [*names, names[0]]
    return InvalidModelError(
        f"{len(names)} nodes form a cycle: {' → '.join(shown)}",
        hint="each of them needs the result of another; export the model again",
        node=names[0],
    )
