"""Bind the sizes of a run and check whether a program applies to them, for every device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.program import Guard
from weft.ir.tensors import DeviceTensor
from weft.ir.types import Type


class GuardError(Exception):
    """The sizes of this run break an assumption that the program was traced under."""

    def __init__(self, guard: Guard, left: int, right: int) -> None:
        super().__init__(f"{guard} does not hold: {left} and {right}")
        self.guard = guard


def check_guards(guards: Sequence[Guard], sizes: Mapping[str, int]) -> tuple[Guard, ...]:
    """Check the guards whose sizes are known, and return the others."""
    pending = []
    for guard in guards:
        try:
            left, right = dims.evaluate(guard.left, sizes), dims.evaluate(guard.right, sizes)
        except KeyError:
            pending.append(guard)
            continue
        if left < right or (left != right and not guard.at_least):
            raise GuardError(guard, left, right)
    return tuple(pending)


def bind_sizes(type: Type, content: Any, sizes: dict[str, int], *, rebind: bool) -> None:
    """Set the symbols that are sizes of a type to the sizes of the content."""
    if type.shape is None or not isinstance(content, (np.ndarray, DeviceTensor)):
        return
    if len(type.shape) != content.ndim:
        raise InternalError(f"expected a tensor of type {type}, got one of shape {content.shape}")
    for dim, size in zip(type.shape, content.shape):
        symbol = dims.as_symbol(dim)
        if symbol is not None and (rebind or symbol.name not in sizes):
            if symbol.low is not None and size < symbol.low:
                raise GuardError(Guard(dim, symbol.low, "", at_least=True), size, symbol.low)
            if symbol.high is not None and size > symbol.high:
                raise GuardError(Guard(symbol.high, dim, "", at_least=True), symbol.high, size)
            sizes[symbol.name] = size


def in_order(content: Any) -> Any:
    """Return an array in row-major order; the rounding of numpy's sums depends on the memory layout."""
    if not isinstance(content, np.ndarray) or (content.flags.c_contiguous and content.flags.aligned):
        return content
    try:
        return np.array(content, order="C")
    except MemoryError:  # a broadcast array larger than memory: a step that needs all of it reports that
        return content


@lru_cache(maxsize=1)
def physical_memory() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return total
