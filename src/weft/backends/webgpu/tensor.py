"""Tensors that stay on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.backends.webgpu.gpu import Buffer, Gpu
from weft.errors import DeviceError
from weft.ir.tensors import DeviceTensor

Array = np.ndarray[Any, Any]


class GpuTensor(DeviceTensor):
    """A tensor in a buffer of its own."""

    def __init__(self, gpu: Gpu, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(shape, dtype, gpu.device)
        self.gpu = gpu
        self._buffer: Buffer | None = buffer

    def buffer_on(self, gpu: Gpu) -> Buffer:
        """Its buffer, for a GPU that must be its own."""
        self.check_usable()
        if gpu is not self.gpu:
            self.gpu.check()  # it may be the same that was lost, and opened again
            raise DeviceError(f"{self!r} cannot be used on {gpu.device}")
        assert self._buffer is not None
        return self._buffer

    def shared(self) -> GpuTensor:
        """Another tensor with the same memory, which is freed when both are released."""
        return GpuTensor(self.gpu, self.buffer_on(self.gpu), self.shape, self.dtype)

    def _read(self) -> Array:
        (content,) = self.gpu.read([(self.buffer_on(self.gpu), 0, self.nbytes)])
        return content.view(self.dtype).reshape(self.shape)

    def _release(self) -> None:
        self._buffer = None


def upload(gpu: Gpu, array: Array) -> GpuTensor:
    """A tensor with an array's elements."""
    buffer = gpu.buffer(array.nbytes, "tensor")
    if array.nbytes:
        gpu.write(buffer, 0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return GpuTensor(gpu, buffer, array.shape, array.dtype)
