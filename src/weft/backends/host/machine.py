"""The CPU to compile for: LLVM's names for it, and its instruction set as a `VectorTarget`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from weft.backends.host.processor import linux_features, processor_names
from weft.cost.profiles import CORE
from weft.errors import DeviceError
from weft.ir.target import VectorTarget
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.ir.target import VectorTarget

CACHE_LINE = 64
WIDEST = 64  # bytes of the widest vectors
_USUAL_CACHE = 512 * 1024
_MOST_CACHES = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU by LLVM's names, and its capabilities for kernel templates."""

    triple: str
    processor: str
    features: str  # LLVM's spelling: +avx2,-sse4a,...
    target: VectorTarget


@cache
def host() -> Machine:
    """Return the machine that this process runs on."""
    triple, processor, features = processor_names()
    if is_arm(triple):
        features = _add_dot_products(processor, features)
    present = frozenset(name[1:] for name in features.split(",") if name.startswith("+"))
    target = _build_target(triple, processor, present, _read_cache_bytes("/sys/devices/system/cpu/cpu0/cache"))
    return Machine(triple, processor, features, target)


def named(processor: str) -> Machine:
    """Return another kind of machine; its code can be compiled here, but not run."""
    if processor not in NAMED:
        raise DeviceError(f"unknown processor {processor!r}", hint=f"weft compiles for {', '.join(NAMED)}")
    from weft.backends.llvm.compilation import LLVM, initialize_others

    with LLVM:
        initialize_others()
    triple, features = NAMED[processor]
    llvm_name = _GENERIC if processor == "aarch64" else processor
    return Machine(triple, llvm_name, "", _build_target(triple, llvm_name, frozenset(features.split()), _USUAL_CACHE))


def is_arm(triple: str) -> bool:
    return triple.startswith(("aarch64", "arm64"))


_LINUX_X86 = "x86_64-unknown-linux-gnu"
_DOT_16_AT_FULL_RATE = ("znver",)  # processors whose bf16 pair products are as fast as float32 products
_AVX2 = "sse2 sse4.1 sse4.2 avx avx2 fma f16c"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512dq avx512vl avx512cd"
_GENERIC = "generic"  # LLVM's name for the baseline of an architecture
NAMED: dict[str, tuple[str, str]] = {
    "x86-64": (_LINUX_X86, "sse2"),
    "x86-64-v2": (_LINUX_X86, "sse2 sse4.1 sse4.2"),
    "x86-64-v3": (_LINUX_X86, _AVX2),
    "x86-64-v4": (_LINUX_X86, _AVX512),
    "aarch64": ("aarch64-unknown-linux-gnu", "neon"),
    "cortex-a72": ("aarch64-unknown-linux-gnu", "neon"),
    "neoverse-n1": ("aarch64-unknown-linux-gnu", "neon fullfp16 dotprod"),
    "neoverse-v1": ("aarch64-unknown-linux-gnu", "neon fullfp16 dotprod i8mm bf16 sve"),
    "apple-m1": ("arm64-apple-macosx", "neon fullfp16 dotprod"),
    "apple-m2": ("arm64-apple-macosx", "neon fullfp16 dotprod i8mm bf16"),
}


_DOT_PRODUCTS = {"dotprod": "asimddp", "i8mm": "i8mm", "bf16": "bf16"}  # LLVM's names, and Linux's


def _add_dot_products(processor: str, features: str) -> str:
    """Add the features of dot products that the system knows of, or the processor's name implies, and LLVM lacks."""
    listed = {name.lstrip("+-") for name in features.split(",")}
    flags, (_, implied) = linux_features(), NAMED.get(processor, ("", ""))
    new = [name for name, flag in _DOT_PRODUCTS.items() if flag in flags or name in implied.split()]
    return ",".join(filter(None, (features, *(f"+{name}" for name in new if name not in listed))))


def vector_bytes(features: frozenset[str]) -> int:
    """Return the width of the vectors of a processor with these features."""
    if {"avx512f", "avx512vl"} <= features:
        return WIDEST
    return 32 if "avx2" in features else 16


def _build_target(triple: str, processor: str, features: frozenset[str], cache_bytes: int) -> VectorTarget:
    is_wide = vector_bytes(features) == WIDEST
    arm = is_arm(triple)
    dot_product_16 = (is_wide and "avx512bf16" in features) or (arm and "bf16" in features)
    at_full_rate = dot_product_16 and processor.startswith(_DOT_16_AT_FULL_RATE)
    return VectorTarget(
        rates=CORE,
        vector_bytes=vector_bytes(features),
        vector_registers=32 if is_wide or arm else 16,
        fused_multiply_add="fma" in features or arm,
        alignment=CACHE_LINE,
        cache_bytes=cache_bytes,
        dot_product_8=(is_wide and "avx512vnni" in features) or (arm and "dotprod" in features),
        unpacks_weights=True,
        widens_weights=True,
        lookup_16=is_wide,
        dot_product_16=dot_product_16,
        dot_16_rate=2.0 if at_full_rate else 1.0,
        features=features,
    )


def _read_cache_bytes(folder: str) -> int:
    """Read the size of the second-level cache from Linux's description of a core."""
    for index in range(_MOST_CACHES):
        level = _read_line(f"{folder}/index{index}/level")
        if not level:
            break
        if level == "2":
            size = _read_line(f"{folder}/index{index}/size")
            unit = {"K": 1024, "M": 1024**2}.get(size[-1:], 1)
            digits = size.rstrip("KM")
            if digits.isdigit():
                return int(digits) * unit
    return _USUAL_CACHE


def _read_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
