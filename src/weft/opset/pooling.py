"""Pooling: averages, maxima and norms over windows, and over all spatial axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.functions import absolute, cast, clamp, maximum, sqrt, wide_dtype
from weft.opset.language import Element, Tensor, build, elementwise, index, mean, pool, reduce
from weft.opset.registry import REQUIRED, op, require
from weft.opset.windows import Windows, resolve_windows


@op("AveragePool")
def average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    layout = _resolve_layout(x, kernel_shape, auto_pad, bool(ceil_mode), dilations, pads, strides)
    wide = cast(x, wide_dtype(x.dtype))
    total = _pool("sum", wide, layout)
    padded = bool(count_include_pad)
    fits = padded or all(
        not isinstance(size, int) or dims.is_at_least(size, span) for size, span in zip(x.shape[2:], layout.spans)
    )
    if all(pad == (0, 0) for pad in layout.pads) and not ceil_mode and fits:
        size = float(dims.product(layout.window))  # type: ignore[arg-type]
        return cast(elementwise(lambda v: v / size, total), x.dtype)

    def element(*i: Element) -> Any:
        count: Any = 1
        for axis, position in enumerate(i[2:]):
            count = count * _count_taps(position, x.shape[2 + axis], layout, axis, padded)
        return cast(total.at(*i) / cast(count, wide.dtype), x.dtype)

    return build(total.shape, element)


def _count_taps(position: Element, size: Dim, layout: Windows, axis: int, padded: bool) -> Element:
    """Count the taps of a window that lie in the tensor, or in the tensor and its padding."""
    window, dilation = layout.window[axis], layout.dilations[axis]
    before, after = layout.pads[axis]
    start = position * layout.strides[axis] - before
    low, high = (-before, size + after) if padded else (0, size)
    first, last = (clamp(-((start - end) // dilation), 0, window) for end in (low, high))
    return maximum(last - first, 1)


@op("MaxPool", outputs=(1, 2))
def max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
    output_count: int = 1,
) -> list[Tensor]:
    layout = _resolve_layout(x, kernel_shape, auto_pad, bool(ceil_mode), dilations, pads, strides)
    result = _pool("maximum", x, layout)
    if output_count < 2:
        return [result]
    return [result, _flatten_positions(_pool("argmax", x, layout), x, column_major=bool(storage_order))]


def _flatten_positions(positions: Tensor, x: Tensor, *, column_major: bool) -> Tensor:
    """Convert positions within *S to positions within the whole tensor."""
    spatial = x.shape[2:]

    def element(*i: Element) -> Element:
        position = positions.at(*i)
        if column_major:
            remaining, position = position, index(0)
            stride: Dim = 1
            coordinates: list[Element] = []
            for size in reversed(spatial):
                coordinates.append(remaining % index(size))
                remaining = remaining / index(size)
            for size, coordinate in zip(spatial, reversed(coordinates)):
                position = position + coordinate * index(stride)
                stride = stride * size
        return position + (i[0] * x.shape[1] + i[1]) * dims.product(spatial)

    return build(positions.shape, element)


@op("LpPool", since=2)
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...] = REQUIRED,
    p: int = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    layout = _resolve_layout(x, kernel_shape, auto_pad, bool(ceil_mode), dilations, pads, strides)
    return _compute_norm(x, p, lambda powers: _pool("sum", powers, layout))


@op("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return cast(mean(cast(x, wide_dtype(x.dtype)), _spatial_axes(x), keep=True), x.dtype)


@op("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return reduce("maximum", x, _spatial_axes(x), keep=True)


@op("GlobalLpPool", since=2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return _compute_norm(x, p, lambda powers: reduce("sum", powers, _spatial_axes(x), keep=True))


def _compute_norm(x: Tensor, p: int, total: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the p-th root of a sum of p-th powers."""
    require(p > 0, f"p is {p}")
    wide = wide_dtype(x.dtype)
    if p == 1:
        return cast(total(elementwise(lambda v: absolute(cast(v, wide)), x)), x.dtype)
    if p == 2:
        powers = elementwise(lambda v: cast(v, wide) * cast(v, wide), x)
        return elementwise(lambda v: cast(sqrt(v), x.dtype), total(powers))
    powers = elementwise(lambda v: absolute(cast(v, wide)) ** float(p), x)
    return elementwise(lambda v: cast(v ** (1.0 / p), x.dtype), total(powers))


def _resolve_layout(
    x: Tensor,
    kernel_shape: tuple[int, ...],
    auto_pad: str,
    ceil_mode: bool,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Windows:
    require(x.rank >= 2, f"pooling needs a batch and channels, not {x.type}")
    require(min(kernel_shape, default=1) > 0, f"kernel_shape is {kernel_shape}")
    return resolve_windows(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        may_exceed=True,
    )


def _pool(kind: str, x: Tensor, layout: Windows) -> Tensor:
    return pool(
        kind,
        x,
        window=layout.window,
        strides=layout.strides,
        dilations=layout.dilations,
        pads=layout.pads,
        spatial=layout.spatial,
    )


def _spatial_axes(x: Tensor) -> range:
    require(x.rank >= 2, f"pooling needs a batch and channels, not {x.type}")
    return range(2, x.rank)
