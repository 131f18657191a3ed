"""Cache compiled models on disk, ready to be mapped into memory.

An entry is a file named by a digest of everything it depends on: a header, the page-aligned arrays, then the structure
and the code. Arrays are written first, while code is still being compiled (memory.py); the file gets its name when it
is complete. The checksum of the structure is verified at every use, that of the arrays once per change of the file,
which a small file in the same folder records; the time of that file is the last use. The least recently used entries
are removed when all together grow too large. Entries are mapped, so they are replaced and removed, but never changed.
Each program of a model is an entry. The names of all but the first start with that of the first (`program_key`), and
the least recently used of these are removed when a model has too many; they refer to equal arrays of the first. Disk
errors and damaged entries are not raised, and files that other users could have written are not used (files.py).
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
from weft.cache.digests import digest, file_identity
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

MAX_BYTES = 4 * 1024**3  # of the cache, on a small disk
DISK_SHARE = 16  # on a large one, the cache takes up to 1/DISK_SHARE of it: language models have several GB
MAX_SHARE = 2  # an entry may take 1/MAX_SHARE of the cache; larger models are compiled from cached code instead
MAX_PROGRAMS = 16  # of a model, besides the one for any shapes
MAX_RECORDS = 4096  # file digests
_MAGIC = b"weft\x00m04"
_HEAD = struct.Struct("<8s32s32sQQQ")  # magic, checksum of all but the arrays, checksum of the arrays, sizes
_CHECKED = 8 + 32  # bytes of the header that the first checksum does not cover
_PAGE = 4096
_PROGRAM = "-"  # between the key of a model and the digest of a program
_LONG_AGO = 86_400  # seconds
_UNTIL_TRIM: dict[tuple[Path | None, int], int] = {}  # bytes that may be written before a cache is scanned again


@dataclass(frozen=True, slots=True)
class EntryContent:
    """The value and the code of an entry, its arrays, and their digest."""

    value: Any
    objects: tuple[bytes, ...]
    arrays: memoryview
    arrays_digest: str


@dataclass(frozen=True, slots=True)
class ModelCache:
    """A folder of entries, or none."""

    folder: Path | None
    max_bytes: int = MAX_BYTES

    @property
    def records(self) -> Path | None:
        """The folder of file digests."""
        return None if self.folder is None else self.folder / "files"

    def get(self, key: str) -> Any:
        """Return the value of an entry, or None if it is missing or damaged."""
        entry = self.entry(key)
        return None if entry is None else entry.value

    def entry(self, key: str, shared_arrays: memoryview = serialization.NO_ARRAYS) -> EntryContent | None:
        """Return the content of an entry, or None if it is missing or damaged; it may refer to `shared_arrays`."""
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
            whole, arrays = self._verify(key, content, status)
            structure, objects = serialization.split_code(whole)
            value = serialization.restore(structure, arrays, shared_arrays)
        except Exception as error:  # damaged data raises errors of many kinds
            CACHE.warning("%s is damaged and removed: %s: %s", path, type(error).__name__, error)
            self.remove(path)
            return None
        self._touch(key)
        return EntryContent(value, objects, arrays, _HEAD.unpack_from(content)[2].hex())

    def put(self, key: str, saved: serialization.SerializedValue) -> bool:
        """Store a value, if it is not too large and the disk allows it.

        Return whether writing was attempted, which consumes arrays that had to be packed.
        """
        entry = self.begin(key, saved)
        if isinstance(entry, UnfinishedEntry):
            entry.finish(())
        return entry is not None

    def has_room(self, saved: serialization.SerializedValue) -> bool:
        """Whether a value fits into the cache and on the disk."""
        size = _PAGE + len(saved.structure) + saved.array_bytes
        if self.folder is None:
            return False
        if size > self.max_bytes // MAX_SHARE:
            CACHE.info("a model of %s is too large for the cache; only its code is cached", format_bytes(size))
            return False
        import shutil  # slow to import; a cached load does not need it

        try:
            make_folder(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            CACHE.warning("nothing is cached in %s: %s", self.folder, error)
            return False
        if free < 2 * size:
            sizes = format_bytes(size), format_bytes(free)
            CACHE.warning("a model of %s is not cached: %s are left on the disk of %s", *sizes, self.folder)
        return free >= 2 * size

    def begin(
        self, key: str, saved: serialization.SerializedValue, memory: ArraysInMemory | None = None
    ) -> UnfinishedEntry | OSError | None:
        """Write the arrays of a value, from `memory` if given; return an error if that fails, None without room."""
        if not self.has_room(saved):
            return None
        try:
            return UnfinishedEntry(self, key, saved, memory)
        except OSError as error:
            CACHE.warning("%s could not be written: %s", self.path(key), error)
            return error

    def is_whole(self, key: str) -> bool:
        """Whether an entry exists and is undamaged, including its arrays."""
        try:
            with os.fdopen(open_file(self.path(key)), "rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            arrays_digest = _HEAD.unpack_from(content)[2]
            structure, arrays = self._split(key, content)
            serialization.split_code(structure)
            return bool(bytes.fromhex(digest(arrays)) == arrays_digest)
        except Exception:  # damaged data raises errors of many kinds
            return False

    def put_about(self, key: str, **facts: str) -> None:
        """Store facts about an entry for `weft cache list`."""
        if self.folder is not None:
            with suppress(OSError):
                write_file(self.path(key).with_suffix(".about"), json.dumps(facts).encode())

    def locations(self, key: str) -> list[str]:
        """Return the locations of a model's external files, as far as they are recorded."""
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

    def _verify(self, key: str, content: memoryview, status: os.stat_result) -> tuple[bytes, memoryview]:
        """Return the structure and the arrays of an entry; raise ValueError if it is damaged."""
        structure, arrays = self._split(key, content)
        if not self._is_verified(key, status):
            if bytes.fromhex(digest(arrays)) != _HEAD.unpack_from(content)[2]:
                raise ValueError("damaged arrays")
            self.set_verified(key, status)
        return structure, arrays

    def _split(self, key: str, content: memoryview) -> tuple[bytes, memoryview]:
        """Return the structure and the arrays of an entry, without verifying the arrays."""
        magic, checksum, _, length, start, array_bytes = _HEAD.unpack_from(content)
        end = start + array_bytes
        is_complete = magic == _MAGIC and start >= _HEAD.size and end + length == len(content)
        tail = bytes(content[_CHECKED : _HEAD.size])
        if not is_complete or _checksum(key, tail, content[end:]) != checksum:
            raise ValueError("a damaged entry")
        return bytes(content[end:]), content[start:end]

    # -- records about entries ---------------------------------------------------------------------------------------

    def _use_record(self, key: str) -> Path:
        return self.path(key).with_suffix(".used")

    def _is_verified(self, key: str, status: os.stat_result) -> bool:
        """Whether the arrays were verified, and the file has not changed since."""
        with suppress(OSError, ValueError):
            return bool(json.loads(read_file(self._use_record(key))) == file_identity(status))
        return False

    def set_verified(self, key: str, status: os.stat_result) -> None:
        with suppress(OSError):
            write_file(self._use_record(key), json.dumps(file_identity(status)).encode())

    def _touch(self, key: str) -> None:
        with suppress(OSError):
            record = self._use_record(key)
            if time.time() - record.stat().st_mtime > STALE:
                os.utime(record)

    def trim_after_writing(self, size: int) -> None:
        """Trim the cache if this process has written a sixteenth of its free space since the last time."""
        key = (self.folder, self.max_bytes)
        left = _UNTIL_TRIM.get(key, 0) - size
        if left < 0:
            with suppress(OSError):
                left = (self.max_bytes - self._trim()) // 16
        _UNTIL_TRIM[key] = left

    def _trim(self) -> int:
        """Remove the least recently used entries, to a little below `max_bytes`, and return the remaining bytes."""
        assert self.folder is not None
        entries: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as listing:
            files = {file.name: file for file in listing}
        for name, file in files.items():
            with suppress(OSError):
                if name.endswith(".model"):
                    use_record = files.get(f"{name.removesuffix('.model')}.used", file)
                    entries.append((use_record.stat().st_mtime, file.stat().st_size, name))
                elif name.endswith(UNFINISHED) and time.time() - file.stat().st_mtime > STALE:
                    (self.folder / name).unlink()
        total = sum(size for _, size, _ in entries)
        if total > self.max_bytes:
            for _, size, name in sorted(entries):
                if total <= self.max_bytes * 15 // 16:
                    break
                self.remove(self.folder / name)
                total -= size
        self._trim_records()
        return total

    def trim_programs(self, key: str) -> None:
        """Remove the least recently used programs of a model if it has too many; `key` is that of a new program."""
        assert self.folder is not None
        model, separator, _ = key.partition(_PROGRAM)
        if separator:
            with suppress(OSError):
                programs = list(self.folder.glob(f"{model}{_PROGRAM}*.model"))
                if len(programs) > MAX_PROGRAMS:
                    programs.sort(key=_last_use)
                    for path in programs[:-MAX_PROGRAMS]:
                        self.remove(path)

    def _trim_records(self) -> None:
        assert self.records is not None
        with suppress(OSError):
            records = list(os.scandir(self.records))
            if len(records) > MAX_RECORDS:
                for record in sorted(records, key=lambda record: record.stat().st_mtime)[: MAX_RECORDS // 2]:
                    Path(record.path).unlink()

    def remove(self, path: Path) -> None:
        for file in (path, path.with_suffix(".used"), path.with_suffix(".about")):
            with suppress(OSError):
                file.unlink()


class UnfinishedEntry:
    """An entry whose arrays are written and can be used; `finish` adds its structure and code and gives it its name."""

    def __init__(
        self,
        cache: ModelCache,
        key: str,
        saved: serialization.SerializedValue,
        memory: ArraysInMemory | None = None,
    ) -> None:
        from tempfile import mkstemp  # slow to import; a cached load does not need it

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
            for chunk in iterate_chunks(constant):
                self._file.write(chunk.view(np.uint8).data)
            self._file.seek(serialization.align_up(constant.nbytes) - constant.nbytes, os.SEEK_CUR)
        self._file.flush()

    def finish(self, objects: Sequence[bytes]) -> None:
        """Add the code, waiting for its compilation, and complete the file; raise only errors of the compilation."""
        try:
            content = serialization.add_code(self._structure, objects)
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
        past = time.time() - _LONG_AGO  # so that any later change shows in the file's time
        os.utime(self._path, (past, past))
        if os.name != "nt":  # there, a read-only file cannot be replaced
            self._path.chmod(0o400)
        path = self._cache.path(self._key)
        self._path.replace(path)
        status = path.stat()
        self._cache.set_verified(self._key, status)
        self._cache.trim_programs(self._key)
        self._cache.trim_after_writing(status.st_size)
        CACHE.debug("wrote %s: %s", path, format_bytes(status.st_size))

    def drop(self) -> None:
        """Remove the unfinished file, unless it has its name by now; mappings of it stay valid."""
        with suppress(OSError):
            self._file.close()
        self._cache.remove(self._path)


def program_key(model: str, program: str) -> str:
    """Return the key of one of a model's programs, which starts with the key of the model."""
    return f"{model}{_PROGRAM}{program[:32]}"


def _last_use(entry: Path) -> float:
    """Return the time of the last use of an entry; one without a record counts as unused."""
    with suppress(OSError):
        return entry.with_suffix(".used").stat().st_mtime
    return 0.0


def _checksum(key: str, *parts: bytes | memoryview) -> bytes:
    """Compute a checksum that covers the key, so that the entry of another key counts as damaged."""
    checksum = sha256(key.encode())
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def shared_models() -> ModelCache:
    """Return this user's cache."""
    folder = cache_folder()
    return ModelCache(None) if folder is None else ModelCache(folder / "models", choose_capacity(folder))


def choose_capacity(folder: Path) -> int:
    """Return the most bytes of a cache in a folder, which may be missing yet, by the size of its disk."""
    for place in (folder, *folder.parents):
        try:
            disk = os.statvfs(place)
        except OSError:
            continue
        return max(MAX_BYTES, disk.f_frsize * disk.f_blocks // DISK_SHARE)
    return MAX_BYTES
