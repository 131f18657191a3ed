"""Find and store compiled models in the cache, by their content, device and options and by the version of weft."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any, Protocol, Union
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from weft.cache import serialization
from weft.cache.digests import digest, key_of
from weft.cache.memory import ArraysInMemory
from weft.cache.models import ModelCache, UnfinishedEntry, program_key, shared_models
from weft.cache.sources import definitions_digest, libraries, package_digest
from weft.errors import WeftError
from weft.ir.compiled import CompiledProgram
from weft.ir.specs import Signature
from weft.records import dataclass


class NamedFiles(Protocol):
    """The files of a model, with digests of their content."""

    @property
    def file(self) -> str:
        """The model's name for messages."""
        ...

    def name(self) -> str:
        """Return the digest of the model's own file."""
        ...

    def locations(self) -> list[str]:
        """Return the locations of external files with weights."""
        ...

    def external_names(self, locations: Sequence[str]) -> list[str]:
        """Return the digests of external files; raise WeftError if one cannot be read."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CachedModel:
    """A compiled program with the model's signature."""

    signature: Signature
    program: CompiledProgram


MEMORY_SHARE = 4  # until they are in a file, arrays may take 1/MEMORY_SHARE of the available memory


@dataclass(frozen=True, slots=True, eq=False)
class PendingEntry:
    """The content of an entry that is not written yet, with its arrays in memory."""

    cache: ModelCache
    key: str
    about: Mapping[str, str]
    structure: bytes
    objects: Sequence[bytes]
    memory: ArraysInMemory
    shared_arrays: memoryview = serialization.NO_ARRAYS

    def write(self) -> None:
        """Write the entry as its arrays are filled."""
        arrays = np.frombuffer(self.memory.view, np.uint8)
        entry = self.cache.begin(self.key, serialization.SerializedValue(self.structure, (arrays,)), self.memory)
        if isinstance(entry, UnfinishedEntry):
            self.cache.put_about(self.key, **self.about)
            entry.finish(self.objects)

    def share(self) -> CachedModel | None:
        """Return the model, and share it with later loads; None if the content is not a model."""
        value = serialization.restore(self.structure, self.memory.view, self.shared_arrays)
        return _share_model((self.cache.folder, self.key), value, self.objects, self.memory.view)


EntryId = tuple[Union[Path, None], str]  # the cache's folder, and the key
_LOADED: WeakValueDictionary[EntryId, CompiledProgram] = WeakValueDictionary()
"""Programs in use in this process; loading one again shares its weights."""
_SIGNATURES: WeakKeyDictionary[CompiledProgram, Signature] = WeakKeyDictionary()
_ARRAYS: WeakKeyDictionary[CompiledProgram, memoryview] = WeakKeyDictionary()
_ARRAYS_DIGESTS: WeakKeyDictionary[CompiledProgram, str] = WeakKeyDictionary()


_WRITERS: dict[EntryId, tuple[Thread, Event]] = {}
"""Threads that complete entries once their code is compiled, and events for their ends; the end of the process waits
for them."""


def await_writes(entry: EntryId | None = None) -> None:
    """Wait until this process has written an entry, or all entries."""
    for writer in [_WRITERS.get(entry)] if entry is not None else list(_WRITERS.values()):
        if writer is not None and writer[0] is not current_thread():
            writer[1].wait()  # the thread may not have started, and cannot be joined then


if hasattr(os, "register_at_fork"):  # a child has no threads to continue the writing
    os.register_at_fork(before=await_writes, after_in_child=_WRITERS.clear)


def _write_in_background(entry: EntryId, write: Callable[[], None]) -> Callable[[], None]:
    """Write an entry on another thread; if none can be started, the function that is returned writes it."""
    end = Event()

    def forget() -> None:
        _WRITERS.pop(entry, None)
        end.set()

    def finish() -> None:
        try:
            write()
        except (WeftError, MemoryError):  # running the code raises this error, and the next load compiles it again
            _LOADED.pop(entry, None)
        finally:
            forget()

    thread = Thread(target=finish, name="weft-cache-writer", daemon=current_thread().daemon)
    _WRITERS[entry] = thread, end
    try:
        thread.start()
    except RuntimeError:  # the system allows no more threads
        forget()
        return finish
    return lambda: None


def _share_model(entry: EntryId, value: Any, objects: Sequence[bytes], arrays: memoryview) -> CachedModel | None:
    """Return a restored value and its code as a model that later loads share; None if it is not a model."""
    match value:
        case (Signature() as signature, CompiledProgram() as program):
            program = replace(program, objects=objects)
            _SIGNATURES[program] = signature
            _ARRAYS[program] = arrays
            _LOADED[entry] = program
            return CachedModel(signature, program)
    return None


def _arrays_of(program: CompiledProgram | None) -> memoryview:
    """Return the arrays of a program that is in the cache; none of another program."""
    return serialization.NO_ARRAYS if program is None else _ARRAYS.get(program, serialization.NO_ARRAYS)


def _digest_arrays(program: CompiledProgram) -> str:
    """Return the digest of a program's arrays, or "" for a program that is not in the cache."""
    if program not in _ARRAYS_DIGESTS:
        _ARRAYS_DIGESTS[program] = digest(_ARRAYS[program]) if program in _ARRAYS else ""
    return _ARRAYS_DIGESTS[program]


def _find_model(cache: ModelCache, key: str, first: CompiledProgram | None = None) -> CachedModel | None:
    """Return a model that is in use in this process or in the cache; it may refer to arrays of `first`."""
    entry = (cache.folder, key)
    program = _LOADED.get(entry)
    if program is not None:
        return CachedModel(_SIGNATURES[program], program)
    await_writes(entry)
    content = cache.entry(key, _arrays_of(first))
    if content is None:
        return None
    model = _share_model(entry, content.value, content.objects, content.arrays)
    if model is not None:
        _ARRAYS_DIGESTS[model.program] = content.arrays_digest
    return model


def serialize_model(
    cached: CachedModel, shared: serialization.SharedArrays | None = None
) -> tuple[serialization.SerializedValue, Sequence[bytes]]:
    """Return a serialized model and its code; raise an error of some kind if it cannot be serialized."""
    program = cached.program
    return serialization.serialize((cached.signature, replace(program, objects=())), shared), program.objects


def _find_shared_arrays(first: CompiledProgram | None) -> serialization.SharedArrays | None:
    """Return the arrays that other programs of a model can refer to."""
    memory = _arrays_of(first)
    if first is None or not memory.nbytes:
        return None
    arrays = serialization.serialize((first.constants, first.sections)).arrays
    return serialization.SharedArrays(memory, arrays)


class SavedModelCopy:
    """The copy in the cache of a model in a user's file: the copy can be mapped. Its key is the file's digest.

    Without a cache, loads in this process still share one copy.
    """

    def __init__(self, content: str, file: str, device: str, cache: bool) -> None:
        self._cache = shared_models() if cache else ModelCache(None)
        self._key = key_of("copied", content)
        self._about = {"file": file, "device": device}

    def get(self) -> CachedModel | None:
        """Return the model if it is in use in this process or in the cache."""
        return _find_model(self._cache, self._key)

    def put(
        self, structure: bytes, objects: Sequence[bytes], memory: ArraysInMemory, behind: bool
    ) -> CachedModel | None:
        """Return the model, or None if the content is not one, and write its copy; with `behind`, in the background."""
        pending = PendingEntry(self._cache, self._key, self._about, structure, objects, memory)
        model = pending.share()
        if model is None or self._cache.folder is None:
            return model
        complete = _write_in_background((self._cache.folder, self._key), pending.write) if behind else pending.write
        complete()
        return model


@dataclass(frozen=True, slots=True, eq=False)
class OtherProgram:
    """A program of a model that is not the first one, which is for any shapes; it shares the arrays of the first."""

    name: str
    first: CompiledProgram

    def key(self, model: str) -> str:
        """Return the key of its entry, which covers the arrays of the first program."""
        return program_key(model, key_of(self.name, _digest_arrays(self.first)))


class CacheEntry:
    """The entry of one model in the cache: its program for any shapes, or one of its other programs."""

    def __init__(
        self, content: NamedFiles, device: str, *dependencies: str, program: OtherProgram | None = None
    ) -> None:
        """`dependencies`: what the entry depends on besides the model's content; the device's identity and options."""
        self._content = content
        self._program = program
        self._first = None if program is None else program.first
        self._device = device
        self._cache: ModelCache = shared_models()
        self._key: str | None = None
        if self._cache.folder is None:
            return
        package, definitions = package_digest(), definitions_digest()
        if package is not None and definitions is not None:
            identity, *options = dependencies
            self._key = key_of(content.name(), identity, package, libraries(), definitions, *options)

    def get(self) -> CachedModel | None:
        """Return the model, or None if it is not cached."""
        if self._key is None:
            return None
        try:
            external = self._content.external_names(self._cache.locations(self._key))
        except WeftError:  # reading the model raises it again
            return None
        return _find_model(self._cache, self._full_key(external), self._first)

    def put(
        self,
        cached: CachedModel,
        memory_left: int | None = None,
        report: Callable[[int, int], None] | None = None,
    ) -> CachedModel | None:
        """Store the model in the background, if possible, and return the one to use; its code may still be compiling.

        The arrays of the returned model are in memory until the entry is written. If they would take too much of the
        memory that is left, they are written first and mapped from the entry. Return None if the disk fails at that, or
        has no room for a program that shares arrays: arrays that had to be packed are lost then. `report` gets (bytes
        packed, total bytes).
        """
        if self._key is None:
            return cached
        locations = self._content.locations()
        shared = _find_shared_arrays(self._first)
        unwritten = cached if shared is None else None
        try:
            saved, objects = serialize_model(cached, shared)
        except (pickle.PicklingError, TypeError, ValueError, RecursionError, MemoryError):
            return unwritten
        if locations:
            self._cache.put_locations(self._key, locations)
        key = self._full_key(self._content.external_names(locations))
        if not self._cache.has_room(saved):
            return unwritten
        about = {"file": self._content.file, "device": self._device}
        entry_id = (self._cache.folder, key)
        memory = None
        if memory_left is None or saved.array_bytes < memory_left // MEMORY_SHARE:
            with suppress(OSError):
                memory = ArraysInMemory(saved.array_bytes)
        if memory is not None:
            pending = PendingEntry(self._cache, key, about, saved.structure, objects, memory, _arrays_of(self._first))
            return _pack_and_write(entry_id, pending, saved, report)
        entry = self._cache.begin(key, saved)
        if entry is None:
            return unwritten
        if isinstance(entry, OSError):
            return None
        self._cache.put_about(key, **about)
        value = serialization.restore(saved.structure, entry.arrays, _arrays_of(self._first))
        model = _share_model(entry_id, value, objects, entry.arrays)
        complete = _write_in_background(entry_id, lambda: entry.finish(objects))
        complete()
        return model

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        key = key_of(self._key, *external) if external else self._key
        return key if self._program is None else self._program.key(key)


def _pack_and_write(
    entry: EntryId,
    pending: PendingEntry,
    saved: serialization.SerializedValue,
    report: Callable[[int, int], None] | None,
) -> CachedModel | None:
    """Pack a model's arrays in memory while another thread writes them to its entry."""
    complete = _write_in_background(entry, pending.write)
    try:
        pending.memory.fill(saved, report)
    except BaseException:
        pending.memory.abandon()
        raise
    model = pending.share()
    complete()
    return model
