"""Activation functions."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, clamp, elementwise_wide, erf, exp, log1p, maximum, minimum, tanh, where
from weft.opset.functions import sigmoid as logistic
from weft.opset.language import Element, Tensor, assume_equal, elementwise, expand
from weft.opset.registry import op, require


@op("Relu", since=6)
def relu(x: Tensor) -> Tensor:
    return elementwise(lambda v: maximum(v, 0), x)


@op("LeakyRelu", since=6)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return elementwise_wide(lambda v: where(v < 0, v * alpha, v), x)


@op("PRelu", since=7)
def parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    return elementwise(lambda v, s: where(v < 0, v * s, v), x, expand(slope, x.shape))


@op("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return elementwise_wide(lambda v: where(v > alpha, v, 0), x)


@op("Elu", since=6)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return elementwise_wide(lambda v: where(v < 0, alpha * (exp(minimum(v, 0)) - 1), v), x)


@op("Selu", since=6)
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return elementwise_wide(lambda v: gamma * where(v > 0, v, alpha * (exp(minimum(v, 0)) - 1)), x)


@op("Celu", since=12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return elementwise_wide(lambda v: maximum(v, 0) + minimum(alpha * (exp(v / alpha) - 1), 0), x)


@op("Gelu", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    require(approximate in ("none", "tanh"), f"approximate is {approximate!r}", "it must be none or tanh")
    return elementwise_wide(gelu_by_tanh if approximate == "tanh" else gelu_by_erf, x)


def gelu_by_erf(v: Any) -> Any:
    return 0.5 * v * (1 + erf(v * sqrt(0.5)))


def gelu_by_tanh(v: Any) -> Any:
    return 0.5 * v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * (v * v * v))))


@op("Sigmoid", since=6)
def sigmoid(x: Tensor) -> Tensor:
    return elementwise_wide(logistic, x)


@op("HardSigmoid", since=6)
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return elementwise_wide(lambda v: clamp(alpha * v + beta, 0, 1), x)


@op("HardSwish", since=14)
def hard_swish(x: Tensor) -> Tensor:
    return elementwise_wide(lambda v: v * clamp(v / 6 + 0.5, 0, 1), x)


@op("Swish", since=24)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return elementwise_wide(lambda v: v * logistic(alpha * v), x)


@op("SwiGLU", since=28)
def swish_gated_linear_unit(gate: Tensor, linear: Tensor, *, alpha: float = 1.0) -> Tensor:
    require(gate.rank == linear.rank, f"gate {gate.type} and value {linear.type} must have the same shape")
    for a, b in zip(gate.shape, linear.shape):
        assume_equal(a, b, "gate and value must have the same shape")
    return elementwise_wide(lambda g, v: g * logistic(alpha * g) * v, gate, linear)


@op("Mish", since=18)
def mish(x: Tensor) -> Tensor:
    return elementwise_wide(lambda v: v * tanh(stable_softplus(v)), x)


@op("Softplus")
def softplus(x: Tensor) -> Tensor:
    return elementwise_wide(stable_softplus, x)


def stable_softplus(v: Any) -> Any:
    """Compute log(1 + exp(v)) without overflow or loss of small results."""
    return maximum(v, 0) + log1p(exp(-absolute(v)))


@op("Softsign")
def softsign(x: Tensor) -> Tensor:
    return elementwise_wide(lambda v: v / (1 + absolute(v)), x)


@op("Shrink", since=9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    def element(v: Element) -> Element:
        return where(v < -lambd, v + bias, where(v > lambd, v - bias, 0))

    if x.dtype.is_integer:  # the attributes are floats, so the sums are
        return elementwise(lambda v: cast(element(cast(v, DType.float64)), x.dtype), x)
    return elementwise_wide(element, x)
