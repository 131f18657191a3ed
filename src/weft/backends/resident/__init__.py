"""Programs on devices with memory of their own: tensors, weights, plans and runs."""
