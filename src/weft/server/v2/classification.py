"""The classification extension: the likeliest classes of an output, as texts "score:index"."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.server.http import HttpError


def classify(array: np.ndarray[Any, Any], count: int, name: str) -> np.ndarray[Any, Any]:
    """Return the classes with the highest scores along the last axis, the highest first, equal ones by index."""
    if array.dtype == object or array.ndim == 0:
        raise HttpError(400, f"output {name!r} has no scores of classes")
    count = min(count, array.shape[-1])
    scores = array.astype(np.float64) if array.dtype.kind == "V" else array
    order = np.argsort(-scores if scores.dtype.kind == "f" else np.invert(scores), axis=-1, kind="stable")[..., :count]
    texts = np.empty(order.shape, object)
    for place in np.ndindex(order.shape):
        index = int(order[place])
        position = (*place[:-1], index)
        score = scores[position]
        texts[place] = f"{float(score):f}:{index}" if scores.dtype.kind == "f" else f"{int(score)}:{index}"
    return texts
