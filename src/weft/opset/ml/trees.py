"""Ensembles of decision trees: all rows walk down all trees at once.

The trees are one table of nodes, each a few contiguous words. A leaf is its own child, so that a walk as long as the
deepest tree ends at a leaf for every row and tree; the weights of a leaf for each target are a row of another table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.opset.flow import scan
from weft.opset.functions import bit_and, bitcast, cast, equal, is_inf, is_nan, not_equal, shift_right, where
from weft.opset.language import Element, Tensor, arg_reduce, build, constant, elementwise, reduce
from weft.opset.ml.domain import as_float, op
from weft.opset.ml.forest import Forest, from_leaves, from_nodes
from weft.opset.ml.labels import choose_label, class_labels, place_if
from weft.opset.ml.packed_forest import (
    CHILDREN,
    FEATURE,
    MODE,
    THRESHOLD,
    TRACKS_MISSING,
    PackedForest,
    TightForest,
    pack,
    tighten,
)
from weft.opset.ml.scores import TRANSFORMS, as_float32, expand_binary_scores, transform_scores
from weft.opset.registry import REQUIRED, require

LEVELS = 4  # levels of a tree in one expression, where walks are split into rounds
MOST_AT_ONCE = 6  # levels of trees that are walked in one round
PARALLEL_WALKS = 16  # lanes of a device, about
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
FIRST = "FIRST"  # the weight that counts if a leaf has several for a single target; converters rely on it


def _walk_trees(x: Tensor, forest: Forest) -> tuple[Tensor, Array]:
    """Return the leaf of each row in each tree [rows, trees], and the forest's node for each such number."""
    packed = pack(forest, x.dtype.numpy)
    tight = tighten(packed, x.dtype.numpy)
    node_of = _loose_nodes(packed, x.dtype) if tight is None else _tight_nodes(tight, x.dtype)
    number_type, count = DType.int32 if tight is not None else from_numpy(packed.words.dtype), len(forest.roots)
    kinds = sorted({int(mode) for mode in packed.modes})
    inside = isinstance(x.shape[1], int) and int(forest.features.max()) < x.shape[1] and int(forest.features.min()) >= 0

    def below(row: Element, node: Element) -> Element:
        children, feature, threshold, mode = node_of(node)
        value = x.at(row, feature, checked=not inside)
        holds = _compare(kinds[0], value, threshold)
        if len(kinds) > 1 or packed.tracks_missing:
            for kind in kinds[1:]:
                holds = where(equal(bit_and(mode, TRACKS_MISSING - 1), kind), _compare(kind, value, threshold), holds)
            if packed.tracks_missing:
                holds = holds | (is_nan(value) & (mode >= TRACKS_MISSING))
        return children + cast(holds, number_type)

    def descend(row: Element, node: Element, levels: int) -> Element:
        if not levels:
            return node
        lower = node
        for _ in range(levels):
            lower = below(row, lower)
        return where(not_equal(node_of(node)[0], node), lower, node)

    rounds, levels = _choose_rounds(forest.depth, count)

    def step(nodes: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [build(nodes.shape, lambda row, tree: descend(row, nodes.at(row, tree), levels))], []

    first = 0 if rounds else levels
    start = build((x.shape[0], count), lambda row, tree: descend(row, cast(tree, number_type), first))
    if not rounds:
        return start, packed.origins
    final, _ = scan(step, [start], [], rounds)
    return final[0], packed.origins


def _choose_rounds(depth: int, trees: int) -> tuple[int, int]:
    """Return in how many rounds of how many levels to walk; 0 rounds: walk inside the sum over trees.

    That is vectorized along the trees only, and so wastes lanes where these are few.
    """
    rounds = max(-(-depth // LEVELS), 2)
    levels = -(-depth // rounds)
    at_once = -(-trees // PARALLEL_WALKS) * PARALLEL_WALKS * depth
    return (0, depth) if depth <= MOST_AT_ONCE and at_once <= 1.15 * trees * rounds * levels else (rounds, levels)


Node = tuple[Element, Element, Element, Element]  # its first child, feature, threshold and mode


def _loose_nodes(packed: PackedForest, dtype: DType) -> Callable[[Element], Node]:
    words = constant(packed.words)

    def node_of(node: Element) -> Node:
        children, feature, threshold, mode = (words.at(node, part) for part in (CHILDREN, FEATURE, THRESHOLD, MODE))
        return children, feature, bitcast(threshold, dtype), mode

    return node_of


def _tight_nodes(tight: TightForest, dtype: DType) -> Callable[[Element], Node]:
    words = constant(tight.words)

    def node_of(node: Element) -> Node:
        word = words.at(node)
        upper = bitcast(cast(shift_right(word, 32), DType.uint32), DType.int32)
        feature = bit_and(upper, 2**tight.feature_bits - 1)
        mode = bit_and(_shift_right_logical(upper, tight.feature_bits), 2**tight.mode_bits - 1)
        children = _shift_right_logical(upper, tight.feature_bits + tight.mode_bits)
        return children, feature, bitcast(cast(word, DType.uint32), dtype), mode

    return node_of


def _shift_right_logical(word: Element, bits: int) -> Element:
    return bitcast(shift_right(bitcast(word, DType.uint32), bits), DType.int32)


def _compare(mode: int, value: Element, threshold: Element) -> Element:
    match mode:
        case 0:
            return value <= threshold
        case 1:
            return value < threshold
        case 2:
            return value >= threshold
        case 3:
            return value > threshold
        case _:
            return equal(value, threshold)


def _aggregate(x: Tensor, forest: Forest, aggregate: str, base: Any) -> Tensor:
    """Aggregate the weights of the reached leaves, and add the base values: [rows, targets]."""
    require(aggregate in AGGREGATES, f"aggregate_function must be one of {', '.join(AGGREGATES)}, not {aggregate!r}")
    return _aggregate_leaves(x, forest, _walk_trees(x, forest), aggregate, base)


def _aggregate_leaves(x: Tensor, forest: Forest, walked: tuple[Tensor, Array], aggregate: str, base: Any) -> Tensor:
    reached, origins = walked
    absent = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    weights = constant(np.where(forest.present, forest.weights, absent)[origins], x.dtype)
    shape = (*reached.shape, weights.shape[1])
    parts = build(shape, lambda row, tree, target: weights.at(reached.at(row, tree), target))
    kind = {"MIN": "minimum", "MAX": "maximum"}.get(aggregate, "sum")
    result = reduce(kind, parts, [1])
    if kind != "sum":
        result = elementwise(lambda v: where(is_inf(v), 0.0, v), result)
    if aggregate == "AVERAGE":
        result = result / float(len(forest.roots))
    if base is None or not len(base):
        return result
    return result + constant(np.asarray(base), x.dtype)


def _mask_unscored(scores: Tensor, forest: Forest, walked: tuple[Tensor, Array]) -> Tensor:
    """Set scores of classes without a weight in any reached leaf to -inf, so that they are never chosen."""
    if _has_all_scores(forest):
        return scores
    reached, origins = walked
    present = constant(forest.present[origins].astype(np.float32))
    shape = (*reached.shape, present.shape[1])
    has_weight = reduce(
        "maximum", build(shape, lambda row, tree, target: present.at(reached.at(row, tree), target)), [1]
    )
    return elementwise(lambda score, present: where(present > 0.0, score, -np.inf), scores, has_weight)


def _has_all_scores(forest: Forest) -> bool:
    """Return whether each class has a tree all of whose leaves have a weight for it."""
    numbers = np.arange(len(forest.true))
    interior = np.flatnonzero((forest.true != numbers) | (forest.false != numbers))
    is_scored = forest.present.copy()
    is_scored[interior] = True
    for _ in range(forest.depth):
        is_scored[interior] = is_scored[forest.true[interior]] & is_scored[forest.false[interior]]
    return bool(is_scored[forest.roots].any(axis=0).all())


def _prefer(tensor: Array | None, values: Any) -> Any:
    """Return the attribute's value as a tensor if it has one, else as a list."""
    return values if tensor is None else tensor


@op("TreeEnsembleRegressor")
def tree_ensemble_regressor(
    x: Tensor,
    *,
    aggregate_function: str = "SUM",
    base_values: tuple[float, ...] | None = None,
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: tuple[int, ...] = (),
    nodes_featureids: tuple[int, ...] = (),
    nodes_hitrates: tuple[float, ...] | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: tuple[str, ...] = (),
    nodes_nodeids: tuple[int, ...] = (),
    nodes_treeids: tuple[int, ...] = (),
    nodes_truenodeids: tuple[int, ...] = (),
    nodes_values: tuple[float, ...] = (),
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: tuple[int, ...] = (),
    target_nodeids: tuple[int, ...] = (),
    target_treeids: tuple[int, ...] = (),
    target_weights: tuple[float, ...] = (),
    target_weights_as_tensor: Array | None = None,
) -> Tensor:
    forest = from_nodes(
        ids=(nodes_treeids, nodes_nodeids),
        modes=nodes_modes,
        features=nodes_featureids,
        thresholds=_prefer(nodes_values_as_tensor, nodes_values),
        children=(nodes_truenodeids, nodes_falsenodeids),
        missing=nodes_missing_value_tracks_true,
        leaves=(target_treeids, target_nodeids, target_ids),
        weights=_prefer(target_weights_as_tensor, target_weights),
        targets=n_targets,
        repeated=FIRST if n_targets == 1 else aggregate_function,
    )
    base = _prefer(base_values_as_tensor, base_values)
    scores = as_float32(_aggregate(as_float(x), forest, aggregate_function, base))
    return transform_scores(scores, post_transform)


@op("TreeEnsembleClassifier")
def tree_ensemble_classifier(
    x: Tensor,
    *,
    base_values: tuple[float, ...] | None = None,
    base_values_as_tensor: Array | None = None,
    class_ids: tuple[int, ...] = (),
    class_nodeids: tuple[int, ...] = (),
    class_treeids: tuple[int, ...] = (),
    class_weights: tuple[float, ...] = (),
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    nodes_falsenodeids: tuple[int, ...] = (),
    nodes_featureids: tuple[int, ...] = (),
    nodes_hitrates: tuple[float, ...] | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: tuple[str, ...] = (),
    nodes_nodeids: tuple[int, ...] = (),
    nodes_treeids: tuple[int, ...] = (),
    nodes_truenodeids: tuple[int, ...] = (),
    nodes_values: tuple[float, ...] = (),
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    weights = _prefer(class_weights_as_tensor, class_weights)
    base = _prefer(base_values_as_tensor, base_values)
    labels = class_labels(classlabels_int64s, classlabels_strings)
    count = len(classlabels_strings or classlabels_int64s or ())
    has_single_class = count == 2 and len(set(class_ids)) == 1
    one_sided = (
        has_single_class and class_ids[0] == 0
    )  # the weights are those of the positive class, whatever their number
    forest = from_nodes(
        ids=(nodes_treeids, nodes_nodeids),
        modes=nodes_modes,
        features=nodes_featureids,
        thresholds=_prefer(nodes_values_as_tensor, nodes_values),
        children=(nodes_truenodeids, nodes_falsenodeids),
        missing=nodes_missing_value_tracks_true,
        leaves=(class_treeids, class_nodeids, class_ids),
        weights=weights,
        targets=1 if one_sided else count,
        repeated=FIRST if count == 1 else "SUM",
    )
    base = base[-1:] if one_sided and base is not None else base
    wide = as_float(x)
    walked = _walk_trees(wide, forest)
    scores = as_float32(_aggregate_leaves(wide, forest, walked, "SUM", base))
    if not has_single_class:
        candidates = scores if base is not None and len(base) else _mask_unscored(scores, forest, walked)
        return choose_label(labels, arg_reduce("maximum", candidates, 1)), transform_scores(scores, post_transform)
    all_positive = min(weights, default=0.0) >= 0.0
    limit = 0.5 if all_positive else 0.0
    positive = scores.shape[1] - 1
    position = build((scores.shape[0],), lambda row: place_if(scores.at(row, positive) > limit))
    if one_sided:
        return choose_label(labels, position), expand_binary_scores(scores, post_transform, complement=all_positive)
    return choose_label(labels, position), transform_scores(scores, post_transform)


@op("TreeEnsemble", since=5)
def tree_ensemble(
    x: Tensor,
    *,
    aggregate_function: int = 1,
    leaf_targetids: tuple[int, ...] = REQUIRED,
    leaf_weights: Array = REQUIRED,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: tuple[int, ...] = REQUIRED,
    nodes_falsenodeids: tuple[int, ...] = REQUIRED,
    nodes_featureids: tuple[int, ...] = REQUIRED,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: Array = REQUIRED,
    nodes_splits: Array = REQUIRED,
    nodes_trueleafs: tuple[int, ...] = REQUIRED,
    nodes_truenodeids: tuple[int, ...] = REQUIRED,
    post_transform: int = 0,
    tree_roots: tuple[int, ...] = REQUIRED,
) -> Tensor:
    require(0 <= aggregate_function < len(AGGREGATES), f"aggregate_function {aggregate_function} does not exist")
    require(0 <= post_transform < len(TRANSFORMS), f"post_transform {post_transform} does not exist")
    forest = from_leaves(
        modes=nodes_modes,
        features=nodes_featureids,
        thresholds=nodes_splits,
        children=((nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs)),
        missing=nodes_missing_value_tracks_true,
        members=membership_values,
        roots=tree_roots,
        leaf_targets=leaf_targetids,
        leaf_weights=leaf_weights,
        targets=n_targets,
    )
    wide = as_float(x)
    scores = _aggregate(wide, forest, AGGREGATES[aggregate_function], None)
    return cast(transform_scores(scores, TRANSFORMS[post_transform]), x.dtype)
