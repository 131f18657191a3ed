"""Store tuned tile choices for a kind of hardware, in the cache folder or in a file that users can share.

Both are JSON: the hardware, and the name of the best candidate for the name of each product. Only kernels interpret the
names; unknown ones have no effect. A damaged or untrusted file in the cache folder is ignored; a file that the user
names must be valid.
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
_MAX_BYTES = 64 << 20


def cached_choices(hardware: str) -> Choices:
    """Return the choices in the cache folder for a kind of hardware."""
    path = _choices_path(hardware)
    if path is not None:
        with suppress(OSError, InputError):
            return from_text(read_file(path), hardware, str(path))
    return ()


def store_choices(hardware: str, choices: Choices) -> Path | None:
    """Add choices to the cache folder and return their file, or None if there is no cache folder."""
    path = _choices_path(hardware)
    if path is not None:
        with suppress(OSError):
            write_file(path, to_text(hardware, merge_choices(cached_choices(hardware), choices)).encode())
            return path
    return None


def read_choices(path: Path, hardware: str) -> Choices:
    """Read the choices in a file; raise InputError if it is invalid or for other hardware."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the tuning file cannot be read: {error.strerror}") from error
    return from_text(data, hardware, str(path))


def merge_choices(before: Choices, after: Choices) -> Choices:
    """Merge choices; those in `after` override those in `before`."""
    return tuple(sorted({**dict(before), **dict(after)}.items()))


def to_text(hardware: str, choices: Choices) -> str:
    """Return the content of a tuning file."""
    record = {"format": FORMAT, "version": VERSION, "hardware": hardware, "choices": dict(choices)}
    return json.dumps(record, indent=1) + "\n"


def from_text(data: bytes, hardware: str, name: str) -> Choices:
    """Parse the content of a tuning file; raise InputError if it is damaged or for other hardware."""
    hint = "create one with `weft tune MODEL -o FILE`"
    try:
        record = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{name}: not a tuning file, or damaged", hint=hint)
    if record.get("version") != VERSION:
        raise InputError(f"{name}: a tuning file of another version of weft", hint=hint)
    choices, tuned_for = record.get("choices"), record.get("hardware")
    if not isinstance(choices, dict) or not all(isinstance(candidate, str) for candidate in choices.values()):
        raise InputError(f"{name}: damaged: its choices must map names to names", hint=hint)
    if tuned_for != hardware:
        raise InputError(f"{name}: tuned for {str(tuned_for)[:80]!r}, but this is {hardware!r}", hint=hint)
    return tuple(sorted(choices.items()))


def _choices_path(hardware: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "tuning" / f"{key_of(FORMAT, str(VERSION), hardware)[:32]}.json"
