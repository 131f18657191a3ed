"""Tensors that stay on a device between runs; each device subclasses `DeviceTensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.errors import DeviceError
from weft.ir.arrays import Array


class DeviceTensor:
    """A tensor on a device, from `run(..., keep=...)` or `weft.to_device`.

    It is immutable, and `run` takes it like an array. Its memory is freed with the last reference to it, or by
    `release`. `numpy()` copies it to the host, as numpy's functions do.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._released = False

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of its elements in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def numpy(self) -> Array:
        """Copy its elements to a new array."""
        self.check_usable()
        return self._read() if self.size else np.empty(self.shape, self.dtype)

    def start_read(self) -> Callable[[], Array]:
        """Begin to copy its elements; return a function that waits for the copy, but not for later work."""
        return self.numpy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an array, since another process cannot use this device memory."""
        return np.asarray, (self.numpy(),)

    def __copy__(self) -> DeviceTensor:
        return self.shared()

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        return self.shared()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"a tensor on {self.device} cannot become an array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def shared(self) -> DeviceTensor:
        """Return another tensor that shares this memory, which is freed when both are released."""
        raise NotImplementedError

    def release(self) -> None:
        """Free its memory, unless another tensor shares it; later use raises DeviceError."""
        if not self._released:
            self._released = True
            self._release()

    def check_usable(self) -> None:
        """Raise DeviceError if it was released."""
        if self._released:
            raise DeviceError(f"{self!r} was released", hint="release a tensor after its last use")

    def check_on(self, device: str) -> None:
        """Raise DeviceError if it was released, or is not on this device."""
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
    """A tensor of a device that uses host memory: an array that is never written to."""

    def __init__(self, array: Array, device: str) -> None:
        super().__init__(array.shape, array.dtype, device)
        self._array: Array | None = array

    @property
    def array(self) -> Array:
        """The array, without a copy."""
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
    """Wrap an array that has no other owner, in row-major order."""
    return HostTensor(np.ascontiguousarray(array).reshape(array.shape), device)


def owned(result: Any, others: Sequence[Any]) -> Any:
    """Copy a result if it is a view or is one of `others` (inputs and other results), so that the caller owns it."""
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
