"""Values of the ir as bytes and back: structure apart from the contents of arrays.

What is read can only be data: the loader makes instances of the ir's own records from their fields, plain Python data
and arrays, and refuses every other name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Expr
from weft.ir.dtypes import DType, from_numpy
from weft.ir.kernel import Kernel
from weft.ir.packing import Constant, Packing
from weft.ir.work import Reference
from weft.records import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """Structure, and arrays to be laid one after the other, each at a multiple of ALIGNMENT.

    Those that are still to be packed can be had only once: with them the value that was saved is used up. `records` are
    the kinds of records in the structure, each with the names of its fields.
    """

    structure: bytes
    arrays: tuple[Constant, ...]
    records: Mapping[str, str] = field(default_factory=dict)

    @property
    def array_bytes(self) -> int:
        return sum(aligned(array.nbytes) for array in self.arrays)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def serialize(value: Any) -> SerializedValue:
    """A value to be kept; an exception where it holds what cannot be."""
    stream, outer = io.BytesIO(), io.BytesIO()
    writer = _Writer(stream)
    writer.dump(value)
    outside = _Writer(outer, share=False)
    outside.dump((tuple(writer.shared), stream.getvalue()))
    kinds = writer.kinds | outside.kinds
    return SerializedValue(outer.getvalue(), tuple(writer.arrays), {_kind_name(kind): _form(kind) for kind in kinds})


def restore(structure: bytes, arrays: memoryview) -> Any:
    """The value again; its arrays are views. An exception of any kind where the structure is not of this making."""
    shared, inner = _Reader(structure, (), arrays).load()
    return _Reader(inner, shared, arrays).load()


def unknown_record(records: Mapping[str, str]) -> str | None:
    """The first kind of record that is not here, or has other fields here; None where all are as they were."""
    for name, form in records.items():
        module, _, kind = name.rpartition(".")
        try:
            if _form(_allowed(module, kind)) != form:
                return name
        except (KeyError, ImportError, ValueError):
            return name
    return None


def _kind_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _form(kind: type) -> str:
    """What the loader takes a record of this kind to be made of."""
    return " ".join(each.name for each in fields(kind)) if is_dataclass(kind) else ""


def with_code(structure: bytes, objects: Sequence[bytes]) -> bytes:
    """A structure together with code that was made apart from it."""
    stream = io.BytesIO()
    _Writer(stream, share=False).dump((structure, tuple(objects)))
    return stream.getvalue()


def without_code(content: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The structure and the code again; an exception of any kind where the content is not of this making."""
    structure, objects = _Reader(content, (), memoryview(b"")).load()
    if not isinstance(structure, bytes) or not all(isinstance(code, bytes) for code in objects):
        raise ValueError("there is no structure with its code")
    return structure, objects


def kernel_bytes(whole: Kernel) -> bytes:
    """A kernel with its body, for those who may have to compile it again."""
    stream = io.BytesIO()
    _Writer(stream, share=False, bodies=True).dump(whole)
    return stream.getvalue()


def kernel_of(content: bytes) -> Kernel:
    """The kernel again; an exception of any kind where the content is not of this making."""
    found = _Reader(content, (), memoryview(b"")).load()
    assert isinstance(found, Kernel)
    return found


class _Writer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, share: bool = True, bodies: bool = False) -> None:
        super().__init__(stream, protocol=5)
        self._bodies = bodies  # whether kernels keep theirs
        self.shared: dict[Any, int] = {}  # of equal ones, all but the first are saved as its number
        self._share = share
        self.arrays: list[Constant] = []
        self._places: dict[Any, Any] = {}
        self._kept: list[Array] = []
        self._end = 0
        self.kinds: set[type] = set()  # of records

    def persistent_id(self, value: Any) -> Any:
        if self._share and isinstance(value, (Expr, Reference)):
            return self.shared.setdefault(value, len(self.shared))
        if isinstance(value, Packing):
            return ("array", *self._place_packing(value))
        if isinstance(value, np.generic):
            return ("scalar", *self._place(np.asarray(value)))
        if isinstance(value, np.ndarray) and value.dtype != object:
            return ("array", *self._place(value))
        return None

    def reducer_override(self, value: Any) -> Any:
        match value:
            case Kernel() if not self._bodies:  # known by its name: its body is the code's business
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

    def _place(self, array: Array) -> Any:
        key = (array.ctypes.data, array.shape, array.strides, array.dtype)
        if key not in self._places:
            self._kept.append(array)  # so that no other array gets its address
            kind = from_numpy(array.dtype).value
            self._places[key] = (self._append(np.ascontiguousarray(array)), kind, array.shape)
        return self._places[key]

    def _place_packing(self, packing: Packing) -> Any:
        if id(packing) not in self._places:  # the list of arrays keeps it alive
            kind = from_numpy(packing.dtype).value
            self._places[id(packing)] = (self._append(packing), kind, packing.shape)
        return self._places[id(packing)]

    def _append(self, array: Constant) -> int:
        start = self._end
        self.arrays.append(array)
        self._end += aligned(array.nbytes)
        return start


class _Reader(pickle.Unpickler):
    def __init__(self, structure: bytes, shared: Sequence[Any], arrays: memoryview) -> None:
        super().__init__(io.BytesIO(structure))
        self._shared = shared
        self._arrays = arrays

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _allowed(module, name)
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no data") from None

    def persistent_load(self, identifier: Any) -> Any:
        if isinstance(identifier, int):
            return self._shared[identifier]
        kind, offset, dtype, shape = identifier
        count = 1
        for size in shape:
            count *= size
        numpy = DType(dtype).numpy
        if not count:
            return np.zeros(shape, numpy)
        array = np.frombuffer(self._arrays, numpy, count, offset).reshape(shape)
        return array[()] if kind == "scalar" else array


def _objects(shape: tuple[int, ...], items: list[Any]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


_RECORDS = "weft.ir."
"""The package whose records may be read: an entry brings in those of its modules that it needs."""
_OTHERS: dict[tuple[str, str], Any] = {(__name__, "_objects"): _objects, ("builtins", "complex"): complex}


@cache
def _allowed(module: str, name: str) -> Any:
    """A data class, an enum or what is interned, of the ir's own; KeyError for every other name."""
    if (module, name) in _OTHERS:
        return _OTHERS[module, name]
    if not module.startswith(_RECORDS):
        raise KeyError(name)
    kind = vars(import_module(module))[name]
    is_record = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum) or "__reduce__" in vars(kind))
    if not is_record or kind.__module__ != module:
        raise KeyError(name)
    return kind
