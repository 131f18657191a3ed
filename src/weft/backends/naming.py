"""Unique kernel names, by which compiled code is cached and found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from weft.ir.kernel import Kernel
from weft.ir.kernel_text import fingerprint
from weft.ir.work import Launch, Section, all_launches, map_launches


def kernel_names(sections: Sequence[Section]) -> list[str]:
    """List the names of the kernels that sections launch, each once."""
    return list(dict.fromkeys(launch.kernel.name for launch in all_launches(sections)))


class KernelNames:
    """Gives kernels unique names, one by one."""

    def __init__(self) -> None:
        self.kernels: dict[int, Kernel] = {}  # the renamed ones, by the id of the original
        self._by_name: dict[str, Kernel] = {}
        self._originals: list[Kernel] = []  # keeps their ids from being reused

    def rename(self, kernel: Kernel) -> Kernel:
        """Return the kernel without unused parameters, under a name shared only by kernels with the same code.

        A kernel without a body comes from the cache and has such a name.
        """
        renamed = self.kernels.get(id(kernel))
        if renamed is None and not kernel.body:
            self._originals.append(kernel)
            renamed = self.kernels[id(kernel)] = self._by_name.setdefault(kernel.name, kernel)
        if renamed is None:
            text, lean = fingerprint(kernel)
            name = f"{kernel.name}_{sha256(text.encode()).hexdigest()[:16]}"
            renamed = self._by_name.get(name)
            if renamed is None:
                renamed = self._by_name[name] = replace(lean, name=name)
            self.kernels[id(kernel)] = renamed
            self._originals.append(kernel)
        return renamed


def name_kernels(sections: Sequence[Section], names: KernelNames | None = None) -> dict[int, Kernel]:
    """Give the kernels of sections unique names; return them by the id of the original."""
    names = names or KernelNames()
    for launch in all_launches(sections):
        names.rename(launch.kernel)
    return names.kernels


def with_unique_names(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return sections whose kernels have unique names."""
    return replace_kernels(sections, name_kernels(sections))


def replace_kernels(sections: Sequence[Section], kernels: Mapping[int, Kernel]) -> tuple[Section, ...]:
    """Return sections that launch renamed kernels, given by the id of the original."""

    def replace_kernel(launch: Launch) -> Launch:
        kernel = kernels[id(launch.kernel)]
        parameters = tuple((name, value) for name, value in launch.parameters if name in kernel.parameters)
        return replace(launch, kernel=kernel, parameters=parameters)

    return map_launches(sections, replace_kernel)
