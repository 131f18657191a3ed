"""Ops of onnxruntime's own domain, which exporters and its optimizer write into models; one module per family."""

# ruff: noqa: F401 (importing a module defines its ops)

from weft.opset.microsoft import (
    activations,
    attention,
    blocks,
    convolution,
    experts,
    gated_delta,
    gates,
    grouped,
    linear,
    movement,
    multi_head,
    normalization,
    padding,
    paged,
    products,
    projections,
    quantized_elementwise,
    quantized_products,
    recurrent,
    relative_position,
    rotary,
    sampling,
    scales,
    sparse,
    spectra,
    states,
    text,
    training,
)
