"""Packed arrays in memory that another thread writes to a file, so that their users do not wait for the disk.

Arrays are filled in order, and written as they are filled. Written parts are remapped to the file at the same
addresses, where the system can evict them and other processes share them. A fast disk thus limits the memory in use; a
slow one costs memory, but no time.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from hashlib import sha256
from threading import Condition
from typing import IO, Any

import numpy as np

from weft.cache import serialization
from weft.cache.digests import CHUNK, chunks, combine_digests
from weft.ir.packing import AnonymousMap, iterate_chunks

_MAP_FIXED = 0x10  # missing in Python's mmap


class ArraysInMemory:
    """Memory for arrays, one after the other at the offsets of their structure."""

    def __init__(self, size: int) -> None:
        """Reserve memory; raise OSError if there is not enough."""
        self.size = size
        private: dict[str, Any] = {}
        if hasattr(mmap, "MAP_PRIVATE"):
            private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = AnonymousMap(-1, max(size, 1), **private)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._filled = 0
        self._abandoned = False
        self._change = Condition()

    @property
    def writable(self) -> memoryview:
        """The memory, for the thread that fills it."""
        return memoryview(self._memory)[: self.size]

    @property
    def view(self) -> memoryview:
        """The arrays, read-only."""
        return self.writable.toreadonly()

    def fill(self, saved: serialization.SerializedValue, report: Callable[[int, int], None] | None = None) -> None:
        """Pack the arrays of a value, which is possible only once; `report` gets (bytes packed, total bytes)."""
        whole, offset = np.frombuffer(self.writable, np.uint8), 0
        for constant in saved.arrays:
            end = offset
            for chunk in iterate_chunks(constant):
                content = chunk.view(np.uint8)
                whole[end : end + content.size] = content
                end += content.size
                self.set_filled(end)
                if report is not None:
                    report(end, self.size)
            offset += serialization.align_up(constant.nbytes)
        self.set_filled(self.size)

    def set_filled(self, end: int) -> None:
        """Mark the bytes before `end` as final."""
        with self._change:
            self._filled = end
            self._change.notify_all()

    def abandon(self) -> None:
        """Tell `move_to` that the arrays will not be filled."""
        with self._change:
            self._abandoned = True
            self._change.notify_all()

    def move_to(self, file: IO[bytes], start: int) -> str:
        """Write the arrays to offset `start` of a file as they are filled, remap them to it, and return their digest.

        Raise OSError if writing fails or the arrays are abandoned; unwritten parts stay in memory.
        """
        digests = []
        for offset in chunks(self.size):
            end = min(offset + CHUNK, self.size)
            with self._change:
                while self._filled < end and not self._abandoned:
                    self._change.wait()
                if self._abandoned:
                    raise OSError("the arrays were abandoned")
            chunk = self.writable[offset:end]
            digests.append(sha256(chunk).digest())
            file.write(chunk)
            file.flush()
            self._remap(file.fileno(), offset, end, start + offset)
        return combine_digests(self.size, digests)

    def _remap(self, descriptor: int, offset: int, end: int, start: int) -> None:
        """Map the same bytes of a file, from `start` on, at the addresses of these (Linux only)."""
        if sys.platform != "linux" or start % mmap.PAGESIZE or offset == end:
            return
        system = ctypes.CDLL(None)
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        system.mmap.argtypes, system.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
        flags = mmap.MAP_PRIVATE | _MAP_FIXED  # atomic: concurrent readers see the old or the new mapping
        system.mmap(self._address + offset, end - offset, mmap.PROT_READ, flags, descriptor, start)
