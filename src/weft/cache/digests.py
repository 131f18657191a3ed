"""Compute digests of models and files, and remember those of large files.

The digest of a large file is stored with the file's inode, size and times, and reused as long as these do not change.
That is only safe if every later change of the file shows in its times: the last change must be older than a clock tick,
and the file system must record writes through mappings. It does so when a clean page is first written to, hence the
`fsync` before a file is read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from weft.cache.files import read_file, write_file
from weft.ir.packing import release_pages
from weft.threads import HelperPool, usable_cores

CHUNK = 4 * 1024**2
PIECE = 256 * 1024  # bytes of a file that are read at once
RELEASED = 4  # chunks after which pages are released
SETTLED = 2.0  # seconds after a file's last change from which the next change shows in its times
TICKS = 0.1  # seconds, longer than a tick of a clock with a resolution below a millisecond
COARSE = 1_000_000  # nanoseconds; times of a coarse clock are multiples of this
SMALL = 256 * 1024  # bytes up to which reading a file is as fast as looking up its digest
RELIABLE = ("btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "xfs")
"""File systems whose times show every write; tmpfs, for instance, does not record writes through mappings."""


class ContentFile(Protocol):
    """A file that is open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def descriptor(self) -> int: ...

    @property
    def is_whole(self) -> bool:
        """Whether this is the file from its first byte on."""
        ...

    def status(self) -> os.stat_result: ...

    def read_into(self, piece: memoryview, start: int) -> int:
        """Read bytes at an offset and return their number."""
        ...


def key_of(*parts: str) -> str:
    """Return a digest of strings; ("ab", "c") and ("a", "bc") differ."""
    digest = sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def digest(content: memoryview | ContentFile) -> str:
    """Return a digest of the digests of all chunks, which are computed on all cores."""
    if not isinstance(content, memoryview):
        return _digest_chunks(content.size, partial(_digest_file_chunk, content))

    def digest_chunk(start: int) -> bytes:
        result = sha256(content[start : start + CHUNK]).digest()
        if start % (RELEASED * CHUNK) == 0:
            release_pages(content)
        return result

    result = _digest_chunks(len(content), digest_chunk)
    if len(content) > CHUNK:
        release_pages(content)
    return result


def _digest_chunks(size: int, digest_chunk: Callable[[int], bytes]) -> str:
    starts = chunks(size)
    if len(starts) == 1:
        return combine_digests(size, [digest_chunk(0)])
    with HelperPool(min(usable_cores(), len(starts))) as workers:
        return combine_digests(size, workers.map(digest_chunk, starts))


def _digest_file_chunk(file: ContentFile, start: int) -> bytes:
    result, buffer = sha256(), memoryview(bytearray(min(PIECE, file.size)))
    end = min(start + CHUNK, file.size)
    while start < end:
        count = file.read_into(buffer[: end - start], start)
        if not count:
            break
        result.update(buffer[:count])
        start += count
    return result.digest()


def chunks(size: int) -> range:
    """Return the offsets of the chunks of `size` bytes."""
    return range(0, max(size, 1), CHUNK)


def combine_digests(size: int, chunk_digests: Iterable[bytes]) -> str:
    """Return the digest of `size` bytes from the digests of their chunks."""
    return sha256(size.to_bytes(8, "little") + b"".join(chunk_digests)).hexdigest()


def file_identity(status: os.stat_result) -> list[int]:
    """Return the numbers that change when a file changes."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def file_digest(file: ContentFile, path: Path | None, records: Path | None) -> str:
    """Return the digest of a file's content; `records` is the folder where digests are stored."""
    if path is None or records is None or not file.is_whole or file.size < SMALL or not has_reliable_times(file):
        return digest(file)
    record = records / key_of(str(path.resolve()))[:32]
    stored = _read_record(record)
    if stored is not None and stored[0] == file_identity(file.status()):
        return stored[1]
    before = file_identity(file.status())
    settled = is_settled(file) and _flush(file)
    result = digest(file)
    if settled and file_identity(file.status()) == before:
        _write_record(record, before, result)
    return result


def check_once(
    file: ContentFile, path: Path | None, records: Path | None, name: str, check: Callable[[], None]
) -> None:
    """Call `check`, which raises an error unless the file has the digest `name`; skip it if the file was checked."""
    record = _checked_record(file, path, records)
    if record is None:
        check()
        return
    before = file_identity(file.status())
    if _read_record(record) == (before, name):
        return
    settled = is_settled(file) and _flush(file)
    check()
    if settled and file_identity(file.status()) == before:
        _write_record(record, before, name)


def record_written(file: ContentFile, path: Path, records: Path | None, name: str) -> None:
    """Record that a file that this process has just written has the digest `name`.

    This waits for some ticks of the file system's clock; with a coarse clock, nothing is recorded.
    """
    record = _checked_record(file, path, records)
    if record is None or not _flush(file):
        return
    before = file.status()
    if not (before.st_ctime_ns % COARSE and before.st_mtime_ns % COARSE):
        return
    time.sleep(TICKS)
    if file_identity(file.status()) == file_identity(before):
        _write_record(record, file_identity(before), name)


def _checked_record(file: ContentFile, path: Path | None, records: Path | None) -> Path | None:
    if path is None or records is None or not file.is_whole or not has_reliable_times(file):
        return None
    return records / key_of("checked", str(path.resolve()))[:32]


def is_settled(file: ContentFile) -> bool:
    """Whether the last change of a file is old enough that the next one shows in its times."""
    status = file.status()
    return time.time() - max(status.st_mtime, status.st_ctime) > SETTLED


def _flush(file: ContentFile) -> bool:
    """Write a file's dirty pages to the disk, so that the next write to any page updates its times."""
    try:
        os.fsync(file.descriptor)
    except OSError:
        return False
    return True


def has_reliable_times(file: ContentFile) -> bool:
    """Whether a file is on a file system whose times show every write."""
    with suppress(OSError, ValueError, LookupError):
        facts = dict(line.split(":", 1) for line in _lines(f"/proc/self/fdinfo/{file.descriptor}") if ":" in line)
        mount = facts["mnt_id"].strip()
        for line in _lines("/proc/self/mountinfo"):
            if line.split(" ", 1)[0] == mount:
                kind, _, options = line.partition(" - ")[2].split(" ")[:3]
                return kind in RELIABLE and "volatile" not in options.split(",")
    return False


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="surrogateescape").splitlines()


def _write_record(record: Path, identity: list[int], name: str) -> None:
    with suppress(OSError):
        write_file(record, json.dumps([identity, name]).encode())


def _read_record(record: Path) -> tuple[list[int], str] | None:
    try:
        match json.loads(read_file(record)):
            case [list() as status, str() as name]:
                return status, name
    except (OSError, ValueError):
        pass
    return None
