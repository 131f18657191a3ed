"""The place of a model in the cache: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread, current_thread
from typing import Any, Protocol, Union
from weakref import WeakKeyDictionary, WeakValueDictionary

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


def _finish_writing(place: Place, begun: UnfinishedEntry, objects: Sequence[bytes]) -> None:
    """Complete an entry when its code is there, without anybody waiting for it."""

    def finish() -> None:
        try:
            begun.finish(objects)
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
        key = self._full_key(external)
        place = (self._cache.folder, key)
        loaded = _LOADED.get(place)
        if loaded is not None:
            return CachedModel(_SIGNATURES[loaded], loaded)
        await_writing(place)
        found = self._cache.entry(key)
        return None if found is None else self._loaded(place, *found)

    def _loaded(self, place: Place, value: Any, objects: Sequence[bytes]) -> CachedModel | None:
        """What was kept with its code, shared by all who load it from now on."""
        match value:
            case (Signature() as signature, CompiledProgram() | MixedProgram() as program):
                if isinstance(program, CompiledProgram):
                    program = replace(program, objects=objects)
                _SIGNATURES[program] = signature
                _LOADED[place] = program
                return CachedModel(signature, program)
        return None

    def put(self, cached: CachedModel) -> CachedModel | None:
        """Keep the model, if that can be done; the one returned has its arrays mapped from there, and its
        code may still be compiled: the entry gets it when it is.

        None where the disk failed half way, after arrays that were still to be packed had been given away.
        """
        if self._key is None:
            return cached
        locations = self._content.locations()
        program: CompiledProgram | MixedProgram = cached.program
        objects: Sequence[bytes] = ()
        if isinstance(program, CompiledProgram):
            program, objects = replace(program, objects=()), program.objects
        try:
            saved = serialization.serialize((cached.signature, program))
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
        loaded = self._loaded(place, value, objects)
        _finish_writing(place, begun, objects)
        return loaded

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key
