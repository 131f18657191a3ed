"""Scalar mathematics that is defined once for all languages: elementary functions and narrow floats."""
