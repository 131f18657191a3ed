"""Linear models."""

from __future__ import annotations

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Tensor, arg_reduce, build, constant, contract, reshape
from weft.opset.ml.domain import op
from weft.opset.ml.labels import choose_label, class_labels, place_if
from weft.opset.ml.scores import expand_binary_scores, transform_scores
from weft.opset.registry import REQUIRED, require


def leading_rows(numbers: tuple[float, ...] | None, rows: int, features: Dim) -> Array:
    """Return the first numbers as float32 [rows, features]; files may have more, which onnxruntime ignores."""
    flat = np.array(numbers or (), np.float32)
    require(rows > 0, f"{flat.size} numbers make no rows")
    width = features if isinstance(features, int) else flat.size // rows
    require(flat.size >= rows * width, f"{flat.size} coefficients for {rows} scores of {width} features")
    return flat[: rows * width].reshape(rows, width)


def _linear_scores(
    x: Tensor, coefficients: tuple[float, ...], intercepts: tuple[float, ...] | None, count: int
) -> Tensor:
    """Compute float32 scores [rows, count]: x times the coefficients, plus intercepts if there are `count` of them."""
    require(x.rank in (1, 2), f"features of rank 1 or 2 are needed, not {x.rank}")
    rows = cast(x if x.rank == 2 else reshape(x, (1, x.shape[0])), DType.float32)
    scores = contract(rows, constant(leading_rows(coefficients, count, rows.shape[1])), "nf", "cf", "nc")
    if len(intercepts or ()) != count:
        return scores
    return scores + constant(intercepts, DType.float32)


@op("LinearRegressor")
def linear_regressor(
    x: Tensor,
    *,
    coefficients: tuple[float, ...] = (),
    intercepts: tuple[float, ...] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    return transform_scores(_linear_scores(x, coefficients, intercepts, targets), post_transform)


@op("LinearClassifier")
def linear_classifier(
    x: Tensor,
    *,
    coefficients: tuple[float, ...] = REQUIRED,
    intercepts: tuple[float, ...] | None = None,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    labels = class_labels(classlabels_ints, classlabels_strings)
    names = len(classlabels_strings or classlabels_ints or ())
    count = len(intercepts) if intercepts else max(names, 1)
    scores = _linear_scores(x, coefficients, intercepts, count)
    if count > 1:
        return choose_label(labels, arg_reduce("maximum", scores, 1)), transform_scores(scores, post_transform)
    positive = build((scores.shape[0],), lambda row: place_if(scores.at(row, 0) > 0.0))
    label = choose_label(labels if names == 2 else None, positive)
    if names == 2:
        return label, expand_binary_scores(scores, post_transform, complement=True)
    return label, transform_scores(scores, post_transform)
