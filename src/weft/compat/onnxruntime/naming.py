"""The modules and names by which programs import, print and pickle onnxruntime's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weft.compat.installation import API_LEVEL as API_LEVEL

STATE = "onnxruntime.capi.onnxruntime_pybind11_state"
COLLECTION = "onnxruntime.capi.onnxruntime_inference_collection"

AnyClass = TypeVar("AnyClass", bound=type)


def set_module(module: str, name: str | None = None) -> Callable[[AnyClass], AnyClass]:
    """Give a class the module, and optionally the name, that it has in onnxruntime."""

    def rename(cls: AnyClass) -> AnyClass:
        cls.__module__ = module
        if name is not None:
            cls.__name__ = cls.__qualname__ = name
        return cls

    return rename
