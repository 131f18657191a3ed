"""OrtMemoryInfo, a description of memory. weft has no allocators, so it selects nothing."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.enumerations import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from weft.compat.onnxruntime.exceptions import argument_error
from weft.compat.onnxruntime.naming import STATE, set_module

_HOST_NAME = "Cpu"
_VENDORS = {_HOST_NAME: 0, "Cuda": 0x10DE, "CudaPinned": 0x10DE, "DML": 0x1414, "Cann": 0x19E5, "WebGPU_Buffer": 0}
"""Names that onnxruntime takes without a vendor -> their vendors."""


def _check_type(value: Any, expected: Any) -> None:
    if not isinstance(value, expected):
        raise argument_error("OrtMemoryInfo", expected.__name__, value)


@set_module(STATE)
class OrtMemoryInfo:
    """A description of memory."""

    __slots__ = ("_allocator_type", "_device_id", "_device_mem_type", "_device_vendor_id", "_mem_type", "_name")

    def __init__(self, name: Any, allocator_type: Any, device_id: Any, mem_type: Any) -> None:
        _check_type(name, str)
        _check_type(allocator_type, OrtAllocatorType)
        _check_type(mem_type, OrtMemType)
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
        """Describe memory of any device. `alignment` has no effect: only onnxruntime's allocators read it."""
        _check_type(device_type, OrtMemoryInfoDeviceType)
        _check_type(device_mem_type, OrtDeviceMemoryType)
        _check_type(alignment, int)
        is_shared = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        mem_type = OrtMemType.CPU_OUTPUT if is_shared else OrtMemType.DEFAULT
        info = OrtMemoryInfo(_HOST_NAME, allocator_type, 0, mem_type)
        _check_type(name, str)
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
