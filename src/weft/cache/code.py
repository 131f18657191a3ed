"""Compiled code on disk: small files named by what they were made from.

Entries are written whole or not at all, and carry a checksum, so that any number of processes may share the folder
and a damaged entry counts as missing. What others could have written is not read (files.py). Nothing here raises
because of the disk: a cache that cannot be read or written only costs time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from pathlib import Path

from weft.cache.files import STALE, UNFINISHED, cache_folder, read_file, write_file

MOST_BYTES = 512 * 1024**2
SUFFIX = ".weft"
_MAGIC = b"weft\x00002"
_keeping: ContextVar[bool] = ContextVar("keeping", default=True)


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Until this is left, caches give what they have and take nothing: for code that hardly anybody needs again."""
    token = _keeping.set(False)
    try:
        yield
    finally:
        _keeping.reset(token)


def is_keeping() -> bool:
    """Whether caches take what they are given; to be asked by the thread that compiles, not by its helpers."""
    return _keeping.get()


@cache
def shared_cache() -> CodeCache:
    """The cache of this user."""
    folder = cache_folder()
    return CodeCache(None if folder is None else folder / "code")


class CodeCache:
    """A folder of entries, the least recently used removed when it grows beyond `most_bytes`."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._until_trim = 0  # bytes that may be written before the folder is measured again

    def get(self, key: str) -> bytes | None:
        """The entry's data; None where there is none or it is damaged."""
        if self.folder is None:
            return None
        path = self.folder / (key + SUFFIX)
        try:
            data = read_file(path)
        except OSError:
            return None
        content = _content(key, data)
        if content is None:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                os.utime(path)
        return content

    def is_whole(self, key: str) -> bool:
        """Whether an entry holds what was written; False where there is none."""
        if self.folder is None:
            return False
        try:
            return _content(key, read_file(self.folder / (key + SUFFIX))) is not None
        except OSError:
            return False

    def put(self, key: str, data: bytes) -> None:
        """Keep the data under this name, unless the disk does not allow it."""
        if self.folder is None or not _keeping.get():
            return
        with suppress(OSError):
            write_file(self.folder / (key + SUFFIX), _MAGIC + _checksum(key, data) + data)
            self._until_trim -= len(data)
            if self._until_trim < 0:
                self._trim(self.folder)
                self._until_trim = self.most_bytes // 16

    def _trim(self, folder: Path) -> None:
        """Remove the entries that were used least recently, down to three quarters of what is allowed."""
        entries = sorted(_entries(folder))
        total = sum(size for _, size, _ in entries)
        if total <= self.most_bytes:
            return
        for _, size, path in entries:
            if total <= self.most_bytes * 3 // 4:
                break
            with suppress(OSError):
                Path(path).unlink()
            total -= size


def _content(key: str, data: bytes) -> bytes | None:
    """What a file's bytes hold; None if they are damaged."""
    head = len(_MAGIC) + 32
    if len(data) < head or data[: len(_MAGIC)] != _MAGIC or _checksum(key, data[head:]) != data[len(_MAGIC) : head]:
        return None
    return data[head:]


def _checksum(key: str, data: bytes) -> bytes:
    """Of an entry under its name: what belongs to another one is as bad as what is damaged."""
    return sha256(key.encode() + data).digest()


def _entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """(last use, bytes, path) of every entry; unfinished files that were given up are removed on the way."""
    with os.scandir(folder) as listing:
        for file in listing:
            with suppress(OSError):
                if file.name.endswith(SUFFIX):
                    status = file.stat()
                    yield status.st_mtime, status.st_size, file.path
                elif file.name.endswith(UNFINISHED) and time.time() - file.stat().st_mtime > STALE:
                    Path(file.path).unlink()
