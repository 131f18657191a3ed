"""Compute digests of what compiled models depend on: weft's sources, library versions, and ops of other packages.

Digests contain neither paths nor times, so that another virtual environment, a container or a reinstalled wheel finds
existing entries. The digest of the sources is stored with their names, sizes and times, as for models (digests.py).
Library versions are read without importing the libraries.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.cache.digests import SETTLED, file_identity, key_of
from weft.cache.files import cache_folder, read_file, write_file

LIBRARIES = ("ml_dtypes", "numpy", "onnx")
"""Libraries whose version affects compiled models, through folded constants and definitions of ops."""
_SUFFIXES = (".py", ".ll")
_NO_DEFINITIONS = sha256().hexdigest()  # `foreign_digest` without definitions
_MOST_READ = 1 << 20  # bytes at once
_STARTED = time.time()
_PACKAGE = Path(__file__).parent.parent


@cache
def package_digest(*folders: str) -> str | None:
    """Return a digest of weft's sources in these folders, or of all.

    Return None if a source has changed since the process started, or if they are not files.
    """
    return _join(_digests_of_weft(), folders)


def content_digest(package: Path, folders: Sequence[str] = ()) -> str | None:
    """Return a digest of the names and contents of a package's sources in these folders, or of all."""
    return _join(_digest_folders(package), folders)


def _join(digests: Mapping[str, str] | None, folders: Sequence[str]) -> str | None:
    if digests is None:
        return None
    return key_of(*(f"{name} {digests[name]}" for name in sorted(folders or digests) if name in digests))


@cache
def _digests_of_weft() -> Mapping[str, str] | None:
    return _digest_folders(_PACKAGE)


def _digest_folders(package: Path) -> Mapping[str, str] | None:
    """Return a digest of the sources in each folder of a package, by its name; "" has the package's own modules."""
    root = str(package)
    try:
        files = sorted(_source_files(root))
    except OSError:
        return None
    newest = max((max(status.st_mtime, status.st_ctime) for _, status in files), default=0.0)
    if not files or any(status.st_mtime > _STARTED for _, status in files):
        return None
    record = _record_path(root, files)
    with suppress(OSError, ValueError, TypeError, AttributeError):
        if record is not None and isinstance(stored := json.loads(read_file(record)), dict):
            return stored
    hashes: dict[str, Any] = {}
    for path, _ in files:
        name = path[len(root) + 1 :].replace(os.sep, "/")
        try:
            content = _read_source(path)
        except OSError:
            return None
        folder = name.partition("/")[0] if "/" in name else ""
        digest = hashes.setdefault(folder, sha256())
        digest.update(f"{name} {len(content)} ".encode() + content)
    digests = {folder: digest.hexdigest() for folder, digest in hashes.items()}
    if record is not None and time.time() - newest > SETTLED:
        with suppress(OSError):
            write_file(record, json.dumps(digests).encode())
    return digests


def _read_source(path: str) -> bytes:
    """Read a file without the buffers and objects of `Path.read_bytes`, which take most of the time for small files."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return b"".join(iter(lambda: os.read(descriptor, _MOST_READ), b""))
    finally:
        os.close(descriptor)


def _record_path(root: str, files: Sequence[tuple[str, os.stat_result]]) -> Path | None:
    """Return where the digest of files with these identities is stored."""
    folder = cache_folder()
    if folder is None:
        return None
    return folder / "sources" / key_of(root, *(f"{path} {file_identity(status)}" for path, status in files))[:32]


def _source_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                yield entry.path, entry.stat()
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _source_files(entry.path)


@cache
def library_version(name: str) -> str:
    """Return the version of an installed library from the name of its .dist-info folder, or "" if it has none."""
    with suppress(ImportError, ValueError, OSError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            for folder in os.listdir(Path(spec.origin).parent.parent):  # noqa: PTH208 (only names are needed)
                stem, dash, suffix = folder.partition("-")
                if dash and suffix.endswith(".dist-info") and stem.replace("-", "_").lower() == name:
                    return suffix[: -len(".dist-info")]
            from importlib.metadata import version  # slow to import

            return version(name)
    return ""


def libraries() -> str:
    """Return the versions of the libraries that compiled models depend on."""
    return " ".join(f"{name} {library_version(name)}" for name in LIBRARIES)


def definitions_digest() -> str | None:
    """Return a digest of the op definitions of other packages, or None if one of them has no digest."""
    if "weft.opset" not in sys.modules:  # defining an op imports it, so there are no definitions
        return _NO_DEFINITIONS
    from weft.opset.foreign import foreign_digest

    return foreign_digest()
