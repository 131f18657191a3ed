"""The trees of an ensemble as one table of nodes, read from either of ONNX's two formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import InvalidModelError
from weft.ir.arrays import Array
from weft.opset.registry import require
from weft.records import dataclass

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
EQUAL = MODES.index("BRANCH_EQ")
MEMBER = len(MODES)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Nodes in parallel arrays; a leaf is its own child, and its row of `weights` has a weight for each target."""

    modes: Array  # a position in MODES; ignored for a leaf
    features: Array
    thresholds: Array
    true: Array
    false: Array
    missing: Array  # whether NaN takes the true branch
    roots: Array
    weights: Array  # [nodes, targets]
    present: Array  # [nodes, targets]: whether there is a weight at all
    depth: int


def from_nodes(
    *,
    ids: tuple[Sequence[int], Sequence[int]],
    modes: Sequence[str],
    features: Sequence[int],
    thresholds: Any,
    children: tuple[Sequence[int], Sequence[int]],
    missing: Sequence[int],
    leaves: tuple[Sequence[int], Sequence[int], Sequence[int]],
    weights: Any,
    targets: int,
    repeated: str,
) -> Forest:
    """Read nodes identified by (tree, node), including leaves; a tree's first node is its root.

    `repeated`: how several weights of a leaf for one target are combined: SUM, MIN, MAX, or the FIRST.
    """
    names = list(zip(*ids))
    count = len(names)
    require(count > 0, "an ensemble without nodes")
    for part in (modes, features, thresholds, *children):
        require(len(part) == count, f"{count} nodes, but {len(part)} of one of their attributes")
    node_numbers = {name: number for number, name in enumerate(names)}
    unknown = set(modes) - {*MODES, "LEAF"}
    require(not unknown, f"nodes of unknown mode {', '.join(sorted(unknown))}")
    is_leaf = np.array([mode == "LEAF" for mode in modes])
    itself = np.arange(count)
    true, false = (
        np.array([_find_child(node_numbers, name[0], child, leaf) for name, child, leaf in zip(names, side, is_leaf)])
        for side in children
    )
    first = {tree: number for number, (tree, _) in reversed(list(enumerate(names)))}
    kinds = np.array([0 if mode == "LEAF" else MODES.index(mode) for mode in modes])
    kinds[is_leaf] = kinds[~is_leaf][0] if not is_leaf.all() else 0
    require(len(weights) == len(leaves[0]), f"{len(leaves[0])} leaves have {len(weights)} weights")
    rows = [_find_leaf(node_numbers, tree, node) for tree, node in zip(leaves[0], leaves[1])]
    table, present = _build_weights(count, targets, rows, leaves[2], weights, repeated)
    return _build_forest(
        modes=kinds,
        features=np.where(is_leaf, 0, np.array(features)),
        thresholds=np.asarray(thresholds),
        true=np.where(is_leaf, itself, true),
        false=np.where(is_leaf, itself, false),
        missing=_pad_flags(missing, count) & ~is_leaf,
        roots=np.array(sorted(first.values())),
        weights=table,
        present=present,
    )


def _find_child(node_numbers: dict[Any, int], tree: int, node: int, leaf: bool) -> int:
    if leaf:
        return 0
    number = node_numbers.get((tree, node))
    if number is None:
        raise InvalidModelError(f"tree {tree} has no node {node}, but one of its nodes leads there")
    return number


def _find_leaf(node_numbers: dict[Any, int], tree: int, node: int) -> int:
    number = node_numbers.get((tree, node))
    if number is None:
        raise InvalidModelError(f"a weight belongs to node {node} of tree {tree}, which does not exist")
    return number


def from_leaves(
    *,
    modes: Array,
    features: Sequence[int],
    thresholds: Array,
    children: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    missing: Sequence[int],
    members: Array | None,
    roots: Sequence[int],
    leaf_targets: Sequence[int],
    leaf_weights: Array,
    targets: int,
) -> Forest:
    """Read interior nodes and leaves from separate tables; a set of members becomes a chain of equality tests."""
    count, leaves = len(features), len(leaf_targets)
    for part in (modes, thresholds, *children[0], *children[1]):
        require(len(part) == count, f"{count} nodes, but {len(part)} of one of their attributes")
    require(len(leaf_weights) == leaves, f"{leaves} leaves have {len(leaf_weights)} weights")
    nodes = _Nodes(leaves)
    sets = iter(_member_sets(members))
    chains = [next(sets, []) if mode == MEMBER else [thresholds[i]] for i, mode in enumerate(modes)]
    starts = leaves + np.concatenate([[0], np.cumsum([max(len(chain), 1) for chain in chains])]).astype(np.int64)
    flags = _pad_flags(missing, count)
    for number, chain in enumerate(chains):
        require(0 <= int(modes[number]) <= MEMBER, f"a node of unknown mode {int(modes[number])}")
        true, false = (_find_target(side, number, starts, leaves) for side in children)
        mode = EQUAL if modes[number] == MEMBER else int(modes[number])
        for link, threshold in enumerate(chain or [np.nan]):
            last = link == max(len(chain), 1) - 1
            following = false if last else int(starts[number]) + link + 1
            nodes.add(mode, features[number], threshold, true, following, bool(flags[number]) and link == 0)
    for root in roots:
        require(0 <= root < count, f"a root at node {root} of {count}")
    table, present = _build_weights(len(nodes.modes), targets, range(leaves), leaf_targets, leaf_weights, "SUM")
    return _build_forest(
        modes=np.array(nodes.modes),
        features=np.array(nodes.features),
        thresholds=np.array(nodes.thresholds),
        true=np.array(nodes.true),
        false=np.array(nodes.false),
        missing=np.array(nodes.missing),
        roots=starts[list(roots)],
        weights=table,
        present=present,
    )


class _Nodes:
    """A growing table of nodes, which begins with the leaves."""

    def __init__(self, leaves: int) -> None:
        self.modes = [EQUAL] * leaves
        self.features = [0] * leaves
        self.thresholds: list[Any] = [0.0] * leaves
        self.true, self.false = list(range(leaves)), list(range(leaves))
        self.missing = [False] * leaves

    def add(self, mode: int, feature: int, threshold: Any, true: int, false: int, missing: bool) -> None:
        self.modes.append(mode)
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.true.append(true)
        self.false.append(false)
        self.missing.append(missing)


def _find_target(side: tuple[Sequence[int], Sequence[int]], number: int, starts: Array, leaves: int) -> int:
    child, is_leaf = side[0][number], side[1][number]
    limit = leaves if is_leaf else len(starts) - 1
    require(0 <= child < limit, f"a node leads to {'leaf' if is_leaf else 'node'} {child} of {limit}")
    return child if is_leaf else int(starts[child])


def _member_sets(members: Array | None) -> list[list[Any]]:
    """Split the members into sets, which NaN separates in the file."""
    sets: list[list[Any]] = [[]]
    for member in () if members is None else members.reshape(-1):
        if np.isnan(member):
            sets.append([])
        else:
            sets[-1].append(member)
    return sets


def _pad_flags(flags: Sequence[int], count: int) -> Array:
    """Return the flags of the first `count` nodes: missing flags are False, and surplus ones are ignored."""
    present = np.zeros(count, bool)
    present[: len(flags)] = np.array(flags, bool)[:count]
    return present


def _build_weights(
    count: int, targets: int, rows: Sequence[int], columns: Sequence[int], weights: Any, repeated: str
) -> tuple[Array, Array]:
    require(all(0 <= column < targets for column in columns), f"a leaf's target is not among the {targets}")
    values, cells = np.asarray(weights), (np.array(rows, np.int64), np.array(columns, np.int64))
    table = np.zeros((count, targets), values.dtype)
    present = np.zeros((count, targets), bool)
    present[cells] = True
    match repeated:
        case "FIRST":
            _, first = np.unique(cells[0] * targets + cells[1], return_index=True)
            table[cells[0][first], cells[1][first]] = values[first]
        case "MIN" | "MAX":
            table[cells] = values
            (np.minimum if repeated == "MIN" else np.maximum).at(table, cells, values)
        case _:
            np.add.at(table, cells, values)
    return table, present


def _build_forest(**parts: Array) -> Forest:
    """Build the forest with its depth: the steps after which every walk is at a leaf."""
    at = np.unique(parts["roots"])
    itself = np.arange(len(parts["true"]))
    for depth in range(len(itself) + 1):
        moving = at[(parts["true"][at] != itself[at]) | (parts["false"][at] != itself[at])]
        if not moving.size:
            return Forest(**parts, depth=depth)
        at = np.unique(np.concatenate([parts["true"][moving], parts["false"][moving]]))
    raise InvalidModelError("a tree leads back to one of its own nodes")
