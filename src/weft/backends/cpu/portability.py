"""The processor features that compiled code needs, and whether this machine has them; without LLVM if possible.

Features have LLVM's names. Those that compilers never use by themselves (clzero, wbnoinvd, …) are left out.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from weft.backends.host.machine import Machine, host, is_arm, vector_bytes
from weft.backends.host.processor import are_names_known, linux_features, processor_names

_X86_FLAGS = {  # LLVM's names, and Linux's where they differ
    "adx": "", "aes": "", "amx-bf16": "amx_bf16", "amx-int8": "amx_int8", "amx-tile": "amx_tile", "avx": "",
    "avx2": "", "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg", "avx512bw": "", "avx512cd": "",
    "avx512dq": "", "avx512f": "", "avx512fp16": "avx512_fp16", "avx512ifma": "", "avx512vbmi": "",
    "avx512vbmi2": "avx512_vbmi2", "avx512vl": "", "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect", "avx512vpopcntdq": "avx512_vpopcntdq", "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert", "avxvnni": "avx_vnni", "avxvnniint16": "avx_vnni_int16",
    "avxvnniint8": "avx_vnni_int8", "bmi": "bmi1", "bmi2": "", "cmov": "", "cx16": "", "f16c": "", "fma": "",
    "fma4": "", "gfni": "", "lzcnt": "abm", "movbe": "", "pclmul": "pclmulqdq", "popcnt": "", "sahf": "lahf_lm",
    "sha": "sha_ni", "sha512": "", "sm3": "", "sm4": "", "sse": "", "sse2": "", "sse3": "pni", "sse4.1": "sse4_1",
    "sse4.2": "sse4_2", "sse4a": "", "ssse3": "", "tbm": "", "vaes": "", "vpclmulqdq": "", "xop": "",
}  # fmt: skip
_ARM_FLAGS = {
    "aes": "", "bf16": "", "complxnum": "fcma", "crc": "crc32", "dotprod": "asimddp", "fp-armv8": "fp",
    "fp16fml": "asimdfhm", "fullfp16": "asimdhp", "i8mm": "", "jsconv": "jscvt", "lse": "atomics", "neon": "asimd",
    "rcpc": "lrcpc", "rdm": "asimdrdm", "sha2": "", "sha3": "", "sm4": "", "sve": "", "sve2": "",
}  # fmt: skip
_BASE = frozenset(("cmov", "sse", "sse2", "fp-armv8", "neon"))  # features of every processor of its architecture
_LEVELS = {  # features that LLVM assumes for its processor classes
    "x86-64": "cmov sse sse2",
    "x86-64-v2": "cmov cx16 popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3",
    "x86-64-v3": "cmov cx16 popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 avx avx2 bmi bmi2 f16c fma lzcnt movbe",
    "x86-64-v4": "cmov cx16 popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 avx avx2 bmi bmi2 f16c fma lzcnt movbe "
    "avx512bw avx512cd avx512dq avx512f avx512vl",
    "generic": "fp-armv8 neon",
    "cortex-a72": "aes crc fp-armv8 neon sha2",
    "neoverse-n1": "aes crc dotprod fp-armv8 fullfp16 lse neon rcpc rdm sha2",
    "neoverse-v1": "aes bf16 complxnum crc dotprod fp-armv8 fp16fml fullfp16 i8mm jsconv lse neon rcpc rdm sha2 sha3 "
    "sm4 sve",
    "apple-m1": "aes complxnum crc dotprod fp-armv8 fp16fml fullfp16 jsconv lse neon rcpc rdm sha2 sha3",
    "apple-m2": "aes bf16 complxnum crc dotprod fp-armv8 fp16fml fullfp16 i8mm jsconv lse neon rcpc rdm sha2 sha3",
}


def list_needs(machine: Machine) -> dict[str, Any]:
    """Return, as plain data, what a processor needs to run code compiled for a machine."""
    system = next((name for name in ("linux", "windows") if name in machine.triple), "darwin")
    arm = is_arm(machine.triple)
    features = {part[1:] for part in machine.features.split(",") if part.startswith("+")}
    features.update(_LEVELS.get(machine.processor, "").split() if not features else ())
    usable = sorted(features & (_ARM_FLAGS if arm else _X86_FLAGS).keys())
    return {
        "system": system,
        "architecture": "aarch64" if arm else "x86_64",
        "features": usable,
        "vector_bytes": machine.target.vector_bytes,
    }


def describe_lack(needs: Mapping[str, Any]) -> str | None:
    """Say what this machine lacks of these needs; None if it lacks nothing."""
    place = f"{_system()} on {_architecture()}"
    if (needs.get("system"), needs.get("architecture")) != (_system(), _architecture()):
        return f"{needs.get('system')} on {needs.get('architecture')}, and this is {place}"
    features = needs.get("features")
    if not isinstance(features, list):
        return "unknown features"
    missing = [name for name in features if name not in _features()]
    return None if not missing else f"{', '.join(map(str, missing))}, which this processor lacks"


def rank_needs(needs: Mapping[str, Any]) -> int:
    """Rank needs: higher for code that uses more of a processor."""
    width, features = needs.get("vector_bytes"), needs.get("features")
    return (width if isinstance(width, int) else 0) * 1000 + (len(features) if isinstance(features, list) else 0)


def vector_bytes_here() -> int:
    """Return the width of this processor's vectors, without LLVM if possible."""
    return host().target.vector_bytes if are_names_known() else vector_bytes(_features())


def _system() -> str:
    return {"win32": "windows"}.get(sys.platform, sys.platform)


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


@cache
def _features() -> frozenset[str]:
    """Return the features of this processor by LLVM's names."""
    flags = linux_features()
    if not flags:
        return frozenset(part[1:] for part in processor_names()[2].split(",") if part.startswith("+"))
    names = _ARM_FLAGS if _architecture() == "aarch64" else _X86_FLAGS
    return _BASE | frozenset(name for name, flag in names.items() if (flag or name) in flags)
