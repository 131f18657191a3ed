"""Definitions of the ONNX ops: one function per op over the primitives of the tensor program.

Importing the package defines the ops of ONNX itself; each module is a family of them. The ops of other domains are
defined when one of them is looked up (registry.py).
"""

# ruff: noqa: F401 (importing a module defines its ops)

from weft.opset import (
    activations,
    arithmetic,
    attention,
    bits,
    casting,
    comparison,
    constants,
    control,
    convolution,
    image,
    indexing,
    legacy,
    linear,
    linear_attention,
    loss,
    movement,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reductions,
    resize,
    sampling,
    sequences,
    shapes,
    signal,
    text,
    training,
)
