"""What made an entry, by content and version: weft's own files, the libraries below it, and ops that others define.

Neither paths nor times are part of it, so that another virtual environment, a container or a reinstalled wheel finds
what an earlier one made. The files' content is read once: its digest is remembered under what the system says of them
(names, sizes, times), as for models (digests.py). Nothing here imports a library to ask for its version.
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

from weft.cache.digests import SETTLED, identity, key_of
from weft.cache.files import cache_folder, read_file, write_file

LIBRARIES = ("ml_dtypes", "numpy", "onnx")
"""Those whose version shows in a compiled model: in constants that were folded, and in what the file's ops mean."""
_SUFFIXES = (".py", ".ll")
_NO_DEFINITIONS = sha256().hexdigest()  # what `foreign_digest` gives where nobody has defined an op
_STARTED = time.time()
_PACKAGE = Path(__file__).parent.parent


@cache
def package_digest(*folders: str) -> str | None:
    """weft's own files in these folders (all, for none) by their content.

    None if one was changed since the process began to use them, or if they are not files.
    """
    return content_digest(_PACKAGE, folders)


def content_digest(package: Path, folders: Sequence[str] = ()) -> str | None:
    """The files of a package in these folders by names and content."""
    root = str(package)
    try:
        found = sorted(_source_files([f"{root}/{folder}" for folder in folders] or [root]))
    except OSError:
        return None
    newest = max((max(status.st_mtime, status.st_ctime) for _, status in found), default=0.0)
    if not found or any(status.st_mtime > _STARTED for _, status in found):
        return None
    record = _record(root, found)
    with suppress(OSError, ValueError, TypeError, AttributeError):
        if record is not None and isinstance(known := json.loads(read_file(record)), str):
            return known
    try:
        parts = [
            (path[len(root) + 1 :].replace(os.sep, "/"), sha256(Path(path).read_bytes()).hexdigest())
            for path, _ in found
        ]
    except OSError:
        return None
    made = key_of(*(f"{name.replace(os.sep, '/')} {digest}" for name, digest in parts))
    if record is not None and time.time() - newest > SETTLED:
        with suppress(OSError):
            write_file(record, json.dumps(made).encode())
    return made


def _record(root: str, found: Sequence[tuple[str, os.stat_result]]) -> Path | None:
    """Where the digest of files in this very state is remembered."""
    folder = cache_folder()
    if folder is None:
        return None
    return folder / "sources" / key_of(root, *(f"{path} {identity(status)}" for path, status in found))[:32]


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
    """The version of an installed library, by the name of the folder that says so beside it; "" where none does."""
    with suppress(ImportError, ValueError, OSError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).parent.parent
            for folder in os.listdir(place):  # noqa: PTH208 (their names are all that is asked for)
                stem, dash, rest = folder.partition("-")
                if dash and rest.endswith(".dist-info") and stem.replace("-", "_").lower() == name:
                    return rest[: -len(".dist-info")]
            from importlib.metadata import version

            return version(name)
    return ""


def libraries() -> str:
    """The versions of all that compiled models depend on beside weft."""
    return " ".join(f"{name} {library_version(name)}" for name in LIBRARIES)


def definitions_digest() -> str | None:
    """All definitions of ops that are not weft's own; None where one of them cannot be told.

    Who defines one has imported weft's; where nobody has, there are none.
    """
    if "weft.opset" not in sys.modules:
        return _NO_DEFINITIONS
    from weft.opset.foreign import foreign_digest

    return foreign_digest()
