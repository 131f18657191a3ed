"""The CPU: kernels as LLVM IR, compiled to native code, run as a tape by worker threads."""
