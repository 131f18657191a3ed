"""Post-transforms of the scores of classifiers and regressors."""

from __future__ import annotations

from math import pi

from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, exp, log, sigmoid, sqrt, where
from weft.opset.language import Element, Tensor, build, elementwise, reduce
from weft.opset.reductions import softmax
from weft.opset.registry import require

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
NEGLIGIBLE = 1e-7  # scores this close to zero count as absent in SOFTMAX_ZERO


def transform_scores(scores: Tensor, transform: str) -> Tensor:
    """Apply a post_transform to scores [rows, classes]."""
    require(transform in TRANSFORMS, f"post_transform must be one of {', '.join(TRANSFORMS)}, not {transform!r}")
    match transform:
        case "SOFTMAX":
            return softmax(scores, [1])
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores)
        case "LOGISTIC":
            return elementwise(sigmoid, scores)
        case "PROBIT":
            return elementwise(probit, scores)
        case _:
            return scores


def _softmax_zero(scores: Tensor) -> Tensor:
    """Compute a softmax in which scores of zero have (nearly) no share."""
    highest = reduce("maximum", scores, [1], keep=True)
    share = elementwise(lambda v, m: where(absolute(v) > NEGLIGIBLE, exp(v - m), v * exp(-m)), scores, highest)
    total = reduce("sum", share, [1], keep=True)
    return elementwise(lambda v, s: where(s <= 0.0, 0.5, v / where(s <= 0.0, 1.0, s)), share, total)


def probit(p: Element) -> Element:
    """Approximate the inverse of the normal distribution as Winitzki does, and all runtimes."""
    a = 0.147
    x = p * 2.0 - 1.0
    logarithm = log((1.0 - x) * (1.0 + x))
    v = logarithm * 0.5 + 2.0 / (pi * a)
    size = sqrt(sqrt(v * v - logarithm * (1.0 / a)) - v) * 2.0**0.5
    return where(x < 0.0, -size, size)


def expand_binary_scores(score: Tensor, transform: str, *, complement: bool) -> Tensor:
    """Compute scores of both classes [rows, 2] from that of the positive one [rows, 1].

    The negative class has the opposite score or, with `complement`, 1 minus it, unless a transform to probabilities
    follows.
    """
    complement = complement and transform in ("NONE", "PROBIT")

    def element(row: Element, side: Element) -> Element:
        positive = score.at(row, 0)
        return where(side > 0, positive, 1.0 - positive if complement else -positive)

    return transform_scores(build((score.shape[0], 2), element), transform)


def as_float32(x: Tensor) -> Tensor:
    return cast(x, DType.float32)
