"""The Open Inference Protocol, version 2, with Triton's extensions."""
