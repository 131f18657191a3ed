"""The packs of kernels that come with weft: the processors they are for, and the one for this machine.

A pack is used only with the sources that made it, so every change of these makes it useless until `scripts/make-packs`
makes it again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from weft.backends.cpu.portability import describe_lack, list_needs, rank_needs
from weft.backends.host.codegen import code_key
from weft.backends.host.machine import Machine, host, named
from weft.backends.host.runner import offer_runner, runner_text
from weft.cache.code import shared_cache
from weft.cache.pack import SUFFIX, KernelPack, read_header
from weft.cache.sources import package_digest
from weft.records import dataclass

FOLDER = Path(__file__).parent / "packs"
SOURCES = ("backends", "cost", "fuse", "ir", "kernels")  # that built kernels and their code depend on


@dataclass(frozen=True, slots=True)
class PackTarget:
    """A class of processors: LLVM's name for its baseline, further features, and what its members differ in."""

    processor: str
    features: str
    members: tuple[Mapping[str, Any], ...]  # fields of `VectorTarget`


_KIB = 1024
PACK_TARGETS = (
    PackTarget(
        "x86-64-v4",
        "avx512vnni avx512bf16",
        (
            {"cache_bytes": 1024 * _KIB, "dot_product_8": True, "dot_product_16": True, "dot_16_rate": 2.0},  # AMD Zen
            {"cache_bytes": 2048 * _KIB, "dot_product_8": True, "dot_product_16": True, "dot_16_rate": 1.0},  # Intel
        ),
    ),
    PackTarget("x86-64-v3", "", ({"cache_bytes": 512 * _KIB},)),
    PackTarget("aarch64", "dotprod", ({"cache_bytes": 1024 * _KIB, "dot_product_8": True},)),
)


def pack_path(target: PackTarget) -> Path:
    return FOLDER / (target.processor + SUFFIX)


def pack_machines(target: PackTarget) -> list[Machine]:
    """Return the machines that a pack is made for; they differ only in what kernel templates read."""
    baseline = named(target.processor)
    features = baseline.target.features | frozenset(target.features.split())
    names = ",".join(f"+{feature}" for feature in target.features.split())
    return [
        replace(baseline, features=names, target=replace(baseline.target, **member, features=features))
        for member in target.members
    ]


def pack_needs(target: PackTarget) -> dict[str, Any]:
    """Return what a processor needs to run the code of a pack."""
    needs = list_needs(named(target.processor))
    return {**needs, "features": sorted({*needs["features"], *target.features.split()})}


def pack_digest() -> str | None:
    """Return the digest of the sources that packs depend on."""
    return package_digest(*SOURCES)


@cache
def open_pack() -> KernelPack | None:
    """Start to read the best pack for this machine; None if there is none for it, or if weft's sources have changed.

    The native runner is taken from it, too. A process that compiles keeps its pack, for programs of other shapes.
    """
    path, support = _find_pack()
    if path is None:
        return None
    pack = KernelPack(path)
    offer_runner({digest: partial(_take_runner, pack, digest) for digest in support})
    return pack


def _take_runner(pack: KernelPack, digest: str) -> bytes | None:
    """Return the native runner, and store it for processes that load from the cache and open no pack."""
    code = pack.support(digest)
    if code is not None:
        shared_cache().put(code_key(runner_text(sys.platform), host()), code)
    return code


def _find_pack() -> tuple[Path | None, tuple[str, ...]]:
    """Return the path of the best pack, and the digests of the support code in it."""
    packs: list[tuple[int, Path, tuple[str, ...]]] = []
    digest = pack_digest()
    for target in PACK_TARGETS:
        path = pack_path(target)
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged headers
            header = read_header(path)
            if digest is not None and header.get("sources") == digest and describe_lack(header["needs"]) is None:
                packs.append((rank_needs(header["needs"]), path, tuple(header["support"])))
    return max(packs)[1:] if packs else (None, ())
