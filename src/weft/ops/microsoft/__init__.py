"""The ops of domain com.microsoft that exporters and onnxruntime's optimiser put into models; one module an idea."""

from weft.ops.microsoft import (
    activations,
    blocks,
    convolution,
    normalization,
    products,
    quantized_elementwise,
    quantized_products,
    scales,
)

FAMILIES = (
    activations,
    blocks,
    convolution,
    normalization,
    products,
    quantized_elementwise,
    quantized_products,
    scales,
)
