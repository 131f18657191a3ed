"""Interning: one object per value, so that values are compared and hashed by identity.

The table holds weak references: an object lives as long as something else refers to it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import ref

from weft.threads import make_reentrant_lock

Object = TypeVar("Object")


class _Entry(ref[Object]):
    __slots__ = ("key",)
    key: Hashable


class Interned(Generic[Object]):
    """The interned objects of a class by key; keys consist of plain data and interned objects."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[Object]] = {}
        self._lock = make_reentrant_lock()  # a finalizer may run while its thread holds the lock
        self.find = self._entries.get  # returns a weak reference to call, or None

    def add(self, key: Hashable, new: Object) -> Object:
        """Return the object of this key: the new one, unless another thread was first."""
        entry = _Entry(new, self._remove)
        entry.key = key
        present = self._entries.setdefault(key, entry)  # atomic
        if present is entry:
            return new
        with self._lock:
            present = self._entries.get(key, entry)
            existing = present()
            if existing is not None:
                return existing
            self._entries[key] = entry
            return new

    def _remove(self, entry: ref[Object]) -> None:
        key = entry.key  # type: ignore[attr-defined]  # at exit, module globals are gone
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
