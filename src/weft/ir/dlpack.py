"""The memory layout of DLPack's tensor descriptions."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p


class DLTensor(Structure):
    """The description of a tensor at the start of a capsule's content."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )
