"""Crops of images resized to one size, and maxima over masked windows."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast, ceil, floor, maximum, not_equal, where, wide_dtype
from weft.opset.language import Element, Tensor, build, index
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, Sizes, require
from weft.opset.windows import resolve_windows


@op("CropAndResize")
def crop_and_resize(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    crop_size: Sizes,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Tensor:
    """Crop regions [y1, x1, y2, x2] with aligned corners; positions outside the image have `extrapolation_value`."""
    require(mode in ("bilinear", "nearest"), f"mode is {mode!r}", "it must be bilinear or nearest")
    require(x.rank == 4 and len(crop_size) == 2, f"crops of {len(crop_size)} dimensions from {x.type}")
    wide = wide_dtype(x.dtype)

    def source(roi: Element, axis: int, position: Element) -> Element:
        size, count = x.shape[2 + axis], crop_size[axis]
        start, end = cast(rois.at(roi, axis), wide), cast(rois.at(roi, axis + 2), wide)
        last = cast(index(size - 1), wide)
        step = (end - start) * last / maximum(cast(index(count - 1), wide), 1.0)
        source_coordinate = start * last + cast(position, wide) * step
        return where(index(count) > 1, source_coordinate, (start + end) * last * 0.5)

    def element(roi: Element, channel: Element, row: Element, column: Element) -> Any:
        positions = [source(roi, 0, row), source(roi, 1, column)]
        inside = _is_inside(positions[0], x.shape[2], wide) & _is_inside(positions[1], x.shape[3], wide)
        batch = cast(batch_indices.at(roi), DType.int64)

        def at(v: Any, h: Any) -> Any:
            return cast(x.at(batch, channel, cast(v, DType.int64), cast(h, DType.int64)), wide)

        if mode == "nearest":
            sample = at(floor(positions[0] + 0.5), floor(positions[1] + 0.5))
        else:
            (top, left), (bottom, right) = map(floor, positions), map(ceil, positions)
            down, across = positions[0] - top, positions[1] - left
            upper = at(top, left) + (at(top, right) - at(top, left)) * across
            lower = at(bottom, left) + (at(bottom, right) - at(bottom, left)) * across
            sample = upper + (lower - upper) * down
        return cast(where(inside, sample, extrapolation_value), x.dtype)

    return build((rois.shape[0], x.shape[1], *crop_size), element)


def _is_inside(position: Any, size: Dim, dtype: DType) -> Any:
    return (position >= 0.0) & (position <= cast(index(size - 1), dtype))


@op("MaxpoolWithMask")
def max_pool_with_mask(
    x: Tensor,
    mask: Tensor,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Take the maximum of each window; each of its rows ends before the first 0 of the mask."""
    require(mask.rank == x.rank, f"a mask of {mask.type} for {x.type}")
    layout = resolve_windows(x.shape[2:], kernel_shape, strides=strides, dilations=None, pads=pads, auto_pad=auto_pad)

    def element(*i: Element) -> Any:
        starts = [position * stride - pad[0] for position, stride, pad in zip(i[2:], layout.strides, layout.pads)]
        best: Any = None
        for row in product(*map(range, kernel_shape[:-1])):
            is_open: Any = None
            for tap in range(kernel_shape[-1]):
                positions = [start + offset for start, offset in zip(starts, (*row, tap))]
                inside = _all_inside(positions, x.shape[2:])
                hidden = not_equal(mask.at(*(0 if s == 1 else k for s, k in zip(mask.shape, i[:2])), *positions), 0)
                passed = hidden | ~inside  # padding neither counts nor stops a row
                is_open = passed if is_open is None else is_open & passed
                value = where(is_open & inside, x.at(*i[:2], *positions), -inf)
                best = value if best is None else maximum(best, value)
        return best

    return build((*x.shape[:2], *layout.spatial), element)


def _all_inside(positions: list[Any], sizes: tuple[Dim, ...]) -> Any:
    inside: Any = None
    for position, size in zip(positions, sizes):
        is_inside = (position >= 0) & (position < index(size))
        inside = is_inside if inside is None else inside & is_inside
    return inside
