"""NVIDIA's GPUs through their driver alone: PTX by LLVM, assembled by the driver, run as CUDA graphs."""
