"""The place of a model in the cache: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread, current_thread
from typing import Any, Protocol, Union
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from weft.cache import serialization
from weft.cache.digests import key_of
from weft.cache.models import ModelCache, UnfinishedEntry, shared_models
from weft.cache.sources import definitions_digest, libraries, package_digest
from weft.errors import WeftError
from weft.ir.compiled import CompiledProgram
from weft.ir.mixed import MixedProgram
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
    program: CompiledProgram | MixedProgram


Place = tuple[Union[Path, None], str]  # the cache's folder, and the key there
_LOADED: WeakValueDictionary[Place, CompiledProgram | MixedProgram] = WeakValueDictionary()
"""What is in use in this process; who loads it again shares the weights."""
_SIGNATURES: WeakKeyDictionary[CompiledProgram | MixedProgram, Signature] = WeakKeyDictionary()


_WRITING: dict[Place, Thread] = {}
"""Entries that a thread writes to the end, once their code is compiled; the end of the process waits for them."""


def await_writing(place: Place | None = None) -> None:
    """Wait until an entry is written that this process is at, or all of them."""
    for thread in [_WRITING.get(place)] if place is not None else list(_WRITING.values()):
        if thread is not None and thread is not current_thread():
            thread.join()


if hasattr(os, "register_at_fork"):  # in a child, nobody would go on
    os.register_at_fork(before=await_writing)


def _write_behind(place: Place, write: Callable[[], None]) -> None:
    """Complete an entry when its code is there, without anybody waiting for it."""

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
        finish()


def _shared(place: Place, value: Any, objects: Sequence[bytes]) -> CachedModel | None:
    """What was kept with its code, shared by all who load it from now on."""
    match value:
        case (Signature() as signature, CompiledProgram() | MixedProgram() as program):
            if isinstance(program, CompiledProgram):
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
    program: CompiledProgram | MixedProgram = cached.program
    objects: Sequence[bytes] = ()
    if isinstance(program, CompiledProgram):
        program, objects = replace(program, objects=()), program.objects
    return serialization.serialize((cached.signature, program)), objects


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

    def put(self, structure: bytes, arrays: memoryview, objects: Sequence[bytes], behind: bool) -> CachedModel | None:
        """The model made of its parts, of which a copy is written (`behind`: while it is used already); None where they
        are no model.
        """
        place = (self._cache.folder, self._key)
        made = _shared(place, serialization.restore(structure, arrays), objects)
        if made is None or self._cache.folder is None:
            return made
        whole = np.frombuffer(arrays, np.uint8)

        def write() -> None:
            begun = self._cache.begin(self._key, serialization.SerializedValue(structure, (whole,)))
            if isinstance(begun, UnfinishedEntry):
                begun.finish(objects)
                self._cache.put_about(self._key, **self._about)

        if behind:
            _write_behind(place, write)
        else:
            write()
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

    def put(self, cached: CachedModel) -> CachedModel | None:
        """Keep the model, if that can be done; the one returned has its arrays mapped from there, and its
        code may still be compiled: the entry gets it when it is.

        None where the disk failed half way, after arrays that were still to be packed had been given away.
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
        begun = self._cache.begin(key, saved)
        if begun is None:
            return cached
        if isinstance(begun, OSError):
            return None
        value = serialization.restore(saved.structure, begun.arrays)
        place = (self._cache.folder, key)
        self._cache.put_about(key, file=self._content.file, device=self._device)
        loaded = _shared(place, value, objects)
        _write_behind(place, lambda: begun.finish(objects))
        return loaded

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key
