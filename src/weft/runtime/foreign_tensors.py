"""Tensors of other libraries as numpy arrays, without a copy if they are in the host's memory.

No library is imported here: the caller who has a tensor imported it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

_WORDS = {1: "uint8", 2: "int16"}  # types to view elements as that numpy lacks, by their bytes


def as_numpy(content: Any) -> Any:
    """Convert by `__array__` or `__dlpack__`; a tensor with a gradient is detached.

    Errors of the library are raised as they are.
    """
    if is_of_torch(content):
        content = content.detach().resolve_conj().resolve_neg()
    narrow = _narrow_dtype(content)
    if narrow is not None:
        words = content.view(getattr(import_module("torch"), _WORDS[narrow.itemsize]))
        return np.asarray(words).view(narrow)
    return np.asarray(content) if hasattr(content, "__array__") else np.from_dlpack(content)


def is_foreign(content: object) -> bool:
    """Whether `as_numpy` can convert this."""
    if isinstance(content, (np.ndarray, np.generic, type)):
        return False
    return hasattr(content, "__array__") or hasattr(content, "__dlpack__")


def is_of_torch(content: object) -> bool:
    """Whether this is a torch tensor, or of a subclass."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(content, torch.Tensor)


def _narrow_dtype(content: Any) -> np.dtype[Any] | None:
    """Return the dtype of a torch tensor that torch does not convert to numpy (bfloat16, float8)."""
    if not is_of_torch(content):
        return None
    name = str(content.dtype).rpartition(".")[2]
    if not name.startswith(("bfloat16", "float8_")):
        return None
    import ml_dtypes

    dtype = getattr(ml_dtypes, name, None)
    return None if dtype is None else np.dtype(dtype)
