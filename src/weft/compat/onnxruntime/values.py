"""OrtValue and OrtDevice: a tensor, sequence or map of the caller, on the host or on one of weft's devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from weft.compat.onnxruntime.declarations import format_dtype, format_type
from weft.compat.onnxruntime.dlpack import (
    HOST_TYPE,
    CapsuleTensor,
    export_capsule,
    import_capsule,
    read_tensor,
    view_memory,
)
from weft.compat.onnxruntime.exceptions import argument_error, unsupported_error
from weft.compat.onnxruntime.naming import COLLECTION, STATE, set_module
from weft.errors import DeviceError, WeftError
from weft.ir.dtypes import DType, from_number, from_numpy
from weft.ir.tensors import DeviceTensor, HostTensor
from weft.ir.types import Type
from weft.runtime import devices
from weft.runtime.devices import HOST
from weft.runtime.tensors import to_device

_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "dml": 1, "npu": 3, "cann": 3}
_INNER_TYPES = {**_TYPES, "dml": 4, "fpga": 2}  # as the static methods of the inner OrtDevice number them
_DLPACK_NAMES = {1: HOST, 2: "cuda", 13: "cuda"}
_NAMES = {0: "cpu", 1: "gpu", 2: "fpga", 3: "npu", 4: "dml"}  # of types without a vendor
_DEVICES = {"cuda": "cuda", "gpu": "cuda", "webgpu": "webgpu", "dml": "webgpu"}  # weft's kinds of devices
_ELEMENT_DTYPES = frozenset(dtype.numpy for dtype in DType)
_VENDORS = {"cuda": 4318, "dml": 5140, "cann": 6629}


@set_module(COLLECTION)
class OrtDeviceVendorId(IntEnum):
    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


def _inner_type(name: str) -> Any:
    def type_number() -> int:
        return _INNER_TYPES[name]

    return staticmethod(type_number)


@set_module(COLLECTION)
class OrtDevice:
    """A kind of device and its number. It is both onnxruntime's public class and its inner one, which takes numbers."""

    __slots__ = ("_id", "_memory", "_name", "_type", "_vendor")

    cpu, cuda, gpu, webgpu = (_inner_type(name) for name in ("cpu", "cuda", "gpu", "webgpu"))
    dml, fpga, npu, cann = (_inner_type(name) for name in ("dml", "fpga", "npu", "cann"))

    def __init__(self, *arguments: Any) -> None:
        """Copy a device, or take its type, memory type, vendor (which may be left out) and number."""
        if len(arguments) == 1 and isinstance(arguments[0], OrtDevice):
            for slot in self.__slots__:
                setattr(self, slot, getattr(arguments[0], slot))
            return
        if len(arguments) not in (3, 4) or not all(hasattr(number, "__index__") for number in arguments):
            raise argument_error("OrtDevice", "three or four integers", arguments)
        self._type, self._memory, *vendor, self._id = (int(number) for number in arguments)
        self._vendor: int = vendor[0] if vendor else 0
        by_vendor = {number: name for name, number in _VENDORS.items() if _TYPES[name] == self._type}
        self._name = by_vendor.get(self._vendor) or _NAMES.get(self._type, f"type {self._type}")

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        check_device(ort_device_name)
        vendor = _VENDORS.get(ort_device_name, 0) if vendor_id < 0 else int(vendor_id)
        device = OrtDevice(_TYPES[ort_device_name], 0, vendor, device_id)
        device._name = ort_device_name
        return device

    @staticmethod
    def default_memory() -> int:
        return 0

    def device_id(self) -> int:
        return self._id

    def _get_c_device(self) -> OrtDevice:
        return self

    def device_type(self) -> int:
        return self._type

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return self._memory

    vendor_id, mem_type = device_vendor_id, device_mem_type

    @property
    def name(self) -> str:
        """The name of the kind of device, as in `OrtValue`."""
        return self._name


def check_device(name: str) -> None:
    if name not in _TYPES:
        raise Exception(f"Unsupported device type: {name}")


def find_weft_device(name: str, device_id: int) -> str | None:
    """Return the weft device for a device of onnxruntime; None for the host."""
    check_device(name)
    if _TYPES[name] == _TYPES[HOST]:
        return None
    if name not in _DEVICES:
        raise unsupported_error(f"a tensor on {name!r}", "weft has no such device")
    kind, numbered = _DEVICES[name], f"{_DEVICES[name]}:{device_id}"
    try:
        return devices.choose(numbered if device_id else kind).name  # number 0 is the best device of its kind
    except DeviceError:
        return numbered


@set_module(COLLECTION)
class OrtValue:
    """An input or output of runs. A tensor on the host shares memory with the caller's array."""

    __slots__ = ("_content", "_source", "_type")

    def __init__(self, ortvalue: Any, numpy_obj: Any = None) -> None:
        if not isinstance(ortvalue, OrtValue):
            raise ValueError("`Provided ortvalue` needs to be of type `onnxruntime.capi._pybind_state.OrtValue`")
        self._content: Any = ortvalue._content
        self._type: Type | None = ortvalue._type
        self._source: Any = numpy_obj

    # -- creation -----------------------------------------------------------------------------------------------------

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: Any = HOST, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        name, number = _parse_device(device_type, device_id)
        check_device(name)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OUS":
            raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays")
        check_element_type(numpy_obj.dtype)
        return make_ortvalue(_move_to_device(np.require(numpy_obj, requirements="C"), name, number))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> Any:
        """View the bytes of an array as elements of this type, which must have the same size."""
        if not isinstance(data, np.ndarray):
            raise argument_error("ortvalue_from_numpy_with_onnx_type", "an array", data)
        dtype = element_dtype(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(f"elements of {data.dtype} and {dtype} have different sizes")
        return make_ortvalue(np.require(data, requirements="C").view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: Any = HOST,
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> Any:
        if memory_info is not None:
            raise unsupported_error("OrtValue.ortvalue_from_shape_and_type with memory_info", "weft has no allocators")
        name, number = _parse_device(device_type, device_id)
        check_device(name)
        dtype = element_dtype(element_type)
        check_element_type(dtype)
        if any(size < 0 for size in shape):
            raise RuntimeError(f"the shape {list(shape)} has a negative size")
        return make_ortvalue(_move_to_device(np.zeros(tuple(shape), dtype), name, number))

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @classmethod
    def ortvalue_from_shape_and_type_for_memory_info(cls, *_: Any) -> Any:
        raise unsupported_error("OrtValue.ortvalue_from_shape_and_type_for_memory_info", "weft has no allocators")

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> Any:
        """Wrap a tensor of another library, or its capsule, without a copy."""
        if isinstance(data, OrtValue):
            is_bool_tensor = data.data_type() == "tensor(bool)"
        if hasattr(data, "__dlpack_device__") and data.__dlpack_device__()[0] != HOST_TYPE:
            return make_ortvalue(data)
        capsule = data.__dlpack__() if hasattr(data, "__dlpack__") else data
        if read_tensor(capsule).device_type != HOST_TYPE:
            return make_ortvalue(CapsuleTensor(capsule))
        array = import_capsule(capsule, is_bool_tensor)
        check_element_type(array.dtype)
        return make_ortvalue(array)

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> Any:
        raise unsupported_error("OrtValue.ort_value_from_sparse_tensor", "weft's runs take dense tensors")

    # -- content ------------------------------------------------------------------------------------------------------

    def data_ptr(self) -> int:
        tensor = self._tensor("data_ptr")
        if isinstance(tensor, np.ndarray):
            return int(tensor.ctypes.data)
        interface = getattr(tensor, "__cuda_array_interface__", None)
        if interface is None:
            raise unsupported_error("OrtValue.data_ptr", f"tensors on {self.device_name()} have no address")
        return int(interface["data"][0])

    def device_name(self) -> str:
        tensor = self._tensor("device_name") if self.is_tensor() else None
        if isinstance(tensor, DeviceTensor):
            return tensor.device.partition(":")[0]
        if tensor is None or isinstance(tensor, np.ndarray):
            return HOST
        return _DLPACK_NAMES.get(self.__dlpack_device__()[0], "gpu")  # a tensor of another library

    def shape(self) -> list[int]:
        return list(self._tensor("shape").shape)

    def data_type(self) -> str:
        return format_type(self._type) if self._type is not None else format_dtype(self._dtype())

    def element_type(self) -> int:
        return self._dtype().number

    def tensor_size_in_bytes(self) -> int:
        return int(np.prod(self.shape(), dtype=np.int64)) * self._dtype().bits // 8

    def has_value(self) -> bool:
        return self._content is not None

    def is_tensor(self) -> bool:
        return not isinstance(self._content, (list, dict, type(None)))

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._content, list) and not any(isinstance(item, dict) for item in self._content)

    def as_sparse_tensor(self) -> Any:
        raise unsupported_error("OrtValue.as_sparse_tensor", "the value is a dense tensor")

    def numpy(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = to_host(self._tensor("numpy"))
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("conversion to another dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        tensor = self._shareable_tensor()
        if isinstance(tensor, np.ndarray):
            return export_capsule(tensor, **keywords)
        return tensor.__dlpack__() if stream is None else tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._shareable_tensor().__dlpack_device__()
        return int(kind), int(number)

    def _shareable_tensor(self) -> Any:
        tensor = self._tensor("__dlpack__")
        if not hasattr(tensor, "__dlpack_device__"):
            hint = "copy it to the host with numpy()"
            raise unsupported_error("OrtValue.__dlpack__", f"tensors on {self.device_name()} cannot be shared", hint)
        return tensor

    def update_inplace(self, data: Any) -> None:
        """Overwrite the elements with as many of `data`."""
        tensor = self._tensor("update_inplace")
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        array = np.asarray(data)
        if array.size != int(np.prod(tensor.shape, dtype=np.int64)):
            raise RuntimeError("The input size of numpy arrays does not match the size of the OrtValue.")
        if array.dtype != self._dtype().numpy:
            raise RuntimeError(f"OrtValue.update_inplace: expected elements of {self._dtype()}, not {array.dtype}")
        if isinstance(tensor, np.ndarray):
            np.copyto(tensor, array.reshape(tensor.shape))
        else:
            self.assign(_copy_to_device(array.reshape(tensor.shape), tensor.device))

    def assign(self, tensor: Any) -> None:
        """Take the elements of a tensor on the same device: into this value's memory if possible, else by reference."""
        if hasattr(tensor, "write_into"):
            tensor.write_into(self._content)
        else:
            self._content = tensor

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def content(self) -> Any:
        """The value as weft's runs take it."""
        return self._content

    def _dtype(self) -> DType:
        content = self._content
        while isinstance(content, list) and content:
            content = content[0]
        dtype = getattr(content, "dtype", None)
        if dtype is None:
            raise RuntimeError("OrtValue: only tensors have an element type")
        return dtype if isinstance(dtype, DType) else from_numpy(np.dtype(dtype))

    def _tensor(self, call: str) -> Any:
        if not self.is_tensor():
            raise RuntimeError(f"OrtValue.{call}: the value is not a tensor")
        content = self._content
        return content.array if isinstance(content, HostTensor) else content


def make_ortvalue(content: Any, type: Type | None = None) -> OrtValue:
    """Wrap an input or output of a run; `type` is None for tensors."""
    value = OrtValue.__new__(OrtValue)
    value._content = content
    value._type = type
    value._source = None
    return value


def to_host(content: Any) -> Any:
    """Copy a tensor on a device to an array; return anything else unchanged."""
    return content.numpy() if isinstance(content, DeviceTensor) else content


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """Return the dtype of an element type: ONNX's number of it, or anything that numpy takes as a dtype."""
    if isinstance(element_type, int):
        try:
            return from_number(element_type).numpy
        except WeftError as error:
            raise RuntimeError(f"unknown element type {element_type}") from error
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def check_element_type(dtype: np.dtype[Any]) -> None:
    """Raise RuntimeError for dtypes that OrtValues cannot have: text, times, complex numbers and wide floats."""
    if dtype.kind in "OUSMmc" or (dtype.kind in "fV" and dtype.newbyteorder("=") not in _ELEMENT_DTYPES):
        raise RuntimeError(f"OrtValues cannot have elements of {dtype}")


def _parse_device(device_type: Any, device_id: int) -> tuple[str, int]:
    if isinstance(device_type, OrtDevice):
        return device_type.name, device_type.device_id()
    return device_type, device_id


def _move_to_device(array: np.ndarray[Any, Any], name: str, number: int) -> Any:
    device = find_weft_device(name, number)
    return array if device is None else _copy_to_device(array, device)


def _copy_to_device(array: np.ndarray[Any, Any], device: str) -> Any:
    try:
        return to_device(array, device)
    except WeftError as error:
        raise RuntimeError(f"Can't allocate memory on the device: {error}") from error


@set_module(STATE, "OrtValueVector")
class OrtValueVector(list[OrtValue]):
    """A list of values."""

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        self.append(value if isinstance(value, OrtValue) else OrtValue.from_dlpack(value, is_bool_tensor))

    def push_back_batch(
        self,
        tensors: Sequence[Any],
        addresses: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[OrtDevice],
    ) -> None:
        """Add tensors of another library, by the addresses of their elements on the host."""
        for tensor, address, element_type, shape, device in zip(tensors, addresses, element_types, shapes, devices):
            if find_weft_device(device.name, device.device_id()) is not None:
                raise unsupported_error(
                    "OrtValueVector.push_back_batch", f"memory on {device.name!r}", hint="use push_back"
                )
            self.append(make_ortvalue(view_memory(address, element_dtype(element_type), tuple(shape), tensor)))

    def bool_tensor_indices(self) -> list[int]:
        return [index for index, value in enumerate(self) if value.data_type() == "tensor(bool)"]

    def dlpack_at(self, index: int) -> Any:
        return self[index].to_dlpack()

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        capsules = [value.to_dlpack() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def reserve(self, size: int) -> None:
        """Do nothing: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Do nothing: lists shrink by themselves."""
