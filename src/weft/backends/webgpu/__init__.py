"""Kernels as WGSL shaders, run by WebGPU."""
