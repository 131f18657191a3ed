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
    if getattr(content, "requires_grad", False) is True and hasattr(content, "detach"):
        content = content.detach()
    narrow = _narrow_dtype(content)
    if narrow is not None:
        library = sys.modules[type(content).__module__.partition(".")[0]]
        words = content.contiguous().view(getattr(library, _WORDS[narrow.itemsize]))
        return np.asarray(words).view(narrow)
    return np.asarray(content) if hasattr(content, "__array__") else np.from_dlpack(content)


def _narrow_dtype(content: Any) -> np.dtype[Any] | None:
    """The dtype of a tensor whose library says "torch.bfloat16" where numpy knows of no such thing by itself."""
    library, _, name = str(getattr(content, "dtype", "")).rpartition(".")
    if library != "torch" or not name.startswith(("bfloat16", "float8_")) or library not in sys.modules:
        return None
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    return None if found is None else np.dtype(found)
