"""One folder a device, and `reference`: the numpy meaning of everything."""
