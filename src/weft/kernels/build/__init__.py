"""What builders of kernels share: tensors, parameters, loop nests, epilogues, accumulators."""
