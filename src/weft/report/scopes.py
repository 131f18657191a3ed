"""Which nodes of a graph belong together: its modules, as a tree that people can fold.

Exporters write modules down in one of several ways: in metadata of nodes, in nodes' names (`/layer1/conv/Conv`), or
only in the names of weights (`layer1.conv.weight`); then what lies between nodes with weights goes with them. Where
many nodes are left side by side, those that repeat become blocks, and long stretches are cut where few values cross.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Union

import numpy as np

from weft.frontend.outline import OutlineGraph, OutlineNode
from weft.ir.arrays import Array
from weft.records import dataclass

Path = tuple[str, ...]

MANY = 40  # members of a scope from which on those that repeat are folded
TOO_MANY = 90  # members of a scope from which on it is cut into parts
PART = 40  # members of such a part, about
SHORTEST, LONGEST = 4, 600  # members of a block that repeats
FEWEST = 24  # members of two blocks, together
ENTANGLED = 4  # of those beside a scope that need it and that it needs
DEEPEST = 16  # scopes in scopes
BLOCK = "block"
SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "namespace"  # keys of metadata in which exporters write modules down


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """Nodes, by their numbers, and further scopes."""

    label: str
    members: tuple[Union[int, ScopeTree], ...]


Members = list[Union[int, ScopeTree]]


def scope_tree(graph: OutlineGraph) -> ScopeTree:
    """The nodes of a graph in their scopes, without constants: they go with what reads them."""
    edges = _edges(graph)
    drawn = [not node.is_constant for node in graph.nodes]
    paths = _connected(_filled(_own_paths(graph), edges), edges, drawn)
    paths = _without(paths, _entangled(paths, edges))
    tree = _tree("", [(path, number) for number, path in enumerate(paths) if drawn[number]])
    while len(tree.members) == 1 and isinstance(tree.members[0], ScopeTree):
        tree = tree.members[0]
    return replace(_arranged(tree, edges, graph.nodes), label="")


# -- what files say --------------------------------------------------------------------------------------------------


def _own_paths(graph: OutlineGraph) -> list[Path | None]:
    """The scope that each node's metadata, name or weights tell; None where nothing does."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    found: list[Path | None] = []
    for node in graph.nodes:
        path = _noted(node.notes)
        if path is None:
            path = _named(node)
        if path is None:
            own = (name for name in node.inputs if name in graph.weights and readers[name] == 1)
            known = [path for name in own if (path := _module(name)) is not None]
            path = _common(known) if known else None
        found.append(None if path is None else path[:DEEPEST])
    return found


def _noted(notes: Mapping[str, str]) -> Path | None:
    if SCOPES in notes:
        try:
            scopes = literal_eval(notes[SCOPES])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes):
            inner = [scope for scope in scopes[:-1] if scope]
            return _relative(inner) if inner else None
    if "/" in notes.get(CLASSES, ""):
        inner = [part.partition(":")[0].strip() for part in notes[CLASSES].split("/")[:-1]]
        return _relative([scope for scope in inner if scope]) or None
    return None


def _relative(scopes: Sequence[str]) -> Path:
    """Full names of modules, each without that of the one around it."""
    pairs = pairwise(("", *scopes))
    return tuple(inner.removeprefix(f"{outer}.") if outer else inner for outer, inner in pairs)


def _named(node: OutlineNode) -> Path | None:
    if "/" in node.name:
        return tuple(part for part in node.name.split("/")[:-1] if part)
    *parts, own = _dotted(node.name) or ("",)
    return tuple(parts) if parts and own.partition(".")[0] != node.op else None


def _module(weight: str) -> Path | None:
    """`layer.0.conv.weight` is in `layer.0`, `conv`."""
    parts = tuple(part for part in weight.split("/") if part) if "/" in weight else _dotted(weight)
    return parts[:-1] or None


def _dotted(name: str) -> Path:
    """The parts of a name; a number goes with what it counts."""
    parts: list[str] = []
    for part in name.split("."):
        if part.isdigit() and parts:
            parts[-1] += f".{part}"
        elif part:
            parts.append(part)
    return tuple(parts)


# -- what follows from that ------------------------------------------------------------------------------------------


def _edges(graph: OutlineGraph) -> list[tuple[int, int]]:
    """Which node reads what another gives, also inside of a body."""
    made = {name: number for number, node in enumerate(graph.nodes) for name in node.outputs if name}
    return [
        (made[name], number)
        for number, node in enumerate(graph.nodes)
        for name in dict.fromkeys(_read(node))
        if name in made and made[name] != number and not graph.nodes[made[name]].is_constant
    ]


def _read(node: OutlineNode) -> Iterator[str]:
    yield from node.inputs
    for _, body in node.bodies:
        for inner in body.nodes:
            yield from _read(inner)


def _filled(paths: Sequence[Path | None], edges: Sequence[tuple[int, int]]) -> list[Path]:
    """A scope for every node: one that nothing tells is around those of the nodes before it, or else after it."""
    before: list[list[int]] = [[] for _ in paths]
    after: list[list[int]] = [[] for _ in paths]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    found = list(paths)

    def told(neighbours: Sequence[int]) -> list[Path]:
        near = [(n, path) for n in sorted(neighbours) if (path := found[n])]
        return [path[:-1] if paths[n] is not None else path for n, path in near]

    for number in range(len(paths)):
        if found[number] is None and (near := told(before[number])):
            found[number] = _between(near)
    for number in reversed(range(len(paths))):
        if found[number] is None and (near := told(after[number])):
            found[number] = _common(near)
    return [path or () for path in found]


def _between(paths: Sequence[Path]) -> Path:
    """The scope of what reads nodes of these: that of the last, or the one around it that another shares.

    What adds up a block's input and result belongs to the block, and not to what is around it and the block before.
    """
    last = paths[-1]
    shared = [_common((last, path)) for path in paths[:-1] if path]
    for common in sorted(shared, key=len, reverse=True):
        deep = len(common)
        if deep == len(last) or deep < max(1, len(last) - 1):
            continue
        others = {_unnumbered(path[deep]) for path in paths[:-1] if len(path) > deep and path[:deep] == common}
        if _unnumbered(last[deep]) not in others:
            return common
    return last


def _unnumbered(label: str) -> str:
    return re.sub(r"[0-9]+", "", label)


def _common(paths: Sequence[Path]) -> Path:
    first, last = min(paths), max(paths)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]


def _connected(paths: Sequence[Path], edges: Sequence[tuple[int, int]], drawn: Sequence[bool]) -> list[Path]:
    """Without the scopes whose nodes have mostly nothing to do with one another: `Conv.1`, `Conv.2` are no module."""
    shown = [path if is_drawn else () for path, is_drawn in zip(paths, drawn, strict=True)]
    sizes = Counter(path for own in shown for path in _prefixes(own))
    groups = {(path, number): number for number, own in enumerate(shown) for path in _prefixes(own)}
    pieces = dict(sizes)

    def root(path: Path, number: int) -> int:
        while groups[path, number] != number:
            groups[path, number] = groups[path, groups[path, number]]
            number = groups[path, number]
        return number

    for source, target in edges:
        for path in _prefixes(_common((shown[source], shown[target]))):
            one, other = root(path, source), root(path, target)
            if one != other:
                groups[path, one] = other
                pieces[path] -= 1
    return _without(paths, {path for path, count in pieces.items() if count > max(3, sizes[path] // 2)})


def _entangled(paths: Sequence[Path], edges: Sequence[tuple[int, int]]) -> set[Path]:
    """Scopes that need many of those beside them, which need them: a module that all others call, a prefix of names."""
    levels: dict[Path, dict[Path | int, set[Path | int]]] = {}
    for source, target in edges:
        around = _common((paths[source], paths[target]))
        one, other = (paths[n][: len(around) + 1] if len(paths[n]) > len(around) else n for n in (source, target))
        level = levels.setdefault(around, {})
        level.setdefault(one, set()).add(other)
        level.setdefault(other, set())
    sizes = Counter(path for own in paths for path in _prefixes(own))
    found: set[Path] = set()
    for after in levels.values():
        waiting = [set(after)]
        while waiting:
            for circle in _circles(after, waiting.pop()):
                degrees = {one: len(after[one] & circle) for one in circle if isinstance(one, tuple)}
                worst = max(degrees, key=lambda one: (degrees[one], one), default=None)
                if worst is not None and degrees[worst] >= max(ENTANGLED, sizes[worst] // 8):
                    found.add(worst)
                    waiting.append(circle - {worst})
    return found


def _circles(after: Mapping[Path | int, set[Path | int]], among: set[Path | int]) -> list[set[Path | int]]:
    """The largest sets of those that all need each other, but for single ones."""
    order: list[Path | int] = []
    seen: set[Path | int] = set()
    for start in among:
        stack = [(start, iter(after[start] & among))] if start not in seen else []
        seen.add(start)
        while stack:
            one, rest = stack[-1]
            following = next((each for each in rest if each not in seen), None)
            if following is None:
                order.append(one)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(after[following] & among)))
    before: dict[Path | int, set[Path | int]] = {one: set() for one in among}
    for one in among:
        for each in after[one] & among:
            before[each].add(one)
    found = []
    left = set(among)
    for start in reversed(order):
        if start not in left:
            continue
        circle, open_ends = {start}, [start]
        left.remove(start)
        while open_ends:
            near = before[open_ends.pop()] & left
            left -= near
            circle |= near
            open_ends += near
        if len(circle) > 1:
            found.append(circle)
    return found


def _without(paths: Sequence[Path], scopes: set[Path]) -> list[Path]:
    """What is in these scopes is in those around them."""
    return [tuple(path[end - 1] for end in range(1, len(path) + 1) if path[:end] not in scopes) for path in paths]


def _prefixes(path: Path) -> list[Path]:
    return [path[:end] for end in range(1, len(path) + 1)]


# -- the tree --------------------------------------------------------------------------------------------------------


def _tree(label: str, members: Sequence[tuple[Path, int]]) -> ScopeTree:
    """Scopes of one member are that member."""
    inside: dict[str, list[tuple[Path, int]]] = {}
    order: list[int | str] = []
    for path, number in members:
        if not path:
            order.append(number)
            continue
        if path[0] not in inside:
            order.append(path[0])
        inside.setdefault(path[0], []).append((path[1:], number))
    found: Members = []
    for member in order:
        if isinstance(member, int):
            found.append(member)
            continue
        tree = _tree(member, inside[member])
        match tree.members:
            case (int(),):
                found += tree.members
            case (ScopeTree() as only,):
                found.append(ScopeTree(f"{tree.label}/{only.label}", only.members))
            case _:
                found.append(tree)
    return ScopeTree(label, tuple(found))


def _arranged(tree: ScopeTree, edges: Sequence[tuple[int, int]], nodes: Sequence[OutlineNode]) -> ScopeTree:
    """The tree without scopes of too many members."""
    members = [_arranged(m, edges, nodes) if isinstance(m, ScopeTree) else m for m in tree.members]
    while len(members) > MANY:
        folded = _blocks(members, edges, nodes)
        if len(folded) == len(members):
            break
        members = folded
    number = 0
    for place, member in enumerate(members):
        if isinstance(member, ScopeTree) and member.label == BLOCK:
            number += 1
            members[place] = replace(member, label=f"{BLOCK} {number}")
    if len(members) > TOO_MANY:
        members = _parts(members, edges)
    return replace(tree, members=tuple(members))


def _blocks(members: Members, edges: Sequence[tuple[int, int]], nodes: Sequence[OutlineNode]) -> Members:
    """The longest stretch that repeats the same few members, as blocks; then those before and after it."""
    kinds: dict[str, int] = {}
    tokens = np.array([kinds.setdefault(_kind(member, nodes), len(kinds)) for member in members])
    found = _longest_repetition(tokens)
    if found is None:
        return members
    start, length, period = found
    crossing = _crossing(members, edges)
    slack = range(min(period, length - 2 * period + 1))
    start += min(slack, key=lambda shift: (np.mean(crossing[start + shift : start + length + 1 : period]), shift))
    count = (found[0] + length - start) // period
    end = start + count * period
    head, tail = members[:start], members[end:]
    return [
        *(_blocks(head, edges, nodes) if len(head) > MANY else head),
        *(ScopeTree(BLOCK, tuple(members[at : at + period])) for at in range(start, end, period)),
        *(_blocks(tail, edges, nodes) if len(tail) > MANY else tail),
    ]


def _kind(member: int | ScopeTree, nodes: Sequence[OutlineNode]) -> str:
    if isinstance(member, int):
        return nodes[member].op
    return f"{_unnumbered(member.label)}/{len(list(_numbers(member)))}"


def _longest_repetition(tokens: Array) -> tuple[int, int, int] | None:
    """Start, length and period of the stretch that covers most, among equals the one of the shortest period."""
    best: tuple[int, int, int] | None = None
    for period in range(SHORTEST, min(LONGEST, len(tokens) // 2) + 1):
        same = np.concatenate(([False], tokens[:-period] == tokens[period:], [False]))
        starts, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        long = ends - starts >= period
        for start, end in zip(starts[long].tolist(), ends[long].tolist()):
            length = end - start + period
            covered = length - length % period
            if len(set(tokens[start : start + period].tolist())) == 1:  # scopes side by side need no other around them
                continue
            if covered < FEWEST and covered < 3 * period:  # a few nodes that come twice are no block
                continue
            if best is None or covered > 1.1 * (best[1] - best[1] % best[2]):
                best = (start, length, period)
    return best


def _crossing(members: Members, edges: Sequence[tuple[int, int]]) -> Array:
    """For each place between members, how many nodes before it are read behind it."""
    place = {number: index for index, member in enumerate(members) for number in _numbers(member)}
    last: dict[int, int] = {}
    for source, target in edges:
        if source in place and target in place:
            last[source] = max(last.get(source, 0), place[target])
    changes = np.zeros(len(members) + 2, np.int64)
    for source, end in last.items():
        if end > place[source]:
            changes[place[source] + 1] += 1
            changes[end + 1] -= 1
    return np.cumsum(changes)[: len(members) + 1]


def _parts(members: Members, edges: Sequence[tuple[int, int]]) -> Members:
    """Parts of about as many members each, cut where the fewest values cross."""
    crossing = _crossing(members, edges)
    found: Members = []
    start = 0
    while start < len(members):
        low, high = start + PART // 2, start + PART + PART // 2
        end = len(members) if high >= len(members) else low + int(np.argmin(crossing[low:high]))
        found.append(ScopeTree(f"part {len(found) + 1}", tuple(members[start:end])))
        start = end
    return _parts(found, edges) if len(found) > TOO_MANY else found


def _numbers(member: int | ScopeTree) -> Iterator[int]:
    if isinstance(member, int):
        yield member
    else:
        for inner in member.members:
            yield from _numbers(inner)
