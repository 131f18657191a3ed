"""Quantization, and the ops that compute on quantized numbers."""
