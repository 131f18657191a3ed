"""ONNX files to Graphs: the only layer that knows files, protobuf and opsets."""

from weft.frontend.read import read_model
from weft.frontend.source import ModelSource

__all__ = ["ModelSource", "read_model"]
