"""ONNX files to Graphs: the only layer that knows files, protobuf and opsets."""

from weft.frontend.files import OpenFile
from weft.frontend.read import copy_model, open_model, read_model
from weft.frontend.save import save_model
from weft.frontend.source import ModelSource, OpenedModel
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
