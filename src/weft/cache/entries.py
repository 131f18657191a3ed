"""The place of a model in the cache: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread, current_thread
from typing import Any, Protocol, Union
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from weft.cache import serialization
from weft.cache.digests import key_of
from weft.cache.memory import ArraysInMemory
from weft.cache.models import ModelCache, UnfinishedEntry, shared_models
from weft.cache.sources import definitions_digest, libraries, package_digest
from weft.errors import WeftError
from weft.ir.compiled import CompiledProgram
from weft.ir.specs import Signature
from weft.records import dataclass


class NamedContent(Protocol):
    """The files of a model by the names of what they hold."""

    @property
    def file(self) -> str:
        """What to call the model."""
        ...

    def name(self) -> str:
        """Of the model's own file."""
        ...

    def locations(self) -> list[str]:
        """The files beside it that hold weights."""
        ...

    def external_names(self, locations: Sequence[str]) -> list[str]:
        """Of files beside it; a WeftError where one cannot be read."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CachedModel:
    """What runs a model, and what its users see of it."""

    signature: Signature
    program: CompiledProgram


MEMORY_SHARE = 4  # of the memory that is left, arrays may take a part like this until they are in a file


@dataclass(frozen=True, slots=True, eq=False)
class UnkeptModel:
    """What an entry is to be made of, its arrays in memory."""

    cache: ModelCache
    about: Mapping[str, str]
    structure: bytes
    objects: Sequence[bytes]
    memory: ArraysInMemory


Place = tuple[Union[Path, None], str]  # the cache's folder, and the key there
_LOADED: WeakValueDictionary[Place, CompiledProgram] = WeakValueDictionary()
"""What is in use in this process; who loads it again shares the weights."""
_SIGNATURES: WeakKeyDictionary[CompiledProgram, Signature] = WeakKeyDictionary()


_WRITING: dict[Place, Thread] = {}
"""Entries that a thread writes to the end, once their code is compiled; the end of the process waits for them."""


def await_writing(place: Place | None = None) -> None:
    """Wait until an entry is written that this process is at, or all of them."""
    for thread in [_WRITING.get(place)] if place is not None else list(_WRITING.values()):
        if thread is not None and thread is not current_thread():
            thread.join()


if hasattr(os, "register_at_fork"):  # in a child, nobody would go on
    os.register_at_fork(before=await_writing)


def _write_behind(place: Place, write: Callable[[], None]) -> Callable[[], None] | None:
    """Complete an entry when its code is there, without anybody waiting; what is left to do, where that cannot be."""

    def finish() -> None:
        try:
            write()
        except (WeftError, MemoryError):  # which whoever runs the code hears of; who loads it again, compiles it again
            _LOADED.pop(place, None)
        finally:
            _WRITING.pop(place, None)

    thread = Thread(target=finish, name="weft-keeping", daemon=current_thread().daemon)
    _WRITING[place] = thread
    try:
        thread.start()
    except RuntimeError:  # no more threads to be had
        return finish
    return None


def _shared(place: Place, value: Any, objects: Sequence[bytes]) -> CachedModel | None:
    """What was kept with its code, shared by all who load it from now on."""
    match value:
        case (Signature() as signature, CompiledProgram() as program):
            program = replace(program, objects=objects)
            _SIGNATURES[program] = signature
            _LOADED[place] = program
            return CachedModel(signature, program)
    return None


def _found(cache: ModelCache, key: str) -> CachedModel | None:
    place = (cache.folder, key)
    loaded = _LOADED.get(place)
    if loaded is not None:
        return CachedModel(_SIGNATURES[loaded], loaded)
    await_writing(place)
    found = cache.entry(key)
    return None if found is None else _shared(place, *found)


def saved_model(cached: CachedModel) -> tuple[serialization.SerializedValue, Sequence[bytes]]:
    """A model to be kept, and its code; an exception of several kinds where it holds what cannot be."""
    program = cached.program
    return serialization.serialize((cached.signature, replace(program, objects=()))), program.objects


def _written_from_memory(place: Place, unkept: UnkeptModel) -> Callable[[], None]:
    """What writes an entry, as its arrays come."""

    def write() -> None:
        whole = np.frombuffer(unkept.memory.view, np.uint8)
        saved = serialization.SerializedValue(unkept.structure, (whole,))
        begun = unkept.cache.begin(place[1], saved, unkept.memory)
        if isinstance(begun, UnfinishedEntry):
            unkept.cache.put_about(place[1], **unkept.about)
            begun.finish(unkept.objects)

    return write


def _kept_behind(
    place: Place, unkept: UnkeptModel, saved: serialization.SerializedValue, tell: Callable[[int, int], None] | None
) -> CachedModel | None:
    """A model whose arrays are packed in memory, and go from there into an entry at the same time."""
    left = _write_behind(place, _written_from_memory(place, unkept))
    try:
        unkept.memory.fill(saved, tell)
    except BaseException:
        unkept.memory.give_up()
        raise
    made = _shared(place, serialization.restore(unkept.structure, unkept.memory.view), unkept.objects)
    if left is not None:
        left()
    return made


class CopiedModel:
    """A model that is kept in a file of the user's; its copy in the cache, which can be mapped, has its content's name.

    Without a cache, all who load it in this process still share one.
    """

    def __init__(self, content: str, file: str, device: str, cache: bool) -> None:
        self._cache = shared_models() if cache else ModelCache(None)
        self._key = key_of("copied", content)
        self._about = {"file": file, "device": device}

    def get(self) -> CachedModel | None:
        """The model, if its copy is there, or in use."""
        return _found(self._cache, self._key)

    def put(
        self, structure: bytes, objects: Sequence[bytes], memory: ArraysInMemory, behind: bool
    ) -> CachedModel | None:
        """The model made of its parts, of which a copy is written (`behind`: while it is used already); None where they
        are no model.
        """
        place = (self._cache.folder, self._key)
        made = _shared(place, serialization.restore(structure, memory.view), objects)
        if made is None or self._cache.folder is None:
            return made
        write = _written_from_memory(place, UnkeptModel(self._cache, self._about, structure, objects, memory))
        left = _write_behind(place, write) if behind else write
        if left is not None:
            left()
        return made


class CacheEntry:
    """The place of one model in the cache; there is none without a cache."""

    def __init__(self, content: NamedContent, device: str, *dependencies: str) -> None:
        """`device` is its name; `dependencies` are what the model depends on beside its content: the device's identity
        and options.
        """
        self._content = content
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
        """The model, if it is there."""
        if self._key is None:
            return None
        try:
            external = self._content.external_names(self._cache.locations(self._key))
        except WeftError:  # to be said by whoever reads the model
            return None
        return _found(self._cache, self._full_key(external))

    def put(
        self,
        cached: CachedModel,
        memory_left: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> CachedModel | None:
        """Keep the model, if that can be done, behind its first runs; its code may still be compiled.

        The one returned has its arrays in memory, until the entry has them; where they would take too much of what is
        left, they are mapped from the entry, which is then written at once. None where the disk failed at that half
        way, after arrays that were still to be packed had been given away. `tell` hears how many bytes are packed.
        """
        if self._key is None:
            return cached
        locations = self._content.locations()
        try:
            saved, objects = saved_model(cached)
        except (pickle.PicklingError, TypeError, ValueError, RecursionError, MemoryError):
            return cached
        if locations:
            self._cache.put_locations(self._key, locations)
        key = self._full_key(self._content.external_names(locations))
        if not self._cache.takes(saved):
            return cached
        about = {"file": self._content.file, "device": self._device}
        place = (self._cache.folder, key)
        if memory_left is None or saved.array_bytes < memory_left // MEMORY_SHARE:
            memory = None
            with suppress(OSError):
                memory = ArraysInMemory(saved.array_bytes)
            if memory is not None:
                unkept = UnkeptModel(self._cache, about, saved.structure, objects, memory)
                return _kept_behind(place, unkept, saved, tell)
        begun = self._cache.begin(key, saved)
        if begun is None:
            return cached
        if isinstance(begun, OSError):
            return None
        self._cache.put_about(key, **about)
        loaded = _shared(place, serialization.restore(saved.structure, begun.arrays), objects)
        left = _write_behind(place, lambda: begun.finish(objects))
        if left is not None:
            left()
        return loaded

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key
