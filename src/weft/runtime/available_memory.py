"""Check how much memory this process can still get: LLVM aborts the process when it runs out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from weft.errors import OutOfMemoryError

COMPILING = 192 << 20  # bytes that generating code may take for any model
IMPORTING = 512 << 20  # bytes of address space that a device's libraries may take
STARTING = 64 << 20  # bytes that loading code takes
_COPIES = 3  # of a model's file that tracing and packing may hold
_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def memory_left() -> int | None:
    """Return the bytes that the limits on this process or its container leave; None without known limits."""
    limits = []
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limits.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    for most, now in _CGROUP:
        with suppress(OSError, ValueError):
            limits.append(int(Path(most).read_text()) - int(Path(now).read_text()) + _reclaimable_bytes())
    return min(limits, default=None)


def check_memory_to_compile(file: str, size: int) -> None:
    """Raise OutOfMemoryError if compiling a model of `size` bytes could exhaust the memory."""
    _check_memory(file, "compiling", COMPILING + _COPIES * size)


def check_memory_to_import() -> None:
    """Raise OutOfMemoryError if a failed import may be due to a lack of memory."""
    _check_memory(None, "importing the libraries of a device", IMPORTING)


def check_memory_to_start() -> None:
    """Raise OutOfMemoryError if loading compiled code could exhaust the memory."""
    _check_memory(None, "loading code", STARTING)


def _check_memory(file: str | None, stage: str, needed: int) -> None:
    left = memory_left()
    if left is not None and left < needed:
        raise OutOfMemoryError(
            f"{stage} may take {needed:,} bytes, but this process can get only {max(left, 0):,}",
            file=file,
            hint="allow this process more memory; a cached model needs less to load",
        )


def _reclaimable_bytes() -> int:
    """Return the bytes of file pages that a container's usage includes and can reclaim."""
    with suppress(OSError, ValueError):
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            name, _, amount = line.partition(" ")
            if name == "file":
                return int(amount)
    return 0
