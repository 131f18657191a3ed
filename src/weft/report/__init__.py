"""What can be said about a model without running it."""
