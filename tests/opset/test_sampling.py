"""Sampling at positions that tensors hold, against onnxruntime."""

from __future__ import annotations

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
