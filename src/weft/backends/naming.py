"""Names of kernels: one of its own for each that differs, so that code can be kept and found by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from weft.ir.kernel import Kernel, fingerprint, used_symbols
from weft.ir.work import Launch, NativeSection, Section, all_works, map_launches


def kernel_names(sections: Sequence[Section]) -> list[str]:
    """The kernels that sections launch, each once."""
    return list(dict.fromkeys(launch.kernel.name for launch in _launches(sections)))


def _launches(sections: Sequence[Section]) -> list[Launch]:
    found: list[Launch] = []
    for section in sections:
        if isinstance(section, NativeSection):
            found += [launch for work in all_works(section) for launch in work.launches]
        else:
            found += [launch for body in section.bodies for launch in _launches(body)]
    return found


def named_kernels(sections: Sequence[Section]) -> dict[int, Kernel]:
    """By identity, each kernel under a name that only kernels of the same code share; without idle parameters."""
    lean_kernels: dict[Kernel, Kernel] = {}
    found: dict[int, Kernel] = {}
    for launch in _launches(sections):
        kernel = launch.kernel
        if id(kernel) in found:
            continue
        if kernel not in lean_kernels:
            used = {symbol.name for symbol in used_symbols(kernel)}
            lean = replace(kernel, parameters=tuple(name for name in kernel.parameters if name in used))
            digest = sha256(fingerprint(lean).encode()).hexdigest()
            lean_kernels[kernel] = replace(lean, name=f"{kernel.name}_{digest[:16]}")
        found[id(kernel)] = lean_kernels[kernel]
    return found


def named(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Sections whose kernels have names of their own."""
    return named_sections(sections, named_kernels(sections))


def named_sections(sections: Sequence[Section], kernels: Mapping[int, Kernel]) -> tuple[Section, ...]:
    """Sections that launch the named kernels."""

    def renamed(launch: Launch) -> Launch:
        kernel = kernels[id(launch.kernel)]
        kept = tuple((name, value) for name, value in launch.parameters if name in kernel.parameters)
        return replace(launch, kernel=kernel, parameters=kept)

    return map_launches(sections, renamed)
