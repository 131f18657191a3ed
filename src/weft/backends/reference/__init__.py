"""Every primitive and host step in numpy: the oracle for all devices, and the evaluator for constant folding."""
