"""Packs: files of kernels that come with weft, so that common layers need no compiler even in an empty cache.

A pack has a header, one line of JSON that says which processors can use it and which sources of weft made it, and a
compressed body: results of builders by the name of their call, code by the unique name of its kernel, and other code
that every program needs, by a digest of its source.
"""

from __future__ import annotations

import json
import lzma
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from weft.records import dataclass
from weft.threads import PendingTask

SUFFIX = ".pack"
_NAME_LENGTH = 24  # of the digest that names a call


@dataclass(frozen=True, slots=True)
class PackContent:
    results: Mapping[str, bytes]
    code: Mapping[str, bytes]
    support: Mapping[str, bytes]


class KernelPack:
    """A pack, which another thread reads while a model is traced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._reading = PendingTask(read_content, (path,))
        try:
            Thread(target=self._reading.work, name="weft-kernel-pack", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            self._reading.work()

    def result(self, name: str) -> bytes | None:
        """Return the result of a call, by the name that `LaunchCache` gives it."""
        return self._content().results.get(_shorten(name))

    def code(self, kernel: str) -> bytes | None:
        """Return the object code of a kernel, by its unique name."""
        return self._content().code.get(kernel)

    def support(self, digest: str) -> bytes | None:
        """Return code that every program needs, by the digest of its source."""
        return self._content().support.get(digest)

    def _content(self) -> PackContent:
        if not self._reading.is_done and os.getpid() != self._process:  # a forked child does not have the thread
            self._reading = PendingTask(read_content, (self._path,))
            self._process = os.getpid()
            self._reading.work()
        return self._reading.result()


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a pack; raise OSError or ValueError if there is none."""
    with path.open("rb") as file:
        header = json.loads(file.readline(1 << 16))
    if not isinstance(header, dict):
        raise ValueError(f"{path} is not a pack")
    return header


def read_content(path: Path) -> PackContent:
    """Read the body of a pack; a damaged pack, like a missing one, is empty."""
    try:
        _, _, body = path.read_bytes().partition(b"\n")
        results, code, support = pickle.loads(lzma.decompress(body))  # a file of weft's own, as its sources are
    except (OSError, ValueError, EOFError, lzma.LZMAError, pickle.UnpicklingError):
        return PackContent({}, {}, {})
    return PackContent(results, code, support)


def write_pack(path: Path, header: Mapping[str, Any], content: PackContent) -> None:
    """Write a pack; equal content gives equal files."""
    results = {_shorten(name): result for name, result in sorted(content.results.items())}
    body = pickle.dumps((results, dict(sorted(content.code.items())), dict(content.support)), protocol=4)
    packed = lzma.compress(body, format=lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME)
    path.write_bytes(json.dumps(header, sort_keys=True).encode() + b"\n" + packed)


def _shorten(name: str) -> str:
    """Return as much of a call's name, a digest, as tells calls apart."""
    return name[:_NAME_LENGTH]
