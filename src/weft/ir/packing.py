"""Constants as kernels read them, packed when they are needed: one at a time, so that few copies are alive at once."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, TypeGuard, Union

import numpy as np

from weft.errors import InternalError
from weft.threads import lock

Array = np.ndarray[Any, Any]
FORGOTTEN = 2 << 20  # packed bytes after which those that they were made of are let go of


Pack = Callable[[Array], Iterable[Array]]


class AnonymousMap(mmap.mmap):
    """Memory that no file has: its pages would be lost, and are not let go of."""


class Packing:
    """An array to be made of another one, which can go as soon as that is done.

    What packs gives pieces whose elements follow each other. Several threads may ask for the array.
    """

    __slots__ = ("_lock", "_made", "_recipe", "dtype", "shape")

    def __init__(self, source: Array, pack: Pack, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._made: Array | None = None
        self._recipe: tuple[Array, Pack] | None = (source, pack)
        self._lock = lock()

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """The packed array, which is kept from now on."""
        with self._lock:
            if self._made is None:
                made, place = np.empty(prod(self.shape), self.dtype), 0
                for piece in self.pieces():
                    made[place : place + piece.size] = piece
                    place += piece.size
                self._made = made.reshape(self.shape)
            return self._made

    def pieces(self) -> Iterator[Array]:
        """The packed array bit by bit, for whoever stores it elsewhere; it cannot be had again."""
        if self._made is not None:
            yield self._made.reshape(-1)
        elif self._recipe is None:
            raise InternalError("a packed constant was asked for after it had been given away")
        else:
            (source, pack), self._recipe = self._recipe, None
            count = since = 0
            for piece in pack(source):
                count, since = count + piece.size, since + piece.nbytes
                if since > FORGOTTEN:
                    forget_pages(source)
                    since = 0
                yield np.ascontiguousarray(piece, self.dtype).reshape(-1)
            forget_pages(source)
            if count != prod(self.shape):
                raise InternalError(f"packing gave {count} elements for the shape {self.shape}")


Constant = Union[Array, Packing]


def array_of(constant: Constant) -> Array:
    return constant.array() if isinstance(constant, Packing) else constant


def pieces_of(constant: Constant) -> Iterator[Array]:
    """All elements in order; those of a packing cannot be had again."""
    return constant.pieces() if isinstance(constant, Packing) else iter((constant.reshape(-1),))


def _is_file(memory: object) -> TypeGuard[mmap.mmap]:
    return isinstance(memory, mmap.mmap) and not isinstance(memory, AnonymousMap)


def forget_pages(array: Array) -> None:
    """Give the memory of an array back where it is part of a mapped file; reading it again brings it back."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not array.size or not _is_file(mapped) or not hasattr(mapped, "madvise"):
        return
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    first = array.ctypes.data + sum(min(far, 0) for far in reach)
    end = array.ctypes.data + sum(max(far, 0) for far in reach) + array.itemsize
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    whole = -(-(first - start) // mmap.PAGESIZE) * mmap.PAGESIZE  # the pages at either end may hold other arrays
    length = (end - start - whole) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, whole, length)


def release_pages(view: memoryview) -> None:
    """Let go of the pages of a mapped file that were read so far; they come back by themselves when used."""
    if _is_file(view.obj) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)
