"""A model's files, read as often as is asked for and always with the same content.

The first look at a file decides what it holds: by its digest, or by a private copy. Whoever reads it later gets the
very same, or an error that says that the file has changed. Weights that were set lie over what the files hold: each
set of them is a `ModelFiles` of its own, which reads through the first one and is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cache.digests import digest, file_digest, is_settled
from weft.cache.files import usable
from weft.errors import ChangedFileError, ModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel, copy_model, open_model
from weft.records import dataclass
from weft.threads import reentrant_lock

if TYPE_CHECKING:
    from weft.backends.device import KeepingDriver
    from weft.cache.entries import CachedModel
    from weft.ir.graph import OnnxModel

KEPT = 1 << 20  # bytes of files that are not worth to be copied twice
Array = np.ndarray[Any, Any]
Read = Callable[[OpenedModel, Sequence[Path]], "OnnxModel"]


@dataclass(frozen=True, slots=True)
class PortableSource:
    """What another process needs to open the same files: their content, or a path and the names of contents."""

    file: str
    path: str | None
    content: bytes | None  # None: it is in the file
    name: str
    external: Mapping[str, str]


class ModelFiles:
    """The files of one model: what they hold, and the model as it was read from them, while that is needed."""

    changed: Mapping[str, Array] = {}  # weights that were set, by name

    def __init__(self, opened: OpenedModel, read: Read, folder: Path | None, records: Path | None) -> None:
        """`folder` is where large copies of files may lie, `records` where names of their contents are remembered."""
        self.opened = opened
        self._read = read
        self._folder = folder
        self._records = records
        self._name: str | None = None
        self._external: dict[str, str] = {}  # the names of external files' contents
        self._model: OnnxModel | None = None
        self._copy: OpenedModel | None = None
        self._is_loaded = False
        self._lock = reentrant_lock()

    @property
    def file(self) -> str:
        return self.opened.file

    def name(self) -> str:
        """The name of the content of the model's own file."""
        with self._lock:
            if self._name is None:
                content = self.opened.content
                if isinstance(content, OpenFile):
                    self._name = file_digest(content, self.opened.path, self._records)
                else:
                    self._name = digest(content)
            return self._name

    def locations(self) -> list[str]:
        """The files beside the model's own that hold weights."""
        return sorted(self.model().external)

    def external_names(self, locations: Sequence[str]) -> list[str]:
        """The names of the contents of files beside the model; a WeftError where one cannot be read."""
        with self._lock:
            for location in locations:
                if location not in self._external:
                    from weft.frontend.storage import open_external

                    file = open_external(self.opened, location)
                    self._external[location] = file_digest(file, Path(file.name), self._records)
            return [self._external[location] for location in locations]

    def model(self) -> OnnxModel:
        """The model, its weights views of private copies; ChangedFileError where a file is not what it was."""
        with self._lock:
            if self._model is None:
                try:
                    self._copy, self._model = self._read_again()
                except ModelError as error:
                    if not self._is_loaded:
                        raise
                    hint = "load the model again"
                    raise ChangedFileError(
                        f"since it was loaded: {error.problem}", file=self.file, hint=hint
                    ) from error
            return self._model

    def _read_again(self) -> tuple[OpenedModel, OnnxModel]:
        folders = [self._folder] if self._folder is not None and usable(self._folder) else []
        if isinstance(self.opened.content, OpenFile) and not is_settled(self.opened.content):
            self.name()  # whoever writes to it now shows in two looks at it
        copy = copy_model(self.opened, folders)
        if isinstance(self.opened.content, OpenFile):
            self._name = _same(self._name, copy.view, "the file", self.file)
        model = self._read(copy, folders)
        for location, view in model.external.items():
            self._external[location] = _same(self._external.get(location), view, location, self.file)
        return copy, model

    def prepared(
        self,
        device: KeepingDriver,  # noqa: ARG002
        precision: str,  # noqa: ARG002
        outputs: Sequence[str] | None,  # noqa: ARG002
    ) -> CachedModel | None:
        """What the files hold of the model as it is compiled for a device; None where they hold nothing of the sort."""
        return None

    def views(self) -> list[memoryview]:
        """The private copies in use."""
        with self._lock:
            if self._model is None or self._copy is None:
                return []
            return [self._copy.view, *self._model.external.values()]

    @property
    def unchanged(self) -> ModelFiles:
        """The files with the weights that they hold."""
        return self

    def with_weights(self, changed: Mapping[str, Array]) -> ModelFiles:
        """The same files, with these arrays instead of the weights that they hold."""
        return ChangedModelFiles(self, changed)

    def save(self, path: Path) -> None:
        """Write the model's file anew, with the weights that were set."""
        self._save(path, {})

    def _save(self, path: Path, changed: Mapping[str, Array]) -> None:
        from weft.frontend.save import save_model

        with self._lock:
            model = self.model()
            assert self._copy is not None
            copy = self._copy
        save_model(copy, model.external, changed, path)

    def whole(self) -> Sequence[bytes | memoryview] | None:
        """The model, with the weights that were set, as the content of one ONNX file; None where it has none."""
        return self._whole({})

    def _whole(self, changed: Mapping[str, Array]) -> Sequence[bytes | memoryview] | None:
        from weft.frontend.save import model_parts

        with self._lock:
            model = self.model()
            assert self._copy is not None
            return model_parts(self._copy, model.external, changed)

    def portable(self) -> PortableSource:
        """What says the same files elsewhere; `reopened` finds them there."""
        path = None if self.opened.path is None else str(self.opened.path.absolute())
        content = self.opened.content
        if isinstance(content, OpenFile) and content.is_whole and path is not None:
            return PortableSource(self.file, path, None, self.name(), dict(self._external))
        private = copy_model(self.opened).view
        name = _same(self._name, private, "the file", self.file)
        return PortableSource(self.file, path, private.tobytes(), name, dict(self._external))

    def end_loading(self, keep: bool) -> None:
        """Let go of large copies of files, unless they are to be kept; who needs them again, makes them again."""
        with self._lock:
            self._is_loaded = True
            if not keep and sum(map(len, self.views())) > KEPT and isinstance(self.opened.content, OpenFile):
                self._model = self._copy = None


class ChangedModelFiles(ModelFiles):
    """Files as others read them, with other weights. The files' own model stays at hand: it may be asked for often."""

    def __init__(self, under: ModelFiles, changed: Mapping[str, Array]) -> None:
        super().__init__(under.opened, under._read, under._folder, under._records)
        self._under = under.unchanged
        self.changed = {**under.changed, **changed}

    @property
    def unchanged(self) -> ModelFiles:
        return self._under

    def name(self) -> str:
        """Of the file alone: what is made of it with these weights has no place in the cache."""
        return self._under.name()

    def locations(self) -> list[str]:
        return self._under.locations()

    def external_names(self, locations: Sequence[str]) -> list[str]:
        return self._under.external_names(locations)

    def model(self) -> OnnxModel:
        """The model with the weights that were set."""
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
        """What was read stays."""


def source_again(source: PortableSource) -> OpenedModel:
    """What another process had opened; ChangedFileError where it is not here."""
    path = None if source.path is None else Path(source.path)
    if source.content is not None:
        return OpenedModel(memoryview(source.content), source.file, path)
    assert path is not None
    try:
        return replace(open_model(path), file=source.file)
    except ModelError as error:
        raise not_here(error.problem, source.file) from error


def reopened(
    source: PortableSource, opened: OpenedModel, read: Read, folder: Path | None, records: Path | None
) -> ModelFiles:
    """The files that another process had; ChangedFileError where they are not here, or hold something else."""
    files = ModelFiles(opened, read, folder, records)
    if files.name() != source.name:
        raise not_here(f"{source.path} holds something else", source.file)
    try:
        found = files.external_names(list(source.external))
    except ModelError as error:
        raise not_here(error.problem, source.file) from error
    for location, name in zip(source.external, found):
        if name != source.external[location]:
            raise not_here(f"{location} holds something else", source.file)
    return files


def not_here(problem: str, file: str) -> ChangedFileError:
    hint = "put the file back, or load the model again; a model that was loaded from bytes needs no file"
    return ChangedFileError(f"since the model was pickled: {problem}", file=file, hint=hint)


def _same(known: str | None, view: memoryview, name: str, file: str) -> str:
    """The name of a file's content, which must be the known one if there is one."""
    found = digest(view)
    if known is not None and known != found:
        raise ChangedFileError(f"{name} has changed since it was first read", file=file, hint="load the model again")
    return found
