"""Loaded models on disk: what a device needs to run one, ready to be mapped into memory.

An entry is a file named by all that it depends on: a head, the structure, then the arrays from a page's start on. It
is written whole or not at all. The structure's checksum is tested with every use; that of the arrays once, unless the
file has changed since then. A small file beside it notes that, and by its time the last use. The entries used least
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
from weft.ir.packing import pieces_of
from weft.records import dataclass

MOST_BYTES = 4 * 1024**3
LARGEST_SHARE = 2  # no entry may take more than this part of all; such a model is compiled from cached code instead
MOST_RECORDS = 4096  # digests of files that are remembered
_MAGIC = b"weft\x00m03"
_HEAD = struct.Struct("<8s32s32sQQQ")  # magic, checksum of key, rest of the head and structure, the arrays', sizes
_CHECKED = 8 + 32  # bytes of the head that the first checksum does not cover
_PAGE = 4096
_LONG_AGO = 86_400  # seconds


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
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            check_folder(self.folder)
            with os.fdopen(open_file(path), "rb") as file:
                status = os.fstat(file.fileno())
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):
            return None
        try:
            value = serialization.restore(*self._checked(key, content, status))
        except Exception:  # whatever is wrong with it: it is made again
            self._remove(path)
            return None
        self._note_use(key)
        return value

    def put(self, key: str, saved: serialization.SerializedValue) -> bool:
        """Keep a value under this name, unless it is too large or the disk does not allow it.

        Whether that was tried: then what had still to be packed is used up.
        """
        size = _PAGE + len(saved.structure) + saved.array_bytes
        if self.folder is None or size > self.most_bytes // LARGEST_SHARE:
            return False
        import shutil

        tried = False
        with suppress(OSError):
            make_folder(self.folder)
            if shutil.disk_usage(self.folder).free < 2 * size:
                return False
            self._make_space(size)
            tried = True
            self._write(self._path(key), saved)
            self._note(key, self._path(key).stat())
        return tried

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

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.model"

    # -- entries -----------------------------------------------------------------------------------------------------

    def _checked(self, key: str, content: memoryview, status: os.stat_result) -> tuple[bytes, memoryview]:
        """Structure and arrays of an entry; ValueError if it is damaged."""
        magic, checksum, array_digest, length, start, array_bytes = _HEAD.unpack_from(content)
        end = _HEAD.size + length
        whole = magic == _MAGIC and end <= start and start + array_bytes == len(content)
        if not whole or _checksum(key, content[_CHECKED:end]) != checksum:
            raise ValueError("a damaged entry")
        arrays = content[start:]
        if not self._is_known(key, status):
            if bytes.fromhex(digest(arrays)) != array_digest:
                raise ValueError("damaged arrays")
            self._note(key, status)
        return bytes(content[_HEAD.size : end]), arrays

    def _write(self, path: Path, saved: serialization.SerializedValue) -> None:
        from tempfile import mkstemp

        start = -(-(_HEAD.size + len(saved.structure)) // _PAGE) * _PAGE
        handle, name = mkstemp(UNFINISHED, dir=path.parent)
        unfinished = Path(name)
        try:
            with os.fdopen(handle, "w+b") as file:
                file.truncate(start + saved.array_bytes)
                file.seek(start)
                for constant in saved.arrays:
                    for piece in pieces_of(constant):
                        file.write(piece.view(np.uint8).data)
                    file.seek(serialization.aligned(constant.nbytes) - constant.nbytes, os.SEEK_CUR)
                file.flush()
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as written:
                    view = memoryview(written)
                    arrays = bytes.fromhex(digest(view[start:]))
                    view.release()
                tail = _HEAD.pack(b"", b"", arrays, len(saved.structure), start, saved.array_bytes)[_CHECKED:]
                file.seek(0)
                file.write(_MAGIC + _checksum(path.stem, tail + saved.structure) + tail + saved.structure)
            past = time.time() - _LONG_AGO  # so that any change of the file shows in its time
            os.utime(unfinished, (past, past))
            if os.name != "nt":  # where it could not be replaced any more
                unfinished.chmod(0o400)
            unfinished.replace(path)
        except BaseException:
            self._remove(unfinished)
            raise

    # -- what is known of entries ------------------------------------------------------------------------------------

    def _notes(self, key: str) -> Path:
        return self._path(key).with_suffix(".used")

    def _is_known(self, key: str, status: os.stat_result) -> bool:
        """Whether the arrays were found right before, and the file has not changed since."""
        with suppress(OSError, ValueError):
            return bool(json.loads(read_file(self._notes(key))) == identity(status))
        return False

    def _note(self, key: str, status: os.stat_result) -> None:
        with suppress(OSError):
            write_file(self._notes(key), json.dumps(identity(status)).encode())

    def _note_use(self, key: str) -> None:
        with suppress(OSError):
            notes = self._notes(key)
            if time.time() - notes.stat().st_mtime > STALE:
                os.utime(notes)

    def _make_space(self, size: int) -> None:
        """Remove what was used least recently, so that `size` more bytes fit in."""
        assert self.folder is not None
        entries: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                if path.suffix == ".model":
                    notes = path.with_suffix(".used")
                    used = notes.stat().st_mtime if notes.exists() else status.st_mtime
                    entries.append((used, status.st_size, path))
                elif path.suffix == UNFINISHED and time.time() - status.st_mtime > STALE:
                    path.unlink()
        total = sum(entry[1] for entry in entries) + size
        for _, entry_size, path in sorted(entries):
            if total <= self.most_bytes:
                break
            self._remove(path)
            total -= entry_size
        self._forget_records()

    def _forget_records(self) -> None:
        assert self.records is not None
        with suppress(OSError):
            records = list(os.scandir(self.records))
            if len(records) > MOST_RECORDS:
                for record in sorted(records, key=lambda record: record.stat().st_mtime)[: MOST_RECORDS // 2]:
                    Path(record.path).unlink()

    def _remove(self, path: Path) -> None:
        for file in (path, path.with_suffix(".used")):
            with suppress(OSError):
                file.unlink()


def _checksum(key: str, data: bytes | memoryview) -> bytes:
    """Of an entry under its name: what belongs to another one is as bad as what is damaged."""
    found = sha256(key.encode())
    found.update(data)
    return found.digest()


def shared_models() -> ModelCache:
    """The cache of this user."""
    folder = cache_folder()
    return ModelCache(None if folder is None else folder / "models")
