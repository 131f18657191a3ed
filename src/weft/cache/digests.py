"""Content as short names: of models, and of the files that hold them.

A large file is read once: its digest is remembered under its path with what the system says of the file (number, size,
times), where that tells of every change to come. It does so if the file was not changed for some time, so that the
next change falls into another tick of the clock, and if the file system notes writes through a mapping, too. Those
do it when a page is first written to after it was clean; so all of the file is brought to the disk before it is read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from weft.cache.files import read_file, write_file
from weft.ir.packing import release_pages
from weft.threads import HelperPool, usable_cores

CHUNK = 4 * 1024**2
PIECE = 256 * 1024  # bytes of a file that are read at once
RELEASED = 4  # chunks after which what was read so far is let go of
SETTLED = 2.0  # seconds since a file's last change after which its times tell of the next one
TICKS = 0.1  # seconds in which clocks tick that keep parts of a millisecond
COARSE = 1_000_000  # nanoseconds that times are multiples of where their clock ticks seldom
SMALL = 256 * 1024  # bytes that are read as quickly as remembered
TELLING = ("btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "xfs")
"""File systems whose times tell of every write; a tmpfs, for one, does not note those through a mapping."""


class ContentFile(Protocol):
    """A file that is open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def descriptor(self) -> int: ...

    @property
    def is_whole(self) -> bool:
        """Whether it begins where the file on disk does."""
        ...

    def status(self) -> os.stat_result: ...

    def read_into(self, piece: memoryview, start: int) -> int:
        """Read bytes from a place on; how many there were."""
        ...


def key_of(*parts: str) -> str:
    """One name for all the parts; where they are divided matters."""
    digest = sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def digest(content: memoryview | ContentFile) -> str:
    """The name of some bytes: a digest of the digests of its chunks, which are read by all cores."""
    if not isinstance(content, memoryview):
        return _combined(content.size, _file_parts(content))

    def part(start: int) -> bytes:
        found = sha256(content[start : start + CHUNK]).digest()
        if start % (RELEASED * CHUNK) == 0:
            release_pages(content)
        return found

    name = _combined(len(content), part)
    if len(content) > CHUNK:
        release_pages(content)
    return name


def _combined(size: int, part: Callable[[int], bytes]) -> str:
    starts = chunks(size)
    if len(starts) == 1:
        parts = [part(0)]
    else:
        with HelperPool(min(usable_cores(), len(starts))) as workers:
            parts = list(workers.map(part, starts))
    return name_of(size, parts)


def chunks(size: int) -> range:
    """Where the chunks begin of which some bytes have digests."""
    return range(0, max(size, 1), CHUNK)


def name_of(size: int, parts: Iterable[bytes]) -> str:
    """The name of so many bytes, of whose chunks these are the digests."""
    return sha256(size.to_bytes(8, "little") + b"".join(parts)).hexdigest()


def _file_parts(file: ContentFile) -> Callable[[int], bytes]:
    def part(start: int) -> bytes:
        found, piece = sha256(), memoryview(bytearray(min(PIECE, file.size)))
        end = min(start + CHUNK, file.size)
        while start < end:
            count = file.read_into(piece[: end - start], start)
            if not count:
                break
            found.update(piece[:count])
            start += count
        return found.digest()

    return part


def identity(status: os.stat_result) -> list[int]:
    """What changes when a file does."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def file_digest(file: ContentFile, path: Path | None, records: Path | None) -> str:
    """The name of a file's content; `records` is the folder in which such names are remembered."""
    if path is None or records is None or not file.is_whole or file.size < SMALL or not times_tell(file):
        return digest(file)
    record = records / key_of(str(path.resolve()))[:32]
    known = _remembered(record)
    if known is not None and known[0] == identity(file.status()):
        return known[1]
    before = identity(file.status())
    settled = is_settled(file) and _is_on_disk(file)
    found = digest(file)
    if settled and identity(file.status()) == before:
        with suppress(OSError):
            write_file(record, json.dumps([before, found]).encode())
    return found


def check_once(
    file: ContentFile, path: Path | None, records: Path | None, name: str, check: Callable[[], None]
) -> None:
    """Call `check`, which raises where a file does not hold what `name` stands for, unless that is known."""
    record = _checked_record(file, path, records)
    if record is None:
        check()
        return
    before = identity(file.status())
    if _remembered(record) == (before, name):
        return
    settled = is_settled(file) and _is_on_disk(file)
    check()
    if settled and identity(file.status()) == before:
        with suppress(OSError):
            write_file(record, json.dumps([before, name]).encode())


def note_written(file: ContentFile, path: Path, records: Path | None, name: str) -> None:
    """Remember that a file which this process has just written holds what `name` stands for.

    That takes some ticks of the clock by which the system notes changes; where those are long, nothing is remembered.
    """
    record = _checked_record(file, path, records)
    if record is None or not _is_on_disk(file):
        return
    before = file.status()
    if not (before.st_ctime_ns % COARSE and before.st_mtime_ns % COARSE):
        return
    time.sleep(TICKS)
    if identity(file.status()) == identity(before):
        with suppress(OSError):
            write_file(record, json.dumps([identity(before), name]).encode())


def _checked_record(file: ContentFile, path: Path | None, records: Path | None) -> Path | None:
    if path is None or records is None or not file.is_whole or not times_tell(file):
        return None
    return records / key_of("checked", str(path.resolve()))[:32]


def is_settled(file: ContentFile) -> bool:
    """Whether the last change of a file was some time ago."""
    status = file.status()
    return time.time() - max(status.st_mtime, status.st_ctime) > SETTLED


def _is_on_disk(file: ContentFile) -> bool:
    """Bring to the disk what others have written to a file; the next write to any page of it shows in its times."""
    try:
        os.fsync(file.descriptor)
    except OSError:
        return False
    return True


def times_tell(file: ContentFile) -> bool:
    """Whether a file lies where its times tell of every write to it."""
    with suppress(OSError, ValueError, LookupError):
        facts = dict(line.split(":", 1) for line in _lines(f"/proc/self/fdinfo/{file.descriptor}") if ":" in line)
        mount = facts["mnt_id"].strip()
        for line in _lines("/proc/self/mountinfo"):
            if line.split(" ", 1)[0] == mount:
                kind, _, options = line.partition(" - ")[2].split(" ")[:3]
                return kind in TELLING and "volatile" not in options.split(",")
    return False


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="surrogateescape").splitlines()


def _remembered(record: Path) -> tuple[list[int], str] | None:
    try:
        match json.loads(read_file(record)):
            case [list() as status, str() as name]:
                return status, name
    except (OSError, ValueError):
        pass
    return None
