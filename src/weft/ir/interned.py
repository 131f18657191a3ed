"""Values of which there is one object each, so that they are compared and hashed by identity.

An object is kept for as long as somebody else holds it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import ref

from weft.threads import reentrant_lock

Kept = TypeVar("Kept")


class _Entry(ref[Kept]):
    __slots__ = ("key",)
    key: Hashable


class Interned(Generic[Kept]):
    """The objects of a class by what they are made of. Keys are plain data, or of interned objects themselves."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[Kept]] = {}
        self._lock = reentrant_lock()  # objects may go while their thread holds it
        self.find = self._entries.get  # an entry to be called: what it gives is None where the object has gone

    def keep(self, key: Hashable, made: Kept) -> Kept:
        """The object of this key: the one made, unless another thread was first."""
        entry = _Entry(made, self._forget)
        entry.key = key
        present = self._entries.setdefault(key, entry)  # at once, whatever other threads do
        if present is entry:
            return made
        with self._lock:
            present = self._entries.get(key, entry)
            found = present()
            if found is not None:
                return found
            self._entries[key] = entry
            return made

    def _forget(self, entry: ref[Kept]) -> None:
        key = entry.key  # type: ignore[attr-defined]  # it may be the end of the process: names of modules are gone
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
