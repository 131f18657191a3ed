"""Find the models to serve: files, folders of language models, and repositories.

A repository is a folder with a model in each file or subfolder. A subfolder with numbered folders, as Triton has them,
is one model with these versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from weft.errors import InputError, MissingFileError, ModelError, WeftError, short_repr
from weft.generation.config_files import read_optional_config
from weft.generation.genai_folder import GENAI_CONFIG
from weft.generation.optimum_folder import DECODERS, WHOLE, find_parts
from weft.quantities import join_few

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.runtime.model import Model

SUFFIXES = (".onnx", ".weft")
FIRST_VERSION = "1"
GENERATING = re.compile(r"CausalLM|LMHead|ConditionalGeneration|Seq2Seq")  # in names of architectures
Source = Union[Path, "Model", "Generator"]
Models = Union[str, "os.PathLike[str]", Source, Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Location:
    """A model of a name, and the source of each version: a file, the folder of a language model, or a loaded model."""

    name: str
    versions: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What to serve: single models, and repositories, whose models may change."""

    locations: tuple[Location, ...]
    repositories: tuple[Path, ...] = ()

    def scan(self) -> dict[str, Location]:
        """Return all models by name, those of repositories as they are now; InputError if two have one name."""
        locations: dict[str, Location] = {}
        for location in (*self.locations, *(each for folder in self.repositories for each in scan_repository(folder))):
            other = locations.get(location.name)
            if other is not None:
                problem = f"two models have the name {location.name!r}"
                raise InputError(problem, hint="name one of them: NAME=PATH")
            locations[location.name] = location
        return locations


def read_catalog(models: Models) -> Catalog:
    """Read what to serve: a path or model, a list of them, or a dict by name. A text may be "NAME=PATH"."""
    locations: list[Location] = []
    repositories: list[Path] = []
    for name, source in _iterate_sources(models):
        if not isinstance(source, (str, os.PathLike)):
            locations.append(_locate_object(name, source))
            continue
        path = _existing_path(source)
        location = _locate_path(path, name)
        if location is not None:
            locations.append(location)
        elif name is not None:
            hint = "a name is for one model: a file, the folder of a language model, or a folder with versions"
            raise ModelError(f"{path} is not the folder of one model", hint=hint)
        else:
            if not any(True for _ in scan_repository(path)):
                hint = "it needs .onnx files, folders of language models, or folders NAME/VERSION/model.onnx"
                raise ModelError(f"{path} has no model", hint=hint)
            repositories.append(path)
    catalog = Catalog(tuple(locations), tuple(repositories))
    if not catalog.scan():
        raise InputError("there is no model to serve", hint="pass the path of a model, or of a folder with models")
    return catalog


def _iterate_sources(models: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(models, Mapping):
        for name, source in models.items():
            yield _check_name(name), source
    elif isinstance(models, (list, tuple)):
        for source in models:
            yield from _iterate_sources(source)
    elif isinstance(models, str) and not Path(models).exists() and "=" in models:
        name, _, path = models.partition("=")
        yield _check_name(name), path
    else:
        yield None, models


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or name != name.strip() or not name.isprintable():
        raise InputError(f"{short_repr(name)} cannot be the name of a model", hint="use a printable text")
    return name


def _locate_object(name: str | None, source: Any) -> Location:
    from weft.generation.generator import Generator
    from weft.runtime.model import Model

    if not isinstance(source, (Model, Generator)):
        hint = "pass paths, weft.Model or weft.Generator"
        raise InputError(f"{short_repr(source)} cannot be served", hint=hint)
    if name is None:
        name = source.folder.name if isinstance(source, Generator) else Path(source.file).stem or "model"
    return Location(name, {FIRST_VERSION: source})


def _existing_path(path: str | os.PathLike[str]) -> Path:
    location = Path(path).expanduser().absolute()
    try:
        exists = location.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{short_repr(path)} is not a path: {error}") from None
    if not exists:
        raise MissingFileError(f"{location} does not exist", hint="pass a model, or a folder with models")
    return location


def _locate_path(path: Path, name: str | None = None) -> Location | None:
    """Return the model of a file or folder; None for a folder that is a repository, or has nothing."""
    if path.is_file():
        return Location(name or path.stem, {FIRST_VERSION: path})
    if is_text_folder(path):
        return Location(name or path.name, {FIRST_VERSION: path})
    versions = {entry.name: source for entry in _list(path) if _is_version(entry) and (source := _find_source(entry))}
    if versions:
        return Location(name or path.name, versions)
    return None


def scan_repository(folder: Path) -> Iterator[Location]:
    """Find the models of a repository, as far as its folders can be read."""
    for entry in _list(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            location = _locate_path(entry)
            source = None if location is not None else _find_source(entry)
            if location is not None:
                yield location
            elif source is not None:
                yield Location(entry.name, {FIRST_VERSION: source})
        elif entry.suffix in SUFFIXES:
            yield Location(entry.stem, {FIRST_VERSION: entry})


def is_text_folder(path: Path) -> bool:
    """Whether a folder holds a language model, of which the inputs are texts."""
    from weft.server.embedder import is_embedding_folder

    return is_embedding_folder(path) or is_generator_folder(path)


def is_generator_folder(path: Path) -> bool:
    """Whether a folder holds a language model that generates text."""
    from weft.server.embedder import is_embedding_folder

    if not path.is_dir() or is_embedding_folder(path):
        return False
    if (path / GENAI_CONFIG).is_file():
        return True
    parts = find_parts(path)
    if not (path / "tokenizer.json").is_file() or not any(part in DECODERS for part in parts):
        return False
    return any(part in parts for part in DECODERS if part != WHOLE) or _is_causal(path)


def _is_causal(path: Path) -> bool:
    """Whether the configuration names a model that generates text."""
    try:
        names = read_optional_config(path / "config.json").fields.get("architectures")
    except WeftError:
        return False
    if not isinstance(names, list):
        return (path / "generation_config.json").is_file()
    return any(GENERATING.search(str(name)) for name in names)


def _find_source(folder: Path) -> Path | None:
    """Return the model of a folder: itself if it is of a language model, or its only file, or its model.onnx."""
    if is_text_folder(folder):
        return folder
    files = [entry for entry in _list(folder) if entry.suffix in SUFFIXES and entry.is_file()]
    named = [file for file in files if file.stem == "model"]
    return named[0] if named else files[0] if len(files) == 1 else None


def _is_version(entry: Path) -> bool:
    return entry.name.isascii() and entry.name.isdecimal() and entry.name != "0" and entry.is_dir()


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def describe_names(names: Sequence[str]) -> str:
    """List names of models in a message."""
    return join_few(map(repr, names), 8) or "none"
