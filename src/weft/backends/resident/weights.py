"""A program's constants on a device: uploaded once, in separate buffers.

Constants never change. So programs with the same array in memory, such as those of a model that was loaded twice or
whose weights were set in part, share it on the device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from weft.backends.resident.device import BufferSlice, MemoryDevice
from weft.errors import InternalError
from weft.ir.arrays import Array
from weft.ir.packing import release_array_pages
from weft.records import dataclass

MOST_TOGETHER = 1 << 28  # bytes of constants in one buffer; a larger constant has its own


@dataclass(frozen=True, eq=False)
class UploadedArray:
    """An array and its slice on a device. Keeps the array alive, so that its address is not reused."""

    array: Array
    place: BufferSlice


_UPLOADED: WeakKeyDictionary[MemoryDevice, WeakValueDictionary[int, UploadedArray]] = WeakKeyDictionary()
"""The arrays on each device, by address."""


class ResidentWeights:
    """The slices of a program's constants, which plans name by their host addresses."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self._arrays: dict[int, UploadedArray] = {}  # by address
        self._empty: dict[int, BufferSlice] = {}
        self._starts: list[int] = []

    def add(self, arrays: Iterable[Array]) -> None:
        """Upload the arrays that are not on the device yet."""
        on_device = _UPLOADED.setdefault(self._device, WeakValueDictionary())
        fresh: dict[int, Array] = {}
        for array in arrays:
            address = array.ctypes.data
            if not array.nbytes:
                self._empty.setdefault(address, BufferSlice(self._device.buffer(0), 0, 0))
            elif address not in self._arrays:
                uploaded = on_device.get(address)
                if uploaded is not None and uploaded.array.nbytes == array.nbytes:
                    self._arrays[address] = uploaded
                else:
                    fresh[address] = array
        for together in _batches(fresh.values(), min(MOST_TOGETHER, self._device.largest_buffer)):
            for uploaded in self._upload(together):
                self._arrays[uploaded.array.ctypes.data] = on_device[uploaded.array.ctypes.data] = uploaded
        self._starts = sorted(self._arrays)

    def find(self, address: int) -> BufferSlice:
        """Find the slice from a host address to the end of its array."""
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            start = self._starts[number]
            uploaded = self._arrays[start]
            place, skipped = uploaded.place, address - start
            if skipped < max(uploaded.array.nbytes, 1):
                return BufferSlice(place.buffer, place.offset + skipped, place.size - skipped)
        if address in self._empty:
            return self._empty[address]
        raise InternalError("a constant is not on the device")

    def _upload(self, arrays: list[Array]) -> list[UploadedArray]:
        alignment = self._device.alignment
        offsets, size = [], 0
        for array in arrays:
            offsets.append(size)
            size += -(-array.nbytes // alignment) * alignment
        buffer = self._device.buffer(size, "weights")
        uploads = []
        for array, offset in zip(arrays, offsets):
            self._device.write(buffer, offset, array.reshape(-1).view(np.uint8))
            release_array_pages(array)
            uploads.append(UploadedArray(array, BufferSlice(buffer, offset, array.nbytes)))
        return uploads


def _batches(arrays: Iterable[Array], max_bytes: int) -> list[list[Array]]:
    batches: list[list[Array]] = []
    left = 0
    for array in arrays:
        if not batches or array.nbytes > left:
            batches.append([])
            left = max_bytes
        batches[-1].append(array)
        left -= array.nbytes + 256
    return batches
