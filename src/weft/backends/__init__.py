"""A folder per device. `reference` computes everything in numpy."""
