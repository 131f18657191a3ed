"""A program's constants on a device: in buffers of their own, uploaded once, piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from weft.backends.resident.device import Array, BufferSlice, MemoryDevice
from weft.errors import InternalError
from weft.ir.packing import forget_pages

MOST_TOGETHER = 1 << 28  # bytes of constants that share a buffer; a larger one has its own


class ResidentWeights:
    """Where the arrays lie that plans name by their addresses; an array is uploaded when it is first added."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self._arrays: dict[
            int, tuple[Array, BufferSlice]
        ] = {}  # by address; arrays are kept, so that addresses stay theirs
        self._empty: dict[int, BufferSlice] = {}
        self._starts: list[int] = []
        self.bytes = 0  # taken on the device

    def add(self, arrays: Iterable[Array]) -> None:
        """Upload those that are not there yet."""
        fresh: dict[int, Array] = {}
        for array in arrays:
            if not array.nbytes:
                self._empty.setdefault(array.ctypes.data, BufferSlice(self._device.buffer(0), 0, 0))
            elif array.ctypes.data not in self._arrays:
                fresh[array.ctypes.data] = array
        for together in _batches(fresh.values(), min(MOST_TOGETHER, self._device.largest_buffer)):
            self._upload(together)
        self._starts = sorted(self._arrays)

    def find(self, address: int) -> BufferSlice:
        """What lies at an address, from there to the end of its array."""
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            start = self._starts[number]
            array, place = self._arrays[start]
            if address - start < max(array.nbytes, 1):
                return BufferSlice(place.buffer, place.offset + address - start, place.size - (address - start))
        if address in self._empty:
            return self._empty[address]
        raise InternalError("a constant that is not on the device")

    def _upload(self, arrays: list[Array]) -> None:
        alignment = self._device.alignment
        offsets, size = [], 0
        for array in arrays:
            offsets.append(size)
            size += -(-array.nbytes // alignment) * alignment
        buffer = self._device.buffer(size, "weights")
        for array, offset in zip(arrays, offsets):
            self._device.write(buffer, offset, array.reshape(-1).view(np.uint8))
            forget_pages(array)
            self._arrays[array.ctypes.data] = array, BufferSlice(buffer, offset, array.nbytes)
        self.bytes += size


def _batches(arrays: Iterable[Array], most: int) -> list[list[Array]]:
    batches: list[list[Array]] = []
    left = 0
    for array in arrays:
        if not batches or array.nbytes > left:
            batches.append([])
            left = most
        batches[-1].append(array)
        left -= array.nbytes + 256
    return batches
