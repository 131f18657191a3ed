"""Read ONNX files into Graphs and write them: the only layer that knows files, protobuf and opsets."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.frontend.files import OpenFile
    from weft.frontend.read import read_model
    from weft.frontend.save import save_model
    from weft.frontend.source import ModelSource, OpenedModel, copy_model, open_model
    from weft.frontend.storage import open_external

__all__ = [
    "ModelSource",
    "OpenFile",
    "OpenedModel",
    "copy_model",
    "open_external",
    "open_model",
    "read_model",
    "save_model",
]

_MODULES = {  # lazy: a cached load opens a file without parsing it, and must not import onnx
    "ModelSource": "source",
    "OpenFile": "files",
    "OpenedModel": "source",
    "copy_model": "source",
    "open_external": "storage",
    "open_model": "source",
    "read_model": "read",
    "save_model": "save",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"weft.frontend.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'weft.frontend' has no attribute {name!r}")
