"""The ops of onnxruntime's own domain that exporters and its optimiser put into models; one module an idea."""

from importlib import import_module

MODULES = (
    "activations attention blocks convolution experts grouped linear movement multi_head normalization padding "
    "products quantized_elementwise quantized_products recurrent relative_position rotary sampling scales spectra "
    "states text training"
).split()

FAMILIES = tuple(import_module(f"weft.opset.microsoft.{name}") for name in MODULES)
