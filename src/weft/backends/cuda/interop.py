"""Tensors that other libraries have on the same GPU, and weft's in their hands: DLPack and `__cuda_array_interface__`.

No bytes are copied in either direction. What another library does with memory and what weft does are ordered on the
GPU: each side tells the other on which stream it works.
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

CUDA, CUDA_MANAGED = 2, 13  # kinds of devices, as DLPack numbers them
_LEGACY_STREAM = 1
_NOT_ORDERED = -1  # what a consumer passes that wants no streams to wait for each other
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}
_BFLOAT16 = 4
_NAMES = {0: "int", 1: "uint", 2: "float", 5: "complex"}


class _DLManagedTensor(Structure):
    _fields_ = (("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_python.PyCapsule_GetPointer.restype = c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME, _USED = b"dltensor", b"used_dltensor"


class CudaTensor(ResidentTensor):
    """One on an NVIDIA GPU, which other libraries can use in place."""

    home: CudaGpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = self.place_on(self.home)
        if self.dtype.kind not in "iufbc":
            raise AttributeError(f"{self.dtype} has no name in this interface; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (place.buffer.address + place.offset if self.size else 0, True),
            "strides": None,
            "stream": self.home.stream.value,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.home.described.number

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule that holds on to this tensor; what `stream` is given next sees what was computed."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} can only be seen where it is")
        stream = _LEGACY_STREAM if stream is None else stream
        if stream != _NOT_ORDERED:
            self.home.before_stream(stream)
        return _exported(self, stream)

    def write_into(self, target: Any) -> None:
        """Write its elements into memory of another library's on the same GPU; what the usual stream is given next sees
        them.
        """
        taken = adopt(self.home, target)
        if taken is None or (taken.shape, taken.dtype) != (self.shape, self.dtype):
            raise InputError(f"{self!r} does not fit into {taken!r}", hint="give memory of the same shape and dtype")
        self.home.copy(self.place_on(self.home), taken.place_on(self.home))
        self.home.before_stream(_LEGACY_STREAM)


_held: dict[int, Any] = {}  # what exported capsules need, by the address of their structure


def _let_go(address: int) -> None:
    """The taker is done: what it still does on its stream comes before what is done here with the memory."""
    held = _held.pop(address, None)
    if held is None:
        return
    *_, tensor, stream = held
    if stream != _NOT_ORDERED:
        with suppress(WeftError):  # the stream, or the device, may be gone
            tensor.home.after_stream(stream)


def _let_go_of_capsule(capsule: int) -> None:
    """Of a capsule that nobody took."""
    taken = ctypes.cast(capsule, ctypes.py_object)
    if _python.PyCapsule_IsValid(taken, _NAME):
        _let_go(_python.PyCapsule_GetPointer(taken, _NAME))


_LET_GO, _LET_GO_OF_CAPSULE = _Deleter(_let_go), _Deleter(_let_go_of_capsule)


def _exported(tensor: CudaTensor, stream: int) -> Any:
    place = tensor.place_on(tensor.home)
    code, bits = (
        (_BFLOAT16, 16)
        if tensor.dtype == ml_dtypes.bfloat16
        else (_CODES.get(tensor.dtype.kind, -1), 8 * tensor.dtype.itemsize)
    )
    if code < 0:
        raise BufferError(f"DLPack has no name for {tensor.dtype}")
    shape = (c_int64 * max(tensor.ndim, 1))(*tensor.shape)
    made = _DLManagedTensor()
    made.tensor = DLTensor(
        place.buffer.address + place.offset if tensor.size else None,
        CUDA,
        tensor.home.described.number,
        tensor.ndim,
        code,
        bits,
        1,
        ctypes.cast(shape, ctypes.POINTER(c_int64)),
        None,
        0,
    )
    made.deleter = ctypes.cast(_LET_GO, c_void_p).value
    address = ctypes.addressof(made)
    _held[address] = made, shape, tensor.shared(), stream
    return _python.PyCapsule_New(address, _NAME, ctypes.cast(_LET_GO_OF_CAPSULE, c_void_p))


def adopt(gpu: CudaGpu, content: Any) -> CudaTensor | None:
    """A tensor that another library has on the GPU; None for what is none, InputError for what cannot be used there."""
    if hasattr(content, "__dlpack_device__"):
        kind, number = content.__dlpack_device__()
        if int(kind) not in (CUDA, CUDA_MANAGED):
            return None
        if int(number) != gpu.described.number:
            hint = f"move it there, or load the model with device='cuda:{int(number)}'"
            raise DeviceError(f"a tensor of GPU {int(number)} for a model on {gpu.device}", hint=hint)
        if getattr(content, "requires_grad", False):
            content = content.detach()
        return _from_dlpack(gpu, content)
    if hasattr(content, "__cuda_array_interface__"):
        return _from_interface(gpu, content)
    return None


class _Borrowed:
    """A capsule's content, which its maker hears of when it is let go of."""

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
    owner = _Borrowed(managed, address)
    _python.PyCapsule_SetName(capsule, _USED)
    given = managed.tensor
    shape = tuple(given.shape[axis] for axis in range(given.ndim))
    strides = tuple(given.strides[axis] for axis in range(given.ndim)) if given.strides else None
    dtype = np.dtype(ml_dtypes.bfloat16) if given.code == _BFLOAT16 else _dtype(given.code, given.bits)
    _check_order(shape, strides)
    return _tensor(gpu, (given.data or 0) + given.byte_offset, shape, dtype, (owner, content))


def _from_interface(gpu: CudaGpu, content: Any) -> CudaTensor:
    given = content.__cuda_array_interface__
    dtype, shape, strides = np.dtype(given["typestr"]), tuple(given["shape"]), given.get("strides")
    _check_order(shape, None if strides is None else tuple(step // dtype.itemsize for step in strides))
    stream = given.get("stream")
    gpu.after_stream(_LEGACY_STREAM if stream is None else stream)
    return _tensor(gpu, given["data"][0], shape, dtype, content)


def _dtype(code: int, bits: int) -> np.dtype[Any]:
    if code == _CODES["b"]:
        return np.dtype(np.bool_)
    if code not in _NAMES:
        raise InputError(f"a tensor of DLPack's type {code} with {bits} bits", hint="convert it first")
    return np.dtype(f"{_NAMES[code]}{bits}")


def _check_order(shape: tuple[int, ...], strides: Sequence[int] | None) -> None:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides or ())):
        if size != 1 and stride != step and 0 not in shape:
            raise InputError("a tensor on the GPU that is not contiguous", hint="pass tensor.contiguous()")
        step *= size


def _tensor(gpu: CudaGpu, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any) -> CudaTensor:
    base = address // 256 * 256
    size = prod(shape) * dtype.itemsize
    return CudaTensor(gpu, gpu.foreign(base, size + address - base, owner), shape, dtype, address - base)
