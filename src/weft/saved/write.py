"""A model compiled for several targets -> one file with all of it.

Blocks are written as they are made, those with the same content once: what targets have in common, such as weights
that none of them packs, is there for all. The file is renamed into place when it is whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

from weft.backends.device import NATIVE, CompilingDriver, LoadingDriver
from weft.cache import serialization
from weft.cache.digests import CHUNK, name_of, note_written
from weft.cache.entries import saved_model
from weft.cache.files import UNFINISHED
from weft.compiler import Pipeline
from weft.errors import DeviceError, InputError, WeftError
from weft.frontend.files import OpenFile
from weft.frontend.source import open_model
from weft.ir.packing import iterate_chunks
from weft.records import dataclass
from weft.runtime.devices import HOST, driver
from weft.runtime.model_files import read_opened
from weft.saved.files import open_saved
from weft.saved.layout import HEAD, MEANING, head_to_sign, signed_head
from weft.saved.manifest import Block, Manifest, SavedProgram, to_bytes
from weft.saved.signing import signature
from weft.version import __version__

if TYPE_CHECKING:
    from weft.runtime.model_files import ModelFiles
    from weft.runtime.options import LoadOptions
    from weft.runtime.progress import Stages

Chunks = Iterable["bytes | memoryview"]


@dataclass(frozen=True, slots=True)
class SavingTerms:
    """What is saved: for which devices, and targets of the host; for which sizes; whether with its graph."""

    devices: tuple[str, ...]
    targets: tuple[str, ...]
    sizes: Mapping[str, int]
    graph: bool


def save_programs(files: ModelFiles, options: LoadOptions, terms: SavingTerms, path: Path, progress: Stages) -> None:
    """Compile a model as the terms say, and write the file."""
    whole = files.whole()
    if whole is None and terms.graph:
        hint = "save it without: weft compile --no-graph, or graph=False"
        raise InputError("the graph is too large to be saved in one file", file=files.file, hint=hint)
    graph = whole or ()
    with _replacing(path) as file:
        blocks = _BlockWriter(file)
        programs = tuple(
            _saved_program(files, options, device, target, terms.sizes, blocks, progress)
            for device in terms.devices
            for target in (terms.targets if device == HOST or len(terms.devices) == 1 else (NATIVE,))
        )
        name = _content_name(graph)
        made = Manifest(MEANING, __version__, Path(files.file).name, name, terms.graph, programs, tuple(blocks.written))
        manifest, place = to_bytes(made), file.tell()
        file.write(manifest)
        for part in graph if terms.graph else ():
            file.write(part)
        signed = head_to_sign(manifest, place, sum(map(len, graph)) if terms.graph else 0)
        file.seek(0)
        file.write(signed_head(signed, signature(signed)))


def _saved_program(
    files: ModelFiles,
    options: LoadOptions,
    device: str,
    target: str,
    sizes: Mapping[str, int],
    blocks: _BlockWriter,
    progress: Stages,
) -> SavedProgram:
    pipeline = Pipeline(files, options, device, progress)
    compiling = pipeline.driver
    if not isinstance(compiling, LoadingDriver):
        raise DeviceError(f"device {device!r} runs models as they are: there is nothing to save", file=files.file)
    if target != NATIVE:
        if not isinstance(compiling, CompilingDriver):
            raise DeviceError(f"device {device!r} has no target {target!r}", file=files.file)
        pipeline.driver = compiling = compiling.for_target(target)
    compiling.check_precision(options.precision)
    made = pipeline.compile_model(sizes)
    progress.stage("saving")
    saved, objects = saved_model(made)
    program = blocks.add([serialization.with_code(saved.structure, tuple(objects))])
    arrays = tuple(blocks.add(piece.view("uint8").data for piece in iterate_chunks(array)) for array in saved.arrays)
    return SavedProgram(
        device.partition(":")[0],
        target,
        {compiling.name.partition(":")[0]: dict(compiling.needs())},
        options.precision,
        None if options.outputs is None else tuple(options.outputs),
        dict(sizes),
        program,
        arrays,
        {name: blocks.add([code]) for name, code in compiling.support().items()},
        saved.records,
    )


class _BlockWriter:
    """Blocks in a file, from behind its head on; those that are there already are not written again."""

    def __init__(self, file: IO[bytes]) -> None:
        self.written: list[Block] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._file = file
        file.seek(HEAD)

    def add(self, content: Chunks) -> int:
        """The number of a block with this content."""
        start = self._file.tell()
        digest = _ChunkDigest()
        for part in content:
            self._file.write(part)
            digest.update(part)
        name, size = digest.name(), digest.size
        number = self._numbers.setdefault((name, size), len(self.written))
        if number < len(self.written):
            self._file.seek(start)
            self._file.truncate()
        else:
            self.written.append(Block(start, size, name))
        return number


class _ChunkDigest:
    """The name of bytes that come one after the other, as cache/digests.py gives it to all of them."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._current = sha256()
        self._room = CHUNK

    def update(self, content: bytes | memoryview) -> None:
        view = memoryview(content).cast("B")
        self.size += len(view)
        while len(view):
            piece, view = view[: self._room], view[self._room :]
            self._current.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._parts.append(self._current.digest())
                self._current, self._room = sha256(), CHUNK

    def name(self) -> str:
        last = [self._current.digest()] if self._room < CHUNK or not self._parts else []
        return name_of(self.size, [*self._parts, *last])


def _content_name(parts: Chunks) -> str:
    digest = _ChunkDigest()
    for part in parts:
        digest.update(part)
    return digest.name()


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of another when it is whole, and is gone otherwise."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError) and not isinstance(error, WeftError):
            reason = error.strerror or str(error)
            raise InputError(
                f"{path} cannot be written: {reason}", hint="check the path, and the space there"
            ) from error
        raise


def keep_copies(path: Path, options: LoadOptions, folder: Path | None, records: Path | None) -> None:
    """See that what was just saved is known to be whole, and can be mapped when it is loaded here."""
    opened = open_model(path)
    files = open_saved(opened, read_opened, None, None, replace(options, trusted=True))
    if folder is None:
        return
    for device in dict.fromkeys(program.device for program in files.manifest.programs):
        with suppress(WeftError):
            found = driver(device)
            if isinstance(found, LoadingDriver):
                files.keep_copy(found, options.precision, options.outputs)
    if isinstance(opened.content, OpenFile):
        note_written(opened.content, path, records, files.saved_name)
