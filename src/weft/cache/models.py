"""Loaded models on disk: what a device needs to run one, ready to be mapped into memory.

An entry is a file named by all that it depends on: a head, the arrays from a page's start on, then the structure and
the code. Arrays are written first, and used from there, while code is still compiled (memory.py); the file gets its
name when it is whole. The structure's checksum is tested with every use; that of the arrays once, unless the file has
changed since then. A small file beside it notes that, and by its time the last use. The entries used least
recently go when all together grow too large. Nothing here raises because of the disk, or of what lies there; what
others could have written is not used (files.py). Entries are mapped: they are replaced and removed, never changed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from weft.cache import serialization
from weft.cache.digests import digest, identity
from weft.cache.files import (
    STALE,
    UNFINISHED,
    cache_folder,
    check_folder,
    make_folder,
    open_file,
    read_file,
    write_file,
)
from weft.cache.memory import ArraysInMemory
from weft.ir.packing import iterate_chunks
from weft.logs import CACHE
from weft.quantities import format_bytes
from weft.records import dataclass

MOST_BYTES = 4 * 1024**3
LARGEST_SHARE = 2  # no entry may take more than this part of all; such a model is compiled from cached code instead
MOST_RECORDS = 4096  # digests of files that are remembered
_MAGIC = b"weft\x00m04"
_HEAD = struct.Struct("<8s32s32sQQQ")  # magic, checksum of key, rest of the head and structure, the arrays', sizes
_CHECKED = 8 + 32  # bytes of the head that the first checksum does not cover
_PAGE = 4096
_LONG_AGO = 86_400  # seconds
_UNSEEN: dict[tuple[Path | None, int], int] = {}  # bytes to be written to a cache before it is looked through again


@dataclass(frozen=True, slots=True)
class ModelCache:
    """A folder of entries, or none."""

    folder: Path | None
    most_bytes: int = MOST_BYTES

    @property
    def records(self) -> Path | None:
        """Where digests of files are remembered."""
        return None if self.folder is None else self.folder / "files"

    def get(self, key: str) -> Any:
        """What was kept under this name; None where there is nothing, or it is damaged."""
        found = self.entry(key)
        return None if found is None else found[0]

    def entry(self, key: str) -> tuple[Any, tuple[bytes, ...]] | None:
        """The same with the code that was kept beside it."""
        if self.folder is None:
            return None
        path = self.path(key)
        try:
            check_folder(self.folder)
            with os.fdopen(open_file(path), "rb") as file:
                status = os.fstat(file.fileno())
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):
            return None
        try:
            whole, arrays = self._checked(key, content, status)
            structure, objects = serialization.without_code(whole)
            value = serialization.restore(structure, arrays)
        except Exception as error:  # whatever is wrong with it: it is made again
            CACHE.warning("%s is removed, since it cannot be used: %s: %s", path, type(error).__name__, error)
            self.remove(path)
            return None
        self._note_use(key)
        return value, objects

    def put(self, key: str, saved: serialization.SerializedValue) -> bool:
        """Keep a value under this name, unless it is too large or the disk does not allow it.

        Whether that was tried: then what had still to be packed is used up.
        """
        begun = self.begin(key, saved)
        if isinstance(begun, UnfinishedEntry):
            begun.finish(())
        return begun is not None

    def takes(self, saved: serialization.SerializedValue) -> bool:
        """Whether there is room for a value."""
        size = _PAGE + len(saved.structure) + saved.array_bytes
        if self.folder is None:
            return False
        if size > self.most_bytes // LARGEST_SHARE:
            CACHE.info(
                "%s are too many to be kept in the cache: its code is, the rest is made again", format_bytes(size)
            )
            return False
        import shutil

        try:
            make_folder(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            CACHE.warning("nothing is kept in %s: %s", self.folder, error)
            return False
        if free < 2 * size:
            CACHE.warning(
                "%s are not kept in %s: the disk has %s left", format_bytes(size), self.folder, format_bytes(free)
            )
        return free >= 2 * size

    def begin(
        self, key: str, saved: serialization.SerializedValue, memory: ArraysInMemory | None = None
    ) -> UnfinishedEntry | OSError | None:
        """Write the arrays of a value, which may be packed in memory; an error where that was tried in vain, None where
        it was not tried.
        """
        if not self.takes(saved):
            return None
        try:
            return UnfinishedEntry(self, key, saved, memory)
        except OSError as error:
            CACHE.warning("%s could not be written: %s", self.path(key), error)
            return error

    def is_whole(self, key: str) -> bool:
        """Whether an entry holds what was written, arrays included; False where there is none."""
        try:
            with os.fdopen(open_file(self.path(key)), "rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            arrays_digest = _HEAD.unpack_from(content)[2]
            structure, arrays = self._parts(key, content)
            serialization.without_code(structure)
            return bool(bytes.fromhex(digest(arrays)) == arrays_digest)
        except Exception:  # whatever is wrong with it
            return False

    def put_about(self, key: str, **facts: str) -> None:
        """Note what people want to know of an entry."""
        if self.folder is not None:
            with suppress(OSError):
                write_file(self.path(key).with_suffix(".about"), json.dumps(facts).encode())

    def locations(self, key: str) -> list[str]:
        """The names of external files that a model is known to have."""
        if self.folder is not None:
            with suppress(OSError, ValueError):
                names = json.loads(read_file(self.folder / f"{key}.files"))
                if isinstance(names, list) and all(isinstance(name, str) for name in names):
                    return names
        return []

    def put_locations(self, key: str, names: Sequence[str]) -> None:
        if self.folder is not None:
            with suppress(OSError):
                write_file(self.folder / f"{key}.files", json.dumps(list(names)).encode())

    def path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.model"

    # -- entries -----------------------------------------------------------------------------------------------------

    def _checked(self, key: str, content: memoryview, status: os.stat_result) -> tuple[bytes, memoryview]:
        """Structure and arrays of an entry; ValueError if it is damaged."""
        structure, arrays = self._parts(key, content)
        if not self._is_known(key, status):
            if bytes.fromhex(digest(arrays)) != _HEAD.unpack_from(content)[2]:
                raise ValueError("damaged arrays")
            self.note(key, status)
        return structure, arrays

    def _parts(self, key: str, content: memoryview) -> tuple[bytes, memoryview]:
        """The same, of which the arrays are not looked at."""
        magic, checksum, _, length, start, array_bytes = _HEAD.unpack_from(content)
        end = start + array_bytes
        whole = magic == _MAGIC and start >= _HEAD.size and end + length == len(content)
        tail = bytes(content[_CHECKED : _HEAD.size])
        if not whole or _checksum(key, tail, content[end:]) != checksum:
            raise ValueError("a damaged entry")
        return bytes(content[end:]), content[start:end]

    # -- what is known of entries ------------------------------------------------------------------------------------

    def _notes(self, key: str) -> Path:
        return self.path(key).with_suffix(".used")

    def _is_known(self, key: str, status: os.stat_result) -> bool:
        """Whether the arrays were found right before, and the file has not changed since."""
        with suppress(OSError, ValueError):
            return bool(json.loads(read_file(self._notes(key))) == identity(status))
        return False

    def note(self, key: str, status: os.stat_result) -> None:
        with suppress(OSError):
            write_file(self._notes(key), json.dumps(identity(status)).encode())

    def _note_use(self, key: str) -> None:
        with suppress(OSError):
            notes = self._notes(key)
            if time.time() - notes.stat().st_mtime > STALE:
                os.utime(notes)

    def note_written(self, size: int) -> None:
        """See to it that entries do not grow too large together: after as many bytes as others may write meanwhile."""
        place = (self.folder, self.most_bytes)
        left = _UNSEEN.get(place, 0) - size
        if left < 0:
            with suppress(OSError):
                left = (self.most_bytes - self._trim()) // 16
        _UNSEEN[place] = left

    def _trim(self) -> int:
        """Remove what was used least recently, to a little below what is allowed; how many bytes there are then."""
        assert self.folder is not None
        entries: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as listing:
            files = {file.name: file for file in listing}
        for name, file in files.items():
            with suppress(OSError):
                if name.endswith(".model"):
                    notes = files.get(f"{name.removesuffix('.model')}.used", file)
                    entries.append((notes.stat().st_mtime, file.stat().st_size, name))
                elif name.endswith(UNFINISHED) and time.time() - file.stat().st_mtime > STALE:
                    (self.folder / name).unlink()
        total = sum(size for _, size, _ in entries)
        if total > self.most_bytes:
            for _, size, name in sorted(entries):
                if total <= self.most_bytes * 15 // 16:
                    break
                self.remove(self.folder / name)
                total -= size
        self._forget_records()
        return total

    def _forget_records(self) -> None:
        assert self.records is not None
        with suppress(OSError):
            records = list(os.scandir(self.records))
            if len(records) > MOST_RECORDS:
                for record in sorted(records, key=lambda record: record.stat().st_mtime)[: MOST_RECORDS // 2]:
                    Path(record.path).unlink()

    def remove(self, path: Path) -> None:
        for file in (path, path.with_suffix(".used"), path.with_suffix(".about")):
            with suppress(OSError):
                file.unlink()


class UnfinishedEntry:
    """An entry whose arrays are written, and can be used from there; `finish` gives it its structure and its name."""

    def __init__(
        self,
        cache: ModelCache,
        key: str,
        saved: serialization.SerializedValue,
        memory: ArraysInMemory | None = None,
    ) -> None:
        from tempfile import mkstemp

        assert cache.folder is not None
        self._cache, self._key, self._structure = cache, key, saved.structure
        self._array_bytes = saved.array_bytes
        handle, name = mkstemp(UNFINISHED, dir=cache.folder)
        self._path = Path(name)
        self._file = os.fdopen(handle, "w+b")
        try:
            self._file.truncate(_PAGE + saved.array_bytes)
            self._file.seek(_PAGE)
            self._arrays_digest = None if memory is None else memory.move_to(self._file, _PAGE)
            if memory is None:
                self._write(saved)
            mapped = mmap.mmap(self._file.fileno(), _PAGE + saved.array_bytes, access=mmap.ACCESS_READ)
        except BaseException:
            self.drop()
            raise
        self.arrays = memoryview(mapped)[_PAGE:]

    def _write(self, saved: serialization.SerializedValue) -> None:
        for constant in saved.arrays:
            for piece in iterate_chunks(constant):
                self._file.write(piece.view(np.uint8).data)
            self._file.seek(serialization.aligned(constant.nbytes) - constant.nbytes, os.SEEK_CUR)
        self._file.flush()

    def finish(self, objects: Sequence[bytes]) -> None:
        """Add the code, once it is there; the disk may still not allow it. What that code failed at is raised."""
        try:
            content = serialization.with_code(self._structure, objects)
            with suppress(OSError):
                self._complete(content)
        finally:
            self.drop()

    def _complete(self, content: bytes) -> None:
        arrays = bytes.fromhex(self._arrays_digest or digest(self.arrays))
        tail = _HEAD.pack(b"", b"", arrays, len(content), _PAGE, self._array_bytes)[_CHECKED:]
        self._file.seek(_PAGE + self._array_bytes)
        self._file.write(content)
        self._file.seek(0)
        self._file.write(_MAGIC + _checksum(self._key, tail, content) + tail)
        self._file.close()
        past = time.time() - _LONG_AGO  # so that any change of the file shows in its time
        os.utime(self._path, (past, past))
        if os.name != "nt":  # where it could not be replaced any more
            self._path.chmod(0o400)
        path = self._cache.path(self._key)
        self._path.replace(path)
        status = path.stat()
        self._cache.note(self._key, status)
        self._cache.note_written(status.st_size)
        CACHE.debug("%s is written: %s", path, format_bytes(status.st_size))

    def drop(self) -> None:
        """Give the file up, unless it has its name by now; what is mapped from it stays."""
        with suppress(OSError):
            self._file.close()
        self._cache.remove(self._path)


def _checksum(key: str, *parts: bytes | memoryview) -> bytes:
    """Of an entry under its name: what belongs to another one is as bad as what is damaged."""
    found = sha256(key.encode())
    for part in parts:
        found.update(part)
    return found.digest()


def shared_models() -> ModelCache:
    """The cache of this user."""
    folder = cache_folder()
    return ModelCache(None if folder is None else folder / "models")
