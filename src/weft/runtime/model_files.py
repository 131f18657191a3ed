"""A model's files, read as often as is asked for and always with the same content.

The first look at a file decides what it holds: by its digest, or by a private copy. Whoever reads it later gets the
very same, or an error that says that the file has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from weft.cache.digests import digest, file_digest, is_settled
from weft.cache.files import usable
from weft.errors import ChangedFileError, ModelError
from weft.frontend import OpenedModel, OpenFile, copy_model, open_external
from weft.ir.graph import OnnxModel
from weft.threads import reentrant_lock

KEPT = 1 << 20  # bytes of files that are not worth to be copied twice
Read = Callable[[OpenedModel, Sequence[Path]], OnnxModel]


class ModelFiles:
    """The files of one model: what they hold, and the model as it was read from them, while that is needed."""

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

    def views(self) -> list[memoryview]:
        """The private copies in use."""
        with self._lock:
            if self._model is None or self._copy is None:
                return []
            return [self._copy.view, *self._model.external.values()]

    def end_loading(self, keep: bool) -> None:
        """Let go of large copies of files, unless they are to be kept; who needs them again, makes them again."""
        with self._lock:
            self._is_loaded = True
            if not keep and sum(map(len, self.views())) > KEPT and isinstance(self.opened.content, OpenFile):
                self._model = self._copy = None


def _same(known: str | None, view: memoryview, name: str, file: str) -> str:
    """The name of a file's content, which must be the known one if there is one."""
    found = digest(view)
    if known is not None and known != found:
        raise ChangedFileError(f"{name} has changed since it was first read", file=file, hint="load the model again")
    return found
