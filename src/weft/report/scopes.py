"""Group the nodes of a graph by module: a tree of scopes that a page can fold.

Exporters store modules in the metadata of nodes, in their names (`/layer1/conv/Conv`), or only in the names of weights
(`layer1.conv.weight`); nodes without a module join their neighbours. In a scope with many members, repeated sequences
become blocks, and long sequences are cut into parts where the fewest values cross.
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

MANY = 40  # members of a scope above which repeated sequences are folded
TOO_MANY = 90  # members of a scope above which it is cut into parts
PART = 40  # members of such a part, approximately
SHORTEST, LONGEST = 4, 600  # members of a repeated block
FEWEST = 24  # members of two blocks together
ENTANGLED = 4  # siblings that a scope is in a cycle with
DEEPEST = 16  # nested scopes
BLOCK = "block"
SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "namespace"  # metadata keys of exporters


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """A scope; its members are numbers of nodes, and inner scopes."""

    label: str
    members: tuple[Union[int, ScopeTree], ...]


Members = list[Union[int, ScopeTree]]


def build_scope_tree(graph: OutlineGraph) -> ScopeTree:
    """Group the nodes of a graph; constants are left out, since their readers show them."""
    edges = _list_edges(graph)
    is_drawn = [not node.is_constant for node in graph.nodes]
    paths = _drop_unconnected(_fill_gaps(_stated_paths(graph), edges), edges, is_drawn)
    paths = _remove_scopes(paths, _find_entangled(paths, edges))
    tree = _build_tree("", [(path, number) for number, path in enumerate(paths) if is_drawn[number]])
    while len(tree.members) == 1 and isinstance(tree.members[0], ScopeTree):
        tree = tree.members[0]
    return replace(_split_large_scopes(tree, edges, graph.nodes), label="")


# -- scopes that the file states -------------------------------------------------------------------------------------


def _stated_paths(graph: OutlineGraph) -> list[Path | None]:
    """Return the scope of each node by its metadata, name or weights; None if none of them has one."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    paths: list[Path | None] = []
    for node in graph.nodes:
        path = _path_from_metadata(node.notes)
        if path is None:
            path = _path_from_name(node)
        if path is None:
            weights = (name for name in node.inputs if name in graph.weights and readers[name] == 1)
            modules = [path for name in weights if (path := _module_of_weight(name)) is not None]
            path = _common_prefix(modules) if modules else None
        paths.append(None if path is None else path[:DEEPEST])
    return paths


def _path_from_metadata(notes: Mapping[str, str]) -> Path | None:
    if SCOPES in notes:
        try:
            scopes = literal_eval(notes[SCOPES])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes):
            inner = [scope for scope in scopes[:-1] if scope]
            return _relative_names(inner) if inner else None
    if "/" in notes.get(CLASSES, ""):
        inner = [part.partition(":")[0].strip() for part in notes[CLASSES].split("/")[:-1]]
        return _relative_names([scope for scope in inner if scope]) or None
    return None


def _relative_names(scopes: Sequence[str]) -> Path:
    """Remove from each full module name the name of the module around it."""
    pairs = pairwise(("", *scopes))
    return tuple(inner.removeprefix(f"{outer}.") if outer else inner for outer, inner in pairs)


def _path_from_name(node: OutlineNode) -> Path | None:
    if "/" in node.name:
        return tuple(part for part in node.name.split("/")[:-1] if part)
    *parts, last = _split_dotted(node.name) or ("",)
    return tuple(parts) if parts and last.partition(".")[0] != node.op else None


def _module_of_weight(weight: str) -> Path | None:
    """Return the module of a weight: (`layer.0`, `conv`) for `layer.0.conv.weight`."""
    parts = tuple(part for part in weight.split("/") if part) if "/" in weight else _split_dotted(weight)
    return parts[:-1] or None


def _split_dotted(name: str) -> Path:
    """Split a name at dots; a number stays with the part before it."""
    parts: list[str] = []
    for part in name.split("."):
        if part.isdigit() and parts:
            parts[-1] += f".{part}"
        elif part:
            parts.append(part)
    return tuple(parts)


# -- scopes of the other nodes ---------------------------------------------------------------------------------------


def _list_edges(graph: OutlineGraph) -> list[tuple[int, int]]:
    """Return (producer, reader) for each pair of nodes; readers in bodies count as the node with the body."""
    producers = {name: number for number, node in enumerate(graph.nodes) for name in node.outputs if name}
    return [
        (producers[name], number)
        for number, node in enumerate(graph.nodes)
        for name in dict.fromkeys(_read_names(node))
        if name in producers and producers[name] != number and not graph.nodes[producers[name]].is_constant
    ]


def _read_names(node: OutlineNode) -> Iterator[str]:
    yield from node.inputs
    for _, body in node.bodies:
        for inner in body.nodes:
            yield from _read_names(inner)


def _fill_gaps(paths: Sequence[Path | None], edges: Sequence[tuple[int, int]]) -> list[Path]:
    """Give every node without a scope the one around its producers, or else around its readers."""
    before: list[list[int]] = [[] for _ in paths]
    after: list[list[int]] = [[] for _ in paths]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    filled = list(paths)

    def scopes_around(neighbours: Sequence[int]) -> list[Path]:
        located = [(n, path) for n in sorted(neighbours) if (path := filled[n])]
        return [path[:-1] if paths[n] is not None else path for n, path in located]

    for number in range(len(paths)):
        if filled[number] is None and (scopes := scopes_around(before[number])):
            filled[number] = _scope_of_reader(scopes)
    for number in reversed(range(len(paths))):
        if filled[number] is None and (scopes := scopes_around(after[number])):
            filled[number] = _common_prefix(scopes)
    return [path or () for path in filled]


def _scope_of_reader(paths: Sequence[Path]) -> Path:
    """Return the scope of a node that reads from these: the last of them, or a scope around it that another shares.

    A residual addition reads the input and the result of a block; it belongs to the block, not to the scope around it
    and the block before.
    """
    last = paths[-1]
    shared = [_common_prefix((last, path)) for path in paths[:-1] if path]
    for common in sorted(shared, key=len, reverse=True):
        depth = len(common)
        if depth == len(last) or depth < max(1, len(last) - 1):
            continue
        siblings = {_strip_digits(path[depth]) for path in paths[:-1] if len(path) > depth and path[:depth] == common}
        if _strip_digits(last[depth]) not in siblings:
            return common
    return last


def _strip_digits(label: str) -> str:
    return re.sub(r"[0-9]+", "", label)


def _common_prefix(paths: Sequence[Path]) -> Path:
    first, last = min(paths), max(paths)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]


def _drop_unconnected(paths: Sequence[Path], edges: Sequence[tuple[int, int]], is_drawn: Sequence[bool]) -> list[Path]:
    """Remove scopes that consist of many unconnected components: `Conv.1` and `Conv.2` are no module `Conv`."""
    drawn_paths = [path if drawn else () for path, drawn in zip(paths, is_drawn, strict=True)]
    sizes = Counter(prefix for path in drawn_paths for prefix in _prefixes(path))
    groups = {(prefix, number): number for number, path in enumerate(drawn_paths) for prefix in _prefixes(path)}
    components = dict(sizes)

    def root(path: Path, number: int) -> int:
        while groups[path, number] != number:
            groups[path, number] = groups[path, groups[path, number]]
            number = groups[path, number]
        return number

    for source, target in edges:
        for path in _prefixes(_common_prefix((drawn_paths[source], drawn_paths[target]))):
            one, other = root(path, source), root(path, target)
            if one != other:
                groups[path, one] = other
                components[path] -= 1
    return _remove_scopes(paths, {path for path, count in components.items() if count > max(3, sizes[path] // 2)})


def _find_entangled(paths: Sequence[Path], edges: Sequence[tuple[int, int]]) -> set[Path]:
    """Find scopes in cycles with many siblings: modules that all others call, and mere name prefixes."""
    levels: dict[Path, dict[Path | int, set[Path | int]]] = {}
    for source, target in edges:
        common = _common_prefix((paths[source], paths[target]))
        scope, reader = (paths[n][: len(common) + 1] if len(paths[n]) > len(common) else n for n in (source, target))
        level = levels.setdefault(common, {})
        level.setdefault(scope, set()).add(reader)
        level.setdefault(reader, set())
    sizes = Counter(prefix for path in paths for prefix in _prefixes(path))
    entangled: set[Path] = set()
    for after in levels.values():
        waiting = [set(after)]
        while waiting:
            for cycle in _strong_components(after, waiting.pop()):
                degrees = {scope: len(after[scope] & cycle) for scope in cycle if isinstance(scope, tuple)}
                worst = max(degrees, key=lambda scope: (degrees[scope], scope), default=None)
                if worst is not None and degrees[worst] >= max(ENTANGLED, sizes[worst] // 8):
                    entangled.add(worst)
                    waiting.append(cycle - {worst})
    return entangled


def _strong_components(after: Mapping[Path | int, set[Path | int]], members: set[Path | int]) -> list[set[Path | int]]:
    """Return the strongly connected components of more than one member."""
    order: list[Path | int] = []
    visited: set[Path | int] = set()
    for start in members:
        stack = [(start, iter(after[start] & members))] if start not in visited else []
        visited.add(start)
        while stack:
            node, successors = stack[-1]
            following = next((successor for successor in successors if successor not in visited), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                visited.add(following)
                stack.append((following, iter(after[following] & members)))
    before: dict[Path | int, set[Path | int]] = {node: set() for node in members}
    for node in members:
        for successor in after[node] & members:
            before[successor].add(node)
    components = []
    unassigned = set(members)
    for start in reversed(order):
        if start not in unassigned:
            continue
        component, queue = {start}, [start]
        unassigned.remove(start)
        while queue:
            predecessors = before[queue.pop()] & unassigned
            unassigned -= predecessors
            component |= predecessors
            queue += predecessors
        if len(component) > 1:
            components.append(component)
    return components


def _remove_scopes(paths: Sequence[Path], scopes: set[Path]) -> list[Path]:
    """Move the members of these scopes into the scopes around them."""
    return [tuple(path[end - 1] for end in range(1, len(path) + 1) if path[:end] not in scopes) for path in paths]


def _prefixes(path: Path) -> list[Path]:
    return [path[:end] for end in range(1, len(path) + 1)]


# -- the tree --------------------------------------------------------------------------------------------------------


def _build_tree(label: str, members: Sequence[tuple[Path, int]]) -> ScopeTree:
    """Build the tree of some nodes by path; a scope with one member is replaced by that member."""
    inside: dict[str, list[tuple[Path, int]]] = {}
    order: list[int | str] = []
    for path, number in members:
        if not path:
            order.append(number)
            continue
        if path[0] not in inside:
            order.append(path[0])
        inside.setdefault(path[0], []).append((path[1:], number))
    result: Members = []
    for member in order:
        if isinstance(member, int):
            result.append(member)
            continue
        tree = _build_tree(member, inside[member])
        match tree.members:
            case (int(),):
                result += tree.members
            case (ScopeTree() as only,):
                result.append(ScopeTree(f"{tree.label}/{only.label}", only.members))
            case _:
                result.append(tree)
    return ScopeTree(label, tuple(result))


def _split_large_scopes(tree: ScopeTree, edges: Sequence[tuple[int, int]], nodes: Sequence[OutlineNode]) -> ScopeTree:
    """Fold repeated sequences in scopes with many members, and cut scopes that are still too large."""
    members = [_split_large_scopes(m, edges, nodes) if isinstance(m, ScopeTree) else m for m in tree.members]
    while len(members) > MANY:
        folded = _fold_blocks(members, edges, nodes)
        if len(folded) == len(members):
            break
        members = folded
    number = 0
    for index, member in enumerate(members):
        if isinstance(member, ScopeTree) and member.label == BLOCK:
            number += 1
            members[index] = replace(member, label=f"{BLOCK} {number}")
    if len(members) > TOO_MANY:
        members = _cut_into_parts(members, edges)
    return replace(tree, members=tuple(members))


def _fold_blocks(members: Members, edges: Sequence[tuple[int, int]], nodes: Sequence[OutlineNode]) -> Members:
    """Fold the longest repeated sequence into blocks, then those before and after it."""
    kinds: dict[str, int] = {}
    tokens = np.array([kinds.setdefault(_member_kind(member, nodes), len(kinds)) for member in members])
    repetition = _longest_repetition(tokens)
    if repetition is None:
        return members
    start, length, period = repetition
    crossing = _count_crossing(members, edges)
    slack = range(min(period, length - 2 * period + 1))
    start += min(slack, key=lambda shift: (np.mean(crossing[start + shift : start + length + 1 : period]), shift))
    count = (repetition[0] + length - start) // period
    end = start + count * period
    head, tail = members[:start], members[end:]
    return [
        *(_fold_blocks(head, edges, nodes) if len(head) > MANY else head),
        *(ScopeTree(BLOCK, tuple(members[at : at + period])) for at in range(start, end, period)),
        *(_fold_blocks(tail, edges, nodes) if len(tail) > MANY else tail),
    ]


def _member_kind(member: int | ScopeTree, nodes: Sequence[OutlineNode]) -> str:
    if isinstance(member, int):
        return nodes[member].op
    return f"{_strip_digits(member.label)}/{len(list(_node_numbers(member)))}"


def _longest_repetition(tokens: Array) -> tuple[int, int, int] | None:
    """Return start, length and period of the longest repetition; among equals, the one with the shortest period."""
    best: tuple[int, int, int] | None = None
    for period in range(SHORTEST, min(LONGEST, len(tokens) // 2) + 1):
        same = np.concatenate(([False], tokens[:-period] == tokens[period:], [False]))
        starts, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        is_long = ends - starts >= period
        for start, end in zip(starts[is_long].tolist(), ends[is_long].tolist()):
            length = end - start + period
            covered = length - length % period
            if len(set(tokens[start : start + period].tolist())) == 1:  # equal siblings need no scope around them
                continue
            if covered < FEWEST and covered < 3 * period:  # a few nodes that occur twice are no block
                continue
            if best is None or covered > 1.1 * (best[1] - best[1] % best[2]):
                best = (start, length, period)
    return best


def _count_crossing(members: Members, edges: Sequence[tuple[int, int]]) -> Array:
    """Count, for each gap between members, the nodes before it that are read after it."""
    position = {number: index for index, member in enumerate(members) for number in _node_numbers(member)}
    last: dict[int, int] = {}
    for source, target in edges:
        if source in position and target in position:
            last[source] = max(last.get(source, 0), position[target])
    changes = np.zeros(len(members) + 2, np.int64)
    for source, end in last.items():
        if end > position[source]:
            changes[position[source] + 1] += 1
            changes[end + 1] -= 1
    return np.cumsum(changes)[: len(members) + 1]


def _cut_into_parts(members: Members, edges: Sequence[tuple[int, int]]) -> Members:
    """Cut members into parts of similar size, where the fewest values cross."""
    crossing = _count_crossing(members, edges)
    parts: Members = []
    start = 0
    while start < len(members):
        low, high = start + PART // 2, start + PART + PART // 2
        end = len(members) if high >= len(members) else low + int(np.argmin(crossing[low:high]))
        parts.append(ScopeTree(f"part {len(parts) + 1}", tuple(members[start:end])))
        start = end
    return _cut_into_parts(parts, edges) if len(parts) > TOO_MANY else parts


def _node_numbers(member: int | ScopeTree) -> Iterator[int]:
    if isinstance(member, int):
        yield member
    else:
        for inner in member.members:
            yield from _node_numbers(inner)
