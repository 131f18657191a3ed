"""Read the user's files, which other programs may truncate or overwrite at any time; they are never mapped.

A process that reads a mapped file crashes when the file is truncated, and computes wrong results when it is
overwritten. So weft works on a private copy: a small one in memory, a large one in an unnamed temporary file, which no
other process can open and which takes disk space instead of memory. If no disk has room for it, it is in memory too.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from weft.errors import MissingFileError, ModelError
from weft.frontend.formats import path_hint
from weft.threads import make_lock

SMALL = 1 << 20  # bytes up to which a copy is in memory
CHUNK = 1 << 20  # bytes that are copied at once
MIN_FREE = 64 << 20  # bytes that a copy leaves free on its disk
MAX_PIPE_BYTES = 2 << 30
ATTEMPTS = 3  # to copy a file while it is being written
PAUSE = 0.05  # seconds between attempts


class OpenFile:
    """An open file from offset `start` on, with the size that it had when it was opened; closed with the object."""

    def __init__(self, descriptor: int, name: str, start: int = 0) -> None:
        """Take ownership of a descriptor."""
        self.name = name
        self.descriptor = descriptor
        self._start = start
        self._lock = make_lock()
        # Not at exit: daemon threads may still be reading.
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.size: int = max(self.status().st_size - start, 0)

    @property
    def is_whole(self) -> bool:
        """Whether this is the file from its first byte on."""
        return self._start == 0

    def from_offset(self, start: int) -> OpenFile:
        """Return the remainder of the file from an offset on, as a file of its own."""
        other = OpenFile(os.dup(self.descriptor), self.name, self._start + start)
        other._lock = self._lock  # without preadv, both move the same file position
        return other

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from an offset and return the number of bytes, fewer if the file was truncated."""
        done = 0
        try:
            while done < len(buffer):
                count = self._read_at(buffer[done:], self._start + offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise unreadable_error(self.name, error) from error
        return done

    def _read_at(self, buffer: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.descriptor, [buffer], offset)
        with self._lock:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            chunk = os.read(self.descriptor, len(buffer))
            buffer[: len(chunk)] = chunk
            return len(chunk)


def open_path(path: Path, name: str, streams: bool = False) -> OpenFile | bytes:
    """Open a regular file, or with `streams` read a pipe; raise ModelError for everything else.

    A pipe without a writer is empty: opening it does not wait for one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise unreadable_error(name, error) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return OpenFile(descriptor, name)
    try:
        if streams and stat.S_ISFIFO(mode):
            return _read_pipe(descriptor, name)
    except OSError as error:
        raise unreadable_error(name, error) from error
    finally:
        os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise ModelError(f"{name} cannot be read: it is {kind}", hint=path_hint(name))


def _read_pipe(descriptor: int, name: str) -> bytes:
    """Read a pipe until its writers close it; return no bytes if it has none."""
    content = bytearray()
    with suppress(BlockingIOError):  # a writer that has not written yet
        content += os.read(descriptor, CHUNK)
        if not content:
            return b""
    os.set_blocking(descriptor, True)
    while chunk := os.read(descriptor, CHUNK):
        content += chunk
        if len(content) > MAX_PIPE_BYTES:
            raise ModelError(f"{name} sends more than {MAX_PIPE_BYTES} bytes", hint="save the model in a file")
    return bytes(content)


def unreadable_error(name: str, error: Exception) -> ModelError:
    """Return the error for a file that the system does not let us open or read."""
    reason = getattr(error, "strerror", None) or str(error)
    kind = MissingFileError if isinstance(error, FileNotFoundError) else ModelError
    return kind(f"{name} cannot be read: {reason}", hint=path_hint(name))


# -- private copies --------------------------------------------------------------------------------------------------


def private_copy(file: OpenFile, folders: Sequence[Path] = ()) -> memoryview:
    """Copy the current content of a file: a large one to the first folder with room, or to the temporary folder.

    Raise ModelError if the file changes during each attempt.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        before = _file_version(file)
        copy = _copy(file, folders)
        if _file_version(file) == before:
            return copy
    raise ModelError(f"{file.name} is being written to", hint="load it when it is complete")


def _file_version(file: OpenFile) -> tuple[int, int]:
    status = file.status()
    return status.st_size, status.st_mtime_ns


def _copy(file: OpenFile, folders: Sequence[Path]) -> memoryview:
    if file.size > SMALL:
        import shutil  # slow to import, like tempfile; a cached load copies nothing

        for folder in (*folders, *_temporary_folder()):
            with suppress(OSError):
                if shutil.disk_usage(folder).free >= file.size + MIN_FREE:
                    return _copy_to_disk(file, folder)
    content = bytearray(file.size)
    view = memoryview(content)
    length = file.read_into(view, 0)
    return view[:length].toreadonly()


def _temporary_folder() -> Iterator[Path]:
    with suppress(OSError):  # no folder is writable
        import tempfile

        yield Path(tempfile.gettempdir())


def _copy_to_disk(file: OpenFile, folder: Path) -> memoryview:
    """Map a copy in an unnamed file; raise OSError if it cannot be written."""
    import tempfile

    with tempfile.TemporaryFile(dir=folder, suffix=".part", buffering=0) as copy:
        length = _copy_in_kernel(file, copy)
        chunk = memoryview(bytearray(min(CHUNK, max(file.size - length, 1))))
        while length < file.size and (count := file.read_into(chunk[: file.size - length], length)):
            _write_all(copy, chunk[:count])
            length += count
        if not length:  # mmap refuses empty files
            return memoryview(b"")
        return memoryview(mmap.mmap(copy.fileno(), length, access=mmap.ACCESS_READ))


def _copy_in_kernel(file: OpenFile, copy: IO[bytes]) -> int:
    """Let the kernel copy as much as it can, and return the number of bytes."""
    length = 0
    if file.is_whole and hasattr(os, "copy_file_range"):
        try:
            while length < file.size:
                count = os.copy_file_range(file.descriptor, copy.fileno(), file.size - length, length, length)
                if not count:
                    break
                length += count
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
        copy.seek(length)
    return length


def _write_all(copy: IO[bytes], chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[copy.write(chunk) :]
