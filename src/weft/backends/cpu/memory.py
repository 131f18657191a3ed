"""Memory for native code: the addresses of arrays, and the arenas of runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.backends.host.addresses import DATA_AT, ask_address, pointer_at
from weft.ir.arrays import Array
from weft.plan.limits import choose_capacity

ALIGNMENT = 64
_HEAD = ALIGNMENT  # bytes before an arena's start; the first four are the error flag
FIRST_REGION = 4  # words of a call before its regions: tape, pool, threads, times
IN_ORDER = 0x101  # numpy's flags for row-major and aligned
WRITABLE = IN_ORDER | 0x400  # and writable
ARENA_OVERHEAD = _HEAD + ALIGNMENT  # bytes of an arena's memory besides the arena
_MOST_SPARE = 16  # unused arenas to keep for later runs
word: Callable[[Array], int] = id if DATA_AT else ask_address  # how an array is passed to native code


def address_of_word(word: int) -> int:
    """Return the address of an array's elements from its `word`."""
    return pointer_at(word + DATA_AT).value or 0 if DATA_AT else word


def contiguous(array: Any) -> Array:
    """Return the array row-major and aligned, as kernels read it; copies only if it must."""
    if isinstance(array, np.ndarray) and array.flags.num & IN_ORDER == IN_ORDER:
        return array
    return np.array(array, order="C")


class Arena:
    """Memory for one run at a time: the arena, and before it an int32 that kernels set for an index out of range.

    `call` is the argument of the native runner: a tape and its regions (see tape.py).
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
        """Return the error flag and reset it."""
        errors = ctypes.c_int32.from_address(self.errors_at)
        flag, errors.value = errors.value, 0
        return flag


class Arenas:
    """The arenas that no run uses. A run takes one that is large enough and gives it back.

    `are_rounded`: arenas are up to 1/8 larger, so that few are allocated, and few pages touched for the first time,
    while sizes grow from run to run.
    """

    def __init__(self) -> None:
        self.are_rounded = False
        self._spare: list[Arena] = []  # a list's pop and append are atomic

    def round(self, size: int) -> int:
        """Return the bytes that are allocated for an arena."""
        return choose_capacity(size) if self.are_rounded else size

    def take(self, size: int, regions: int) -> Arena:
        """Take an arena of at least `size` bytes; a spare one that is too small is replaced."""
        try:
            arena = self._spare.pop()
        except IndexError:
            return Arena(self.round(size), regions)
        if arena.size >= size and arena.regions >= regions:
            return arena
        size, regions = max(size, arena.size), max(regions, arena.regions)
        del arena  # before the larger one is allocated
        return Arena(self.round(size), regions)

    def give(self, arena: Arena) -> None:
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(arena)
