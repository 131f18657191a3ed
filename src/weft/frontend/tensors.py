"""Convert TensorProto and SparseTensorProto to numpy arrays, for every ONNX element type.

Raw data becomes a read-only view of the file's private copy. Sub-byte types are unpacked, one element per byte. Strings
become object arrays of `str`; bytes that are not UTF-8 become lone surrogates (`surrogateescape`), so that the original
bytes can be restored.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod

import numpy as np
import onnx

from weft.errors import InvalidModelError, UnsupportedModelError, WeftError
from weft.frontend.storage import WeightStorage, find_extent, is_external, read_extent, read_external
from weft.ir.arrays import Array
from weft.ir.dtypes import DType

FLOAT_DATA, RAW_DATA, DOUBLE_DATA = 4, 9, 10  # TensorProto's field numbers
MAX_DENSE_BYTES = 2**31
"""Sparse tensors that need more bytes than this when dense are rejected."""

_RENAMED = {"float": "float32", "double": "float64"}
ELEMENT_TYPES = {
    number: DType(_RENAMED.get(name.lower(), name.lower()))
    for name, number in onnx.TensorProto.DataType.items()
    if _RENAMED.get(name.lower(), name.lower()) in DType.__members__
}
"""Element types by their ONNX numbers."""


def element_type(number: int) -> DType:
    """Return the element type with this ONNX number."""
    if number not in ELEMENT_TYPES:
        raise UnsupportedModelError(f"element type number {number} is not supported")
    return ELEMENT_TYPES[number]


def decode_text(content: bytes) -> str:
    """Decode UTF-8, keeping invalid bytes as lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


def read_tensor(storage: WeightStorage, tensor: onnx.TensorProto, name: str | None = None) -> Array:
    """Return a tensor as an array; `name` is for messages."""
    try:
        return _read_tensor(storage, tensor)
    except WeftError as error:
        raise error.at(value=name or tensor.name) from error.__cause__


def _read_tensor(storage: WeightStorage, tensor: onnx.TensorProto) -> Array:
    dtype = element_type(tensor.data_type)
    dims = tuple(tensor.dims)
    if any(dim < 0 for dim in dims):
        raise InvalidModelError(f"the tensor has a negative dim: {list(dims)}")
    if tensor.HasField("segment"):
        raise UnsupportedModelError("the tensor is stored in segments")
    count = prod(dims)
    content = _find_content(storage, tensor, dtype, count)
    if content is not None and dtype is DType.string:
        raise InvalidModelError("strings cannot be stored as raw data")
    array = _read_fields(tensor, dtype) if content is None else _from_bytes(content, dtype, count, dims)
    padded = _byte_size(dtype, count) * 8 // dtype.bits if dtype.bits else count
    if array.size not in (count, padded):
        raise _size_error(dims, f"{count} elements", f"{array.size}")
    array = array[:count].reshape(dims)
    array.flags.writeable = False
    return array


def _find_content(storage: WeightStorage, tensor: onnx.TensorProto, dtype: DType, count: int) -> memoryview | None:
    """Return the tensor's data if it is stored as plain bytes."""
    if is_external(tensor):
        extent = find_extent(storage, tensor)
        if extent is None:
            return read_external(storage, tensor, _byte_size(dtype, count))
        expected = {FLOAT_DATA: (DType.float32, DType.complex64), DOUBLE_DATA: (DType.float64, DType.complex128)}
        if extent.field != RAW_DATA and dtype not in expected[extent.field]:
            raise InvalidModelError(f"data of type {dtype} is stored in the wrong field of the tensor")
        return read_extent(storage, extent)
    return memoryview(tensor.raw_data) if tensor.raw_data else None


def _byte_size(dtype: DType, count: int) -> int:
    return (count * dtype.bits + 7) // 8


def _from_bytes(content: memoryview, dtype: DType, count: int, dims: tuple[int, ...]) -> Array:
    size = _byte_size(dtype, count)
    if len(content) != size:
        raise _size_error(dims, f"{size} bytes of {dtype}", f"{len(content)}")
    if dtype.bits < 8:
        return _unpack(np.frombuffer(content, np.uint8), dtype)
    if dtype is DType.bool:
        flags = np.frombuffer(content, np.uint8)
        return flags.view(np.bool_) if flags.size == 0 or flags.max() <= 1 else flags != 0
    array = np.frombuffer(content, dtype.numpy)
    return array if sys.byteorder == "little" else array.byteswap()


def to_raw_bytes(array: Array, dtype: DType) -> memoryview:
    """Return the elements in the layout of `raw_data`, as a view if the array has it already."""
    stored = np.ascontiguousarray(array)
    if dtype.bits < 8:
        bits = np.unpackbits(stored.reshape(-1, 1).view(np.uint8), axis=1, count=dtype.bits, bitorder="little")
        return np.packbits(bits, bitorder="little").data
    if sys.byteorder != "little":
        stored = stored.byteswap()
    return stored.reshape(-1).view(np.uint8).data


def encode_strings(array: Array) -> list[bytes]:
    """Encode the strings of an array as a file stores them."""
    return [text.encode("utf-8", "surrogateescape") for text in array.reshape(-1).tolist()]


def external_nbytes(tensor: onnx.TensorProto) -> int:
    """Return the size in bytes of a tensor's external data."""
    return _byte_size(element_type(tensor.data_type), prod(tensor.dims))


def _unpack(packed: Array, dtype: DType) -> Array:
    """Unpack sub-byte elements, which are packed from the low bits up, to one element per byte."""
    bits = dtype.bits
    if 8 % bits:  # elements cross byte boundaries
        stream = np.unpackbits(packed, bitorder="little")
        columns = stream[: stream.size // bits * bits].reshape(-1, bits)
        return np.packbits(columns, axis=1, bitorder="little").reshape(-1).view(dtype.numpy)
    numbers = np.arange(1 << bits, dtype=np.uint8)
    if dtype.is_float:
        values = numbers.view(dtype.numpy)
    elif dtype.is_signed:
        sign = 1 << (bits - 1)
        values = ((numbers ^ sign).astype(np.int8) - sign).astype(dtype.numpy)
    else:
        values = numbers.astype(dtype.numpy)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    table = values[(np.arange(256, dtype=np.uint8)[:, None] >> shifts) & ((1 << bits) - 1)]
    unpacked: Array = table[packed].reshape(-1)
    return unpacked


def _read_fields(tensor: onnx.TensorProto, dtype: DType) -> Array:
    """Return the data of a tensor that stores it in the field for its type."""
    match dtype:
        case DType.string:
            return _decode_strings(tensor.string_data)
        case DType.float32:
            return np.array(tensor.float_data, np.float32)
        case DType.float64:
            return np.array(tensor.double_data, np.float64)
        case DType.complex64 | DType.complex128:
            components = tensor.float_data if dtype is DType.complex64 else tensor.double_data
            if len(components) % 2:
                raise InvalidModelError("complex data has an odd number of components")
            return np.array(components, np.float32 if dtype is DType.complex64 else np.float64).view(dtype.numpy)
        case DType.int64:
            return np.array(tensor.int64_data, np.int64)
        case DType.uint64 | DType.uint32:
            return np.array(tensor.uint64_data, np.uint64).astype(dtype.numpy)
    return _from_int32(np.array(tensor.int32_data, np.int32), dtype)


def _from_int32(numbers: Array, dtype: DType) -> Array:
    """Convert int32_data, which holds small integers as numbers and other types as bits."""
    if dtype.bits < 8 and 8 % dtype.bits == 0:
        return _unpack(numbers.astype(np.uint8), dtype)
    if dtype.is_float:
        return numbers.astype(f"u{dtype.numpy.itemsize}").view(dtype.numpy)
    return numbers.astype(dtype.numpy)


def _decode_strings(content: Sequence[bytes]) -> Array:
    array = np.empty(len(content), object)
    array[:] = [decode_text(text) for text in content]
    return array


def read_sparse_tensor(storage: WeightStorage, sparse: onnx.SparseTensorProto) -> Array:
    """Return a sparse tensor as a dense array."""
    name = sparse.values.name
    values = read_tensor(storage, sparse.values, name)
    indices = read_tensor(storage, sparse.indices, f"{name} (indices)")
    dims = tuple(sparse.dims)
    if any(dim < 0 for dim in dims):
        raise InvalidModelError(f"the sparse tensor has a negative dim: {list(dims)}", value=name)
    count = prod(dims)
    if count * values.dtype.itemsize > MAX_DENSE_BYTES:
        raise UnsupportedModelError(
            f"the sparse tensor of dims {list(dims)} would need {count * values.dtype.itemsize} bytes when dense",
            hint=f"weft converts sparse tensors to dense ones of up to {MAX_DENSE_BYTES} bytes",
            value=name,
        )
    offsets = _linear_indices(indices, values, dims, name)
    if offsets.size and (offsets.min() < 0 or offsets.max() >= count):
        raise InvalidModelError(f"an index is outside of the sparse tensor's dims {list(dims)}", value=name)
    dense = np.full(count, "", object) if values.dtype == object else np.zeros(count, values.dtype)
    dense[offsets] = values
    dense = dense.reshape(dims)
    dense.flags.writeable = False
    return dense


def _linear_indices(indices: Array, values: Array, dims: tuple[int, ...], name: str) -> Array:
    if values.ndim != 1 or indices.dtype != np.int64:
        raise InvalidModelError("a sparse tensor needs a 1-D tensor of values and int64 indices", value=name)
    if indices.shape == (values.size,):
        return indices
    if indices.shape != (values.size, len(dims)):
        raise InvalidModelError(
            f"{values.size} sparse values of rank {len(dims)} have indices of shape {list(indices.shape)}", value=name
        )
    if indices.size and ((indices < 0).any() or (indices >= np.array(dims)).any()):
        raise InvalidModelError(f"an index is outside of the sparse tensor's dims {list(dims)}", value=name)
    strides = [prod(dims[position + 1 :]) for position in range(len(dims))]
    offsets: Array = indices @ np.array(strides, np.int64)
    return offsets


def _size_error(dims: tuple[int, ...], expected: str, actual: str) -> InvalidModelError:
    return InvalidModelError(
        f"the tensor's dims {list(dims)} need {expected}, but its data has {actual}",
        hint="the file is damaged or was exported incorrectly; fetch or export it again",
    )
