"""Support vector machines."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.functions import clamp, exp, sigmoid, tanh, where
from weft.opset.language import Element, Tensor, arg_reduce, build, constant, contract, elementwise, host, reduce
from weft.opset.ml.domain import op
from weft.opset.ml.labels import choose_label, class_labels, place_if
from weft.opset.ml.linear import leading_rows
from weft.opset.ml.scores import as_float32, expand_binary_scores, transform_scores
from weft.opset.registry import require

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LEAST_PROBABILITY = 1e-7


def _evaluate_kernel(x: Tensor, vectors: Array, kernel_type: str, parameters: tuple[float, ...] | None) -> Tensor:
    """Evaluate the kernel for each row and vector: [rows, vectors]."""
    require(kernel_type in KERNELS, f"kernel_type must be one of {', '.join(KERNELS)}, not {kernel_type!r}")
    require(not parameters or len(parameters) == 3, f"kernel_params must be gamma, coef0, degree, not {parameters}")
    gamma, offset, degree = parameters or (0.0, 0.0, 0.0)
    others = constant(vectors)
    if kernel_type == "RBF":

        def square(row: Element, vector: Element, feature: Element) -> Element:
            difference = x.at(row, feature) - others.at(vector, feature)
            return difference * difference

        distance = reduce("sum", build((x.shape[0], *others.shape), square), [2])
        return elementwise(lambda d: exp(d * -gamma), distance)
    product = contract(x, others, "nf", "vf", "nv")
    match kernel_type:
        case "POLY":
            return elementwise(lambda v: (v * gamma + offset) ** float(int(degree)), product)
        case "SIGMOID":
            return elementwise(lambda v: tanh(v * gamma + offset), product)
        case _:
            return product


def _reshape_vectors(numbers: tuple[float, ...] | None, count: int) -> Array:
    flat = np.array(numbers or (), np.float32)
    require(count > 0 and flat.size % count == 0, f"{flat.size} numbers do not make {count} support vectors")
    return flat.reshape(count, -1)


@op("SVMRegressor")
def svm_regressor(
    x: Tensor,
    *,
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: tuple[float, ...] = (0.0,),
    support_vectors: tuple[float, ...] | None = None,
) -> Tensor:
    require(x.rank == 2, f"features of rank 2 are needed, not {x.rank}")
    x = as_float32(x)
    if n_supports > 0:
        x = _evaluate_kernel(x, _reshape_vectors(support_vectors, n_supports), kernel_type, kernel_params)
    weights = constant(leading_rows(coefficients, 1, x.shape[1]))
    scores = contract(x, weights, "nv", "ov", "no") + rho[0]
    if one_class:
        return elementwise(lambda s: where(s > 0.0, 1.0, s * 0.0 - 1.0), scores)
    return transform_scores(scores, post_transform)


@op("SVMClassifier")
def svm_classifier(
    x: Tensor,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (),
    rho: tuple[float, ...] = (0.0,),
    support_vectors: tuple[float, ...] | None = None,
    vectors_per_class: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor]:
    require(x.rank == 2, f"features of rank 2 are needed, not {x.rank}")
    x = as_float32(x)
    labels = class_labels(classlabels_ints, classlabels_strings)
    count = max(len(classlabels_strings or classlabels_ints or ()), 1)
    vectors = sum(vectors_per_class)
    if not vectors:
        scores = contract(x, constant(leading_rows(coefficients, count, x.shape[1])), "nf", "cf", "nc") + rho[0]
        position = arg_reduce("maximum", scores, 1)
        if len(rho) == 1 and count == 1:
            position = build((x.shape[0],), lambda row: place_if(scores.at(row, 0) > 0.0))
        return choose_label(labels if count > 1 else None, position), transform_scores(scores, post_transform)
    require(len(vectors_per_class) == count, f"{count} classes have {len(vectors_per_class)} groups of vectors")
    similarity = _evaluate_kernel(x, _reshape_vectors(support_vectors, vectors), kernel_type, kernel_params)
    pairs = _pair_coefficients(leading_rows(coefficients, max(count - 1, 1), vectors), vectors_per_class)
    scores = contract(similarity, constant(pairs), "nv", "dv", "nd") + constant(rho[: len(pairs)], DType.float32)
    label = choose_label(labels, arg_reduce("maximum", _count_votes(scores, count), 1))
    if prob_a:
        return label, transform_scores(_couple_probabilities(scores, prob_a, prob_b, count), post_transform)
    if count == 2:
        return label, expand_binary_scores(scores, post_transform, complement=False)
    return label, transform_scores(scores, post_transform)


def _pair_coefficients(coefficients: Array, vectors_per_class: tuple[int, ...]) -> Array:
    """Return the weights of both classes' vectors for each pair of classes: [pairs, vectors]."""
    ends = np.cumsum(vectors_per_class)
    groups = [slice(end - size, end) for end, size in zip(ends, vectors_per_class)]
    rows = []
    for first, second in combinations(range(len(groups)), 2):
        row = np.zeros(coefficients.shape[1], np.float32)
        row[groups[first]] = coefficients[second - 1, groups[first]]
        row[groups[second]] = coefficients[first, groups[second]]
        rows.append(row)
    return np.array(rows, np.float32).reshape(len(rows), coefficients.shape[1])


def _count_votes(scores: Tensor, count: int) -> Tensor:
    """Count the pairs that each class wins, [rows, classes]; a positive score is a win for the first."""
    won, lost = (np.zeros((count, count * (count - 1) // 2), np.float32) for _ in range(2))
    for pair, (first, second) in enumerate(combinations(range(count), 2)):
        won[first, pair] = lost[second, pair] = 1.0
    wins = elementwise(lambda s: where(s > 0.0, 1.0, s * 0.0), scores)
    losses = elementwise(lambda w: 1.0 - w, wins)
    tallies = [contract(x, constant(t), "nd", "cd", "nc") for x, t in ((wins, won), (losses, lost))]
    return tallies[0] + tallies[1]


def _couple_probabilities(scores: Tensor, prob_a: tuple[float, ...], prob_b: tuple[float, ...], count: int) -> Tensor:
    """Couple Platt's probabilities of pairs into one distribution: [rows, classes]."""
    a, b = constant(prob_a, DType.float32), constant(prob_b, DType.float32)
    pair_probabilities = elementwise(
        lambda s, a, b: clamp(1.0 - sigmoid(s * a + b), LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY), scores, a, b
    )
    type = TensorType(DType.float32, (scores.shape[0], count))
    return host("couple_probabilities", [pair_probabilities], [type], count=count)[0]
