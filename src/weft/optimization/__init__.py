"""Rewrite ONNX models as ONNX: fewer nodes (through onnxslim), newer opsets, folded batch normalisation."""
