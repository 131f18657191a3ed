"""Activations: alone, after a bias, and by name for fused ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from weft.ir import dims
from weft.opset import activations, arithmetic
from weft.opset.activations import gelu_by_erf, gelu_by_tanh
from weft.opset.functions import cast, elementwise_wide, wide_dtype
from weft.opset.functions import sigmoid as logistic
from weft.opset.language import Element, Tensor, assume_equal, build, reshape
from weft.opset.microsoft.domain import op
from weft.opset.reductions import softmax
from weft.opset.registry import REQUIRED, normalize_axis, require


@op("Gelu")
def gelu(x: Tensor) -> Tensor:
    return elementwise_wide(gelu_by_erf, x)


@op("BiasGelu")
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return elementwise_wide(lambda v, b: gelu_by_erf(v + b), x, bias)


@op("FastGelu")
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None:
        return elementwise_wide(gelu_by_tanh, x)
    return elementwise_wide(lambda v, b: gelu_by_tanh(v + b), x, bias)


@op("QuickGelu")
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return elementwise_wide(lambda v: v * logistic(v * alpha), x)


@op("BiasAdd")
def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    return elementwise_wide(lambda v, b, s: v + b + s, x, bias, skip)


@op("BiasSplitGelu")
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Multiply the left half of each row by the Gelu of the right half, after adding the bias."""
    half = dims.floordiv(x.shape[-1], 2)
    assume_equal(half * 2, x.shape[-1], "the last dimension is split in two")
    assume_equal(bias.size, x.shape[-1], "one bias per column")
    wide = wide_dtype(x.dtype)

    def element(*i: Element) -> Any:
        left = cast(x.at(*i), wide) + cast(bias.at(i[-1]), wide)
        right = cast(x.at(*i[:-1], i[-1] + half), wide) + cast(bias.at(i[-1] + half), wide)
        return cast(left * gelu_by_erf(right), x.dtype)

    return build((*x.shape[:-1], half), element)


@op("BiasSoftmax")
def bias_softmax(x: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int = REQUIRED) -> Tensor:
    """Compute softmax of x + bias over the dimensions from `axis` on.

    The bias broadcasts along leading dimensions of x or, with `is_inner_broadcast`, along those just before `axis`.
    """
    axis = normalize_axis(axis, x.rank)
    if is_inner_broadcast and bias.rank < x.rank:
        outer = bias.rank - (x.rank - axis)
        require(outer >= 0, f"bias {bias.type} does not fit {x.type} with softmax from axis {axis}")
        bias = reshape(bias, (*bias.shape[:outer], *(1,) * (x.rank - bias.rank), *bias.shape[outer:]))
    wide = wide_dtype(x.dtype)
    total = cast(x, wide) + cast(bias, wide)
    return cast(softmax(total, range(axis, x.rank)), x.dtype)


# Activations of fused ops, whose numbered parameters are the functions' attributes in this order.
_NAMED: dict[str, Callable[..., Tensor]] = {
    "Celu": activations.celu,
    "Clip": arithmetic.clip_to_attributes,
    "Elu": activations.elu,
    "Gelu": gelu,
    "HardSigmoid": activations.hard_sigmoid,
    "HardSwish": activations.hard_swish,
    "LeakyRelu": activations.leaky_relu,
    "QuickGelu": quick_gelu,
    "Relu": activations.relu,
    "Selu": activations.selu,
    "Sigmoid": activations.sigmoid,
    "Silu": activations.swish,
    "Softplus": activations.softplus,
    "Softsign": activations.softsign,
    "Swish": activations.swish,
    "Tanh": arithmetic.tanh,
    "ThresholdedRelu": activations.thresholded_relu,
}


def activate(x: Tensor, activation: str | None, parameters: Sequence[float | None]) -> Tensor:
    """Apply a fused op's activation; surplus parameters and those that are None are ignored."""
    if not activation:
        return x
    function = _NAMED.get(activation)
    require(function is not None, f"activation is {activation!r}", f"weft has {', '.join(_NAMED)}")
    assert function is not None
    names = list(signature(function).parameters)[1:]
    attributes = {name: value for name, value in zip(names, parameters) if value is not None}
    return function(x, **attributes)
