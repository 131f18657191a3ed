"""Import and export DLPack capsules of tensors on the host, without copies. numpy calls each deleter once.

onnxruntime exports booleans as uint8. numpy has no bfloat16 in DLPack: these elements pass through it as uint16.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.arrays import Array
from weft.ir.dlpack import DLTensor

HOST_TYPE = 1
_NAME = b"dltensor"
_UINT, _BFLOAT = 1, 4
_KINDS = {0: "i", _UINT: "u", 2: "f", 5: "c", 6: "b"}  # numpy's letters for DLPack's codes
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_is_valid = ctypes.pythonapi["PyCapsule_IsValid"]  # by item: functions read as attributes are shared with other modules
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_get_pointer.restype = c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class CapsuleTensor:
    """A capsule as an object with the DLPack protocol."""

    def __init__(self, capsule: Any) -> None:
        tensor = read_tensor(capsule)
        self._capsule = capsule
        self._device = int(tensor.device_type), int(tensor.device_id)
        self.shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        is_bfloat16 = (tensor.code, tensor.bits) == (_BFLOAT, 16)
        self.dtype = _BFLOAT16 if is_bfloat16 else np.dtype(f"{_KINDS.get(tensor.code, 'V')}{tensor.bits // 8}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def read_tensor(capsule: Any) -> DLTensor:
    """Read the description in a capsule; TypeError if it is not an unconsumed capsule."""
    if not _is_valid(capsule, _NAME):
        raise TypeError("from_dlpack takes an unused DLPack capsule (named 'dltensor')")
    return DLTensor.from_address(_get_pointer(capsule, _NAME))


def is_dlpack_uint8_tensor(dlpack: Any) -> bool:
    """Whether a capsule holds uint8, which may also be booleans."""
    if type(dlpack).__name__ != "PyCapsule":
        raise TypeError(f"is_dlpack_uint8_tensor takes a DLPack capsule, not a {type(dlpack).__name__}")
    if not _is_valid(dlpack, _NAME):
        return False
    tensor = read_tensor(dlpack)
    return (tensor.code, tensor.bits, tensor.lanes) == (_UINT, 8, 1)


def import_capsule(capsule: Any, is_bool: bool) -> Array:
    """Consume a capsule of host memory and view that memory as a writable array.

    Raise RuntimeError for elements that numpy lacks, or that are not in C order.
    """
    tensor = read_tensor(capsule)
    is_bfloat16 = (tensor.code, tensor.bits) == (_BFLOAT, 16)
    if is_bfloat16:
        tensor.code = _UINT
    try:
        owner = np.from_dlpack(CapsuleTensor(capsule))
    except (BufferError, RuntimeError, ValueError) as error:
        raise RuntimeError(f"OrtValue.from_dlpack: {error}") from error
    if not owner.flags.c_contiguous:
        raise RuntimeError("OrtValue.from_dlpack takes tensors in C order; make a contiguous copy first")
    if is_bfloat16:
        owner = owner.view(_BFLOAT16)
    elif is_bool and owner.dtype == np.uint8:
        owner = owner.view(np.bool_)
    return view_memory(owner.ctypes.data, owner.dtype, owner.shape, owner)


def export_capsule(array: Array, **keywords: Any) -> Any:
    """Make a capsule of an array. A read-only array is copied if the DLPack version cannot mark it as such."""
    words = array.view(np.uint8) if array.dtype == np.bool_ else array
    words = words.view(np.uint16) if array.dtype == _BFLOAT16 else words
    if not words.flags.writeable and keywords.get("max_version") is None:
        words = words.copy()
    capsule = words.__dlpack__(**keywords)
    if array.dtype == _BFLOAT16:
        read_tensor(capsule).code = _BFLOAT
    return capsule


def view_memory(address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: Any = None) -> Array:
    """View host memory at an address as a writable array that keeps `owner` alive."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    memory.owner = owner
    array: Array = np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)
    return array
