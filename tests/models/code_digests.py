"""Digests of the kernel code of every model, without names: a refactoring must not change them.

    python -m models.code_digests OUT.json [-k PART_OF_A_NAME ...] [--texts FOLDER]
    python -m models.code_digests --diff BEFORE.json AFTER.json

Kernels are emitted, not compiled, for this CPU, for a GPU with shared memory and for one without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weft
from models.catalog import load_catalog

LLVM_NAME = re.compile(r'([%@])("[^"]*"|[\w.$-]+)|^("[^"]*"|[\w.$-]+):', re.M)
WGSL_DECLARED = re.compile(r"(?:\b(?:let|var(?:<[^>]*>)?|fn|struct|const|override|alias)\s+(\w+))|(\b\w+)\s*:")
WGSL_NAME = re.compile(
    r'(?P<declares>\b(?:let|var(?:<[^>]*>)?|fn|struct|const)\s+|\[")?\b(?P<name>[A-Za-z_]\w*)\b(?P<ends>\s*:)?'
)


def canonical_llvm(text: str) -> str:
    names: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        sigil, name, label = match.groups()
        key = (name or label).strip('"')
        if sigil == "@" and key.startswith("llvm."):
            return match.group()
        new = names.setdefault(f"{sigil or '%'}{key}", f"n{len(names)}")
        return f"{new}:" if label else f"{sigil}{new}"

    return LLVM_NAME.sub(rename, text)


def canonical_wgsl(text: str) -> str:
    """Every declaration has a name of its own: two scopes may use one name, or two."""
    declared = {first or second for first, second in WGSL_DECLARED.findall(text)}
    declared.update(re.findall(r"\bP\.(\w+)", text))  # parameters, whose struct is made elsewhere
    names: dict[str, str] = {}
    count = 0

    def rename(match: re.Match[str]) -> str:
        nonlocal count
        declares, name, ends = match.group("declares") or "", match.group("name"), match.group("ends") or ""
        if name not in declared:
            return match.group()
        if declares or ends or name not in names:
            names[name] = f"n{count}"
            count += 1
        return f"{declares}{names[name]}{ends}"

    return WGSL_NAME.sub(rename, text)


def programs(file: str) -> Any:
    """The optimised program of a model."""
    return weft.load(file, device="reference", cache=False).program


def kernels(program: Any, target: Any) -> list[Any]:
    from weft.backends.naming import name_kernels
    from weft.fuse import fuse
    from weft.kernels.sections import build_sections

    return list(
        {
            kernel.name: kernel for kernel in name_kernels(build_sections(fuse(program, target), target)).values()
        }.values()
    )


def codes(program: Any) -> Iterator[tuple[str, str, str]]:
    """(target, kernel's name, code)"""
    from weft.backends.host.machine import host
    from weft.backends.llvm.emit import llvm_text
    from weft.backends.llvm.vector_lanes import VECTOR_LANES
    from weft.backends.webgpu.emit import emit
    from weft.backends.webgpu.targets import build_target
    from weft.backends.webgpu.wgsl_types import Abilities

    for kernel in kernels(program, host().target):
        yield "cpu", kernel.name, canonical_llvm(llvm_text([kernel], VECTOR_LANES))
    for name, is_software in (("gpu", False), ("software", True)):
        limits = gpu_limits(is_software)
        abilities = Abilities(int64=True, float64=True, float16=True, subgroups=True)
        for kernel in kernels(program, build_target(limits, abilities)):
            code = emit(kernel, abilities).encode().decode()
            yield name, kernel.name, canonical_wgsl(code.replace(kernel.name, "kernel"))


def gpu_limits(is_software: bool) -> Any:
    from weft.backends.webgpu.adapters import Limits

    return Limits(
        max_buffer_bytes=1 << 31,
        max_binding_bytes=(1 << 31) - 4,
        max_bindings=16,
        max_groups=65535,
        max_lanes=1024,
        shared_bytes=32768 if is_software else 49152,
        offset_alignment=32,
        timestamps=True,
        is_software=is_software,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("-k", action="append", default=[])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--diff", action="store_true")
    options = parser.parse_args()
    if options.diff:
        before, after = (json.loads(Path(file).read_text()) for file in options.files)
        diff(before, after)
        return
    digests: dict[str, dict[str, list[str]]] = {}
    for model in load_catalog():
        if model.missing or (options.k and not any(part in model.name for part in options.k)):
            continue
        program = programs(str(model.file))
        entry: dict[str, list[str]] = {"program": [hashlib.sha256(str(program).encode()).hexdigest()[:16]]}
        for target, name, code in codes(program):
            digest = hashlib.sha256(code.encode()).hexdigest()[:16]
            entry.setdefault(target, []).append(f"{name.rpartition('_')[0]} {digest}")
            if options.texts:
                options.texts.mkdir(parents=True, exist_ok=True)
                (options.texts / f"{model.name}-{target}-{digest}.txt").write_text(f"{name}\n{code}")
        digests[model.name] = entry
        print(model.name, {target: len(codes) for target, codes in entry.items()}, flush=True)
        Path(options.files[0]).write_text(json.dumps(digests, indent=1))


def diff(before: dict[str, Any], after: dict[str, Any]) -> None:
    worse = 0
    for model, entry in after.items():
        for target in {*entry, *before.get(model, {})}:
            old, new = (sorted(code.split()[-1] for code in e.get(target, [])) for e in (before.get(model, {}), entry))
            if old != new:
                worse += 1
                missing = [code for code in before.get(model, {}).get(target, []) if code.split()[-1] not in new]
                come = [code for code in entry.get(target, []) if code.split()[-1] not in old]
                print(
                    f"{model} {target}: {len(missing)} of {len(old)} gone: {missing[:3]}; {len(come)} new: {come[:3]}"
                )
    print(f"{len(after)} models, {worse} lists of code differ")


if __name__ == "__main__":
    main()
