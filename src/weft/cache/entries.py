"""The place of a model in the cache: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from weft.cache import serialization
from weft.cache.digests import key_of
from weft.cache.models import ModelCache, shared_models
from weft.cache.sources import definitions_digest, libraries, package_digest
from weft.errors import WeftError
from weft.ir.compiled import CompiledProgram
from weft.ir.mixed import MixedProgram
from weft.ir.specs import Signature
from weft.records import dataclass


class NamedContent(Protocol):
    """The files of a model by the names of what they hold."""

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


_LOADED: WeakValueDictionary[tuple[Path | None, str], CompiledProgram | MixedProgram] = WeakValueDictionary()
"""What is in use in this process, by the cache's folder and the key there; who loads it again shares the weights."""
_SIGNATURES: WeakKeyDictionary[CompiledProgram | MixedProgram, Signature] = WeakKeyDictionary()


class CacheEntry:
    """The place of one model in the cache; there is none without a cache."""

    def __init__(self, content: NamedContent, *dependencies: str) -> None:
        """`dependencies` are what the compiled model depends on beside its content and weft: device and options."""
        self._content = content
        self._cache: ModelCache = shared_models()
        self._key: str | None = None
        if self._cache.folder is None:
            return
        package, definitions = package_digest(), definitions_digest()
        if package is not None and definitions is not None:
            device, *options = dependencies
            self._key = key_of(content.name(), device, package, libraries(), definitions, *options)

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
        cached = self._cache.get(key)
        if isinstance(cached, tuple) and len(cached) == 2:
            signature, program = cached
            if isinstance(signature, Signature) and isinstance(program, (CompiledProgram, MixedProgram)):
                _SIGNATURES[program] = signature
                _LOADED[place] = program
                return CachedModel(signature, program)
        return None

    def put(self, cached: CachedModel) -> CachedModel | None:
        """Keep the model, if that can be done; the one returned has its arrays mapped from there.

        None where the disk failed half way, after arrays that were still to be packed had been given away.
        """
        if self._key is None:
            return cached
        locations = self._content.locations()
        try:
            saved = serialization.serialize((cached.signature, cached.program))
        except (pickle.PicklingError, TypeError, ValueError, RecursionError, MemoryError):
            return cached
        if locations:
            self._cache.put_locations(self._key, locations)
        tried = self._cache.put(self._full_key(self._content.external_names(locations)), saved)
        return self.get() if tried else cached

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key
