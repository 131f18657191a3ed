"""How much memory this process can still get, and whether that is enough for LLVM, which ends a process without it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from weft.errors import OutOfMemoryError

COMPILING = 192 << 20  # bytes that generating code may take, whatever the model
IMPORTING = 512 << 20  # bytes of address space that a device's libraries may take
STARTING = 64 << 20  # bytes that code takes on its way into memory
_COPIES = 3  # of a model's file, that tracing and packing may have in memory
_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def memory_left() -> int | None:
    """Bytes that the limits on this process or its container leave; None where there are none, or they are unknown."""
    found = []
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    for most, now in _CGROUP:
        with suppress(OSError, ValueError):
            found.append(int(Path(most).read_text()) - int(Path(now).read_text()) + _reclaimable())
    return min(found, default=None)


def check_memory_to_compile(file: str, size: int) -> None:
    """Raise OutOfMemoryError where compiling a model of so many bytes could use up the memory."""
    _check(file, "compiling", COMPILING + _COPIES * size)


def check_memory_to_import() -> None:
    """Raise OutOfMemoryError where that a library cannot be imported may be for want of memory."""
    _check(None, "importing the libraries of a device", IMPORTING)


def check_memory_to_start() -> None:
    """Raise OutOfMemoryError where bringing compiled code into memory could use up the memory."""
    _check(None, "bringing code into memory", STARTING)


def _check(file: str | None, stage: str, needed: int) -> None:
    left = memory_left()
    if left is not None and left < needed:
        raise OutOfMemoryError(
            f"{stage} may take {needed:,} bytes, and this process can get {max(left, 0):,}",
            file=file,
            hint="allow this process more memory; a model that is cached needs less to be loaded",
        )


def _reclaimable() -> int:
    """Bytes of file pages that a container's usage counts, and that it gives up when they are needed."""
    with suppress(OSError, ValueError):
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            name, _, amount = line.partition(" ")
            if name == "file":
                return int(amount)
    return 0
