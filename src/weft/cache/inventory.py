"""List, verify and remove the files of the cache folder.

Only files that weft itself would use are listed: private files in folders that weft created. Removing entries that
processes have mapped is safe.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from weft.cache.code import SUFFIX, CodeCache
from weft.cache.files import UNFINISHED, is_private, read_file
from weft.cache.models import ModelCache
from weft.records import dataclass

MODELS, CODE, UNDONE, NOTES = "model", "code", "unfinished", "notes"
_NOTE_FOLDERS = (
    "calibrations",
    "choices",
    "peaks",
    "processors",
    "shipped",
    "sources",
    "suite",
    "tuning",
    "models/files",
)
_NOTE_SUFFIXES = (".used", ".about", ".files")  # of the notes about a model's entry


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of the cache; `file` and `device` are those of a compiled model, if known."""

    kind: str
    path: Path
    bytes: int
    used: float  # seconds since 1970
    file: str = ""
    device: str = ""


def list_cache_files(folder: Path) -> list[CacheFile]:
    """Return all files of the cache, the most recently used first."""
    files = [*_list_models(folder / "models"), *_list_code(folder / "code")]
    for name in _NOTE_FOLDERS:
        files += [CacheFile(NOTES, path, size, used) for path, size, used in _scan_folder(folder / name)]
    return sorted(files, key=lambda file: -file.used)


def _list_models(folder: Path) -> Iterator[CacheFile]:
    for path, size, changed in _scan_folder(folder):
        if path.suffix == UNFINISHED:
            yield CacheFile(UNDONE, path, size, changed)
        elif path.suffix == ".model":
            used = changed
            with suppress(OSError):
                used = path.with_suffix(".used").stat().st_mtime
            about = _read_about(path)
            yield CacheFile(MODELS, path, size, used, about.get("file", ""), about.get("device", ""))
        elif path.suffix in _NOTE_SUFFIXES and not path.with_suffix(".model").exists():
            yield CacheFile(NOTES, path, size, changed)


def _read_about(entry: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        about = json.loads(read_file(entry.with_suffix(".about")))
        if isinstance(about, dict):
            return {str(name): str(value) for name, value in about.items()}
    return {}


def _list_code(folder: Path) -> Iterator[CacheFile]:
    for path, size, used in _scan_folder(folder):
        if path.suffix in (UNFINISHED, SUFFIX):
            yield CacheFile(CODE if path.suffix == SUFFIX else UNDONE, path, size, used)


def _scan_folder(folder: Path) -> list[tuple[Path, int, float]]:
    """Return (path, bytes, time of the last change) of the files in a private folder."""
    files: list[tuple[Path, int, float]] = []
    if is_private(folder):
        with suppress(OSError):
            for path in folder.iterdir():
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        status = path.stat()
                        files.append((path, status.st_size, status.st_mtime))
    return files


def remove(files: Sequence[CacheFile]) -> int:
    """Remove files with the notes about them, and return the number of bytes freed."""
    freed = 0
    for file in files:
        with suppress(OSError):
            file.path.unlink()
            freed += file.bytes
        if file.kind == MODELS:
            for suffix in _NOTE_SUFFIXES:
                with suppress(OSError):
                    file.path.with_suffix(suffix).unlink()
    return freed


def select_unused(files: Sequence[CacheFile], seconds: float) -> list[CacheFile]:
    """Return the files whose last use is longer ago than this."""
    now = time.time()
    return [file for file in files if now - file.used > seconds]


def find_damaged(folder: Path, files: Sequence[CacheFile]) -> list[CacheFile]:
    """Return the damaged files among models and code."""
    models, code = ModelCache(folder / "models"), CodeCache(folder / "code")
    checks = {MODELS: models.is_whole, CODE: code.is_whole}
    return [file for file in files if file.kind in checks and not checks[file.kind](file.path.stem)]
