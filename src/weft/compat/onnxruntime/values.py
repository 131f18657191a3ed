"""OrtValue and OrtDevice: a tensor (or sequence, map) of a caller's, on the host or on one of weft's devices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from weft.compat.onnxruntime.declared import tensor_text, type_text
from weft.compat.onnxruntime.exceptions import refusal
from weft.compat.onnxruntime.naming import COLLECTION, STATE, known_as
from weft.errors import DeviceError, WeftError
from weft.ir.dtypes import DType, from_number, from_numpy
from weft.ir.tensors import DeviceTensor, HostTensor
from weft.ir.types import Type

HOST = "cpu"
_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "dml": 1, "fpga": 2, "npu": 3, "cann": 3}
_DEVICES = {"cuda": "cuda", "gpu": "cuda", "webgpu": "webgpu", "dml": "webgpu"}  # weft's name of the kind
_VENDORS = {"cuda": 4318, "dml": 5140, "cann": 6629}
_DLPACK_HOST = (1, 0)


@known_as(COLLECTION)
class OrtDeviceVendorId(IntEnum):
    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


@known_as(COLLECTION)
class OrtDevice:
    """A kind of device, and which one of its kind."""

    __slots__ = ("_id", "_name", "_vendor")

    def __init__(self, name: str, device_id: int, vendor_id: int) -> None:
        self._name = name
        self._id = device_id
        self._vendor = vendor_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        check_device(ort_device_name)
        vendor = _VENDORS.get(ort_device_name, 0) if vendor_id < 0 else int(vendor_id)
        return OrtDevice(ort_device_name, int(device_id), vendor)

    def device_id(self) -> int:
        return self._id

    def _get_c_device(self) -> OrtDevice:
        return self

    def device_type(self) -> int:
        return _TYPES[self._name]

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return 0


def check_device(name: str) -> None:
    if name not in _TYPES:
        raise Exception(f"Unsupported device type: {name}")


def weft_device(name: str, device_id: int) -> str | None:
    """The device of weft's that a name of onnxruntime's means; None for the host."""
    check_device(name)
    if _TYPES[name] == _TYPES[HOST]:
        return None
    if name not in _DEVICES:
        raise refusal(f"a tensor on {name!r}", "weft has no such device")
    from weft.runtime.devices import choose

    kind, exact = _DEVICES[name], f"{_DEVICES[name]}:{device_id}"
    try:
        return choose(exact if device_id else kind).name  # the first that is asked for is the best of its kind
    except DeviceError:
        return exact


@known_as(COLLECTION)
class OrtValue:
    """A value that runs take and give. On the host, a tensor is the caller's own array, not a copy."""

    __slots__ = ("_content", "_source", "_type")

    def __init__(self, ortvalue: Any, numpy_obj: Any = None) -> None:
        if not isinstance(ortvalue, OrtValue):
            raise ValueError("`Provided ortvalue` needs to be of type `onnxruntime.capi._pybind_state.OrtValue`")
        self._content: Any = ortvalue._content
        self._type: Type | None = ortvalue._type
        self._source: Any = numpy_obj

    # -- making them --------------------------------------------------------------------------------------------------

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: Any = HOST, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        name, number = _place(device_type, device_id)
        check_device(name)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OUS":
            raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays")
        return made(_on_device(np.require(numpy_obj, requirements="C"), name, number))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> Any:
        """The bytes of an array, as elements of this type, of the same size."""
        dtype = from_number(onnx_element_type).numpy
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(f"elements of {data.dtype} are not as large as those of {dtype}")
        return made(np.require(data, requirements="C").view(dtype))

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
            raise refusal("OrtValue.ortvalue_from_shape_and_type", "memory_info has no meaning here")
        name, number = _place(device_type, device_id)
        check_device(name)
        return made(_on_device(np.zeros(tuple(shape), element_dtype(element_type)), name, number))

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> Any:
        """A tensor of another library's, in place where it is on the host."""
        if not hasattr(data, "__dlpack_device__"):
            raise refusal("OrtValue.from_dlpack", f"of a {type(data).__name__}", hint="pass the tensor itself")
        if tuple(data.__dlpack_device__()) == _DLPACK_HOST:
            return made(np.from_dlpack(data))
        return made(data)

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> Any:
        raise refusal("OrtValue.ort_value_from_sparse_tensor", "models take dense tensors here")

    # -- looking at them ----------------------------------------------------------------------------------------------

    def data_ptr(self) -> int:
        tensor = self._tensor("data_ptr")
        if isinstance(tensor, np.ndarray):
            return int(tensor.ctypes.data)
        interface = getattr(tensor, "__cuda_array_interface__", None)
        if interface is None:
            raise refusal("OrtValue.data_ptr", f"tensors on {tensor.device} have no address here")
        return int(interface["data"][0])

    def device_name(self) -> str:
        tensor = self._tensor("device_name") if self.is_tensor() else None
        return tensor.device.partition(":")[0] if isinstance(tensor, DeviceTensor) else HOST

    def shape(self) -> list[int]:
        return list(self._tensor("shape").shape)

    def data_type(self) -> str:
        return type_text(self._type) if self._type is not None else tensor_text(self._dtype())

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
        raise refusal("OrtValue.as_sparse_tensor", "it is a dense tensor")

    def numpy(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = on_host(self._tensor("numpy"))
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("a tensor of another dtype is a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        tensor = self._tensor("__dlpack__")
        return tensor.__dlpack__() if stream is None else tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._tensor("__dlpack_device__").__dlpack_device__()
        return int(kind), int(number)

    def update_inplace(self, data: Any) -> None:
        """Give it other elements, as many as it has."""
        tensor = self._tensor("update_inplace")
        array = np.asarray(data)
        if array.size != int(np.prod(tensor.shape, dtype=np.int64)):
            raise RuntimeError("The input size of numpy arrays does not match the size of the OrtValue.")
        if array.dtype != self._dtype().numpy:
            raise refusal("OrtValue.update_inplace", f"elements of {array.dtype} for a tensor of {self._dtype()}")
        if isinstance(tensor, np.ndarray):
            np.copyto(tensor, array.reshape(tensor.shape))
        else:
            self.take(_placed(array.reshape(tensor.shape), tensor.device))

    def take(self, tensor: Any) -> None:
        """Have the elements of a tensor on the same device: in the memory that it has, where that can be written to."""
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
        """What weft takes in a run."""
        return self._content

    def _dtype(self) -> DType:
        content = self._content
        while isinstance(content, list) and content:
            content = content[0]
        dtype = getattr(content, "dtype", None)
        if dtype is None:
            raise RuntimeError("only tensors have an element type")
        return dtype if isinstance(dtype, DType) else from_numpy(np.dtype(dtype))

    def _tensor(self, call: str) -> Any:
        if not self.is_tensor():
            raise RuntimeError(f"OrtValue.{call}: only of values that are tensors")
        content = self._content
        return content.array if isinstance(content, HostTensor) else content


def made(content: Any, type: Type | None = None) -> OrtValue:
    """A value of what a run gave or takes; its type where that is no tensor's."""
    value = OrtValue.__new__(OrtValue)
    value._content = content
    value._type = type
    value._source = None
    return value


def on_host(content: Any) -> Any:
    """A tensor as an array; what is none stays as it is."""
    return content.numpy() if isinstance(content, DeviceTensor) else content


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """What numpy calls an element type: by ONNX's number, or as numpy takes it."""
    if isinstance(element_type, int):
        return from_number(element_type).numpy
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def array_at(address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The caller's memory at an address of the host, as an array."""
    size = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    if size == 0:
        return np.empty(tuple(shape), dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    array: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8).view(dtype).reshape(tuple(shape))
    return array


def _place(device_type: Any, device_id: int) -> tuple[str, int]:
    if isinstance(device_type, OrtDevice):
        return device_type._name, device_type._id
    return device_type, device_id


def _on_device(array: np.ndarray[Any, Any], name: str, number: int) -> Any:
    device = weft_device(name, number)
    return array if device is None else _placed(array, device)


def _placed(array: np.ndarray[Any, Any], device: str) -> Any:
    from weft.runtime.tensors import to_device

    try:
        return to_device(array, device)
    except WeftError as error:
        raise RuntimeError(f"Can't allocate memory on the device: {error}") from error


@known_as(STATE, "OrtValueVector")
class OrtValueVector(list[OrtValue]):
    """Several values."""

    def push_back(self, value: OrtValue) -> None:
        self.append(value)
