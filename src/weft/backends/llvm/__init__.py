"""Code shared by backends that use LLVM: emit kernels as LLVM IR, and compile IR to machine code or PTX."""
