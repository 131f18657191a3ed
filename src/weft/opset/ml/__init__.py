"""The classical machine learning operators (ai.onnx.ml)."""

from importlib import import_module

MODULES = ("features labels linear maps support_vectors trees").split()

FAMILIES = tuple(import_module(f"weft.opset.ml.{name}") for name in MODULES)
