"""com.microsoft: what exporters and onnxruntime's optimiser emit."""
