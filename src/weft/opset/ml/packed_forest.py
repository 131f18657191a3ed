"""Trees packed for walking: a node is a few contiguous words, and its children are adjacent.

A step reads one node and goes to its first child or the next one, without a branch. The roots come first, then the
children of each node. A node with several parents is stored once for each of them; its children are stored once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.opset.ml.forest import EQUAL, MODES, Forest
from weft.records import dataclass

NOT_EQUAL = MODES.index("BRANCH_NEQ")
CHILDREN, FEATURE, THRESHOLD, MODE = range(4)  # the words of a node; its false child is the first
TRACKS_MISSING = 8  # added to the mode of a node where NaN takes the true branch


@dataclass(frozen=True, slots=True, eq=False)
class PackedForest:
    """Nodes as rows of integers; no comparison of a leaf ever holds, and its first child is itself."""

    words: Array  # [nodes, 4]
    modes: Array  # modes of all nodes, without TRACKS_MISSING
    tracks_missing: bool
    origins: Array  # the node of the forest that each was


def pack(forest: Forest, number: np.dtype[Any]) -> PackedForest:
    """Pack a forest, with thresholds as the bits of floats of a dtype."""
    word = np.dtype(f"i{max(number.itemsize, 4)}")
    itself = np.arange(len(forest.true))
    is_leaf = (forest.true == itself) & (forest.false == itself)
    interior = np.flatnonzero(~is_leaf)
    swapped = forest.modes == NOT_EQUAL  # becomes equality with exchanged branches
    modes = np.where(swapped, EQUAL, forest.modes)
    modes[is_leaf] = modes[interior[0]] if len(interior) else EQUAL
    missing = forest.missing & ~swapped & ~is_leaf
    true, false = (np.where(swapped, *sides) for sides in ((forest.false, forest.true), (forest.true, forest.false)))
    roots = np.resize(
        forest.roots, len(forest.roots) + len(forest.roots) % 2
    )  # an even number keeps pairs of children in one cache line
    origins = np.concatenate([roots, np.stack([false[interior], true[interior]], axis=1).reshape(-1)])
    children = np.zeros(len(itself), np.int64)
    children[interior] = len(roots) + 2 * np.arange(len(interior))
    thresholds = np.where(is_leaf, np.nan, forest.thresholds).astype(number)
    words = np.zeros((len(origins), 4), word)
    words[:, CHILDREN] = np.where(is_leaf[origins], np.arange(len(origins)), children[origins])
    words[:, FEATURE] = forest.features[origins]
    words[:, THRESHOLD] = thresholds.view(f"i{number.itemsize}")[origins]
    words[:, MODE] = (modes + TRACKS_MISSING * missing)[origins]
    return PackedForest(words, np.unique(modes), bool(missing.any()), origins)


@dataclass(frozen=True, slots=True, eq=False)
class TightForest:
    """The same nodes in one 64-bit word each: from the lowest bits, threshold, feature, mode and first child."""

    words: Array
    feature_bits: int
    mode_bits: int


MODE_BITS = 4


def tighten(packed: PackedForest, number: np.dtype[Any]) -> TightForest | None:
    """Pack nodes into single words, which need half as many loads; None where they do not fit."""
    if number.itemsize > 4:
        return None
    thresholds, children, features, modes = (packed.words[:, part] for part in (THRESHOLD, CHILDREN, FEATURE, MODE))
    feature_bits = max(int(features.max()).bit_length(), 1)
    mode_bits = MODE_BITS if packed.tracks_missing or len(packed.modes) > 1 else 0
    if int(features.min()) < 0 or int(children.max()).bit_length() + feature_bits + mode_bits > 31:
        return None
    upper = features | (modes << feature_bits if mode_bits else 0) | children << (feature_bits + mode_bits)
    words = upper.astype(np.uint64) << np.uint64(32) | thresholds.astype(np.int32).view(np.uint32)
    return TightForest(words, feature_bits, mode_bits)
