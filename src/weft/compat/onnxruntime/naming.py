"""Where programs expect onnxruntime's classes to be: the modules and names that they import, print and pickle by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weft.compat.installation import API_LEVEL as API_LEVEL

STATE = "onnxruntime.capi.onnxruntime_pybind11_state"
COLLECTION = "onnxruntime.capi.onnxruntime_inference_collection"

Named = TypeVar("Named", bound=type)


def known_as(module: str, name: str | None = None) -> Callable[[Named], Named]:
    """Give a class the module, and the name, by which onnxruntime's users know it."""

    def renamed(kind: Named) -> Named:
        kind.__module__ = module
        if name is not None:
            kind.__name__ = kind.__qualname__ = name
        return kind

    return renamed
