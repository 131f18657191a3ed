"""Tensors that stay on a device between runs; each device has its own kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.errors import DeviceError

Array = np.ndarray[Any, Any]


class DeviceTensor:
    """A tensor on a device, as `run` gives with `keep`, and `weft.to_device` makes.

    It is passed to `run` like an array, and never changes. Its memory is freed with the last reference to it, or by
    `release`. `numpy()` copies it to the host; numpy's functions do so too.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._released = False

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.size * self.dtype.itemsize

    @property
    def is_released(self) -> bool:
        """Whether its memory was freed by `release`."""
        return self._released

    def numpy(self) -> Array:
        """Its elements as a new array."""
        self.check_usable()
        return self._read() if self.size else np.empty(self.shape, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Its elements as an array, which runs take as well: another process has other devices."""
        return np.asarray, (self.numpy(),)

    def __copy__(self) -> DeviceTensor:
        return self.shared()

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        return self.shared()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"a tensor on {self.device} cannot be seen as an array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def shared(self) -> DeviceTensor:
        """Another tensor with the same memory, which is freed when both are released."""
        raise NotImplementedError

    def release(self) -> None:
        """Free its memory, or its share of it, now; to use it afterwards is an error."""
        if not self._released:
            self._released = True
            self._release()

    def check_usable(self) -> None:
        """Raise DeviceError where it was released."""
        if self._released:
            raise DeviceError(f"{self!r} was released", hint="release a tensor after its last use")

    def check_on(self, device: str) -> None:
        """Raise DeviceError where it was released, or is not on this device."""
        self.check_usable()
        if device != self.device:
            hint = f"pass tensor.numpy(), or make it with weft.to_device(array, {device!r})"
            raise DeviceError(f"{self!r} cannot be used on {device}", hint=hint)

    def __repr__(self) -> str:
        return f"<weft.DeviceTensor {self.dtype.name}[{', '.join(map(str, self.shape))}] on {self.device}>"

    def _read(self) -> Array:
        raise NotImplementedError

    def _release(self) -> None:
        raise NotImplementedError


class HostTensor(DeviceTensor):
    """One on a device that works on the host's memory: an array that nobody else writes to."""

    def __init__(self, array: Array, device: str) -> None:
        super().__init__(array.shape, array.dtype, device)
        self._array: Array | None = array

    @property
    def array(self) -> Array:
        """The array itself."""
        self.check_usable()
        assert self._array is not None
        return self._array

    def shared(self) -> HostTensor:
        return HostTensor(self.array, self.device)

    def _read(self) -> Array:
        return np.array(self.array)

    def _release(self) -> None:
        self._array = None


def host_tensor(array: Array, device: str) -> HostTensor:
    """One of an array that nobody else has, in the usual order of memory."""
    return HostTensor(np.ascontiguousarray(array).reshape(array.shape), device)


def owned(result: Any, others: Sequence[Any]) -> Any:
    """A result that belongs to the caller alone: no view of a constant, nor one of the inputs and other results."""
    if isinstance(result, list):
        return [item if type(item) is dict else owned(item, others) for item in result]
    if isinstance(result, DeviceTensor):
        return result.shared() if any(result is other for other in others) else result
    if not isinstance(result, np.ndarray):
        return result
    flags = result.flags
    if result.base is not None or not flags.owndata or not flags.writeable:
        return np.array(result)
    for other in others:
        if result is other:
            return np.array(result)
    return result
