"""CPUs to compile for, by name: this machine, and classes of others."""

from __future__ import annotations

from weft.backends.cpu.device import CpuDriver
from weft.backends.device import NATIVE
from weft.backends.host.machine import NAMED, Machine, host, named

TARGETS = (NATIVE, *NAMED)


def cpu_target(name: str = NATIVE) -> Machine:
    """Return the machine of a name; DeviceError for an unknown one."""
    return host() if name == NATIVE else named(name)


def driver_for(machine: Machine) -> CpuDriver:
    """Return a driver that compiles for a machine, which need not be this one."""
    return CpuDriver("cpu", machine)
