"""Names of kernels: one of its own for each that differs, so that code can be kept and found by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.cache.hashing import sha256
from weft.ir.kernel import Kernel, fingerprint
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


class KernelNames:
    """Gives kernels their names one by one, each once."""

    def __init__(self) -> None:
        self.found: dict[int, Kernel] = {}  # by identity
        self._named: dict[str, Kernel] = {}  # by name
        self._seen: list[Kernel] = []  # so that no other gets their identity

    def named(self, kernel: Kernel) -> Kernel:
        """The kernel under a name that only those of the same code share, without idle parameters."""
        found = self.found.get(id(kernel))
        if found is None:
            text, lean = fingerprint(kernel)
            name = f"{kernel.name}_{sha256(text.encode()).hexdigest()[:16]}"
            found = self._named.get(name)
            if found is None:
                found = self._named[name] = replace(lean, name=name)
            self.found[id(kernel)] = found
            self._seen.append(kernel)
        return found


def named_kernels(sections: Sequence[Section], known: KernelNames | None = None) -> dict[int, Kernel]:
    """By identity, each kernel under a name that only kernels of the same code share; without idle parameters."""
    names = known or KernelNames()
    for launch in _launches(sections):
        names.named(launch.kernel)
    return names.found


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
