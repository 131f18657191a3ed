"""What a file holds, by its first bytes, and its bytes: from a path, a pipe or standard input."""

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
MOST_BYTES = 1 << 28  # of a picture; what is larger is a mistake
MOST_TEXT = 1 << 26  # bytes of a text, which takes ten times as much in memory


class Kind(Enum):
    """What a file is, in words."""

    NPY = "a NumPy array"
    NPZ = "a zip archive"
    PICTURE = "a picture"
    WAV = "a WAV sound"
    SOUND = "a sound that is not WAV"
    TEXT = "a text"
    BINARY = "binary data"
    PICKLE = "a Python pickle"
    FOLDER = "a folder"


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where data comes from: the name that people gave it, and its bytes, which are read once."""

    name: str
    held: bytes | None = None  # of standard input and pipes, which can be read but once

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def kind(self) -> Kind:
        if self.held is None and self.path.is_dir():
            return Kind.FOLDER
        return kind_of(self.content(HEAD))

    def content(self, most: int | None = None) -> bytes:
        """All bytes, or the first `most`."""
        if self.held is not None:
            return self.held[:most]
        try:
            with self.path.open("rb") as file:
                return file.read(-1 if most is None else most)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror}") from error

    def limited(self, most: int = MOST_BYTES) -> bytes:
        """All bytes, of a file that has no reason to be large."""
        found = self.content(most + 1)
        if len(found) > most:
            raise InputError(f"{self.name}: is larger than {most >> 20} MiB", hint="give large data as .npy")
        return found

    def text(self) -> str:
        try:
            return self.limited(MOST_TEXT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.name}: is no text in UTF-8", hint="save it as UTF-8") from error


def source_at(name: str) -> DataSource | None:
    """The file, folder, pipe or standard input of that name; None where there is none."""
    if name == STDIN:
        return DataSource("standard input", _stdin())
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):  # not there, or no name of a file at all
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return DataSource(name)
    return DataSource(name, DataSource(name).content())


@cache
def _stdin() -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise InputError("-: standard input has no data", hint="pipe a file into the command")
    content: bytes = stream.read()
    if not content:
        raise InputError("-: standard input is empty")
    return content


_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"\0\0\x01\0", b"\xff\x4f\xff\x51")
_SOUNDS = (b"ID3", b"fLaC", b"OggS", b".snd", b"FORM", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1")


def kind_of(head: bytes) -> Kind:
    """What begins like that."""
    if head.startswith(b"\x93NUMPY"):
        return Kind.NPY
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return Kind.NPZ
    if head[:4] in (b"RIFF", b"RF64", b"RIFX"):
        return Kind.WAV if head[8:12] == b"WAVE" else Kind.PICTURE if head[8:12] == b"WEBP" else Kind.BINARY
    if head.startswith(_PICTURES) or head[4:8] == b"jP  ":
        return Kind.PICTURE
    if head[4:8] == b"ftyp":
        return Kind.PICTURE if head[8:12] in (b"avif", b"avis", b"heic", b"mif1") else Kind.SOUND
    if head[:2] == b"BM" and len(head) > 14 and head[6:10] == b"\0\0\0\0":
        return Kind.PICTURE
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in (b"\n", b"\r", b" ", b"\t"):
        return Kind.PICTURE
    if head.startswith(_SOUNDS):
        return Kind.SOUND
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 2:
        return Kind.PICKLE
    return Kind.TEXT if _is_text(head) else Kind.BINARY


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(head) or len(head) < HEAD:  # else a character is cut off
            return False
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    return controls == 0
