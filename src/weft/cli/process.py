"""Numbers about this process."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_memory() -> int | None:
    """The most bytes that were ever resident; None where the system does not tell."""
    return _peak_of_status() or _peak_of_usage()


def _peak_of_status() -> int | None:
    """Linux: unlike getrusage, this leaves out the process that started this one."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _peak_of_usage() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
