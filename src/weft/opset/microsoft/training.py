"""Remains of training in models: dropout, which does nothing, and checks of gradients."""

from __future__ import annotations

from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir.dtypes import DType
from weft.opset.functions import cast, is_inf, is_nan
from weft.opset.language import Element, Tensor, elementwise, full, reduce
from weft.opset.microsoft.domain import op
from weft.opset.registry import Static, require


@op("IsAllFinite")
def is_all_finite(*inputs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    """Test that no element of any input is infinite or NaN, or only one of the two."""
    require(len(inputs) > 0 and not (isinf_only and isnan_only), "isinf_only and isnan_only exclude each other")

    def is_bad(v: Element) -> Element:
        if isinf_only or isnan_only:
            return cast(is_inf(v) if isinf_only else is_nan(v), DType.int32)
        return cast(is_inf(v) | is_nan(v), DType.int32)

    total: Any = None
    for x in inputs:
        count = reduce("maximum", elementwise(is_bad, x), range(x.rank)) if x.size != 0 else full((), 0, DType.int32)
        total = count if total is None else total + count
    return elementwise(lambda v: v <= 0, total)


@op("BiasDropout", outputs=(1, 2))
def bias_dropout(
    x: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Static | None = None,
    *,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    if training_mode is not None and bool(training_mode.any()):
        raise UnsupportedModelError("dropout in training", hint="export the model for inference")
    total = x + bias if residual is None else x + bias + residual
    return total, full(x.shape, True, DType.bool)
