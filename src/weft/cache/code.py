"""Cache compiled code on disk: small files named by a digest of their inputs.

Entries are written atomically and have a checksum, so that processes can share the folder and a damaged entry counts as
missing. Files that other users could have written are not read (files.py). Disk errors are not raised: without its
cache, weft is only slower.
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

MAX_BYTES = 512 * 1024**2
SUFFIX = ".weft"
_MAGIC = b"weft\x00002"
_writes_enabled: ContextVar[bool] = ContextVar("writes_enabled", default=True)


@contextmanager
def read_only_caches() -> Iterator[None]:
    """Read from caches in this block, but store nothing: for code that is unlikely to be needed again."""
    token = _writes_enabled.set(False)
    try:
        yield
    finally:
        _writes_enabled.reset(token)


def is_caching() -> bool:
    """Whether caches store new entries; call this on the compiling thread, not on its helpers."""
    return _writes_enabled.get()


@cache
def shared_cache() -> CodeCache:
    """Return this user's cache."""
    folder = cache_folder()
    return CodeCache(None if folder is None else folder / "code")


class CodeCache:
    """A folder of entries; the least recently used are removed when it exceeds `max_bytes`."""

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._until_trim = 0  # bytes that may be written before the folder is scanned again

    def get(self, key: str) -> bytes | None:
        """Return the data of an entry, or None if it is missing or damaged."""
        if self.folder is None:
            return None
        path = self.folder / (key + SUFFIX)
        try:
            data = read_file(path)
        except OSError:
            return None
        content = _verify(key, data)
        if content is None:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                os.utime(path)
        return content

    def is_whole(self, key: str) -> bool:
        """Whether an entry exists and is undamaged."""
        if self.folder is None:
            return False
        try:
            return _verify(key, read_file(self.folder / (key + SUFFIX))) is not None
        except OSError:
            return False

    def put(self, key: str, data: bytes) -> None:
        """Store data under a key, if the disk allows it."""
        if self.folder is None or not _writes_enabled.get():
            return
        with suppress(OSError):
            write_file(self.folder / (key + SUFFIX), _MAGIC + _checksum(key, data) + data)
            self._until_trim -= len(data)
            if self._until_trim < 0:
                self._trim(self.folder)
                self._until_trim = self.max_bytes // 16

    def _trim(self, folder: Path) -> None:
        """Remove the least recently used entries, down to three quarters of `max_bytes`."""
        entries = sorted(_entries(folder))
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in entries:
            if total <= self.max_bytes * 3 // 4:
                break
            with suppress(OSError):
                Path(path).unlink()
            total -= size


def _verify(key: str, data: bytes) -> bytes | None:
    """Return the content of an entry's file, or None if it is damaged."""
    head = len(_MAGIC) + 32
    if len(data) < head or data[: len(_MAGIC)] != _MAGIC or _checksum(key, data[head:]) != data[len(_MAGIC) : head]:
        return None
    return data[head:]


def _checksum(key: str, data: bytes) -> bytes:
    """Compute a checksum that covers the key, so that the entry of another key counts as damaged."""
    return sha256(key.encode() + data).digest()


def _entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield (last use, bytes, path) of every entry, and remove abandoned unfinished files."""
    with os.scandir(folder) as listing:
        for file in listing:
            with suppress(OSError):
                if file.name.endswith(SUFFIX):
                    status = file.stat()
                    yield status.st_mtime, status.st_size, file.path
                elif file.name.endswith(UNFINISHED) and time.time() - file.stat().st_mtime > STALE:
                    Path(file.path).unlink()
