"""Programs on devices that have memory of their own: tensors and weights there, plans and runs."""
