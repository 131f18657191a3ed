"""Random numbers and dropout."""

from __future__ import annotations

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.opset.functions import cast, exp, minimum, where
from weft.opset.language import (
    Element,
    Tensor,
    build,
    cumulate,
    elementwise,
    full,
    index,
    literal,
    random,
    reduce,
    reshape,
)
from weft.opset.registry import REQUIRED, ElementType, op, require


@op("RandomNormal")
def random_normal(
    *,
    shape: tuple[int, ...] = REQUIRED,
    dtype: ElementType = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    return _draw_normal(shape, from_number(dtype), mean, scale, seed)


@op("RandomNormalLike")
def random_normal_like(
    like: Tensor, *, dtype: ElementType | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return _draw_normal(like.shape, like.dtype if dtype is None else from_number(dtype), mean, scale, seed)


@op("RandomUniform")
def random_uniform(
    *,
    shape: tuple[int, ...] = REQUIRED,
    dtype: ElementType = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Tensor:
    return _draw_uniform(shape, from_number(dtype), low, high, seed)


@op("RandomUniformLike")
def random_uniform_like(
    like: Tensor, *, dtype: ElementType | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    return _draw_uniform(like.shape, like.dtype if dtype is None else from_number(dtype), low, high, seed)


def _draw_normal(shape: tuple[Dim, ...], dtype: DType, mean: float, scale: float, seed: float | None) -> Tensor:
    drawn = random("normal", shape, _seed_bits(seed), _choose_draw_type(dtype))
    return elementwise(lambda v: cast(v * scale + mean, dtype), drawn)


def _draw_uniform(shape: tuple[Dim, ...], dtype: DType, low: float, high: float, seed: float | None) -> Tensor:
    drawn = random("uniform", shape, _seed_bits(seed), _choose_draw_type(dtype))
    return elementwise(lambda v: cast(v * (high - low) + low, dtype), drawn)


def _choose_draw_type(dtype: DType) -> DType:
    require(dtype.is_float, f"random numbers of {dtype}", "choose a floating-point type")
    return DType.float64 if dtype is DType.float64 else DType.float32


def _seed_bits(seed: float | None) -> int | None:
    """Convert ONNX's float seed to an integer by its bits."""
    return None if seed is None else int(np.float32(seed).view(np.uint32))


@op("Bernoulli", since=15)
def bernoulli(probability: Tensor, *, dtype: ElementType | None = None, seed: float | None = None) -> Tensor:
    result = probability.dtype if dtype is None else from_number(dtype)
    drawn = random("uniform", probability.shape, _seed_bits(seed), _choose_draw_type(probability.dtype))
    return elementwise(lambda v, p: cast(v < cast(p, v.dtype), result), drawn, probability)


@op("Multinomial", since=7)
def multinomial(logits: Tensor, *, dtype: ElementType = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    require(logits.rank == 2, f"the input must have shape [batch, classes], not {logits.type}")
    require(sample_size > 0, f"sample_size is {sample_size}")
    batch, classes = logits.shape
    wide = elementwise(lambda v: cast(v, DType.float32), logits)
    weights = elementwise(lambda v, top: exp(v - top), wide, reduce("maximum", wide, [1], keep=True))
    running = cumulate("sum", weights, 1)
    drawn = random("uniform", (batch, sample_size), _seed_bits(seed))
    passed = build(
        (batch, sample_size, classes),
        lambda b, s, c: cast(running.at(b, c) <= drawn.at(b, s) * running.at(b, classes - 1), DType.int64),
    )
    chosen = reduce("sum", passed, [2])
    return elementwise(lambda v: cast(minimum(v, index(classes - 1)), from_number(dtype)), chosen)


@op("Dropout", since=7, outputs=(1, 2))
def dropout_inference(x: Tensor, *, ratio: float = 0.5) -> tuple[Tensor, Tensor]:
    return x, full(x.shape, 1.0, x.dtype)


@op("Dropout", since=10, outputs=(1, 2))
def dropout_inference_with_mask(x: Tensor, *, ratio: float = 0.5) -> tuple[Tensor, Tensor]:
    return x, full(x.shape, True, DType.bool)


@op("Dropout", since=12, outputs=(1, 2))
def dropout(
    x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None, *, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    if training is None or (training.static_value is not None and not training.static_value.any()):
        return x, full(x.shape, True, DType.bool)
    drawn = random("uniform", x.shape, seed)
    active = reshape(training, ())
    share = full((), 0.5, DType.float32) if ratio is None else reshape(ratio, ())

    def element_mask(v: Element, p: Element, on: Element) -> Element:
        return (v >= cast(p, v.dtype)) | ~on

    def element(v: Element, is_kept: Element, p: Element, on: Element) -> Element:
        wide = DType.float64 if v.dtype is DType.float64 else DType.float32
        scaled = cast(v, wide) / where(on, 1 - cast(p, wide), literal(1, wide))
        return cast(where(is_kept, scaled, 0), v.dtype)

    mask = elementwise(element_mask, drawn, share, active)
    return elementwise(element, x, mask, share, active), mask
