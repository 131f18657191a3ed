"""Compile a model for one or several targets, and write the programs to one file.

Blocks with the same content, such as weights that several targets use without packing, are written once. The file is
renamed into place when it is complete.
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
from weft.cache.digests import CHUNK, combine_digests, record_written
from weft.cache.entries import serialize_model
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
from weft.saved.layout import HEADER_SIZE, MEANING, make_header, make_signed_part
from weft.saved.manifest import Block, Manifest, SavedProgram, to_bytes
from weft.saved.signing import sign
from weft.version import __version__

if TYPE_CHECKING:
    from weft.runtime.model_files import ModelFiles
    from weft.runtime.options import LoadOptions
    from weft.runtime.progress import Stages

Chunks = Iterable["bytes | memoryview"]


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """What to save: programs for `devices` and, on the host, for `targets`; with `graph`, also the ONNX model.

    `sizes`: sizes of dynamic dims to compile for.
    """

    devices: tuple[str, ...]
    targets: tuple[str, ...]
    sizes: Mapping[str, int]
    graph: bool


def save_programs(files: ModelFiles, options: LoadOptions, saving: SaveOptions, path: Path, progress: Stages) -> None:
    """Compile a model and write the file."""
    whole = files.whole()
    if whole is None and saving.graph:
        hint = "save it without the graph: weft compile --no-graph, or graph=False"
        raise InputError("the graph is too large to be saved in one file", file=files.file, hint=hint)
    graph = whole or ()
    with _replace_file(path) as file:
        blocks = _BlockWriter(file)
        programs = tuple(
            _save_program(files, options, device, target, saving.sizes, blocks, progress)
            for device in saving.devices
            for target in (saving.targets if device == HOST or len(saving.devices) == 1 else (NATIVE,))
        )
        digest = _ChunkDigest()
        for part in graph:
            digest.update(part)
        file_name = Path(files.file).name
        manifest = to_bytes(
            Manifest(MEANING, __version__, file_name, digest.name(), saving.graph, programs, tuple(blocks.written))
        )
        offset = file.tell()
        file.write(manifest)
        for part in graph if saving.graph else ():
            file.write(part)
        signed = make_signed_part(manifest, offset, digest.size if saving.graph else 0)
        file.seek(0)
        file.write(make_header(signed, sign(signed)))


def _save_program(
    files: ModelFiles,
    options: LoadOptions,
    device: str,
    target: str,
    sizes: Mapping[str, int],
    blocks: _BlockWriter,
    progress: Stages,
) -> SavedProgram:
    pipeline = Pipeline(files, options, device, progress)
    device_driver = pipeline.driver
    if not isinstance(device_driver, LoadingDriver):
        raise DeviceError(f"device {device!r} does not compile models: there is nothing to save", file=files.file)
    if target != NATIVE:
        if not isinstance(device_driver, CompilingDriver):
            raise DeviceError(f"device {device!r} has no target {target!r}", file=files.file)
        pipeline.driver = device_driver = device_driver.for_target(target)
    device_driver.check_precision(options.precision)
    compiled = pipeline.compile_model(sizes)
    progress.stage("saving")
    saved, objects = serialize_model(compiled)
    program = blocks.add([serialization.add_code(saved.structure, tuple(objects))])
    arrays = tuple(blocks.add(piece.view("uint8").data for piece in iterate_chunks(array)) for array in saved.arrays)
    return SavedProgram(
        device.partition(":")[0],
        target,
        {device_driver.name.partition(":")[0]: dict(device_driver.needs())},
        options.precision,
        None if options.outputs is None else tuple(options.outputs),
        dict(sizes),
        program,
        arrays,
        {name: blocks.add([code]) for name, code in device_driver.support().items()},
        saved.records,
    )


class _BlockWriter:
    """Writes blocks to a file, after its header. Blocks of the same content are written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self.written: list[Block] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._file = file
        file.seek(HEADER_SIZE)

    def add(self, content: Chunks) -> int:
        """Write a block with this content, unless there is one, and return its number."""
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
    """The digest of a stream of bytes, the same as that of cache/digests.py for all of them."""

    def __init__(self) -> None:
        self.size = 0
        self._chunk_digests: list[bytes] = []
        self._chunk = sha256()
        self._missing = CHUNK  # bytes to the end of the chunk

    def update(self, content: bytes | memoryview) -> None:
        view = memoryview(content).cast("B")
        self.size += len(view)
        while len(view):
            piece, view = view[: self._missing], view[self._missing :]
            self._chunk.update(piece)
            self._missing -= len(piece)
            if not self._missing:
                self._chunk_digests.append(self._chunk.digest())
                self._chunk, self._missing = sha256(), CHUNK

    def name(self) -> str:
        last = [self._chunk.digest()] if self._missing < CHUNK or not self._chunk_digests else []
        return combine_digests(self.size, [*self._chunk_digests, *last])


@contextmanager
def _replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a new file that replaces another when it is complete, and is deleted if that fails."""
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
            raise InputError(f"{path} cannot be written: {reason}", hint="check the path and the free space") from error
        raise


def cache_programs(path: Path, options: LoadOptions, folder: Path | None, records: Path | None) -> None:
    """Write the programs of a new file to the cache, and record that its digests are correct."""
    opened = open_model(path)
    files = open_saved(opened, read_opened, None, None, replace(options, trusted=True))
    if folder is None:
        return
    for device in dict.fromkeys(program.device for program in files.manifest.programs):
        with suppress(WeftError):
            device_driver = driver(device)
            if isinstance(device_driver, LoadingDriver):
                files.cache_program(device_driver, options.precision, options.outputs)
    if isinstance(opened.content, OpenFile):
        record_written(opened.content, path, records, files.saved_name)
