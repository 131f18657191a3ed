"""Where a model is kept between loads: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from weft.backends.cpu.code_cache import key_of, package_digest
from weft.errors import WeftError
from weft.frontend import Source, open_external
from weft.ir.compiled import CompiledProgram
from weft.ir.graph import Model as Graph
from weft.runtime import saving
from weft.runtime.devices import Compiled, Engine
from weft.runtime.digests import digest, file_digest
from weft.runtime.model_cache import ModelCache, shared_models
from weft.runtime.specs import Signature


@dataclass(frozen=True, slots=True, eq=False)
class KeptModel:
    """What runs a model, and what its users see of it."""

    signature: Signature
    program: Compiled


_LOADED: WeakValueDictionary[tuple[Path | None, str], CompiledProgram] = WeakValueDictionary()
"""What is in use in this process, by the cache's folder and the key there; who loads it again shares the weights."""
_SIGNATURES: WeakKeyDictionary[CompiledProgram, Signature] = WeakKeyDictionary()


class Shelf:
    """The place of one model in the cache; without a cache, or for a device that compiles nothing, there is none."""

    def __init__(self, opened: Source, engine: Engine, *options: str) -> None:
        self._opened = opened
        self._cache: ModelCache = shared_models()
        package = package_digest() if engine.identity is not None and self._cache.folder is not None else None
        self._key: str | None = None
        if package is not None and engine.identity is not None:
            self._key = key_of(self._digest(opened), engine.identity(), package, *options)

    def get(self) -> KeptModel | None:
        """The model, if it is kept."""
        if self._key is None:
            return None
        try:
            external = [open_external(self._opened, location) for location in self._cache.locations(self._key)]
        except WeftError:  # to be said by whoever reads the model
            return None
        files = [self._opened.view, *(file.view for file in external)]
        key = self._full_key([self._digest(file) for file in external])
        place = (self._cache.folder, key)
        loaded = _LOADED.get(place)
        if loaded is not None:
            return KeptModel(_SIGNATURES[loaded], loaded)
        kept = self._cache.get(key, files)
        if isinstance(kept, tuple) and len(kept) == 2:
            signature, program = kept
            if isinstance(signature, Signature) and isinstance(program, CompiledProgram):
                _SIGNATURES[program] = signature
                _LOADED[place] = program
                return KeptModel(signature, program)
        return None

    def put(self, kept: KeptModel, model: Graph) -> KeptModel | None:
        """Keep the model, if that can be done; the one returned has its arrays mapped from there.

        None where the disk failed half way, after arrays that were still to be packed had been given away.
        """
        if self._key is None:
            return kept
        locations = sorted(model.external)
        external = [model.external[location] for location in locations]
        try:
            saved = saving.save((kept.signature, kept.program), [self._opened.view, *external])
        except (pickle.PicklingError, TypeError, ValueError, RecursionError, MemoryError):
            return kept
        if locations:
            self._cache.put_locations(self._key, locations)
        tried = self._cache.put(self._full_key([digest(file) for file in external]), saved)
        return self.get() if tried else kept

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key

    def _digest(self, file: Source) -> str:
        return file_digest(file.view, file.path, file.status, self._cache.records or Path())
