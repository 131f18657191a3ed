"""LLVM's names for this machine's processor, asked once and remembered: who only runs code need not load LLVM.

They are remembered under what Linux says of the processor, and the version of LLVM that was asked. Other systems, or a
process without a cache, ask each time.
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
_ENOUGH = 16 * 1024  # bytes that describe the first processors


@cache
def processor_names() -> tuple[str, str, str]:
    """Triple, processor and features (+avx2,-sse4a,...) of the machine that this process runs on."""
    record = _record()
    if record is not None:
        with suppress(OSError, ValueError):
            match json.loads(read_file(record)):
                case [str() as triple, str() as processor, str() as features]:
                    return triple, processor, features
    import llvmlite.binding as llvm

    from weft.backends.llvm.compilation import LLVM

    with LLVM:  # else a fork in the middle leaves llvmlite's lock held in the child
        names = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    if record is not None:
        with suppress(OSError):
            write_file(record, json.dumps(names).encode())
    return names


def are_names_known() -> bool:
    """Whether the names can be had without LLVM; where the system says nothing of the processor, LLVM is asked."""
    return not described_features() or "llvmlite" in sys.modules or _is_remembered()


def _is_remembered() -> bool:
    record = _record()
    try:
        return record is not None and record.exists()
    except OSError:  # the folder cannot be looked into: it is another user's, or its name is none
        return False


def known_processor() -> str:
    """LLVM's name for the processor if it is known, else what the system calls it: nobody loads LLVM to hear of it."""
    return processor_names()[1] if are_names_known() else _fact("model name") or platform.machine()


def described_features() -> frozenset[str]:
    """The features of the processor by the names that Linux has for them; none elsewhere."""
    if sys.platform != "linux":
        return frozenset()
    return frozenset((_fact("flags") or _fact("Features")).split())


def _fact(name: str) -> str:
    lines = _described().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")), "")


def _record() -> Path | None:
    """Where the names are remembered, if they can be."""
    folder, version = cache_folder(), library_version("llvmlite")
    facts = _described() if sys.platform == "linux" and folder is not None and version else ""
    if folder is None or not facts:
        return None
    return folder / "processors" / key_of(facts, platform.machine(), version, str(sys.maxsize))[:32]


@cache
def _described() -> str:
    """What Linux says of the processors that are described first, without what changes from moment to moment."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_ENOUGH).splitlines()[:-1]
    except OSError:
        return ""
    pairs = [line.partition(":") for line in lines]
    facts = dict.fromkeys(f"{name.strip()}: {value.strip()}" for name, _, value in pairs if name.strip() in _FACTS)
    return "\n".join(facts) if any(fact.startswith(("flags:", "Features:")) for fact in facts) else ""
