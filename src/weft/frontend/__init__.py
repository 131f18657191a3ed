"""ONNX files to Graphs: the only layer that knows files, protobuf and opsets."""

from weft.frontend.read import open_model, read_model
from weft.frontend.source import ModelSource, Source, release_pages
from weft.frontend.storage import open_external

__all__ = ["ModelSource", "Source", "open_external", "open_model", "read_model", "release_pages"]
