"""The minimum cut of a network with two ends: which nodes lie on the first one's side, exactly (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1
_LITTLE = 1e-15  # a capacity that is as good as none


class Network:
    """Nodes by number; edges with capacities, in both directions where both are given."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each node, the numbers of the edges that leave it
        self._targets: list[int] = []
        self._capacities: list[float] = []

    def node(self) -> int:
        """One more."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, source: int, target: int, capacity: float) -> None:
        """What is cut where `source` lies on the first side and `target` on the other."""
        for end, start, amount in ((target, source, capacity), (source, target, 0.0)):
            self._edges[start].append(len(self._targets))
            self._targets.append(end)
            self._capacities.append(amount)

    def first_side(self) -> set[int]:
        """The nodes on the side of SOURCE, of all smallest cuts in the one with the fewest of them."""
        while True:
            levels = self._levels()
            if levels[SINK] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            self._fill(levels)

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[SOURCE] = 0
        waiting = deque([SOURCE])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                target = self._targets[edge]
                if levels[target] < 0 and self._capacities[edge] > _LITTLE:
                    levels[target] = levels[node] + 1
                    waiting.append(target)
        return levels

    def _fill(self, levels: list[int]) -> None:
        """A blocking flow along paths on which levels rise by one."""
        begun = [0] * len(self._edges)
        path: list[int] = []
        node = SOURCE
        while True:
            if node == SINK:
                least = min(path, key=self._capacities.__getitem__)
                amount = self._capacities[least]
                for taken in path:
                    self._capacities[taken] -= amount
                    self._capacities[taken ^ 1] += amount
                del path[path.index(least) :]
                node = self._targets[path[-1]] if path else SOURCE
            elif (edge := self._next(node, levels, begun)) is not None:
                path.append(edge)
                node = self._targets[edge]
            elif path:
                node = self._targets[path.pop() ^ 1]
                begun[node] += 1
            else:
                return

    def _next(self, node: int, levels: list[int], begun: list[int]) -> int | None:
        edges = self._edges[node]
        while begun[node] < len(edges):
            edge = edges[begun[node]]
            if self._capacities[edge] > _LITTLE and levels[self._targets[edge]] == levels[node] + 1:
                return edge
            begun[node] += 1
        return None
