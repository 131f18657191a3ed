"""Third-party test suites that use onnxruntime, run with it and with weft in its place."""
