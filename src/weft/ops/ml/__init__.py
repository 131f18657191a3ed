"""The classical machine learning operators (ai.onnx.ml)."""

from weft.ops.ml import features, labels, linear, maps, support_vectors, trees

__all__ = ["features", "labels", "linear", "maps", "support_vectors", "trees"]
