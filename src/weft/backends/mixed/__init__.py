"""Programs in pieces, each on a device of its own: what starts them, and runs them in order or side by side."""
