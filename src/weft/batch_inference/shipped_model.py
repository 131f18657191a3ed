"""Send a model to other processes, which load it once, on first use.

A pickle holds digests, options and weft's version, and the bytes of the model if it is small. The file of a large model
is opened by its path, unless its bytes are sent too: these are written to the cache once per machine, so that no
process keeps its own copy. Packed weights are mapped from the cache in any case.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.cache.digests import digest
from weft.cache.files import cache_folder, check_folder, write_file
from weft.cache.sources import definitions_digest
from weft.errors import DeviceError, InputError, short_repr
from weft.loading import load, load_pickled
from weft.quantities import format_bytes
from weft.records import dataclass
from weft.runtime.devices import REFERENCE
from weft.runtime.model import Model
from weft.runtime.model_files import PortableSource
from weft.runtime.options import LoadOptions
from weft.threads import make_reentrant_lock, usable_cores
from weft.version import __version__

if TYPE_CHECKING:
    from weft.runtime.model_files import ModelFiles

Shipping = Literal["auto", "path", "bytes"]
SHIPPINGS = ("auto", "path", "bytes")
INLINE_BYTES = 16 << 20  # of a model whose bytes are always sent
STORED_BYTES = 1 << 20  # from which received bytes are written to the cache
STORED_SECONDS = 7 * 86_400  # after its last use, when the file of received bytes is removed
MOST_LOADED = 4  # models that a process keeps

_loaded: dict[bytes, Model] = {}  # the least recently used first
_lock = make_reentrant_lock()


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A model for other processes.

    sends_bytes: whether a pickle holds the content of the model.
    """

    source: PortableSource
    options: LoadOptions
    sends_bytes: bool

    @property
    def file(self) -> str:
        return self.source.file

    def load(self) -> Model:
        """Return the model, loaded once in this process with the threads that the environment allows now."""
        key = self._key()
        with _lock:
            model = _loaded.pop(key, None)
            if model is None:
                model = load_pickled(self.source, self.options, {})
            self._keep(key, model)
        return model

    def keep(self, model: Model) -> None:
        """Use a model that this process has loaded already."""
        with _lock:
            self._keep(self._key(), model)

    def _keep(self, key: bytes, model: Model) -> None:
        _loaded[key] = model
        while len(_loaded) > MOST_LOADED:
            del _loaded[next(iter(_loaded))]

    def _key(self) -> bytes:
        identity = self.source.name, sorted(self.source.external.items()), self.options
        return pickle.dumps((*identity, usable_cores(), os.environ.get("CUDA_VISIBLE_DEVICES"), definitions_digest()))

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., ShippedModel], tuple[Any, ...]]:
        """Pickle digests and options, and the content as a buffer that a framework can send without a copy."""
        content: Any = self._read_content() if self.sends_bytes else None
        if content is not None and protocol >= 5:
            content = pickle.PickleBuffer(content)
        settings = pickle.dumps((replace(self.source, content=None), self.options, self.sends_bytes))
        return receive_model, (__version__, settings, content)

    def _read_content(self) -> bytes:
        if self.source.content is not None:
            return self.source.content
        assert self.source.path is not None
        try:
            return Path(self.source.path).read_bytes()
        except OSError as error:
            problem = f"the model that was sent to this process cannot be sent on: {error}"
            raise InputError(problem, file=self.file, hint="pickle it in the process that made it") from error


def receive_model(version: str, settings: bytes, content: Any) -> ShippedModel:
    """Unpickle a shipped model; InputError if another version of weft pickled it, or its bytes are damaged."""
    if version != __version__:
        problem = f"this function was pickled by weft {version}, and this process has weft {__version__}"
        raise InputError(problem, hint="install the same version of weft on all machines")
    source, options, sends_bytes = pickle.loads(settings)
    if content is not None:
        source = _store_content(source, memoryview(content), options.cache)
    return ShippedModel(source, options, sends_bytes)


def _store_content(source: PortableSource, content: memoryview, use_cache: bool) -> PortableSource:
    """Write large content to a file of this machine's cache, which its processes share."""
    folder = cache_folder() if use_cache and len(content) >= STORED_BYTES else None
    if folder is not None:
        path = folder / "shipped" / f"{source.name[:32]}.onnx"
        try:
            if not _is_stored(path, len(content)):
                _check_content(source, content)
                write_file(path, bytes(content))
                _remove_unused(path.parent)
            return replace(source, path=str(path), content=None)
        except OSError:
            pass  # no such disk, or no room on it: the content stays in memory
    _check_content(source, content)
    return replace(source, path=None, content=bytes(content))


def _is_stored(path: Path, size: int) -> bool:
    """Whether an earlier process has stored the content; `load` compares its digest."""
    with suppress(OSError):
        check_folder(path.parent)
        if path.stat().st_size == size:
            os.utime(path)
            return True
    return False


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STORED_SECONDS:
                path.unlink()


def _check_content(source: PortableSource, content: memoryview) -> None:
    if digest(content) != source.name:
        problem = f"the {format_bytes(len(content))} of the model were damaged on their way to this process"
        raise InputError(problem, file=source.file, hint="send it again")


# -- sending ---------------------------------------------------------------------------------------------------------


def ship_model(
    source: Any, ship: str, outputs: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[ShippedModel, Model]:
    """Prepare a model for other processes; return it with the model of this process, which has its inputs and outputs.

    source: what `weft.load` takes, or a model, which has its own options.
    outputs: those that other processes compute; None: all.
    """
    if not isinstance(ship, str) or ship not in SHIPPINGS:
        raise InputError(f"ship must be 'auto', 'path' or 'bytes', not {short_repr(ship)}")
    model = _open_model(source, outputs, options)
    portable, load_options, weights = model.__reduce__()[1]
    if "device" in options:  # it may be a device of the workers only
        load_options = replace(load_options, device=options["device"])
    if outputs is not None:
        load_options = replace(load_options, outputs=outputs)
    files: ModelFiles = model.pool.files
    content = portable.content
    if ship == "path" and (portable.path is None or weights):
        problem = "a model without a file cannot be sent by its path"
        raise InputError(problem, file=model.file, hint="save it (model.save(path)) and load that file, or omit ship")
    if ship != "path" and (weights or portable.external):
        is_large = sum(map(len, files.views())) > INLINE_BYTES
        content = _join_files(files) if weights or ship == "bytes" or not is_large else None
    elif content is None and ship != "path" and (ship == "bytes" or files.opened.size <= INLINE_BYTES):
        assert portable.path is not None
        content = Path(portable.path).read_bytes()
    if content is not None:
        portable = PortableSource(portable.file, None, content, digest(memoryview(content)), {})
    shipped = ShippedModel(portable, load_options, content is not None)
    if (load_options.device, load_options.outputs) == (model.pool.options.device, model.pool.options.outputs):
        shipped.keep(deepcopy(model) if model is source else model)  # whose weights the caller may set later
    return shipped, model


def _open_model(source: Any, outputs: Sequence[str] | None, options: Mapping[str, Any]) -> Model:
    if isinstance(source, Model):
        if options:
            problem = f"a loaded model has its own {', '.join(options)}"
            raise InputError(problem, file=source.file, hint="pass the file and the options, or the model alone")
        names = [spec.name for spec in source.outputs]
        unknown = [name for name in outputs or () if name not in names]
        if unknown:
            problem = f"outputs names {short_repr(unknown[0])}, which is no output"
            raise InputError(problem, file=source.file, hint=f"the outputs are {', '.join(names)}")
        return source
    try:
        return load(source, **{"outputs": outputs, **options})
    except DeviceError:
        if options.get("device", "auto") == "auto":
            raise
        return load(source, **{"outputs": outputs, **options, "device": REFERENCE})


def _join_files(files: ModelFiles) -> bytes:
    """Return one ONNX file with all weights, as they are set now."""
    parts = files.whole()
    if parts is None:
        hint = "put the file on a disk that all machines share, and pass ship='path'"
        raise InputError("the model is too large to be sent: it has more than 2 GB", file=files.file, hint=hint)
    return b"".join(parts)
