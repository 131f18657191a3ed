"""LLVM's names for this machine's processor, cached on disk so that running compiled code does not load LLVM.

The cache key is Linux's description of the processor and the version of LLVM. Other systems, or a process without a
cache, query LLVM each time.
"""

from __future__ import annotations

import json
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cache.sources import library_version

_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU implementer",
          "CPU architecture", "CPU variant", "CPU part", "CPU revision")  # fmt: skip
_MOST_READ = 16 * 1024  # bytes of /proc/cpuinfo, enough for the first processors


@cache
def processor_names() -> tuple[str, str, str]:
    """Return the triple, processor and features (+avx2,-sse4a,...) of this machine."""
    path = _cache_path()
    if path is not None:
        with suppress(OSError, ValueError):
            match json.loads(read_file(path)):
                case [str() as triple, str() as processor, str() as features]:
                    return triple, processor, features
    import llvmlite.binding as llvm

    from weft.backends.llvm.compilation import LLVM

    with LLVM:  # otherwise a fork in between leaves llvmlite's lock held in the child
        names = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    if path is not None:
        with suppress(OSError):
            write_file(path, json.dumps(names).encode())
    return names


def are_names_known() -> bool:
    """Whether the names need no import of LLVM, or the system does not describe the processor."""
    return not linux_features() or "llvmlite" in sys.modules or _is_cached()


def _is_cached() -> bool:
    path = _cache_path()
    try:
        return path is not None and path.exists()
    except OSError:  # the folder is not readable, or its name is invalid
        return False


def describe_processor() -> str:
    """Return LLVM's name for the processor if it needs no import of LLVM, else the system's."""
    return processor_names()[1] if are_names_known() else _fact("model name") or platform.machine()


def linux_features() -> frozenset[str]:
    """Return the processor's features by Linux's names; none on other systems."""
    if sys.platform != "linux":
        return frozenset()
    return frozenset((_fact("flags") or _fact("Features")).split())


def _fact(name: str) -> str:
    lines = _read_description().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")), "")


def _cache_path() -> Path | None:
    """Return the cache file of the names, or None."""
    folder, version = cache_folder(), library_version("llvmlite")
    facts = _read_description() if sys.platform == "linux" and folder is not None and version else ""
    if folder is None or not facts:
        return None
    return folder / "processors" / key_of(facts, platform.machine(), version, str(sys.maxsize))[:32]


@cache
def _read_description() -> str:
    """Read Linux's description of the first processors, without fields that change, such as the clock."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_READ).splitlines()[:-1]
    except OSError:
        return ""
    pairs = [line.partition(":") for line in lines]
    facts = dict.fromkeys(f"{name.strip()}: {value.strip()}" for name, _, value in pairs if name.strip() in _FACTS)
    return "\n".join(facts) if any(fact.startswith(("flags:", "Features:")) for fact in facts) else ""
