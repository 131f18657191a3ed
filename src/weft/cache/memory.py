"""Packed arrays in memory of this process, on their way to a file: whoever uses them waits for no disk.

They are filled from the first byte on, and somebody else writes them to a file as they come. What is written becomes
the file's at the same addresses: then it is memory that the system can have back, and that other processes share. So a
disk that keeps up bounds what is taken, and one that does not costs memory, but no time.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from hashlib import sha256
from threading import Condition
from typing import IO, Any

import numpy as np

from weft.cache import serialization
from weft.cache.digests import CHUNK, chunks, name_of
from weft.ir.packing import AnonymousMap, iterate_chunks

_FIXED = 0x10  # MAP_FIXED, which Python has no name for


class ArraysInMemory:
    """Room for arrays, one after the other as structures have them."""

    def __init__(self, size: int) -> None:
        """OSError where so many bytes cannot be had."""
        self.size = size
        private: dict[str, Any] = {}
        if hasattr(mmap, "MAP_PRIVATE"):
            private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = AnonymousMap(-1, max(size, 1), **private)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._filled = 0
        self._given_up = False
        self._change = Condition()

    @property
    def room(self) -> memoryview:
        """All of it, for whoever fills it."""
        return memoryview(self._memory)[: self.size]

    @property
    def view(self) -> memoryview:
        """The arrays, for those who use them."""
        return self.room.toreadonly()

    def fill(self, saved: serialization.SerializedValue, tell: Callable[[int, int], None] | None = None) -> None:
        """Pack the arrays of a value; they can be had only once. `tell` hears how many bytes of all are there."""
        whole, place = np.frombuffer(self.room, np.uint8), 0
        for constant in saved.arrays:
            end = place
            for piece in iterate_chunks(constant):
                content = piece.view(np.uint8)
                whole[end : end + content.size] = content
                end += content.size
                self.filled_to(end)
                if tell is not None:
                    tell(end, self.size)
            place += serialization.aligned(constant.nbytes)
        self.filled_to(self.size)

    def filled_to(self, place: int) -> None:
        """What lies before a place stays as it is."""
        with self._change:
            self._filled = place
            self._change.notify_all()

    def give_up(self) -> None:
        """They will not be filled."""
        with self._change:
            self._given_up = True
            self._change.notify_all()

    def move_to(self, file: IO[bytes], start: int) -> str:
        """Write all to a file as it is filled, and use it from there; gives the name of the content.

        OSError where the disk does not allow it, or nobody fills them: what was not written stays in memory.
        """
        parts = []
        for place in chunks(self.size):
            end = min(place + CHUNK, self.size)
            with self._change:
                while self._filled < end and not self._given_up:
                    self._change.wait()
                if self._given_up:
                    raise OSError("there is nothing to be written")
            piece = self.room[place:end]
            parts.append(sha256(piece).digest())
            file.write(piece)
            file.flush()
            self._map(file.fileno(), place, end, start + place)
        return name_of(self.size, parts)

    def _map(self, descriptor: int, place: int, end: int, start: int) -> None:
        """Have addresses be those of a file that holds the same bytes from `start` on, where that can be done."""
        if sys.platform != "linux" or start % mmap.PAGESIZE or place == end:
            return
        import ctypes

        system = ctypes.CDLL(None)
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        system.mmap.argtypes, system.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
        flags = mmap.MAP_PRIVATE | _FIXED  # in one step: who reads there meanwhile sees the one or the other
        system.mmap(self._address + place, end - place, mmap.PROT_READ, flags, descriptor, start)
