"""ai.onnx.ml: classical machine learning."""
