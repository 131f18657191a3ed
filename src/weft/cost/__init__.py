"""What work costs: all guesses of it, in one room.

- `effort`, `programs`: what steps and programs cost at least, operations and bytes as expressions over sizes
- `expressions`, `sizes`: what an element costs, and what an unknown size is taken for
- `profiles`: rates of classes of devices, which targets carry
- `blocks`, `occupancy`, `tile_times`: what is worth a block, what keeps a device busy, how long tiles take, all from
  such a profile: these choose kernels, and so decide bits, and never read a measurement
- `roofline`, `launches`, `calibration`, `prediction`: how long work and runs take at least, and about, by what was
  measured: these decide what runs where
"""
