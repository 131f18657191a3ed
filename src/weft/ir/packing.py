"""Constants in the order in which kernels read them, packed on demand, so that few copies are alive at once."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, TypeGuard, Union

import numpy as np

from weft.errors import InternalError
from weft.ir.arrays import Array
from weft.threads import make_lock

RELEASE_INTERVAL = 2 << 20  # packed bytes after which the pages of the source are released


Pack = Callable[[Array], Iterable[Array]]


class AnonymousMap(mmap.mmap):
    """Anonymous memory: its pages must not be released, since no file backs them."""


class Packing:
    """An array to be packed from another one, which can be freed afterwards.

    `pack` yields consecutive chunks of the packed array. `array` is thread-safe.
    """

    __slots__ = ("_lock", "_packed", "_recipe", "dtype", "shape")

    def __init__(self, source: Array, pack: Pack, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._packed: Array | None = None
        self._recipe: tuple[Array, Pack] | None = (source, pack)
        self._lock = make_lock()

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """Return the packed array, and keep it."""
        with self._lock:
            if self._packed is None:
                packed, position = np.empty(prod(self.shape), self.dtype), 0
                for chunk in self.chunks():
                    packed[position : position + chunk.size] = chunk
                    position += chunk.size
                self._packed = packed.reshape(self.shape)
            return self._packed

    def discard(self) -> None:
        """Free the packed array; nothing may use it afterwards."""
        self._packed = self._recipe = None

    def chunks(self) -> Iterator[Array]:
        """Yield the packed array in chunks without keeping it; this works only once."""
        if self._packed is not None:
            yield self._packed.reshape(-1)
        elif self._recipe is None:
            raise InternalError("a packed constant was requested after its chunks had been consumed")
        else:
            (source, pack), self._recipe = self._recipe, None
            count = since = 0
            for chunk in pack(source):
                count, since = count + chunk.size, since + chunk.nbytes
                if since > RELEASE_INTERVAL:
                    release_array_pages(source)
                    since = 0
                yield np.ascontiguousarray(chunk, self.dtype).reshape(-1)
            release_array_pages(source)
            if count != prod(self.shape):
                raise InternalError(f"packing produced {count} elements for the shape {self.shape}")


Constant = Union[Array, Packing]


def load_constant(constant: Constant) -> Array:
    return constant.array() if isinstance(constant, Packing) else constant


def iterate_chunks(constant: Constant) -> Iterator[Array]:
    """Yield all elements in order, in chunks; for a packing this works only once."""
    return constant.chunks() if isinstance(constant, Packing) else iter((constant.reshape(-1),))


def _is_mapped_file(memory: object) -> TypeGuard[mmap.mmap]:
    return isinstance(memory, mmap.mmap) and not isinstance(memory, AnonymousMap)


def release_array_pages(array: Array) -> None:
    """Release the pages of an array in a mapped file; they are read again on the next access."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not array.size or not _is_mapped_file(mapped) or not hasattr(mapped, "madvise"):
        return
    extents = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    first = array.ctypes.data + sum(min(extent, 0) for extent in extents)
    end = array.ctypes.data + sum(max(extent, 0) for extent in extents) + array.itemsize
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    first_page = -(-(first - start) // mmap.PAGESIZE) * mmap.PAGESIZE  # the first and last page may hold other arrays
    length = (end - start - first_page) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, first_page, length)


def release_pages(view: memoryview) -> None:
    """Release all pages of a mapped file; they are read again on the next access."""
    if _is_mapped_file(view.obj) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)
