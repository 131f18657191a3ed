"""Ops of classical machine learning (ai.onnx.ml)."""

# ruff: noqa: F401 (importing a module defines its ops)

from weft.opset.ml import (
    features,
    labels,
    linear,
    maps,
    support_vectors,
    trees,
)
