"""Where a model is kept between loads: under a name made of its content, the device, the options and weft itself."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from weft.backends.cpu.code_cache import key_of, package_digest
from weft.errors import WeftError
from weft.ir.compiled import CompiledProgram
from weft.ops.foreign import foreign_digest
from weft.runtime import saving
from weft.runtime.devices import Compiled, Engine
from weft.runtime.model_cache import ModelCache, shared_models
from weft.runtime.reading import Reading
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

    def __init__(self, reading: Reading, engine: Engine, *options: str) -> None:
        self._reading = reading
        self._cache: ModelCache = shared_models()
        self._key: str | None = None
        if engine.identity is None or self._cache.folder is None:
            return
        package, definitions = package_digest(), foreign_digest()
        if package is not None and definitions is not None:
            self._key = key_of(reading.name(), engine.identity(), package, definitions, *options)

    def get(self) -> KeptModel | None:
        """The model, if it is kept."""
        if self._key is None:
            return None
        try:
            external = self._reading.external_names(self._cache.locations(self._key))
        except WeftError:  # to be said by whoever reads the model
            return None
        key = self._full_key(external)
        place = (self._cache.folder, key)
        loaded = _LOADED.get(place)
        if loaded is not None:
            return KeptModel(_SIGNATURES[loaded], loaded)
        kept = self._cache.get(key)
        if isinstance(kept, tuple) and len(kept) == 2:
            signature, program = kept
            if isinstance(signature, Signature) and isinstance(program, CompiledProgram):
                _SIGNATURES[program] = signature
                _LOADED[place] = program
                return KeptModel(signature, program)
        return None

    def put(self, kept: KeptModel) -> KeptModel | None:
        """Keep the model, if that can be done; the one returned has its arrays mapped from there.

        None where the disk failed half way, after arrays that were still to be packed had been given away.
        """
        if self._key is None:
            return kept
        locations = sorted(self._reading.model().external)
        try:
            saved = saving.save((kept.signature, kept.program))
        except (pickle.PicklingError, TypeError, ValueError, RecursionError, MemoryError):
            return kept
        if locations:
            self._cache.put_locations(self._key, locations)
        tried = self._cache.put(self._full_key(self._reading.external_names(locations)), saved)
        return self.get() if tried else kept

    def _full_key(self, external: list[str]) -> str:
        assert self._key is not None
        return key_of(self._key, *external) if external else self._key
