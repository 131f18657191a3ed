"""Reductions, softmax, running sums, sorting."""
