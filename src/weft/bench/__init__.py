"""Measuring: weft and other engines on the same model, in turns, each in a process of its own."""
