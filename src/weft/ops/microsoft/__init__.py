"""The ops of onnxruntime's own domain that exporters and its optimiser put into models; one module an idea."""

from weft.ops.microsoft import (
    activations,
    attention,
    blocks,
    convolution,
    grouped,
    multi_head,
    normalization,
    padding,
    products,
    quantized_elementwise,
    quantized_products,
    rotary,
    scales,
)

FAMILIES = (
    activations,
    attention,
    blocks,
    convolution,
    grouped,
    multi_head,
    normalization,
    padding,
    products,
    quantized_elementwise,
    quantized_products,
    rotary,
    scales,
)
