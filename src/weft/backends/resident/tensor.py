"""Tensors that stay on a device with its own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.backends.resident.device import BufferSlice, MemoryDevice
from weft.errors import DeviceError
from weft.ir.arrays import Array
from weft.ir.tensors import DeviceTensor


class ResidentTensor(DeviceTensor):
    """A tensor at an offset in a buffer."""

    def __init__(
        self, home: MemoryDevice, buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0
    ) -> None:
        super().__init__(shape, dtype, home.device)
        self.home = home
        self._buffer: Any = buffer
        self._offset = offset

    def place_on(self, device: MemoryDevice) -> BufferSlice:
        """Return the tensor's slice; DeviceError for another device than its own."""
        self.check_usable()
        if device is not self.home:
            self.home.check()  # the same device may have been lost and opened again
            raise DeviceError(f"{self!r} cannot be used on {device.device}")
        return BufferSlice(self._buffer, self._offset, self.nbytes)

    def shared(self) -> ResidentTensor:
        """Return another tensor with the same memory, which is freed when both are released."""
        place = self.place_on(self.home)
        return type(self)(self.home, place.buffer, self.shape, self.dtype, place.offset)

    def reshape(self, shape: tuple[int, ...]) -> ResidentTensor:
        """Return a tensor of another shape with the same elements in the same memory."""
        place = self.place_on(self.home)
        return type(self)(self.home, place.buffer, shape, self.dtype, place.offset)

    def start_read(self) -> Callable[[], Array]:
        place = self.place_on(self.home)
        finish = self.home.start_read([(place.buffer, place.offset, place.size)])
        return lambda: finish()[0].view(self.dtype).reshape(self.shape)

    def _read(self) -> Array:
        place = self.place_on(self.home)
        (content,) = self.home.read([(place.buffer, place.offset, place.size)])
        return content.view(self.dtype).reshape(self.shape)

    def _release(self) -> None:
        self._buffer = None


def resident(home: MemoryDevice, buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ResidentTensor:
    """Make a tensor of the device's tensor class that owns its buffer."""
    kind: type[ResidentTensor] = getattr(home, "tensor_kind", ResidentTensor)
    return kind(home, buffer, shape, dtype)


def upload(device: MemoryDevice, array: Array) -> ResidentTensor:
    """Copy an array to the device."""
    buffer = device.unset_buffer(array.nbytes)
    if array.nbytes:
        device.write(buffer, 0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return resident(device, buffer, array.shape, array.dtype)


def read_all(values: Sequence[Any]) -> list[Any]:
    """Replace tensors by arrays; all tensors of a device are read at once."""
    contents = list(values)
    reads: dict[int, tuple[MemoryDevice, list[tuple[int, BufferSlice]]]] = {}
    for number, value in enumerate(values):
        if isinstance(value, ResidentTensor):
            place = value.place_on(value.home)
            if place.size:
                reads.setdefault(id(value.home), (value.home, []))[1].append((number, place))
            else:
                contents[number] = value.numpy()
    for home, places in reads.values():
        data = home.read([(place.buffer, place.offset, place.size) for _, place in places])
        for (number, _), content in zip(places, data, strict=True):
            contents[number] = content.view(values[number].dtype).reshape(values[number].shape)
    return contents
