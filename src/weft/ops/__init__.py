"""What each ONNX op means: one function per op over the primitives of the tensor program."""
