"""Benchmark weft and other engines on the same model, in turns, each in its own process."""
