"""Quantize ONNX models to int8, int4, float16 or bfloat16, and measure the errors.

`quantize.py` has all steps: read, prepare, calibrate, choose layers, rewrite, write, measure. Every step rewrites a
graph (ir/graph.py); ranges of values and errors of layers are computed by weft itself.
"""
