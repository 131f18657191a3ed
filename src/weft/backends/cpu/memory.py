"""Memory that native code works on: where an array's elements lie, and the arenas of runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ALIGNMENT = 64
_HEAD = ALIGNMENT  # bytes before an arena's start; the first four are the errors
FIRST_REGION = 4  # words of a call before its regions: tape, pool, threads, times
IN_ORDER = 0x101  # of numpy's flags: row-major and aligned
WRITABLE = IN_ORDER | 0x400  # and that it may be written to
ARENA_OVERHEAD = _HEAD + ALIGNMENT  # bytes of an arena's memory beside the arena
_SPARE = 16  # arenas kept for runs to come

_pointer_at = ctypes.c_void_p.from_address


def _find_data() -> int:
    """Where in numpy's arrays the address of their elements is: after CPython's head of every object; 0: not known."""
    try:
        head = object.__basicsize__
        samples = [np.empty(size, dtype)[1:] for size in (1, 1000) for dtype in (np.uint8, np.float64)]
        found = all(_pointer_at(id(array) + head).value == array.ctypes.data for array in samples)
        return head if found and hasattr(ctypes, "pythonapi") else 0
    except (TypeError, ValueError):
        return 0


def _ask_address(array: Array) -> int:
    return array.ctypes.data


def _read_address(array: Array) -> int:
    return _pointer_at(id(array) + DATA_AT).value or 0


DATA_AT = _find_data()  # bytes into an array object, where native code can read its address by itself
address = _read_address if DATA_AT else _ask_address
word: Callable[[Array], int] = id if DATA_AT else _ask_address  # what native code is told of an array


def pointed_at(told: int) -> int:
    """The address of the elements of an array of which native code was told so."""
    return _pointer_at(told + DATA_AT).value or 0 if DATA_AT else told


def contiguous(array: Any) -> Array:
    """The array as kernels read it: elements in row-major order, each at a multiple of its size."""
    if isinstance(array, np.ndarray) and array.flags.num & IN_ORDER == IN_ORDER:
        return array
    return np.array(array, order="C")


class Arena:
    """Memory for one run at a time: the arena, before it an int32 that kernels set where the data is at fault.

    `call` is what the native runner is given: a tape, and the regions that it works on (see tape.py).
    """

    __slots__ = ("_memory", "call", "call_at", "errors_at", "regions", "size", "start")

    def __init__(self, size: int, regions: int) -> None:
        self._memory = np.empty(size + ARENA_OVERHEAD, np.uint8)
        self.errors_at = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.start = self.errors_at + _HEAD
        ctypes.c_int32.from_address(self.errors_at).value = 0
        self.size = size
        self.regions = regions
        self.call = (ctypes.c_uint64 * (FIRST_REGION + regions))()
        self.call_at = ctypes.addressof(self.call)
        self.call[FIRST_REGION + 1 : FIRST_REGION + 3] = [self.start, self.errors_at]

    def take_errors(self) -> int:
        """What kernels have set, which is 0 from now on."""
        errors = ctypes.c_int32.from_address(self.errors_at)
        found, errors.value = errors.value, 0
        return found


class Arenas:
    """Arenas that no run uses now. A run takes one that is large enough and gives it back."""

    def __init__(self) -> None:
        self._spare: list[Arena] = []  # a list's pop and append are atomic

    def take(self, size: int, regions: int) -> Arena:
        """An arena of at least so many bytes; a spare one that is too small makes way for a larger one."""
        try:
            arena = self._spare.pop()
        except IndexError:
            return Arena(size, regions)
        if arena.size >= size and arena.regions >= regions:
            return arena
        size, regions = max(size, arena.size), max(regions, arena.regions)
        del arena  # so that the two need not fit into memory at the same time
        return Arena(size, regions)

    def give(self, arena: Arena) -> None:
        if len(self._spare) < _SPARE:
            self._spare.append(arena)
