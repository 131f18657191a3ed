"""ONNX files to Graphs: the only layer that knows files, protobuf and opsets."""

from weft.frontend.files import OpenFile, release_pages
from weft.frontend.read import copy_model, open_model, read_model
from weft.frontend.source import ModelSource, Source
from weft.frontend.storage import open_external

__all__ = [
    "ModelSource",
    "OpenFile",
    "Source",
    "copy_model",
    "open_external",
    "open_model",
    "read_model",
    "release_pages",
]
