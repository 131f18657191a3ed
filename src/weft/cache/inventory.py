"""What lies in the cache folder: listed, measured, checked and removed.

Only what weft itself would use is looked at: files of this user alone, in folders that it made. Other files are left
alone, whatever is asked for. Entries in use stay mapped when they are removed, so that nobody is disturbed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from weft.cache.code import SUFFIX, CodeCache
from weft.cache.files import UNFINISHED, read_file, usable
from weft.cache.models import ModelCache
from weft.records import dataclass

MODELS, CODE, UNDONE, NOTES = "model", "code", "unfinished", "notes"
_OTHERS = (
    "calibrations",
    "choices",
    "peaks",
    "processors",
    "sources",
    "suite",
    "tuning",
    "models/files",
)  # beside both kinds
_NOTED = (".used", ".about", ".files")  # beside entries of models


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of the cache: what kind it is, what it was made of as far as that is known, and when it was last used."""

    kind: str
    path: Path
    bytes: int
    used: float  # seconds since 1970
    file: str = ""  # the model's own name, of an entry of one
    device: str = ""


def kept_files(folder: Path) -> list[KeptFile]:
    """All that is kept, the files used last first."""
    found = [*_models(folder / "models"), *_code(folder / "code")]
    for name in _OTHERS:
        found += [KeptFile(NOTES, path, size, used) for path, size, used in _listed(folder / name)]
    return sorted(found, key=lambda kept: -kept.used)


def _models(folder: Path) -> Iterator[KeptFile]:
    for path, size, changed in _listed(folder):
        if path.suffix == UNFINISHED:
            yield KeptFile(UNDONE, path, size, changed)
        elif path.suffix == ".model":
            used = changed
            with suppress(OSError):
                used = path.with_suffix(".used").stat().st_mtime
            about = _about(path)
            yield KeptFile(MODELS, path, size, used, about.get("file", ""), about.get("device", ""))
        elif path.suffix in _NOTED and not path.with_suffix(".model").exists():
            yield KeptFile(NOTES, path, size, changed)


def _about(entry: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        said = json.loads(read_file(entry.with_suffix(".about")))
        if isinstance(said, dict):
            return {str(name): str(value) for name, value in said.items()}
    return {}


def _code(folder: Path) -> Iterator[KeptFile]:
    for path, size, used in _listed(folder):
        if path.suffix in (UNFINISHED, SUFFIX):
            yield KeptFile(CODE if path.suffix == SUFFIX else UNDONE, path, size, used)


def _listed(folder: Path) -> list[tuple[Path, int, float]]:
    """(path, bytes, time of the last change) of a folder's files, if it is this user's alone."""
    found: list[tuple[Path, int, float]] = []
    if usable(folder):
        with suppress(OSError):
            for path in folder.iterdir():
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        status = path.stat()
                        found.append((path, status.st_size, status.st_mtime))
    return found


def remove(kept: Sequence[KeptFile]) -> int:
    """Remove files, with what is noted of them; how many bytes that freed."""
    freed = 0
    for one in kept:
        with suppress(OSError):
            one.path.unlink()
            freed += one.bytes
        if one.kind == MODELS:
            for suffix in _NOTED:
                with suppress(OSError):
                    one.path.with_suffix(suffix).unlink()
    return freed


def older(kept: Sequence[KeptFile], seconds: float) -> list[KeptFile]:
    """Those that were not used for so long."""
    now = time.time()
    return [one for one in kept if now - one.used > seconds]


def damaged(folder: Path, kept: Sequence[KeptFile]) -> list[KeptFile]:
    """The models and code whose content is not what was written; nothing is removed."""
    models, code = ModelCache(folder / "models"), CodeCache(folder / "code")
    checks = {MODELS: models.is_whole, CODE: code.is_whole}
    return [one for one in kept if one.kind in checks and not checks[one.kind](one.path.stem)]
