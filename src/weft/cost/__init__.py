"""Cost models.

- `effort`, `programs`: the minimum operations and bytes of steps and programs, as expressions over sizes
- `expressions`, `sizes`: the cost of an expression per element, and guesses for unknown sizes
- `profiles`: static rates of device classes, which targets carry
- `blocks`, `occupancy`, `tap_runs`, `tile_times`: block sizes, occupancy and kernel times from such a profile. These
  choose kernels, and so the bits of results; they never read a measurement.
- `roofline`, `launches`, `many_launches`, `calibration`, `prediction`: lower bounds and estimates of time from
  measurements. These decide where and when work runs.
"""
