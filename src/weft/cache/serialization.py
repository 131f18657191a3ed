"""Serialize values of `weft.ir`, with the contents of arrays separate from the structure.

Reading runs no foreign code: only records of `weft.ir`, plain Python data and arrays are created.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Expr
from weft.ir.dtypes import DType, from_numpy
from weft.ir.kernel import Kernel
from weft.ir.packing import Constant, Packing, iterate_chunks
from weft.ir.work import Reference
from weft.records import dataclass

ALIGNMENT = 64
LEAST_SHARED = 4096  # bytes of an array that is looked for among those of another value
NO_ARRAYS = memoryview(b"")


class SharedArrays:
    """The arrays of another value, to which a value can refer instead of holding equal ones."""

    def __init__(self, memory: memoryview, arrays: Iterable[Constant]) -> None:
        """`arrays` that are views of `memory` can be shared."""
        start, self._by_size = np.frombuffer(memory, np.uint8).ctypes.data, dict[int, list[tuple[int, Array]]]()
        for array in arrays:
            offset = array.ctypes.data - start if isinstance(array, np.ndarray) else -1
            if array.nbytes >= LEAST_SHARED and 0 <= offset <= len(memory) - array.nbytes:
                content = np.frombuffer(memory, np.uint8, array.nbytes, offset)
                self._by_size.setdefault(array.nbytes, []).append((offset, content))

    def has_size(self, nbytes: int) -> bool:
        """Whether there are arrays of this size."""
        return nbytes in self._by_size

    def find(self, array: Array) -> int | None:
        """Return the offset of an array with the same bytes."""
        content = array.reshape(-1).view(np.uint8)
        for offset, candidate in self._by_size.get(array.nbytes, ()):
            if np.array_equal(candidate[:ALIGNMENT], content[:ALIGNMENT]) and np.array_equal(candidate, content):
                return offset
        return None


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """The structure of a value, and its arrays, which follow one another at multiples of ALIGNMENT.

    Arrays that still have to be packed can be read only once, which makes the original value unusable. `records` has
    the record classes in the structure, each with the names of its fields.
    """

    structure: bytes
    arrays: tuple[Constant, ...]
    records: Mapping[str, str] = field(default_factory=dict)

    @property
    def array_bytes(self) -> int:
        return sum(align_up(array.nbytes) for array in self.arrays)


def align_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def serialize(value: Any, shared: SharedArrays | None = None) -> SerializedValue:
    """Serialize a value; raise an exception if it contains anything but data.

    With `shared`, refer to equal arrays there. Arrays that may be equal are packed now, which makes the value unusable.
    """
    stream, outer_stream = io.BytesIO(), io.BytesIO()
    writer = _Writer(stream, shared_arrays=shared)
    writer.dump(value)
    outer_writer = _Writer(outer_stream, share=False)
    outer_writer.dump((tuple(writer.shared), stream.getvalue()))
    records = {_class_name(kind): _field_names(kind) for kind in writer.kinds | outer_writer.kinds}
    return SerializedValue(outer_stream.getvalue(), tuple(writer.arrays), records)


def restore(structure: bytes, arrays: memoryview, shared_arrays: memoryview = NO_ARRAYS) -> Any:
    """Restore a value; raise an exception if the structure is invalid. Arrays are views, also of `shared_arrays`."""
    shared, inner = _Reader(structure, (), arrays).load()
    return _Reader(inner, shared, arrays, shared_arrays).load()


def find_unknown_record(records: Mapping[str, str]) -> str | None:
    """Return the first record class that does not exist here or has other fields, or None."""
    for name, field_names in records.items():
        module, _, kind = name.rpartition(".")
        try:
            if _field_names(_allowed_class(module, kind)) != field_names:
                return name
        except (KeyError, ImportError, ValueError):
            return name
    return None


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _field_names(kind: type) -> str:
    return " ".join(each.name for each in fields(kind)) if is_dataclass(kind) else ""


def add_code(structure: bytes, objects: Sequence[bytes]) -> bytes:
    """Combine a structure and code into one block of bytes."""
    stream = io.BytesIO()
    _Writer(stream, share=False).dump((structure, tuple(objects)))
    return stream.getvalue()


def split_code(content: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Split a block into structure and code; raise an exception if it is invalid."""
    structure, objects = _Reader(content, (), memoryview(b"")).load()
    if not isinstance(structure, bytes) or not all(isinstance(code, bytes) for code in objects):
        raise ValueError("not a structure with code")
    return structure, objects


def serialize_kernel(kernel: Kernel) -> bytes:
    """Serialize a kernel with its body."""
    stream = io.BytesIO()
    _Writer(stream, share=False, bodies=True).dump(kernel)
    return stream.getvalue()


def deserialize_kernel(content: bytes) -> Kernel:
    """Restore a kernel; raise an exception if the content is invalid."""
    kernel = _Reader(content, (), memoryview(b"")).load()
    assert isinstance(kernel, Kernel)
    return kernel


class _Writer(pickle.Pickler):
    def __init__(
        self,
        stream: io.BytesIO,
        share: bool = True,
        bodies: bool = False,
        shared_arrays: SharedArrays | None = None,
    ) -> None:
        super().__init__(stream, protocol=5)
        self._shared_arrays = shared_arrays
        self._bodies = bodies  # whether to write the bodies of kernels
        self.shared: dict[Any, int] = {}  # values that are written once and referenced by number
        self._share = share
        self.arrays: list[Constant] = []
        self._references: dict[Any, Any] = {}
        self._alive: list[Array] = []  # so that no other array gets the address of one of these
        self._packings: list[Packing] = []  # so that no other packing gets the id of one of these
        self._end = 0
        self.kinds: set[type] = set()  # the record classes

    def persistent_id(self, value: Any) -> Any:
        if self._share and isinstance(value, (Expr, Reference)):
            return self.shared.setdefault(value, len(self.shared))
        if isinstance(value, Packing):
            return self._reference_packing(value)
        if isinstance(value, np.generic):
            return ("scalar", *self._reference_array(np.asarray(value))[1:])
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._reference_array(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        match value:
            case Kernel() if not self._bodies:  # its name identifies the compiled code
                self.kinds.add(Kernel)
                return Kernel, (value.name, value.buffers, value.parameters, value.lanes, ())
            case np.ndarray():
                return _objects, (value.shape, value.ravel().tolist())
            case Enum():
                self.kinds.add(type(value))
                return type(value), (value.value,)
        if is_dataclass(value) and not isinstance(value, type):
            self.kinds.add(type(value))
            return type(value), tuple(getattr(value, each.name) for each in fields(value))
        return NotImplemented

    def _reference_array(self, array: Array) -> Any:
        key = (array.ctypes.data, array.shape, array.strides, array.dtype)
        if key not in self._references:
            self._alive.append(array)
            kind = from_numpy(array.dtype).value
            self._references[key] = (*self._place(np.ascontiguousarray(array)), kind, array.shape)
        return self._references[key]

    def _reference_packing(self, packing: Packing) -> Any:
        if id(packing) not in self._references:
            kind = from_numpy(packing.dtype).value
            self._packings.append(packing)
            self._references[id(packing)] = (*self._place(packing), kind, packing.shape)
        return self._references[id(packing)]

    def _place(self, array: Constant) -> tuple[str, int]:
        """Find an equal array among shared ones, or append this one; return where it is, and its offset there."""
        if self._shared_arrays is not None and self._shared_arrays.has_size(array.nbytes):
            if isinstance(array, Packing):
                array = np.concatenate(list(iterate_chunks(array)))
            shared_offset = self._shared_arrays.find(array)
            if shared_offset is not None:
                return "shared", shared_offset
        offset = self._end
        self.arrays.append(array)
        self._end += align_up(array.nbytes)
        return "array", offset


class _Reader(pickle.Unpickler):
    def __init__(
        self,
        structure: bytes,
        shared: Sequence[Any],
        arrays: memoryview,
        shared_arrays: memoryview = NO_ARRAYS,
    ) -> None:
        super().__init__(io.BytesIO(structure))
        self._shared = shared
        self._arrays = arrays
        self._shared_arrays = shared_arrays

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _allowed_class(module, name)
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not a data class of weft") from None

    def persistent_load(self, identifier: Any) -> Any:
        if isinstance(identifier, int):
            return self._shared[identifier]
        kind, offset, dtype, shape = identifier
        numpy_dtype, count = DType(dtype).numpy, prod(shape)
        if not count:
            return np.zeros(shape, numpy_dtype)
        memory = self._shared_arrays if kind == "shared" else self._arrays
        array = np.frombuffer(memory, numpy_dtype, count, offset).reshape(shape)
        return array[()] if kind == "scalar" else array


def _objects(shape: tuple[int, ...], items: list[Any]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


_RECORDS = "weft.ir."  # the package whose records may be read
_OTHERS: dict[tuple[str, str], Any] = {(__name__, "_objects"): _objects, ("builtins", "complex"): complex}


@cache
def _allowed_class(module: str, name: str) -> Any:
    """Return a data class, an enum or an interned class of `weft.ir`; raise KeyError for every other name.

    The module is imported by its name, since a cached load imports only the modules of its records.
    """
    if (module, name) in _OTHERS:
        return _OTHERS[module, name]
    if not module.startswith(_RECORDS):
        raise KeyError(name)
    kind = vars(import_module(module))[name]
    is_record = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum) or "__reduce__" in vars(kind))
    if not is_record or kind.__module__ != module:
        raise KeyError(name)
    return kind
