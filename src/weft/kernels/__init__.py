"""TensorProgram -> kernels: fusion, layouts, generic loops and templates. Loops, but no language."""
