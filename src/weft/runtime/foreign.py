"""Tensors of other libraries as numpy arrays, in their own memory where they have it on the host.

No library is imported here: whoever passes a tensor has done that.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_WORDS = {1: "uint8", 2: "int16"}  # what elements that numpy lacks are seen as, by their bytes


def as_numpy(content: Any) -> Any:
    """What `__array__` or `__dlpack__` gives; of a tensor that is being trained, its present elements.

    Exceptions are those of its library.
    """
    if is_of_torch(content):
        content = content.detach().resolve_conj().resolve_neg()
    narrow = _narrow_dtype(content)
    if narrow is not None:
        words = content.view(getattr(sys.modules["torch"], _WORDS[narrow.itemsize]))
        return np.asarray(words).view(narrow)
    return np.asarray(content) if hasattr(content, "__array__") else np.from_dlpack(content)


def is_foreign(content: object) -> bool:
    """Whether `as_numpy` is for it."""
    if isinstance(content, (np.ndarray, np.generic, type)):
        return False
    return hasattr(content, "__array__") or hasattr(content, "__dlpack__")


def is_of_torch(content: object) -> bool:
    """Whether it is a tensor of torch, or of a class that extends it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(content, torch.Tensor)


def _narrow_dtype(content: Any) -> np.dtype[Any] | None:
    """The dtype of a tensor of torch, which gives numpy none of the types that numpy lacks."""
    if not is_of_torch(content):
        return None
    name = str(content.dtype).rpartition(".")[2]
    if not name.startswith(("bfloat16", "float8_")):
        return None
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    return None if found is None else np.dtype(found)
