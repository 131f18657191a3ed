"""Models with narrower numbers: an ONNX model in, one of int8, int4, float16 or bfloat16 out, with what that costs.

`quantize.py` is the way on one page: read, prepare, calibrate, choose, rewrite, write, measure. All of it is from graph
to graph (ir/graph.py), and what is computed on the way (ranges of values, errors of layers) is computed by weft itself.
"""
