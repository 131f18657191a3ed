"""Comparisons, logic, and choosing between values."""
