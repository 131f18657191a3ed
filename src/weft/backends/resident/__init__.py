"""Programs on devices with their own memory: tensors, weights, plans and runs."""
