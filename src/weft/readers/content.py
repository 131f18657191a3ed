"""Data from a path, a pipe or standard input, and its kind by the first bytes."""

from __future__ import annotations

import stat
import sys
from enum import Enum
from functools import cache
from pathlib import Path

from weft.errors import InputError
from weft.records import dataclass

STDIN = "-"
HEAD = 4096
MOST_BYTES = 1 << 28  # of an image; a larger file is a mistake
MOST_TEXT = 1 << 26  # bytes of a text, which takes ten times that in memory


class Kind(Enum):
    """The kind of a file; values are for messages."""

    NPY = "a NumPy array"
    NPZ = "a zip archive"
    IMAGE = "an image"
    AUDIO = "an audio file"
    TEXT = "a text"
    BINARY = "binary data"
    PICKLE = "a Python pickle"
    FOLDER = "a folder"


@dataclass(frozen=True, slots=True)
class DataSource:
    """A file, or bytes that were read from a pipe; `name` is as the user wrote it."""

    name: str
    buffer: bytes | None = None  # of standard input and pipes, which can be read only once

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def kind(self) -> Kind:
        if self.buffer is None and self.path.is_dir():
            return Kind.FOLDER
        return detect_kind(self.read(HEAD))

    def read(self, most: int | None = None) -> bytes:
        """Read all bytes, or the first `most`."""
        if self.buffer is not None:
            return self.buffer[:most]
        try:
            with self.path.open("rb") as file:
                return file.read(-1 if most is None else most)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror}") from error

    def read_limited(self, most: int = MOST_BYTES) -> bytes:
        """Read all bytes; InputError if there are more than `most`."""
        content = self.read(most + 1)
        if len(content) > most:
            raise InputError(f"{self.name}: is larger than {most >> 20} MiB", hint="give large data as .npy")
        return content

    def read_text(self) -> str:
        try:
            return self.read_limited(MOST_TEXT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.name}: is not UTF-8 text", hint="save it as UTF-8") from error


def find_source(name: str) -> DataSource | None:
    """Return the file, folder, pipe or standard input of that name; None if it does not exist."""
    if name == STDIN:
        return DataSource("standard input", _read_stdin())
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):  # missing, or not a valid name
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return DataSource(name)
    return DataSource(name, DataSource(name).read())


@cache
def _read_stdin() -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise InputError("-: standard input has no data", hint="pipe a file into the command")
    content: bytes = stream.read()
    if not content:
        raise InputError("-: standard input is empty")
    return content


_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"\0\0\x01\0", b"\xff\x4f\xff\x51")
_AUDIO = (b"ID3", b"fLaC", b"OggS", b".snd", b"FORM", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1")


def detect_kind(head: bytes) -> Kind:
    """Return the kind of a file by its first bytes."""
    if head.startswith(b"\x93NUMPY"):
        return Kind.NPY
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return Kind.NPZ
    if head[:4] in (b"RIFF", b"RF64", b"RIFX"):
        return Kind.AUDIO if head[8:12] == b"WAVE" else Kind.IMAGE if head[8:12] == b"WEBP" else Kind.BINARY
    if head.startswith(_IMAGES) or head[4:8] == b"jP  ":
        return Kind.IMAGE
    if head[4:8] == b"ftyp":
        return Kind.IMAGE if head[8:12] in (b"avif", b"avis", b"heic", b"mif1") else Kind.AUDIO
    if head[:2] == b"BM" and len(head) > 14 and head[6:10] == b"\0\0\0\0":
        return Kind.IMAGE
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in (b"\n", b"\r", b" ", b"\t"):
        return Kind.IMAGE
    if head.startswith(_AUDIO):
        return Kind.AUDIO
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 2:
        return Kind.PICKLE
    return Kind.TEXT if _is_text(head) else Kind.BINARY


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(head) or len(head) < HEAD:  # else a character is truncated
            return False
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    return controls == 0
