"""Losses of classifiers."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.opset.functions import cast, equal, where
from weft.opset.language import Element, Tensor, assume_equal, build, literal, mean, reduce
from weft.opset.reductions import log_softmax
from weft.opset.registry import op, require


@op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _negative_log_likelihood(x, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss", since=12, outputs=(1, 2))
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    probabilities = log_softmax(scores, [1])
    return _negative_log_likelihood(probabilities, labels, weights, ignore_index, reduction), probabilities


def _negative_log_likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None, reduction: str
) -> Tensor:
    require(reduction in ("none", "sum", "mean"), f"reduction must be none, sum or mean, not {reduction!r}")
    require(x.rank >= 2 and target.rank == x.rank - 1, f"classes of {x.type} and targets {target.type} do not fit")
    for size, other in zip(target.shape, (x.shape[0], *x.shape[2:])):
        assume_equal(size, other, "there must be one target for each position")
    wide = DType.float32 if x.dtype in (DType.float16, DType.bfloat16) else x.dtype

    def find_class(*i: Element) -> tuple[Element, Element | None]:
        """Return the class at a position, and whether it counts."""
        label = cast(target.at(*i), DType.int64)
        if ignore_index is None:
            return label, None
        ignored = equal(label, ignore_index)
        return where(ignored, 0, label), ~ignored

    def factor(*i: Element) -> Element:
        label, counts = find_class(*i)
        value = literal(1.0, wide) if weight is None else cast(weight.at(label, checked=True), wide)
        return value if counts is None else where(counts, value, 0.0)

    def loss(*i: Element) -> Element:
        label, _ = find_class(*i)
        return -cast(x.at(i[0], label, *i[1:], checked=True), wide) * factor(*i)

    losses = build(target.shape, loss)
    axes = range(target.rank)
    if reduction == "none":
        result = losses
    elif reduction == "sum":
        result = reduce("sum", losses, axes)
    elif weight is None and ignore_index is None:
        result = mean(losses, axes)
    else:
        result = reduce("sum", losses, axes) / reduce("sum", build(target.shape, factor), axes)
    return cast(result, x.dtype)
