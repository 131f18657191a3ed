"""A model's files, which always give the content of the first read.

The first read fixes a file's content, by its digest or by a private copy. Later reads give the same content or raise a
ChangedFileError. Weights that were set override those of the files: each set of them is an immutable `ModelFiles`, on
top of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from weft.cache.digests import digest, file_digest, is_settled
from weft.cache.files import is_private
from weft.errors import ChangedFileError, MissingPackageError, ModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel, copy_model, open_model
from weft.ir.arrays import Array
from weft.records import dataclass
from weft.threads import make_reentrant_lock

if TYPE_CHECKING:
    from weft.backends.device import LoadingDriver
    from weft.cache.entries import CachedModel
    from weft.ir.graph import OnnxModel

COMPILER_PACKAGES = ("llvmlite", "onnx")  # not needed to run saved programs
TYPES_PACKAGE = "ml_dtypes"  # bfloat16, float8 and types below 8 bits
SMALL_FILES = 1 << 20  # bytes of files that stay in memory after loading
Read = Callable[[OpenedModel, Sequence[Path]], "OnnxModel"]


@dataclass(frozen=True, slots=True)
class PortableSource:
    """A model's files in a form that another process can open: their content, or a path and digests."""

    file: str
    path: str | None
    content: bytes | None  # None: read it from the path
    name: str  # the digest of the content
    external: Mapping[str, str]  # the digests of external files


class ModelFiles:
    """The files of one model, and the model read from them while it is needed."""

    changed: Mapping[str, Array] = {}  # weights that were set, by name

    def __init__(self, opened: OpenedModel, read: Read, folder: Path | None, records: Path | None) -> None:
        """`folder` is for large copies of files, `records` for remembered digests."""
        self.opened = opened
        self._read = read
        self._folder = folder
        self._records = records
        self._name: str | None = None
        self._external: dict[str, str] = {}  # the digests of external files
        self._model: OnnxModel | None = None
        self._copy: OpenedModel | None = None
        self._is_loaded = False
        self._lock = make_reentrant_lock()

    @property
    def file(self) -> str:
        return self.opened.file

    def name(self) -> str:
        """Return the digest of the model's own file."""
        with self._lock:
            if self._name is None:
                content = self.opened.content
                if isinstance(content, OpenFile):
                    self._name = file_digest(content, self.opened.path, self._records)
                else:
                    self._name = digest(content)
            return self._name

    def locations(self) -> list[str]:
        """List the external files that hold weights."""
        return sorted(self.model().external)

    def external_names(self, locations: Sequence[str]) -> list[str]:
        """Return the digests of external files; WeftError if one cannot be read."""
        with self._lock:
            for location in locations:
                if location not in self._external:
                    from weft.frontend.storage import open_external

                    file = open_external(self.opened, location)
                    self._external[location] = file_digest(file, Path(file.name), self._records)
            return [self._external[location] for location in locations]

    def model(self) -> OnnxModel:
        """Read the model, its weights as views of private copies; ChangedFileError if a file has changed."""
        with self._lock:
            if self._model is None:
                try:
                    self._copy, self._model = self._read_files()
                except ModelError as error:
                    if not self._is_loaded:
                        raise
                    hint = "load the model again"
                    raise ChangedFileError(
                        f"the file has changed since it was loaded: {error.problem}", file=self.file, hint=hint
                    ) from error
            return self._model

    def _read_files(self) -> tuple[OpenedModel, OnnxModel]:
        folders = [self._folder] if self._folder is not None and is_private(self._folder) else []
        if isinstance(self.opened.content, OpenFile) and not is_settled(self.opened.content):
            self.name()  # a digest before and after the copy detects concurrent writes
        copy = copy_model(self.opened, folders)
        if isinstance(self.opened.content, OpenFile):
            self._name = _check_digest(self._name, copy.view, "the file", self.file)
        model = self._read(copy, folders)
        for location, view in model.external.items():
            self._external[location] = _check_digest(self._external.get(location), view, location, self.file)
        return copy, model

    def prepared(
        self,
        device: LoadingDriver,  # noqa: ARG002
        precision: str,  # noqa: ARG002
        outputs: Sequence[str] | None,  # noqa: ARG002
    ) -> CachedModel | None:
        """Return the compiled program for a device that the files contain; None for plain ONNX files."""
        return None

    def views(self) -> list[memoryview]:
        """Return the private copies in use."""
        with self._lock:
            if self._model is None or self._copy is None:
                return []
            return [self._copy.view, *self._model.external.values()]

    @property
    def unchanged(self) -> ModelFiles:
        """The same files with their own weights."""
        return self

    def with_weights(self, changed: Mapping[str, Array]) -> ModelFiles:
        """Return the same files with these weights instead of their own."""
        return ChangedModelFiles(self, changed)

    def save(self, path: Path) -> None:
        """Write the model as a file, with its current weights."""
        self._save(path, {})

    def _save(self, path: Path, changed: Mapping[str, Array]) -> None:
        with self._lock:
            model = self.model()
            assert self._copy is not None
            copy = self._copy
        from weft.frontend.save import save_model

        save_model(copy, model.external, changed, path)

    def whole(self) -> Sequence[bytes | memoryview] | None:
        """Return the content of one ONNX file with the current weights; None if the model is too large for one."""
        return self._whole({})

    def _whole(self, changed: Mapping[str, Array]) -> Sequence[bytes | memoryview] | None:
        with self._lock:
            model = self.model()
            assert self._copy is not None
            from weft.frontend.save import model_parts

            return model_parts(self._copy, model.external, changed)

    def portable(self) -> PortableSource:
        """Describe the files for another process, where `reopen_files` opens them."""
        path = None if self.opened.path is None else str(self.opened.path.absolute())
        content = self.opened.content
        if isinstance(content, OpenFile) and content.is_whole and path is not None:
            return PortableSource(self.file, path, None, self.name(), dict(self._external))
        private = copy_model(self.opened).view
        name = _check_digest(self._name, private, "the file", self.file)
        return PortableSource(self.file, path, private.tobytes(), name, dict(self._external))

    def end_loading(self, keep: bool) -> None:
        """Free large copies of files unless `keep`; `model` reads them again when needed."""
        with self._lock:
            self._is_loaded = True
            if not keep and sum(map(len, self.views())) > SMALL_FILES and isinstance(self.opened.content, OpenFile):
                self._model = self._copy = None


class ChangedModelFiles(ModelFiles):
    """Files with other weights. The model with those weights stays in memory, since it is needed often."""

    def __init__(self, under: ModelFiles, changed: Mapping[str, Array]) -> None:
        super().__init__(under.opened, under._read, under._folder, under._records)
        self._under = under.unchanged
        self.changed = {**under.changed, **changed}

    @property
    def unchanged(self) -> ModelFiles:
        return self._under

    def name(self) -> str:
        """Return the digest of the file, without the weights: models with set weights are not cached."""
        return self._under.name()

    def locations(self) -> list[str]:
        return self._under.locations()

    def external_names(self, locations: Sequence[str]) -> list[str]:
        return self._under.external_names(locations)

    def model(self) -> OnnxModel:
        """Return the model with its current weights."""
        from weft.ir.graph import with_weights

        with self._lock:
            if self._model is None:
                model = self._under.model()
                self._model = replace(model, graph=with_weights(model.graph, self.changed))
            return self._model

    def views(self) -> list[memoryview]:
        return self._under.views()

    def save(self, path: Path) -> None:
        self._under._save(path, self.changed)

    def whole(self) -> Sequence[bytes | memoryview] | None:
        return self._under._whole(self.changed)

    def portable(self) -> PortableSource:
        return self._under.portable()

    def end_loading(self, keep: bool) -> None:
        """Keep what was read."""


def reopen_source(source: PortableSource) -> OpenedModel:
    """Open what another process had opened; ChangedFileError if it is missing."""
    path = None if source.path is None else Path(source.path)
    if source.content is not None:
        return OpenedModel(memoryview(source.content), source.file, path)
    assert path is not None
    try:
        return replace(open_model(path), file=source.file)
    except ModelError as error:
        raise missing_file(error.problem, source.file) from error


def reopen_files(
    source: PortableSource, opened: OpenedModel, read: Read, folder: Path | None, records: Path | None
) -> ModelFiles:
    """Open the files that another process had; ChangedFileError if they are missing or have changed."""
    files = ModelFiles(opened, read, folder, records)
    if files.name() != source.name:
        raise missing_file(f"{source.path} has other content", source.file)
    try:
        names = files.external_names(list(source.external))
    except ModelError as error:
        raise missing_file(error.problem, source.file) from error
    for location, name in zip(source.external, names):
        if name != source.external[location]:
            raise missing_file(f"{location} has other content", source.file)
    return files


def missing_file(problem: str, file: str) -> ChangedFileError:
    """Make the error for a file that a pickled model needs."""
    hint = "put the file back, or load the model again; a model that was loaded from bytes needs no file"
    return ChangedFileError(f"the file has changed since the model was pickled: {problem}", file=file, hint=hint)


def _check_digest(expected: str | None, view: memoryview, name: str, file: str) -> str:
    """Return the digest of a file's content; ChangedFileError if it is not the expected one."""
    actual = digest(view)
    if expected is not None and expected != actual:
        raise ChangedFileError(f"{name} has changed since it was first read", file=file, hint="load the model again")
    return actual


def read_opened(opened: OpenedModel, folders: Sequence[Path], *, strict: bool = False) -> OnnxModel:
    """Read the graph of a source, its weights as views of private copies."""
    try:
        from weft.frontend.read import read_model
        from weft.opset.registry import known_attributes
    except ModuleNotFoundError as error:
        raise_missing_package(error, opened.file)
    return read_model(opened, is_defined=is_defined, folders=folders, known_attributes=known_attributes, strict=strict)


def raise_missing_package(error: ModuleNotFoundError, file: str | None = None, subject: str = "this") -> NoReturn:
    """Raise a MissingPackageError for a package that an installation with only the runtime lacks, else the error."""
    package = (error.name or "").partition(".")[0]
    if package not in (*COMPILER_PACKAGES, TYPES_PACKAGE):
        raise error
    hint = f"pip install {package}"
    if package in COMPILER_PACKAGES:
        hint += "; a program that `weft compile` wrote runs without it"
    problem = f"{subject} needs the package {package}, which is not installed"
    raise MissingPackageError(problem, file=file, hint=hint) from error


def model_reader(*, strict: bool) -> Read:
    """Return the function that reads files; `strict` repairs none that break ONNX's rules."""
    return partial(read_opened, strict=True) if strict else read_opened


def is_defined(domain: str, op: str, version: int) -> bool:
    """Whether weft itself defines an op."""
    from weft.opset import registry

    return registry.find(domain, op, version) is not None
