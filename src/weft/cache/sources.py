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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from weft.cache.digests import SETTLED, file_identity, key_of
from weft.cache.files import cache_folder, read_file, write_file

LIBRARIES = ("ml_dtypes", "numpy", "onnx")
"""Libraries whose version affects compiled models, through folded constants and definitions of ops."""
_SUFFIXES = (".py", ".ll")
_NO_DEFINITIONS = sha256().hexdigest()  # `foreign_digest` without definitions
_STARTED = time.time()
_PACKAGE = Path(__file__).parent.parent


@cache
def package_digest(*folders: str) -> str | None:
    """Return a digest of weft's sources in these folders, or of all.

    Return None if one has changed since the process started, or if they are not files.
    """
    return content_digest(_PACKAGE, folders)


def content_digest(package: Path, folders: Sequence[str] = ()) -> str | None:
    """Return a digest of the names and contents of a package's sources in these folders, or of all."""
    root = str(package)
    try:
        files = sorted(_source_files([f"{root}/{folder}" for folder in folders] or [root]))
    except OSError:
        return None
    newest = max((max(status.st_mtime, status.st_ctime) for _, status in files), default=0.0)
    if not files or any(status.st_mtime > _STARTED for _, status in files):
        return None
    record = _record_path(root, files)
    with suppress(OSError, ValueError, TypeError, AttributeError):
        if record is not None and isinstance(stored := json.loads(read_file(record)), str):
            return stored
    try:
        digests = [sha256(Path(path).read_bytes()).hexdigest() for path, _ in files]
    except OSError:
        return None
    names = [path[len(root) + 1 :].replace(os.sep, "/") for path, _ in files]
    result = key_of(*(f"{name} {digest}" for name, digest in zip(names, digests)))
    if record is not None and time.time() - newest > SETTLED:
        with suppress(OSError):
            write_file(record, json.dumps(result).encode())
    return result


def _record_path(root: str, files: Sequence[tuple[str, os.stat_result]]) -> Path | None:
    """Return where the digest of files with these identities is stored."""
    folder = cache_folder()
    if folder is None:
        return None
    return folder / "sources" / key_of(root, *(f"{path} {file_identity(status)}" for path, status in files))[:32]


def _source_files(folders: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    yield entry.path, entry.stat()
                elif entry.name != "__pycache__" and entry.is_dir():
                    yield from _source_files([entry.path])


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
