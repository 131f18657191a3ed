"""The element types of the protocol, and tensors as JSON and as bytes."""

from __future__ import annotations

import struct
from itertools import chain
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from weft.errors import short_repr
from weft.ir.specs import TensorSpec
from weft.server.http import HttpError

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}
DATATYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_TYPES.items()}
_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}  # of JSON numbers that each kind of dtype takes
_BYTES_LENGTH = struct.Struct("<I")
Shape = tuple[int, ...]


def datatype_of(spec: TensorSpec) -> str | None:
    """Return the datatype of an input or output; None if the protocol has none for it."""
    return None if spec.dtype is None else DATATYPES.get(spec.dtype)


def check_shape(shape: Any, name: str) -> Shape:
    """Return the shape of an input; raise HttpError if it is not a list of sizes."""
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape):
        raise HttpError(400, f"input {name!r}: shape must be a list of sizes, not {short_repr(shape)}")
    if len(shape) > 32:
        raise HttpError(400, f"input {name!r}: a shape has at most 32 dimensions, and this one has {len(shape)}")
    return tuple(shape)


def find_dtype(datatype: Any, name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a datatype."""
    dtype = NUMPY_TYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        datatypes = ", ".join(NUMPY_TYPES)
        raise HttpError(
            400, f"input {name!r}: there is no datatype {short_repr(datatype)}; the datatypes are {datatypes}"
        )
    return dtype


# -- bytes -----------------------------------------------------------------------------------------------------------


def from_bytes(content: bytes | memoryview, datatype: str, shape: Shape, name: str) -> np.ndarray[Any, Any]:
    """Read a tensor from its bytes in row-major order, without a copy of numbers."""
    dtype = NUMPY_TYPES[datatype]
    if datatype == "BYTES":
        return _read_strings(content, shape, name)
    needed = prod(shape) * dtype.itemsize
    if len(content) != needed:
        place = f"input {name!r}, {datatype}{list(shape)}"
        raise HttpError(400, f"{place}: needs {needed} bytes, and {len(content)} came")
    if datatype == "BOOL":  # a byte other than 0 and 1 is no boolean of numpy
        return np.frombuffer(content, np.uint8).astype(np.bool_).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def to_bytes(array: np.ndarray[Any, Any]) -> bytes | memoryview:
    """Return the bytes of a tensor; numbers are not copied if they are contiguous."""
    if array.dtype == object or array.dtype.kind in "SU":
        parts = []
        for element in array.flat:
            text = element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogateescape")
            parts += [_BYTES_LENGTH.pack(len(text)), text]
        return b"".join(parts)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def _read_strings(content: bytes | memoryview, shape: Shape, name: str) -> np.ndarray[Any, Any]:
    count, position, size = prod(shape), 0, len(content)
    if count > size // 4:
        raise HttpError(400, f"input {name!r}, BYTES{list(shape)}: needs {count} strings, and {size} bytes came")
    texts = np.empty(count, object)
    for index in range(count):
        end = position + 4
        if end <= size:
            (length,) = _BYTES_LENGTH.unpack_from(content, position)
            position, end = end, end + length
        if end > size:
            problem = f"needs {count} strings, and its bytes end inside number {index + 1}"
            raise HttpError(400, f"input {name!r}, BYTES{list(shape)}: {problem}")
        texts[index] = _decode(bytes(content[position:end]))
        position = end
    if position != size:
        raise HttpError(400, f"input {name!r}, BYTES{list(shape)}: {size - position} bytes follow the last string")
    return texts.reshape(shape)


def _decode(text: bytes) -> str:
    """Return a string as models take it; bytes that are not UTF-8 come back unchanged in outputs."""
    return text.decode("utf-8", "surrogateescape")


# -- JSON ------------------------------------------------------------------------------------------------------------


def from_json(data: Any, datatype: str, shape: Shape, name: str) -> np.ndarray[Any, Any]:
    """Read a tensor from a flat or nested JSON array; a number must be exactly of its datatype's kind."""
    place = f"input {name!r}, {datatype}{list(shape)}"
    if not isinstance(data, list):
        raise HttpError(400, f"{place}: data must be an array, not {short_repr(data)}")
    dtype = NUMPY_TYPES[datatype]
    if datatype == "BYTES":
        array = _string_array(data, place)
    elif not data:
        array = np.empty(0, dtype)
    else:
        array = _number_array(data, dtype, datatype, place)
    if array.size != prod(shape):
        raise HttpError(400, f"{place}: needs {prod(shape)} elements, and data has {array.size}")
    return array.reshape(shape)


def _number_array(data: list[Any], dtype: np.dtype[Any], datatype: str, place: str) -> np.ndarray[Any, Any]:
    try:
        array = np.array(data)
        if dtype.kind in "iu" and array.dtype.kind in "fO":  # both signs and more than 63 bits
            array = np.array(data, object)
            if all(type(element) is int for element in array.flat):
                array = array.astype(dtype)
        elif dtype.kind in "fV" and array.dtype.kind == "O" and _element_types(data) <= {int, float}:
            array = np.array(data, np.float64)  # with integers of more than 64 bits
    except (ValueError, OverflowError):
        raise HttpError(400, f"{place}: data is not a regular array of numbers in range") from None
    if array.size == 0:
        return array.astype(dtype)
    kind = array.dtype.kind
    if dtype.kind == "b" and kind in "iu" and bool(((array == 0) | (array == 1)).all()):
        return array.astype(dtype)
    if kind not in _KINDS[dtype.kind] or (dtype.kind != "b" and bool in _element_types(data)):
        wrong = next((element for element in _flatten(data) if not _is_kind(element, dtype.kind)), None)
        raise HttpError(400, f"{place}: data has {short_repr(wrong)}, which is not a {datatype}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            wrong = array.min() if int(array.min()) < limits.min else array.max()
            raise HttpError(400, f"{place}: {wrong} is out of range")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _string_array(data: list[Any], place: str) -> np.ndarray[Any, Any]:
    flat = list(_flatten(data))
    if not all(isinstance(element, str) for element in flat):
        wrong = next(element for element in flat if not isinstance(element, str))
        raise HttpError(400, f"{place}: data has {short_repr(wrong)}, which is not a string")
    array = np.empty(len(flat), object)
    array[:] = flat
    return array


def _flatten(data: Any) -> Any:
    while isinstance(data, list) and any(isinstance(element, list) for element in data):
        data = list(chain.from_iterable(element if isinstance(element, list) else [element] for element in data))
    return data


def _element_types(data: list[Any]) -> set[type]:
    """Return the types of the elements of a flat or nested list; numpy would take booleans for numbers."""
    types = set(map(type, data))
    while list in types:
        data = list(chain.from_iterable(element if type(element) is list else (element,) for element in data))
        types = set(map(type, data))
    return types


def _is_kind(element: Any, kind: str) -> bool:
    if kind == "b":
        return isinstance(element, bool)
    return isinstance(element, int if kind in "iu" else (int, float)) and not isinstance(element, bool)


def to_json(array: np.ndarray[Any, Any], name: str) -> list[Any]:
    """Return the elements of a tensor as a flat list."""
    if array.dtype == object or array.dtype.kind in "SU":
        texts = [element if isinstance(element, str) else bytes(element).decode("utf-8") for element in array.flat]
        if any("\udc80" <= character <= "\udcff" for text in texts for character in text):
            raise HttpError(400, f"output {name!r} has strings that are not UTF-8; request it with binary_data")
        return texts
    if array.dtype == NUMPY_TYPES["BF16"]:
        array = array.astype(np.float32)
    elements: list[Any] = array.reshape(-1).tolist()
    return elements
