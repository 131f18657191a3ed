"""Where the parts of a program run: what each would cost on each device, which go where, and the pieces that result.

TensorProgram and devices -> pieces, each a TensorProgram for one of them. Devices are known by their targets and
calibrations, and by the names that they go by in what comes out.
"""
