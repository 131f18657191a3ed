"""The models of a server by name and version: loading, unloading, and reloading those whose files change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import ModelError, OutOfMemoryError, WeftError
from weft.quantities import format_bytes
from weft.server.discovery import Catalog, Location, Source, describe_names, is_generator_folder
from weft.server.http import HttpError
from weft.server.memory import MemoryBudget
from weft.server.openai.models import TextModelInfo, model_kind_error, unknown_model_error
from weft.server.served_model import ServedModel, serve_generator, serve_model
from weft.server.settings import ServerSettings
from weft.server.statistics import ModelStatistics
from weft.server.v2.datatypes import datatype_of

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.runtime.model import Model
    from weft.server.embedder import Embedder

LOG = logging.getLogger("weft.server")
GRACE = 60.0  # seconds for requests on a version that is replaced
Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class Version:
    """One version of a model: what is served, and the state of its files.

    state: "UNAVAILABLE", "LOADING" or "READY", as the protocol names them; `reason` says why it is not ready.
    """

    source: Source
    served: ServedModel | None = None
    state: str = "UNAVAILABLE"
    reason: str = ""
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    stamp: Stamp = ()
    changed: Stamp | None = None  # seen once, and loaded if the next look sees the same


@dataclass(slots=True)
class Entry:
    """A model by its name. Loads and unloads of one model take turns."""

    location: Location
    versions: dict[str, Version] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def latest(self) -> Version | None:
        """Return the version with the highest number that is ready."""
        ready = [number for number, version in self.versions.items() if version.served is not None]
        return self.versions[max(ready, key=int)] if ready else None


class Repository:
    """All models of one server. Its methods are called on one event loop; models are loaded in threads."""

    def __init__(self, catalog: Catalog, settings: ServerSettings, budget: MemoryBudget) -> None:
        self.settings = settings
        self.budget = budget
        self._catalog = catalog
        self._entries = {name: Entry(location) for name, location in catalog.scan().items()}
        self._unloaded: set[str] = set()  # by clients: a look at the files does not load them
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_loaded = False
        self.on_change: Callable[[], None] | None = None  # called when models have been loaded

    # -- models ------------------------------------------------------------------------------------------------------

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is ready; raise HttpError 404 for an unknown one, and 503 for one that is not ready."""
        entry = self._entries.get(name)
        if entry is None:
            raise HttpError(
                404,
                f"Request for unknown model: {name!r}; the models are {describe_names(list(self._entries))}",
                code="model_not_found",
                parameter="model",
            )
        chosen = entry.versions.get(version) if version else entry.latest()
        if chosen is not None and chosen.served is not None:
            return chosen.served
        if version and version not in entry.location.versions:
            problem = (
                f"model {name!r} has no version {version!r}; it has {describe_names(list(entry.location.versions))}"
            )
            raise HttpError(404, problem)
        states = [each for each in entry.versions.values() if each.reason]
        reason = states[0].reason if states else "it is being loaded"
        headers = () if states else ((b"retry-after", b"1"),)
        status = 400 if name in self._unloaded else 503
        raise HttpError(status, f"model {name!r} is not ready: {reason}", headers=headers, code="model_not_ready")

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model, or one version of it, can answer requests; HttpError 404 if there is none."""
        try:
            self.get(name, version)
        except HttpError as error:
            if error.status == 404:
                raise
            return False
        return True

    def versions(self, name: str) -> list[str]:
        """List the versions of a model that are ready."""
        entry = self._entries[name]
        return sorted((number for number, each in entry.versions.items() if each.served is not None), key=int)

    def served(self) -> Iterator[ServedModel]:
        """Iterate over all versions that are ready."""
        for entry in self._entries.values():
            for version in entry.versions.values():
                if version.served is not None:
                    yield version.served

    def index(self) -> list[dict[str, str]]:
        """List all models with their states, as the protocol does."""
        rows = []
        for name, entry in self._entries.items():
            if not entry.versions:
                rows.append({"name": name, "state": "UNAVAILABLE", "reason": "it is not loaded"})
            for number, version in sorted(entry.versions.items(), key=lambda item: int(item[0])):
                rows.append({"name": name, "version": number, "state": version.state, "reason": version.reason})
        return rows

    @property
    def is_ready_for_requests(self) -> bool:
        """Whether all models are ready that the server should have."""
        return self.is_loaded and all(
            version.served is not None
            for entry in self._entries.values()
            for version in entry.versions.values()
            if version.reason != UNLOADED
        )

    # -- models of text ----------------------------------------------------------------------------------------------

    def generator(self, name: str) -> Generator:
        """Return a language model."""
        served = self._text_model(name, "generator")
        assert served.generator is not None
        return served.generator

    def embedder(self, name: str) -> Embedder:
        """Return a model of embeddings."""
        served = self._text_model(name, "embedder")
        assert served.embedder is not None
        return served.embedder

    async def run_embedder(self, name: str, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a model of embeddings, together with other requests of the same shapes."""
        return await self._text_model(name, "embedder").infer(arrays, None, self.settings.timeout)

    def begin_request(self, name: str) -> Callable[[int, int], None]:
        """Count a request for text, whose model is not closed before the request ends."""
        served = self.get(name)
        if served.kind == "generator":
            return served.begin_request()
        served.enter()
        return lambda *_: served.leave()

    def text_models(self) -> Sequence[TextModelInfo]:
        """List the models of text."""
        models = (entry.latest() for entry in self._entries.values())
        return [
            TextModelInfo(each.served.name, each.served.kind, each.served.created)
            for each in models
            if each is not None and each.served is not None and each.served.kind != "model"
        ]

    def _text_model(self, name: str, kind: str) -> ServedModel:
        if name not in self._entries:
            raise unknown_model_error(name)
        served = self.get(name)
        if served.kind != kind:
            raise model_kind_error(name, served.kind)
        return served

    # -- loading -----------------------------------------------------------------------------------------------------

    def _finish_loading(self) -> None:
        if self.on_change is not None:
            self.on_change()

    async def load_all(self) -> None:
        """Load all models; ModelError if one fails that was named, or all of the repositories.

        The reasons of others are in the index and in the log.
        """
        failures = {}
        for name in list(self._entries):
            problems = await self._load_entry(name, self._entries[name].location)
            if problems:
                failures[name] = "; ".join(problems)
        named = {location.name for location in self._catalog.locations} & failures.keys()
        if named or len(failures) == len(self._entries):
            name = min(named or failures)
            raise ModelError(f"model {name!r} cannot be served: {failures[name]}")
        self._finish_loading()
        self.is_loaded = True

    async def load(self, name: str) -> None:
        """Load a model of the catalog, or load it again; HttpError 400 says why it failed."""
        location = (await _in_thread(self._catalog.scan)).get(name)
        if location is None:
            raise HttpError(
                404, f"failed to load {name!r}: there is no such model in what the server was told to serve"
            )
        self._unloaded.discard(name)
        failures = await self._load_entry(name, location, again=True)
        if failures:
            raise HttpError(400, f"failed to load {name!r}: {'; '.join(failures)}")

    async def unload(self, name: str) -> None:
        """Unload a model; its requests are answered first."""
        entry = self._entries.get(name)
        if entry is None:
            raise HttpError(404, f"failed to unload {name!r}: there is no such model")
        self._unloaded.add(name)
        async with entry.turn:
            for version in entry.versions.values():
                self._retire(version)
                version.state, version.reason = "UNAVAILABLE", UNLOADED

    async def _load_entry(self, name: str, location: Location, again: bool = False) -> list[str]:
        """Load the versions of a model that are new or have changed; return what failed."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = Entry(location)
        failures = []
        async with entry.turn:
            entry.location = location
            for number in [number for number in entry.versions if number not in location.versions]:
                self._retire(entry.versions.pop(number))
            for number, source in sorted(location.versions.items(), key=lambda item: -int(item[0])):
                version = entry.versions.setdefault(number, Version(source))
                stamp = await _in_thread(read_stamp, source, version.served)
                if version.served is not None and version.stamp == stamp and not (again and isinstance(source, Path)):
                    continue
                version.source, version.stamp = source, stamp
                problem = await self._load_version(name, number, version)
                if problem is not None:
                    failures.append(f"version {number}: {problem}" if len(location.versions) > 1 else problem)
        return failures

    async def _load_version(self, name: str, number: str, version: Version) -> str | None:
        """Load a version, and put it in the place of what was served; return why it failed."""
        if version.served is None:
            version.state, version.reason = "LOADING", ""
        try:
            served = await _in_thread(self._open, name, number, version.source)
        except Exception as error:
            problem = str(error) if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
            is_expected = isinstance(error, (WeftError, OSError))
            LOG.error("model %s version %s cannot be loaded: %s", name, number, problem, exc_info=not is_expected)
            if version.served is None:
                version.state, version.reason = "UNAVAILABLE", problem
            return problem
        self._retire(version)
        self.budget.reserve(served.memory)
        served.use_statistics(version.statistics)
        version.served, version.state, version.reason = served, "READY", ""
        if self.is_loaded:
            self._finish_loading()
        LOG.info("model %s version %s is ready on %s (%s)", name, number, served.device, format_bytes(served.memory))
        return None

    def _open(self, name: str, number: str, source: Source) -> ServedModel:
        from weft.generation.generator import Generator
        from weft.server.embedder import is_embedding_folder, open_embedder

        options = self.settings.load_options
        if isinstance(source, Generator):
            served = serve_generator(name, number, source)
        elif isinstance(source, Path) and is_generator_folder(source):
            served = serve_generator(name, number, Generator(source, **self.settings.generator_options))
        elif isinstance(source, Path) and is_embedding_folder(source):
            embedder = open_embedder(source, **options)
            served = serve_model(name, number, embedder.model, self.settings, self.budget)
            served.embedder = embedder
        else:
            model, omitted = _load_tensors(source, options) if isinstance(source, Path) else (source, ())
            served = serve_model(name, number, model, self.settings, self.budget, omitted)
        if served.memory > self.budget.limit - self.budget.reserved:
            left = format_bytes(max(self.budget.limit - self.budget.reserved, 0))
            problem = f"the model needs {format_bytes(served.memory)}, and {left} are left for models"
            raise OutOfMemoryError(problem, hint="raise --memory-limit, or serve fewer models")
        return served

    def _retire(self, version: Version) -> None:
        """Stop giving requests to what is served, and close it after those that it has."""
        served, version.served = version.served, None
        if served is None:
            return

        async def close() -> None:
            await served.close(GRACE)
            self.budget.reserve(-served.memory)

        task = asyncio.get_running_loop().create_task(close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- changed files -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look for changed files again and again, and load what has changed."""
        while True:
            await asyncio.sleep(self.settings.poll)
            try:
                await self.update()
            except Exception:
                LOG.exception("looking for changed models failed")

    async def update(self) -> None:
        """Load models whose files have changed since they were loaded, and unload those whose files are gone."""
        locations = await _in_thread(self._catalog.scan)
        for name in [name for name in self._entries if name not in locations]:
            entry = self._entries.pop(name)
            async with entry.turn:
                for version in entry.versions.values():
                    self._retire(version)
            LOG.info("model %s is gone", name)
        for name, location in locations.items():
            if name in self._unloaded:
                continue
            current = self._entries.get(name)
            is_new = current is None or location.versions.keys() != current.location.versions.keys()
            if is_new or (current is not None and await self._has_changed(current)):
                await self._load_entry(name, location)

    async def _has_changed(self, entry: Entry) -> bool:
        """Whether files have changed, and are the same in two looks: a file may still be written."""
        is_changed = False
        for version in entry.versions.values():
            stamp = await _in_thread(read_stamp, version.source, version.served)
            if stamp == version.stamp:
                version.changed = None
            elif stamp and stamp == version.changed:
                is_changed, version.changed = True, None
            else:
                version.changed = stamp
        return is_changed

    async def close(self, grace: float | None = None) -> None:
        """Wait for the requests of all models, then free them. Models of the caller stay as they are."""
        for entry in self._entries.values():
            for version in entry.versions.values():
                served, version.served = version.served, None
                if served is not None:
                    if not isinstance(version.source, Path):
                        served.generator = None  # the caller closes it
                    await served.close(grace)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)


UNLOADED = "unloaded"


def read_stamp(source: Source, served: ServedModel | None) -> Stamp:
    """Return names, times and sizes of the files of a model; () if one is missing."""
    if not isinstance(source, Path):
        return ()
    if source.is_dir():
        files = [file for file in (*source.glob("*"), *source.glob("onnx/*")) if file.is_file()]
    else:
        external = _external_files(served)
        files = [source, *(source.parent / name for name in external)]
    try:
        stamps = [(str(file), (stat := file.stat()).st_mtime_ns, stat.st_size, stat.st_ino) for file in files]
    except OSError:
        return ()
    return tuple(sorted(stamps))


def _external_files(served: ServedModel | None) -> Sequence[str]:
    return () if served is None or served.batcher is None else served.external_files


def _load_tensors(path: Path, options: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """Load a model without the outputs that no protocol can carry, such as the maps of a classifier; return these."""
    from weft.loading import load

    model = load(path, **options)
    omitted = tuple(spec.name for spec in model.outputs if datatype_of(spec) is None)
    if not omitted or len(omitted) == len(model.outputs) or "outputs" in options:
        return model, ()
    return load(path, **options, outputs=[spec.name for spec in model.outputs if spec.name not in omitted]), omitted


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
