"""Values of a feed: as weft takes them, and whether onnxruntime could make values of its own of them.

onnxruntime raises a RuntimeError for what it cannot convert, and InvalidArgument for what then does not fit the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.compat.onnxruntime.declared import plain_number
from weft.compat.onnxruntime.exceptions import status
from weft.compat.onnxruntime.values import OrtValue
from weft.ir.dtypes import DType
from weft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from weft.runtime.array_likes import decode_bytes, is_textual

_NUMBERS, _TEXTS = "biuf", "OUSV"  # kinds of numpy's dtypes
_WIDEST = 8  # bytes of an element
_INT64 = range(-(1 << 63), 1 << 63)


def take_input(type: Type | None, value: Any) -> Any:
    """Give weft what it takes for a value of a feed. `type` is None where the model has no such input."""
    if isinstance(value, OrtValue):
        return value.content
    if isinstance(value, (str, bytes, int, float, complex, np.generic)):
        raise RuntimeError(f"Unable to handle object of type {value.__class__}")
    match type:
        case TensorType(dtype=DType.string):
            if isinstance(value, (list, np.ndarray)):
                return _convert_texts(value)
        case MapType() if isinstance(value, dict):
            return _convert_map(type, value)
    return value


def find_unconvertible(types: Mapping[str, Type], feed: Mapping[str, Any]) -> str | None:
    """Name an input whose value onnxruntime could not convert."""
    return next((name for name, value in feed.items() if name in types and not _can_convert(types[name], value)), None)


def _can_convert(type: Type, value: Any) -> bool:
    while isinstance(type, OptionalType):
        type = type.element
    match value:
        case None | dict():
            return True
        case np.ndarray():
            return value.dtype.kind in _TEXTS or (value.dtype.kind in _NUMBERS and value.dtype.itemsize <= _WIDEST)
        case list() if isinstance(type, SequenceType):
            return all(_is_element(type.element, item) for item in value)
        case list():
            try:
                kind = np.array(value).dtype.kind
            except ValueError:  # of lists with unequal lengths
                return False
            return kind in (_TEXTS if isinstance(type, TensorType) and type.dtype is DType.string else _NUMBERS)
    return hasattr(value, "dtype") and hasattr(value, "shape")  # a tensor on a device


def _is_element(type: Type, item: Any) -> bool:
    """Tell whether a sequence of onnxruntime's can hold an item."""
    if not isinstance(type, TensorType):
        return isinstance(item, dict)
    return isinstance(item, np.ndarray) and (item.dtype == type.dtype.numpy or type.dtype is DType.string)


def _convert_map(type: MapType, value: dict[Any, Any]) -> dict[Any, Any]:
    """Check the keys and values of a map. Keys of the model's other kind are left to weft, which names the input."""
    kind = str if isinstance(next(iter(value), ""), str) else int
    for key in value:
        if not (isinstance(key, str) if kind is str else hasattr(key, "__index__") and int(key) in _INT64):
            raise RuntimeError(f"the keys of a map are {type.key}, not {key.__class__.__name__}")
    for item in value.values():
        if not hasattr(item, "__float__"):
            raise RuntimeError(f"the values of a map are numbers, not {item.__class__.__name__}")
        if isinstance(item, np.ndarray) and item.ndim:
            raise status("Fail", f"a value of a map is a number, not an array of shape {item.shape}")
    return {plain_number(key): plain_number(item) for key, item in value.items()}


def _convert_texts(value: Any) -> Any:
    """Convert the elements of an array or list to text as onnxruntime does; leave what it refuses unchanged."""
    array = np.asarray(value, dtype=None if isinstance(value, np.ndarray) else object)
    if not is_textual(array):
        return value
    texts = np.empty(array.size, dtype=object)
    texts[:] = [str(decode_bytes(item)) for item in array.ravel().tolist()]
    return texts.reshape(array.shape)
