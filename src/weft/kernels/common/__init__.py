"""Templates whose kernels suit both families of targets."""
