"""Exchange tensors with other libraries on the same GPU, by DLPack and `__cuda_array_interface__`.

No bytes are copied in either direction. Streams order the work of both sides on the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import Structure, c_int64, c_void_p
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from weft.backends.resident.tensor import ResidentTensor
from weft.errors import DeviceError, InputError, WeftError
from weft.ir.dlpack import DLTensor

if TYPE_CHECKING:
    from weft.backends.cuda.gpu import CudaGpu

CUDA, CUDA_MANAGED = 2, 13  # DLPack device types
_LEGACY_STREAM = 1
_NOT_ORDERED = -1  # DLPack: the consumer asks for no synchronization
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}
_BFLOAT16 = 4
_NAMES = {0: "int", 1: "uint", 2: "float", 5: "complex"}


class _DLManagedTensor(Structure):
    _fields_ = (("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_python = ctypes.pythonapi  # capsules, which DLPack passes tensors in, have only a C API
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_python.PyCapsule_GetPointer.restype = c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME, _USED = b"dltensor", b"used_dltensor"


class CudaTensor(ResidentTensor):
    """A tensor on an NVIDIA GPU, which other libraries can use in place."""

    home: CudaGpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = self.place_on(self.home)
        if self.dtype.kind not in "iufbc":
            raise AttributeError(f"__cuda_array_interface__ does not support {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (place.buffer.address + place.offset if self.size else 0, True),
            "strides": None,
            "stream": self.home.stream.value,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.home.properties.number

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the tensor as a capsule that keeps it alive; later work on `stream` sees its elements."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} can only be exported in place, without a copy")
        stream = _LEGACY_STREAM if stream is None else stream
        if stream != _NOT_ORDERED:
            self.home.make_stream_wait(stream)
        return _export_capsule(self, stream)

    def write_into(self, target: Any) -> None:
        """Copy the elements into a tensor of another library; later work on the legacy stream sees them."""
        adopted = adopt(self.home, target)
        if adopted is None or (adopted.shape, adopted.dtype) != (self.shape, self.dtype):
            hint = "pass a tensor of the same shape and dtype on the same GPU"
            raise InputError(f"{self!r} does not fit into {adopted!r}", hint=hint)
        self.home.copy(self.place_on(self.home), adopted.place_on(self.home))
        self.home.make_stream_wait(_LEGACY_STREAM)


_exports: dict[int, Any] = {}  # objects that exported capsules need, by the address of their DLManagedTensor


def _release_export(address: int) -> None:
    """Release an export when its consumer is done; later work on the memory waits for the consumer's stream."""
    export = _exports.pop(address, None)
    if export is None:
        return
    *_, tensor, stream = export
    if stream != _NOT_ORDERED:
        with suppress(WeftError):  # the stream or the device may be gone
            tensor.home.wait_for_stream(stream)


def _release_capsule(address: int) -> None:
    """Release the export of a capsule that was never consumed."""
    capsule = ctypes.cast(address, ctypes.py_object)
    if _python.PyCapsule_IsValid(capsule, _NAME):
        _release_export(_python.PyCapsule_GetPointer(capsule, _NAME))


_RELEASE_EXPORT, _RELEASE_CAPSULE = _Deleter(_release_export), _Deleter(_release_capsule)


def _export_capsule(tensor: CudaTensor, stream: int) -> Any:
    place = tensor.place_on(tensor.home)
    code, bits = (
        (_BFLOAT16, 16)
        if tensor.dtype == ml_dtypes.bfloat16
        else (_CODES.get(tensor.dtype.kind, -1), 8 * tensor.dtype.itemsize)
    )
    if code < 0:
        raise BufferError(f"DLPack does not support {tensor.dtype}")
    shape = (c_int64 * max(tensor.ndim, 1))(*tensor.shape)
    managed = _DLManagedTensor()
    managed.tensor = DLTensor(
        place.buffer.address + place.offset if tensor.size else None,
        CUDA,
        tensor.home.properties.number,
        tensor.ndim,
        code,
        bits,
        1,
        ctypes.cast(shape, ctypes.POINTER(c_int64)),
        None,
        0,
    )
    managed.deleter = ctypes.cast(_RELEASE_EXPORT, c_void_p).value
    address = ctypes.addressof(managed)
    _exports[address] = managed, shape, tensor.shared(), stream
    return _python.PyCapsule_New(address, _NAME, ctypes.cast(_RELEASE_CAPSULE, c_void_p))


def adopt(gpu: CudaGpu, content: Any) -> CudaTensor | None:
    """Wrap another library's tensor on the GPU; None if it is not on a GPU, InputError if weft cannot use it."""
    if hasattr(content, "__dlpack_device__"):
        kind, number = content.__dlpack_device__()
        if int(kind) not in (CUDA, CUDA_MANAGED):
            return None
        if int(number) != gpu.properties.number:
            hint = f"move it there, or load the model with device='cuda:{int(number)}'"
            raise DeviceError(f"the tensor is on GPU {int(number)}, but the model is on {gpu.device}", hint=hint)
        if getattr(content, "requires_grad", False):
            content = content.detach()
        return _from_dlpack(gpu, content)
    if hasattr(content, "__cuda_array_interface__"):
        return _from_array_interface(gpu, content)
    return None


class _ImportedCapsule:
    """The content of a consumed capsule; its producer's deleter runs with the last reference."""

    def __init__(self, managed: _DLManagedTensor, address: int) -> None:
        self._managed = managed
        self._address = address

    def __del__(self) -> None:
        if hasattr(self, "_address") and self._managed.deleter:
            _Deleter(self._managed.deleter)(self._address)


def _from_dlpack(gpu: CudaGpu, content: Any) -> CudaTensor:
    capsule = content.__dlpack__(stream=gpu.stream.value)
    address = _python.PyCapsule_GetPointer(capsule, _NAME)
    managed = _DLManagedTensor.from_address(address)
    owner = _ImportedCapsule(managed, address)
    _python.PyCapsule_SetName(capsule, _USED)
    tensor = managed.tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    dtype = np.dtype(ml_dtypes.bfloat16) if tensor.code == _BFLOAT16 else _find_dtype(tensor.code, tensor.bits)
    _check_contiguous(shape, strides)
    return _wrap(gpu, (tensor.data or 0) + tensor.byte_offset, shape, dtype, (owner, content))


def _from_array_interface(gpu: CudaGpu, content: Any) -> CudaTensor:
    interface = content.__cuda_array_interface__
    dtype, shape, strides = np.dtype(interface["typestr"]), tuple(interface["shape"]), interface.get("strides")
    _check_contiguous(shape, None if strides is None else tuple(step // dtype.itemsize for step in strides))
    stream = interface.get("stream")
    gpu.wait_for_stream(_LEGACY_STREAM if stream is None else stream)
    return _wrap(gpu, interface["data"][0], shape, dtype, content)


def _find_dtype(code: int, bits: int) -> np.dtype[Any]:
    if code == _CODES["b"]:
        return np.dtype(np.bool_)
    if code not in _NAMES:
        problem = f"a tensor with DLPack type code {code} and {bits} bits, which weft does not support"
        raise InputError(problem, hint="convert it to another dtype first")
    return np.dtype(f"{_NAMES[code]}{bits}")


def _check_contiguous(shape: tuple[int, ...], strides: Sequence[int] | None) -> None:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides or ())):
        if size != 1 and stride != step and 0 not in shape:
            raise InputError("the GPU tensor is not contiguous", hint="pass tensor.contiguous()")
        step *= size


def _wrap(gpu: CudaGpu, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any) -> CudaTensor:
    base = address // 256 * 256
    size = prod(shape) * dtype.itemsize
    return CudaTensor(gpu, gpu.adopt_memory(base, size + address - base, owner), shape, dtype, address - base)
