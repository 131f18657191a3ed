"""OrtMemoryInfo: how programs name memory. weft has no allocators, so it describes memory and chooses none."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.enumerations import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from weft.compat.onnxruntime.exceptions import incompatible
from weft.compat.onnxruntime.naming import STATE, known_as

_HOST_NAME = "Cpu"
_VENDORS = {_HOST_NAME: 0, "Cuda": 0x10DE, "CudaPinned": 0x10DE, "DML": 0x1414, "Cann": 0x19E5, "WebGPU_Buffer": 0}
"""The names that onnxruntime takes without a vendor, and the vendors that they mean."""


def _check(value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise incompatible("OrtMemoryInfo", kind.__name__, value)


@known_as(STATE)
class OrtMemoryInfo:
    """A description of memory."""

    __slots__ = ("_allocator_type", "_device_id", "_device_mem_type", "_device_vendor_id", "_mem_type", "_name")

    def __init__(self, name: Any, allocator_type: Any, device_id: Any, mem_type: Any) -> None:
        _check(name, str)
        _check(allocator_type, OrtAllocatorType)
        _check(mem_type, OrtMemType)
        if name not in _VENDORS:
            raise RuntimeError(f"{name!r} needs a vendor: use OrtMemoryInfo.create_v2")
        self._name = name
        self._allocator_type = allocator_type
        self._device_id = 0 if name == _HOST_NAME else int(device_id)
        self._mem_type = mem_type
        self._device_mem_type = OrtDeviceMemoryType.DEFAULT
        self._device_vendor_id = _VENDORS[name]

    @staticmethod
    def create_v2(
        name: Any,
        device_type: Any,
        vendor_id: Any,
        device_id: Any,
        device_mem_type: Any,
        alignment: Any,
        allocator_type: Any,
    ) -> OrtMemoryInfo:
        """Describe memory of any device. `alignment` is read by onnxruntime's allocators alone."""
        _check(device_type, OrtMemoryInfoDeviceType)
        _check(device_mem_type, OrtDeviceMemoryType)
        _check(alignment, int)
        is_shared = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        mem_type = OrtMemType.CPU_OUTPUT if is_shared else OrtMemType.DEFAULT
        info = OrtMemoryInfo(_HOST_NAME, allocator_type, 0, mem_type)
        _check(name, str)
        info._name = name
        info._device_id = int(device_id)
        info._device_mem_type = device_mem_type
        info._device_vendor_id = int(vendor_id)
        return info

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def allocator_type(self) -> Any:
        return self._allocator_type

    @property
    def device_id(self) -> int:
        return self._device_id

    @property
    def mem_type(self) -> Any:
        return self._mem_type

    @property
    def device_mem_type(self) -> Any:
        return self._device_mem_type

    @property
    def device_vendor_id(self) -> int:
        return self._device_vendor_id


HOST_MEMORY = OrtMemoryInfo(_HOST_NAME, OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
