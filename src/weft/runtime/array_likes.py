"""Turn array-likes into numpy arrays: numbers and lists, buffers, tensors of other libraries."""

from __future__ import annotations

import array as buffers
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.tensors import DeviceTensor
from weft.runtime.foreign_tensors import as_numpy, is_foreign, is_of_torch

_BUFFERS = (memoryview, buffers.array, ctypes.Array)
_FILL = "fill them, for instance with array.filled(0)"
_BYTES = "convert it to numbers, for instance with np.frombuffer(content, np.uint8)"


def as_array(content: Any, dtype: DType, what: str, file: str) -> Array:
    """Convert an array-like; Python numbers and lists take this dtype. `what` names it in messages."""
    try:
        array = _convert(content, dtype, what, file)
    except InputError:
        raise
    except Exception as error:
        hint = "pass tensor.dequantize()" if getattr(content, "is_quantized", False) is True else None
        raise InputError(f"{what} cannot be read as an array of {dtype}: {error}", file=file, hint=hint) from error
    if not isinstance(array, np.ndarray):
        problem = f"{what} cannot be read as an array of {dtype}: it converts to a {type(array).__name__}"
        raise InputError(problem, file=file)
    if array.dtype.kind in "OUST" or (dtype is DType.string and is_textual(array)):
        return _to_strings(array, dtype, what, file)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _convert(content: Any, dtype: DType, what: str, file: str) -> Any:
    match content:
        case np.ndarray():
            if type(content) is not np.ndarray and np.ma.is_masked(content):
                raise InputError(f"{what} has masked elements, which ONNX lacks", file=file, hint=_FILL)
            return np.asarray(content)
        case np.generic():
            return np.asarray(content)
        case bytes() | bytearray() if dtype is not DType.string:
            raise InputError(f"{what} must be an array, not {type(content).__name__}", file=file, hint=_BYTES)
        case bool() | int() | float() | complex() | str() | bytes() | list() | tuple() | Number():
            return _from_python(content, dtype)
    if isinstance(content, type):
        raise InputError(f"{what} must be an array, not the class {content.__name__}", file=file)
    if is_foreign(content):
        return as_numpy(content)
    if isinstance(content, _BUFFERS) or hasattr(content, "__array_interface__"):
        return np.asarray(content)
    if isinstance(content, Sequence):
        return _from_python(list(content), dtype)
    kind = "nothing" if content is None else f"a {type(content).__name__}"
    hint = "pass array.toarray()" if hasattr(content, "toarray") else None
    raise InputError(f"{what} must be an array, not {kind}", file=file, hint=hint)


def _to_strings(array: Array, dtype: DType, what: str, file: str) -> Array:
    """Convert any numpy representation of strings to an array of `str` objects."""
    if array.dtype.kind == "O" and dtype is not DType.string:
        hint = "numpy stores it as Python objects; pass an array of numbers or nested lists of equal lengths"
        raise InputError(f"{what} must be {dtype}, not an array of Python objects", file=file, hint=hint)
    try:
        texts = [decode_bytes(item) for item in array.astype(object).flat]
    except ValueError as error:  # of bytes that are not UTF-8, or of a released memoryview
        raise InputError(f"{what} holds bytes that are not UTF-8: {error}", file=file) from error
    non_strings = [item for item in texts if not isinstance(item, str)]
    if non_strings:
        raise InputError(f"{what} must hold strings, not {short_repr(non_strings[0])}", file=file)
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [str(text) for text in texts]
    return result


def decode_bytes(item: Any) -> Any:
    """Decode bytes of any type as UTF-8; return anything else unchanged."""
    if isinstance(item, np.void) and item.dtype.names is None:
        item = item.tobytes()
    return bytes(item).decode() if isinstance(item, (bytes, bytearray, memoryview)) else item


def is_textual(array: Array) -> bool:
    """Whether the elements may be text: strings, bytes, Python objects, or bytes without a type such as `V4`."""
    return array.dtype.kind in "OUST" or (array.dtype.type is np.void and array.dtype.names is None)


def _from_python(content: Any, dtype: DType) -> Array:
    """Convert numbers or strings, and nested lists of them; ValueError if they do not fit the dtype."""
    try:
        array = np.array(content)
    except ValueError:
        raise ValueError("the nested lists have different lengths") from None
    if dtype is DType.string:
        if array.size and array.dtype.kind not in "US":
            raise ValueError("not all of it is strings")
        return np.array(content, dtype=object).reshape(array.shape)
    if array.dtype == object:
        array = _exact_numbers(array, dtype)
    if array.size and array.dtype.kind not in "biufcV":
        raise ValueError(f"{short_repr(next(_iterate_leaves(content)))} is not a number")
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise ValueError(f"complex numbers do not fit {dtype}")
    if array.dtype.kind == "f" and not (dtype.is_float or dtype.is_complex):
        raise ValueError(f"fractional numbers do not fit {dtype}")
    if dtype.is_integer and array.size:
        low, high = dtype.limits
        if not low <= int(array.min()) <= int(array.max()) <= high:
            raise ValueError(f"some numbers lie outside the range of {dtype}")
    return array.astype(dtype.numpy)


def _exact_numbers(array: Array, dtype: DType) -> Array:
    """Convert numbers that numpy has no type for: large integers, decimals and fractions."""
    for item in array.flat:
        if isinstance(item, (list, tuple)):
            raise ValueError("the nested lists have different lengths")
        if not isinstance(item, Number):
            raise ValueError(f"{short_repr(item)} is not a number")
        if dtype.is_integer or dtype is DType.bool:
            reason = "lie outside the range of" if isinstance(item, int) else "are not of a type that fits"
            raise ValueError(f"some numbers {reason} {dtype}")
    return array.astype(np.float64)


def _iterate_leaves(content: Any) -> Iterator[Any]:
    if isinstance(content, (list, tuple)):
        for item in content:
            yield from _iterate_leaves(item)
    else:
        yield content


def onnx_dtype(array: Array | DeviceTensor, what: str, file: str) -> DType:
    """Return the ONNX type of an array's elements; InputError if there is none."""
    try:
        return from_numpy(array.dtype)
    except UnsupportedModelError as error:
        names = array.dtype.names
        hint = "convert it with array.astype(...)" if not names else f"pass one of its fields: array[{names[0]!r}]"
        raise InputError(f"{what} has numpy dtype {array.dtype}, which ONNX lacks", file=file, hint=hint) from error


def conversion_hint(content: object, dtype: DType) -> str:
    """Say how to convert something to a dtype."""
    if dtype is DType.string:
        return "convert it, for instance with array.astype(object)"
    if is_of_torch(content):
        return f"convert it, for instance with tensor.to(torch.{dtype.numpy.name})"
    module = "np" if dtype.numpy.kind != "V" and dtype.numpy.isbuiltin == 1 else "ml_dtypes"
    return f"convert it, for instance with array.astype({module}.{dtype.numpy.name})"


def reshape_hint(array: Array | DeviceTensor, declared: Iterable[int | object]) -> str | None:
    """Suggest a common step that gives an array the declared shape, in which only integers are fixed."""
    sizes = tuple(declared)
    shape = array.shape
    if len(shape) == len(sizes) - 1 and _fits_shape((1, *shape), sizes):
        return "array[np.newaxis] has one dimension more, for a batch of one"
    if len(shape) == len(sizes) + 1 and shape[0] == 1 and _fits_shape(shape[1:], sizes):
        return "array[0] has one dimension less"
    if len(shape) == len(sizes) == 4 and not _fits_shape(shape, sizes):
        for order, layout in (((0, 3, 1, 2), "channels before rows"), ((0, 2, 3, 1), "channels last")):
            if _fits_shape([shape[axis] for axis in order], sizes):
                return f"array.transpose{order} puts {layout}"
    return None


def _fits_shape(shape: Sequence[int], sizes: Sequence[int | object]) -> bool:
    return all(not isinstance(size, int) or size == actual for actual, size in zip(shape, sizes, strict=True))
