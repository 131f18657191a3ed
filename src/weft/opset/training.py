"""Gradients and optimiser steps (ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.opset.differentiate import compute_gradients
from weft.opset.functions import cast, sqrt, where
from weft.opset.language import Element, Tensor, elementwise, literal
from weft.opset.registry import REQUIRED, op, require

DOMAIN = "ai.onnx.preview.training"


@op("Gradient", domain=DOMAIN)
def gradient(
    *point: Tensor,
    xs: tuple[str, ...] = REQUIRED,
    y: str = REQUIRED,
    zs: tuple[str, ...] | None = None,
    enclosing: Any,
) -> list[Tensor]:
    names = (*xs, *(zs or ()))
    require(len(point) == len(names), f"{len(point)} inputs for the {len(names)} tensors named in xs and zs")
    return compute_gradients(enclosing.between(names, y), point, len(xs))


@op("Adagrad", domain=DOMAIN)
def adagrad(
    rate: Tensor,
    count: Tensor,
    *states: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    def update_variable(x: Element, g: Element, squares: Element, r: Element, t: Element) -> Element:
        step = cast(r, x.dtype) / (1 + cast(t, x.dtype) * decay_factor)
        return x - step * (norm_coefficient * x + g) / (sqrt(squares) + epsilon)

    variables, accumulated = [], []
    for x, gradient, squares in _group_states(states, 3):
        added = elementwise(lambda h, v, g: h + _square(norm_coefficient * v + g), squares, x, gradient)
        accumulated.append(added)
        variables.append(elementwise(update_variable, x, gradient, added, rate, count))
    return [*variables, *accumulated]


@op("Adam", domain=DOMAIN)
def adam(
    rate: Tensor,
    count: Tensor,
    *states: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Tensor]:
    def update_variable(x: Element, average: Element, squares: Element, r: Element, t: Element) -> Element:
        r, t = cast(r, x.dtype), cast(t, x.dtype)
        corrected = r * sqrt(1 - literal(beta, x.dtype) ** t) / (1 - literal(alpha, x.dtype) ** t)
        step = where(t > 0, corrected, r)
        return (1 - norm_coefficient_post) * (x - step * average / (sqrt(squares) + epsilon))

    variables, averages, accumulated = [], [], []
    for x, gradient, average, squares in _group_states(states, 4):
        regularized = elementwise(lambda v, g: norm_coefficient * v + g, x, gradient)
        averages.append(elementwise(lambda v, g: alpha * v + (1 - alpha) * g, average, regularized))
        accumulated.append(elementwise(lambda h, g: beta * h + (1 - beta) * _square(g), squares, regularized))
        variables.append(elementwise(update_variable, x, averages[-1], accumulated[-1], rate, count))
    return [*variables, *averages, *accumulated]


@op("Momentum", domain=DOMAIN)
def momentum(
    rate: Tensor,
    count: Tensor,
    *states: Tensor,
    alpha: float = REQUIRED,
    beta: float = REQUIRED,
    mode: str = REQUIRED,
    norm_coefficient: float = REQUIRED,
) -> list[Tensor]:
    require(mode in ("standard", "nesterov"), f"mode is {mode!r}", "it must be standard or nesterov")

    def update_velocity(v: Element, g: Element, t: Element) -> Element:
        share = where(t > 0, literal(beta, g.dtype), 1)
        return alpha * v + share * g

    def update_variable(x: Element, g: Element, velocity: Element, r: Element) -> Element:
        direction = velocity if mode == "standard" else g + alpha * velocity
        return x - cast(r, x.dtype) * direction

    variables, velocities = [], []
    for x, gradient, velocity in _group_states(states, 3):
        regularized = elementwise(lambda v, g: norm_coefficient * v + g, x, gradient)
        velocities.append(elementwise(update_velocity, velocity, regularized, count))
        variables.append(elementwise(update_variable, x, regularized, velocities[-1], rate))
    return [*variables, *velocities]


def _group_states(states: Sequence[Tensor], kinds: int) -> list[tuple[Tensor, ...]]:
    """Group the tensors by variable: inputs list all variables, then all gradients, and so on."""
    require(
        len(states) % kinds == 0, f"{len(states)} tensors, which is not a multiple of {kinds} per optimised variable"
    )
    count = len(states) // kinds
    return [tuple(states[kind * count + number] for kind in range(kinds)) for number in range(count)]


def _square(v: Element) -> Element:
    return v * v
