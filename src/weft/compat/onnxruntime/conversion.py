"""Convert values between the forms that onnxruntime's `run` takes and returns, and weft's.

onnxruntime raises RuntimeError for inputs that it cannot convert, and InvalidArgument for converted inputs that do not
fit the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.compat.onnxruntime.exceptions import status_error
from weft.compat.onnxruntime.values import OrtValue
from weft.ir.dtypes import DType
from weft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from weft.runtime.array_likes import decode_bytes, is_textual

_NUMBER_KINDS, _TEXT_KINDS = "biuf", "OUSV"  # of numpy dtypes
_MAX_ITEMSIZE = 8
_INT64 = range(-(1 << 63), 1 << 63)


def convert_input(type: Type | None, value: Any) -> Any:
    """Convert an input to what weft takes. `type` is None where the model has no such input."""
    if isinstance(value, OrtValue):
        return value.content
    if isinstance(value, (str, bytes, int, float, complex, np.generic)):
        raise RuntimeError(f"Unable to handle object of type {value.__class__}")
    if isinstance(type, TensorType) and type.dtype is DType.string and isinstance(value, (list, np.ndarray)):
        return _convert_texts(value)
    if isinstance(type, MapType) and isinstance(value, dict):
        return _convert_map(type, value)
    return value


def convert_output(content: Any, type: Type) -> Any:
    """Convert an output to what onnxruntime returns: lists for sequences, dicts of plain Python values for maps."""
    match type:
        case OptionalType():
            return None if content is None else convert_output(content, type.element)
        case SequenceType():
            return [convert_output(item, type.element) for item in content]
        case MapType():
            return {_to_python(key): _to_python(value) for key, value in content.items()}
    return content


def find_unconvertible(types: Mapping[str, Type], feed: Mapping[str, Any]) -> str | None:
    """Return the name of an input whose value onnxruntime could not convert."""
    return next((name for name, value in feed.items() if name in types and not _can_convert(types[name], value)), None)


def _can_convert(type: Type, value: Any) -> bool:
    while isinstance(type, OptionalType):
        type = type.element
    match value:
        case None | dict():
            return True
        case np.ndarray():
            kind, itemsize = value.dtype.kind, value.dtype.itemsize
            return kind in _TEXT_KINDS or (kind in _NUMBER_KINDS and itemsize <= _MAX_ITEMSIZE)
        case list() if isinstance(type, SequenceType):
            return all(_is_element(type.element, item) for item in value)
        case list():
            try:
                kind = np.array(value).dtype.kind
            except ValueError:  # lists of unequal lengths
                return False
            is_text = isinstance(type, TensorType) and type.dtype is DType.string
            return kind in (_TEXT_KINDS if is_text else _NUMBER_KINDS)
    return hasattr(value, "dtype") and hasattr(value, "shape")  # a tensor on a device


def _is_element(type: Type, item: Any) -> bool:
    """Whether an onnxruntime sequence of this element type can hold an item."""
    if not isinstance(type, TensorType):
        return isinstance(item, dict)
    return isinstance(item, np.ndarray) and (item.dtype == type.dtype.numpy or type.dtype is DType.string)


def _convert_map(type: MapType, value: dict[Any, Any]) -> dict[Any, Any]:
    """Check and convert a map. Keys of a kind that the model does not take are left to weft, whose error names them."""
    kind = str if isinstance(next(iter(value), ""), str) else int
    for key in value:
        if not (isinstance(key, str) if kind is str else hasattr(key, "__index__") and int(key) in _INT64):
            raise RuntimeError(f"the keys of a map are {type.key}, not {key.__class__.__name__}")
    for item in value.values():
        if not hasattr(item, "__float__"):
            raise RuntimeError(f"the values of a map are numbers, not {item.__class__.__name__}")
        if isinstance(item, np.ndarray) and item.ndim:
            raise status_error("Fail", f"a value of a map is a number, not an array of shape {item.shape}")
    return {_to_python(key): _to_python(item) for key, item in value.items()}


def _convert_texts(value: Any) -> Any:
    """Convert the elements of an array or list to text as onnxruntime does; return what it rejects unchanged."""
    array = np.asarray(value, dtype=None if isinstance(value, np.ndarray) else object)
    if not is_textual(array):
        return value
    texts = np.empty(array.size, dtype=object)
    texts[:] = [str(decode_bytes(item)) for item in array.ravel().tolist()]
    return texts.reshape(array.shape)


def _to_python(value: Any) -> Any:
    """Convert a numpy scalar to a Python number; return anything else unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
