"""weft seen from onnx: its test suite, its backend interface, its operator schemas."""
