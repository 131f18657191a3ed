"""Definitions of the ONNX ops: one function per op over the primitives of the tensor program.

Importing the package defines all ops; each module is a family of them.
"""

from importlib import import_module

MODULES = (
    "activations arithmetic attention bits casting comparison constants control convolution image indexing legacy "
    "linear loss microsoft ml movement normalization pooling quantization random recurrent reductions resize sampling "
    "sequences shapes signal text training"
).split()

FAMILIES = tuple(import_module(f"weft.opset.{name}") for name in MODULES)
