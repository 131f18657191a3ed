"""Decode images, and select boxes by non-maximum suppression."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir.arrays import Array


def decode_image(encoded: Array, *, pixel_format: str) -> tuple[Array]:
    """Decode an image file to [height, width, channels]; an empty array if it cannot be decoded."""
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise ExecutionError(
            "decoding images needs Pillow, which is not installed", hint="install it with: pip install pillow"
        ) from error
    channels = 1 if pixel_format == "Grayscale" else 3
    try:
        with pillow.open(BytesIO(np.ascontiguousarray(encoded, np.uint8).tobytes())) as image:
            decoded = np.array(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    except (OSError, ValueError, SyntaxError):
        return (np.zeros((0, 0, channels), np.uint8),)
    decoded = decoded.reshape(*decoded.shape[:2], channels)
    return (np.ascontiguousarray(decoded[:, :, ::-1]) if pixel_format == "BGR" else decoded,)


def suppress_boxes(
    boxes: Array, scores: Array, limit: Array, overlap: Array, threshold: Array, *, centers: bool
) -> tuple[Array]:
    """Select (image, class, box) by non-maximum suppression, best first."""
    count, max_overlap, min_score = int(limit.reshape(-1)[0]), overlap.reshape(-1)[0], threshold.reshape(-1)[0]
    if not 0 <= max_overlap <= 1:
        raise ExecutionError(f"iou_threshold must be a number from 0 to 1, not {max_overlap}")
    rows: list[Array] = []
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image], centers)
        for kind in range(scores.shape[1]):
            candidates = np.flatnonzero(scores[image, kind] > min_score)
            order = np.argsort(-scores[image, kind, candidates], kind="stable")
            chosen = _choose(corners, candidates[order], count, max_overlap)
            rows.append(np.stack([np.full(len(chosen), image), np.full(len(chosen), kind), chosen], axis=1))
    return (np.concatenate(rows).astype(np.int64) if rows else np.zeros((0, 3), np.int64),)


def _corners(boxes: Array, centers: bool) -> Array:
    """Convert boxes to [lower corner, upper corner]."""
    if centers:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _choose(corners: Array, candidates: Array, count: int, max_overlap: Any) -> Array:
    chosen: list[int] = []
    while candidates.size and len(chosen) < count:
        best, candidates = candidates[0], candidates[1:]
        chosen.append(int(best))
        candidates = candidates[_overlaps(corners[best], corners[candidates]) <= max_overlap]
    return np.array(chosen, np.int64)


def _overlaps(box: Array, others: Array) -> Array:
    """Compute the intersection over union of one box with many; 0 for boxes without area."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=1)
    area, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = area + areas - shared
    valid = (area > 0) & (areas > 0) & (union > 0)
    return np.asarray(np.where(valid, shared / np.where(valid, union, 1), 0))


IMAGES: dict[str, Callable[..., tuple[Any, ...]]] = {"decode_image": decode_image, "suppress_boxes": suppress_boxes}
