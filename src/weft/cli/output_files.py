"""Write files: missing folders are created, and errors name the file."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.errors import InputError

STDOUT = Path("-")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8; `-` is standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file; `-` is standard output."""
    if path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot write the file: {error.strerror}", hint="name another file") from error
