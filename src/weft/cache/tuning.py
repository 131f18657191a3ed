"""Choices that were measured for a kind of hardware: kept in the cache folder, or in a file that can be handed on.

The same JSON in both: what it was measured on, and for the name of each product that of the way that is best. Names
mean something to the kernels alone; one that they do not know changes nothing. What lies in the cache folder and is
damaged, or could have been written by others, is as good as none; a file that somebody names has to be right.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.errors import InputError
from weft.ir.target import Choices

FORMAT = "weft tuning"
VERSION = 1
_MOST_BYTES = 64 << 20


def kept_choices(hardware: str) -> Choices:
    """What the cache folder has for a kind of hardware."""
    path = _path(hardware)
    if path is not None:
        with suppress(OSError, InputError):
            return from_text(read_file(path), hardware, str(path))
    return ()


def keep_choices(hardware: str, choices: Choices) -> Path | None:
    """Add choices to what the cache folder has; the file they are in, or None where there is no such folder."""
    path = _path(hardware)
    if path is not None:
        with suppress(OSError):
            write_file(path, to_text(hardware, joined(kept_choices(hardware), choices)).encode())
            return path
    return None


def read_choices(path: Path, hardware: str) -> Choices:
    """What a file has for a kind of hardware; InputError where it is none, or for another."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the file of tuned choices cannot be read: {error.strerror}") from error
    return from_text(data, hardware, str(path))


def joined(before: Choices, after: Choices) -> Choices:
    """All of them; where both have a product, the later."""
    return tuple(sorted({**dict(before), **dict(after)}.items()))


def to_text(hardware: str, choices: Choices) -> str:
    """The content of a file."""
    record = {"format": FORMAT, "version": VERSION, "hardware": hardware, "choices": dict(choices)}
    return json.dumps(record, indent=1) + "\n"


def from_text(data: bytes, hardware: str, name: str) -> Choices:
    """The choices in a file's content; InputError with the file's name where it is damaged or for other hardware."""
    hint = "make one with `weft tune MODEL -o FILE`"
    try:
        record = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{name}: not a file of tuned choices, or damaged", hint=hint)
    if record.get("version") != VERSION:
        raise InputError(f"{name}: tuned choices of another version of weft", hint=hint)
    choices, tuned_for = record.get("choices"), record.get("hardware")
    if not isinstance(choices, dict) or not all(isinstance(way, str) for way in choices.values()):
        raise InputError(f"{name}: damaged: its choices are not names by name", hint=hint)
    if tuned_for != hardware:
        raise InputError(f"{name}: tuned for {str(tuned_for)[:80]!r}, and this is {hardware!r}", hint=hint)
    return tuple(sorted(choices.items()))


def _path(hardware: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "tuning" / f"{key_of(FORMAT, str(VERSION), hardware)[:32]}.json"
