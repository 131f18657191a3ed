"""Scalar functions that are defined once for all languages: elementary functions and narrow floats."""
