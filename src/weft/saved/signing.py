"""Whose code it is: this user signs what he compiles, with a key that nobody else can read.

The key is made with the first signature, and lies in a folder of this user alone (cache/files.py), apart from caches,
which may be emptied. Who has no such folder signs nothing, and has to say that a file is to be trusted.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from pathlib import Path

from weft.cache.files import own_folder, read_file, write_file

VARIABLE = "WEFT_KEYS"
"""The environment variable that names another folder for the key; empty means none."""
NAME = "signing-key"
_BYTES = 32
_PURPOSE = b"weft saved program\x00"


def keys_folder() -> Path | None:
    """Where this user's key is; None for nowhere."""
    return own_folder(VARIABLE, "data", "XDG_DATA_HOME", "~/.local/share")


def signature(content: bytes) -> bytes:
    """This user's signature; nothing but zeros where he has no key and none can be kept."""
    key = _key() or _new_key()
    return bytes(_BYTES) if key is None else _signed(key, content)


def is_own(content: bytes, found: bytes) -> bool:
    """Whether this user signed it."""
    key = _key()
    return key is not None and hmac.compare_digest(_signed(key, content), found)


def _signed(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, "sha256")


def _key() -> bytes | None:
    folder = keys_folder()
    if folder is not None:
        with suppress(OSError):
            key = read_file(folder / NAME)
            return key if len(key) == _BYTES else None
    return None


def _new_key() -> bytes | None:
    folder = keys_folder()
    if folder is not None:
        with suppress(OSError):
            path = folder / f"{NAME}.{os.urandom(8).hex()}"
            write_file(path, os.urandom(_BYTES))  # for this user alone, as all that weft writes
            try:
                os.link(path, folder / NAME)  # of several processes, the first one's key stays
            finally:
                path.unlink()
    return _key()
