"""Content as short names: of models and of the files that hold them.

A large file is read once: its digest is remembered under its path with what the system says of the file (number,
size, times). A file that was written shortly before it was read is not remembered, since the next change of it might
fall into the same tick of the clock.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from weft.backends.cpu.code_cache import key_of, write_file
from weft.backends.cpu.machine import usable_cores
from weft.frontend import release_pages
from weft.threads import Team

CHUNK = 4 * 1024**2
RELEASED = 4  # chunks after which what was read so far is let go of
SETTLED = 2.0  # seconds since a file's last change after which its times tell of the next one
SMALL = 256 * 1024  # bytes that are read as quickly as remembered


def digest(content: memoryview) -> str:
    """The name of some bytes: a digest of the digests of its chunks, which are read by all cores."""
    starts = range(0, len(content), CHUNK)

    def part(start: int) -> bytes:
        found = sha256(content[start : start + CHUNK]).digest()
        if start % (RELEASED * CHUNK) == 0:
            release_pages(content)
        return found

    if len(starts) <= 1:
        parts = [sha256(content).digest()]
    else:
        with Team(min(usable_cores(), len(starts))) as workers:
            parts = list(workers.map(part, starts))
        release_pages(content)
    return sha256(len(content).to_bytes(8, "little") + b"".join(parts)).hexdigest()


def identity(status: os.stat_result) -> list[int]:
    """What changes when a file does."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def file_digest(content: memoryview, path: Path | None, status: os.stat_result | None, records: Path) -> str:
    """The name of a file's content; `records` is the folder in which such names are remembered."""
    if path is None or status is None or len(content) != status.st_size or len(content) < SMALL:
        return digest(content)
    record = records / key_of(str(path.resolve()))[:32]
    known = _remembered(record)
    if known is not None and known[0] == identity(status):
        return known[1]
    settled = time.time() - max(status.st_mtime, status.st_ctime) > SETTLED
    found = digest(content)
    if settled:
        with suppress(OSError):
            write_file(record, json.dumps([identity(status), found]).encode())
    return found


def _remembered(record: Path) -> tuple[list[int], str] | None:
    try:
        match json.loads(record.read_bytes()):
            case [list() as status, str() as name]:
                return status, name
    except (OSError, ValueError):
        pass
    return None
