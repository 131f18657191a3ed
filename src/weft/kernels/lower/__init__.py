"""Scalar expressions -> kernel code, and Kernel -> Kernel passes."""
