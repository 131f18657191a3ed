"""Trees as they are walked: a node is a few words next to each other, and its children are neighbours.

A step reads one place, and goes to the first child or the one behind it, without a branch. The roots come first, then
the children of each node. A node with several parents is there once for each of them, and so has its own children once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.opset.ml.forest import EQUAL, MODES, Forest
from weft.records import dataclass

Array = np.ndarray[Any, Any]
NOT_EQUAL = MODES.index("BRANCH_NEQ")
CHILDREN, FEATURE, THRESHOLD, MODE = range(4)  # the words of a node; its false child is the first
TRACKS_MISSING = 8  # is added to the mode of a node where NaN takes the true branch


@dataclass(frozen=True, slots=True, eq=False)
class PackedForest:
    """Nodes as rows of integers; no comparison of a leaf ever holds, and its first child is itself."""

    words: Array  # [nodes, 4]
    modes: Array  # those of all nodes, without what they do with NaN
    tracks_missing: bool
    origins: Array  # which node of the forest each of them is


def pack(forest: Forest, number: np.dtype[Any]) -> PackedForest:
    """The same trees, with thresholds as the bits of such numbers."""
    word = np.dtype(f"i{max(number.itemsize, 4)}")
    itself = np.arange(len(forest.true))
    is_leaf = (forest.true == itself) & (forest.false == itself)
    interior = np.flatnonzero(~is_leaf)
    turned = forest.modes == NOT_EQUAL  # the branches of equality, exchanged: NaN equals nothing
    modes = np.where(turned, EQUAL, forest.modes)
    modes[is_leaf] = modes[interior[0]] if len(interior) else EQUAL
    missing = forest.missing & ~turned & ~is_leaf
    true, false = (np.where(turned, *sides) for sides in ((forest.false, forest.true), (forest.true, forest.false)))
    roots = np.resize(forest.roots, len(forest.roots) + len(forest.roots) % 2)  # pairs of children lie in one line
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
    """The same nodes in one word of 64 bits each: the bits of a threshold below, and above them, from the lowest, the
    feature, the mode and the children.
    """

    words: Array
    feature_bits: int
    mode_bits: int


MODE_BITS = 4


def tighten(packed: PackedForest, number: np.dtype[Any]) -> TightForest | None:
    """Nodes as single words, which half as many loads read; None where their parts do not fit."""
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
