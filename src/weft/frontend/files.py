"""Files that belong to others, who may truncate or overwrite them at any time: read, never mapped.

A process that reads a mapped file ends with it when it is truncated, and computes something else when it is
overwritten. So all that is used of a file is a private copy: a small one in memory, a large one in a file without a
name, which nobody else can reach and which takes disk, not memory, for as long as it is used. Where no folder has room
for that, it is in memory too.
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

SMALL = 1 << 20  # bytes that a copy in memory may take
PIECE = 1 << 20  # bytes that are copied at once
SPARE = 64 << 20  # bytes that a copy leaves free on its disk
LARGEST_STREAM = 2 << 30  # bytes that are taken from a pipe
ATTEMPTS = 3  # at copying a file that somebody writes to
PAUSE = 0.05  # seconds between them


class OpenFile:
    """A file, or what follows `start` in it, as long as it was when it was opened; closed with the last reference."""

    def __init__(self, descriptor: int, name: str, start: int = 0) -> None:
        """The descriptor is this object's from now on."""
        self.name = name
        self.descriptor = descriptor
        self._start = start
        self._lock = make_lock()
        # Not when the interpreter ends: threads that nobody waits for may still read.
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.size: int = max(self.status().st_size - start, 0)

    @property
    def is_whole(self) -> bool:
        return self._start == 0

    def rest(self, start: int) -> OpenFile:
        """What follows a place in the file, as a file of its own."""
        other = OpenFile(os.dup(self.descriptor), self.name, self._start + start)
        other._lock = self._lock  # both move one position where places cannot be named
        return other

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer with what lies there now; fewer bytes than it holds where the file has become shorter."""
        done = 0
        try:
            while done < len(buffer):
                count = self._read(buffer[done:], self._start + offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise unreadable(self.name, error) from error
        return done

    def _read(self, buffer: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.descriptor, [buffer], offset)
        with self._lock:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            piece = os.read(self.descriptor, len(buffer))
            buffer[: len(piece)] = piece
            return len(piece)


def open_path(path: Path, name: str, streams: bool = False) -> OpenFile | bytes:
    """A regular file; the content of a pipe where `streams` are taken. Neither waits for anybody to open its other end.

    ModelError where there is nothing of the sort.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return OpenFile(descriptor, name)
    try:
        if streams and stat.S_ISFIFO(mode):
            return _read_pipe(descriptor, name)
    except OSError as error:
        raise unreadable(name, error) from error
    finally:
        os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
    raise ModelError(f"{name} cannot be read: it is {kind}", hint=path_hint(name))


def _read_pipe(descriptor: int, name: str) -> bytes:
    """All that a pipe gives until its writers close it; nothing where there are none."""
    content = bytearray()
    with suppress(BlockingIOError):  # there is a writer who has not written yet
        content += os.read(descriptor, PIECE)
        if not content:
            return b""
    os.set_blocking(descriptor, True)
    while piece := os.read(descriptor, PIECE):
        content += piece
        if len(content) > LARGEST_STREAM:
            raise ModelError(f"{name} gives more than {LARGEST_STREAM} bytes", hint="save the model in a file")
    return bytes(content)


def unreadable(name: str, error: Exception) -> ModelError:
    reason = getattr(error, "strerror", None) or str(error)
    kind = MissingFileError if isinstance(error, FileNotFoundError) else ModelError
    return kind(f"{name} cannot be read: {reason}", hint=path_hint(name))


# -- private copies --------------------------------------------------------------------------------------------------


def private_copy(file: OpenFile, folders: Sequence[Path] = ()) -> memoryview:
    """What a file holds now, as bytes that only this process has; in one of these folders, or a temporary one.

    ModelError where somebody writes to it all the while.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        before = _version(file)
        copy = _copy(file, folders)
        if _version(file) == before:
            return copy
    raise ModelError(f"{file.name} is being written to", hint="load it when it is complete")


def _version(file: OpenFile) -> tuple[int, int]:
    status = file.status()
    return status.st_size, status.st_mtime_ns


def _copy(file: OpenFile, folders: Sequence[Path]) -> memoryview:
    if file.size > SMALL:
        for folder in (*folders, *_temporary()):
            with suppress(OSError):
                import shutil  # which, like tempfile, only those need who copy

                if shutil.disk_usage(folder).free >= file.size + SPARE:
                    return _copy_to_disk(file, folder)
    content = bytearray(file.size)
    view = memoryview(content)
    length = file.read_into(view, 0)
    return view[:length].toreadonly()


def _temporary() -> Iterator[Path]:
    with suppress(OSError):  # no folder can be written
        import tempfile

        yield Path(tempfile.gettempdir())


def _copy_to_disk(file: OpenFile, folder: Path) -> memoryview:
    """A copy in a file without a name; OSError where the disk does not allow it."""
    import tempfile

    with tempfile.TemporaryFile(dir=folder, suffix=".part", buffering=0) as copy:
        length = _copy_within_system(file, copy)
        piece = memoryview(bytearray(min(PIECE, max(file.size - length, 1))))
        while length < file.size and (count := file.read_into(piece[: file.size - length], length)):
            _write_all(copy, piece[:count])
            length += count
        if not length:  # which mmap refuses
            return memoryview(b"")
        return memoryview(mmap.mmap(copy.fileno(), length, access=mmap.ACCESS_READ))


def _copy_within_system(file: OpenFile, copy: IO[bytes]) -> int:
    """Let the system copy as much as it can, without a way through this process; how many bytes that were."""
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


def _write_all(copy: IO[bytes], piece: memoryview) -> None:
    while piece:
        piece = piece[copy.write(piece) :]
