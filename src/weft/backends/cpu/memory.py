"""Memory that native code works on: where an array's elements lie, and the arenas of runs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ALIGNMENT = 64
_HEAD = ALIGNMENT  # bytes before an arena's start; the first four are the errors
_SPARE = 16  # arenas kept for runs to come

_pointer_at = ctypes.c_void_p.from_address


def _read_address(array: Array) -> int:
    """The first field of numpy's struct, after CPython's head of every object."""
    return _pointer_at(id(array) + object.__basicsize__).value or 0


def _ask_address(array: Array) -> int:
    return array.ctypes.data


def _is_readable() -> bool:
    """Whether this Python and this numpy lay arrays out as expected."""
    try:
        samples = [np.empty(size, dtype) for size in (1, 1000) for dtype in (np.uint8, np.float64)]
        return all(_read_address(array[1:]) == array[1:].ctypes.data for array in samples if object.__basicsize__)
    except (TypeError, ValueError):
        return False


address = _read_address if hasattr(ctypes, "pythonapi") and _is_readable() else _ask_address


def contiguous(array: Any) -> Array:
    """The array as kernels read it: elements in row-major order, each at a multiple of its size."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


class Arena:
    """Memory for one run at a time, with an int32 before it that kernels set where the data is at fault."""

    __slots__ = ("_memory", "errors", "errors_at", "size", "start")

    def __init__(self, size: int) -> None:
        self._memory = np.empty(_HEAD + size + ALIGNMENT, np.uint8)
        self.errors_at = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.start = self.errors_at + _HEAD
        self.size = size
        self.errors = ctypes.c_int32.from_address(self.errors_at)
        self.errors.value = 0


class Arenas:
    """Arenas that no run uses now. A run takes one that is large enough and gives it back."""

    def __init__(self) -> None:
        self._spare: list[Arena] = []  # a list's pop and append are atomic

    def take(self, size: int) -> Arena:
        """An arena of at least so many bytes; a spare one that is too small makes way for a larger one."""
        try:
            arena = self._spare.pop()
        except IndexError:
            return Arena(size)
        return arena if arena.size >= size else Arena(size)

    def give(self, arena: Arena) -> None:
        if len(self._spare) < _SPARE:
            self._spare.append(arena)
