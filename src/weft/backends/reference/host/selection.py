"""Host functions whose result sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def nonzero(x: Array) -> tuple[Array]:
    """The positions of non-zero elements, one column each, in row-major order."""
    if x.ndim == 0:
        return (np.zeros((0, int(bool(x))), np.int64),)
    return (np.array(np.nonzero(x), np.int64),)


SELECTION: dict[str, Callable[..., tuple[Any, ...]]] = {"nonzero": nonzero}
