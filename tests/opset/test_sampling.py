"""Sampling at positions that tensors hold, against onnxruntime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from opset.oracle import check, random_array


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    x, grid = random_array(1, (2, 3, 5, 6)), random_array(2, (2, 4, 3, 2), low=-1.0, high=1.0)
    wide = grid * 1.9 if mode != "bicubic" else grid
    options = {"padding_mode": padding, "align_corners": align}
    check("GridSample", [x, wide], opset=16, mode=mode, rtol=1e-4, atol=1e-4, **options)
    modern = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    check("GridSample", [x, wide], opset=20, mode=modern, rtol=1e-4, atol=1e-4, **options)


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (5, 6)])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_far_outside(mode: str, padding: str, align: int, size: tuple[int, int]) -> None:
    """Against the definition in float64, tap by tap."""
    x, grid = random_array(21, (1, 2, *size)), random_array(22, (1, 7, 5, 2), low=-9.0, high=9.0)
    if padding != "reflection":  # float32 has no position within a period there
        grid[0, 0, 0], grid[0, 0, 1] = 1e9, -1e30  # beyond 32 bits
    expected = sample_grid(x.astype(np.float64), grid.astype(np.float64), mode, padding, align).astype(np.float32)
    options = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check("GridSample", [x, grid], opset=20, expected=[expected], rtol=1e-3, atol=2e-4, **options)


def sample_grid(x: Any, grid: Any, mode: str, padding: str, align: int) -> Any:
    """Sample images at the points of a grid."""
    places = []
    for axis, size in enumerate(x.shape[2:]):
        c = grid[..., 1 - axis]
        place = (c + 1) / 2 * (size - 1) if align else ((c + 1) * size - 1) / 2
        places.append(np.round(place) if mode == "nearest" else place)
    result = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    taps = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    for taps_of_axes in product(taps, repeat=2):
        weight = np.ones(grid.shape[:3])
        counts = np.ones(grid.shape[:3], bool)
        pixels = []
        for place, tap, size in zip(places, taps_of_axes, x.shape[2:]):
            if padding == "border" and mode != "cubic":
                place = place.clip(0, size - 1)
            first = np.floor(place)
            weight = weight * weigh(mode, place - first, tap)
            pixel = first + tap
            if padding == "reflection":
                period = max(2 * (size - 1), 1) if align else 2 * size
                pixel = np.minimum(pixel % period, (period if align else period - 1) - pixel % period)
            counts &= (pixel >= 0) & (pixel < size)
            pixels.append(pixel.clip(0, size - 1).astype(int))
        values = x[np.arange(len(x))[:, None, None], :, pixels[0], pixels[1]].transpose(0, 3, 1, 2)
        result += np.where((counts | (padding != "zeros"))[:, None], values * weight[:, None], 0)
    return result


def weigh(mode: str, part: Any, tap: int) -> Any:
    if mode == "nearest":
        return np.ones_like(part)
    distance = abs(tap - part)
    if mode == "linear":
        return 1 - distance
    a = -0.75
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return np.where(distance <= 1, near, a * (distance**3 - 5 * distance**2 + 8 * distance - 4))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode: str, padding: str) -> None:
    x, grid = random_array(3, (1, 2, 3, 4, 5)), random_array(4, (1, 2, 3, 2, 3), low=-1.4, high=1.4)
    check("GridSample", [x, grid], opset=20, mode=mode, padding_mode=padding, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 4, 2)])
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    rank = len(size) - 2
    theta = random_array(5, (2, rank, rank + 1))
    inputs = [theta, np.array(size, np.int64)]
    check("AffineGrid", inputs, opset=20, align_corners=align, rtol=1e-4, atol=1e-5, constants=[1])
    check("AffineGrid", inputs, opset=20, align_corners=align, rtol=1e-4, atol=1e-5)


def regions(seed: int, count: int) -> Any:
    corners = random_array(seed, (count, 2, 2), low=-1, high=12)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("ratio", [0, 2, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode: str, ratio: int, opset: int) -> None:
    inputs = [random_array(6, (2, 3, 8, 9)), regions(7, 5), np.array([0, 1, 1, 0, 1], np.int64)]
    options = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.7}
    check("RoiAlign", inputs, opset=opset, rtol=1e-4, atol=1e-4, **options)
    if opset == 16:
        kind = {"coordinate_transformation_mode": "output_half_pixel"}
        check("RoiAlign", inputs, opset=opset, rtol=1e-4, atol=1e-4, **options, **kind)


def test_roi_align_without_regions() -> None:
    inputs = [random_array(8, (1, 2, 4, 4)), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    check("RoiAlign", inputs, opset=16, output_height=2, output_width=2, expected=[np.zeros((0, 2, 2, 2), np.float32)])


@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_max_roi_pool(scale: float) -> None:
    batch = np.array([[0], [1], [1], [0]], np.float32)
    rois = np.concatenate([batch, np.round(regions(9, 4).clip(0))], axis=1).astype(np.float32)
    check("MaxRoiPool", [random_array(10, (2, 3, 8, 9)), rois], opset=7, pooled_shape=[3, 2], spatial_scale=scale)


@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("extras", [False, True])
def test_deform_conv(groups: int, offset_groups: int, extras: bool) -> None:
    """Against a direct sum over kernel positions with bilinear samples, in float64."""
    x, w = random_array(11, (2, 4, 6, 7)), random_array(12, (6, 4 // groups, 3, 2))
    pads, strides, dilations, out = (1, 0, 1, 2), (2, 1), (1, 2), (3, 7)
    offset = random_array(13, (2, offset_groups * 3 * 2 * 2, *out))
    b = random_array(14, (6,)) if extras else None
    mask = random_array(15, (2, offset_groups * 3 * 2, *out)) if extras else None
    moved = offset.reshape(2, offset_groups, 3, 2, 2, *out)
    weighted = np.ones((2, offset_groups, 3, 2, *out)) if mask is None else mask.reshape(2, offset_groups, 3, 2, *out)
    expected = np.zeros((2, 6, *out))
    for n, m, c, i, j, ky, kx in np.ndindex(2, 6, 4 // groups, *out, 3, 2):
        channel = m // (6 // groups) * (4 // groups) + c
        part = channel // (4 // offset_groups)
        y = i * strides[0] - pads[0] + ky * dilations[0] + float(moved[n, part, ky, kx, 0, i, j])
        z = j * strides[1] - pads[1] + kx * dilations[1] + float(moved[n, part, ky, kx, 1, i, j])
        expected[n, m, i, j] += bilinear(x[n, channel], y, z) * w[m, c, ky, kx] * weighted[n, part, ky, kx, i, j]
    if b is not None:
        expected += b[:, None, None]
    check(
        "DeformConv",
        [x, w, offset, b, mask],
        opset=19,
        group=groups,
        offset_group=offset_groups,
        pads=pads,
        strides=strides,
        dilations=dilations,
        expected=[expected.astype(np.float32)],
        rtol=1e-3,
        atol=1e-3,
    )


def bilinear(image: Any, y: float, x: float) -> float:
    total = 0.0
    for row in (int(np.floor(y)), int(np.floor(y)) + 1):
        for column in (int(np.floor(x)), int(np.floor(x)) + 1):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                total += float(image[row, column]) * (1 - abs(y - row)) * (1 - abs(x - column))
    return total
