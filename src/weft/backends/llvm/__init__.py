"""LLVM: what backends that compile through it share: kernels as LLVM IR, and IR as machine code or PTX."""
