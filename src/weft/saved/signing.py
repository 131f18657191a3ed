"""Sign the code that this user compiles, with a key that only this user can read.

The key is created with the first signature. It is in a private folder (cache/files.py) outside the cache, which may be
emptied. Without such a folder nothing is signed, and files have to be loaded with `trusted=True`.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from pathlib import Path

from weft.cache.files import read_file, user_folder, write_file

VARIABLE = "WEFT_KEYS"
"""The environment variable that names another folder for the key; empty means none."""
NAME = "signing-key"
_BYTES = 32
_PURPOSE = b"weft saved program\x00"


def keys_folder() -> Path | None:
    """Return the folder of this user's key, if there is one."""
    return user_folder(VARIABLE, "data", "XDG_DATA_HOME", "~/.local/share")


def sign(content: bytes) -> bytes:
    """Return this user's signature; zeros if there is no key and none can be stored."""
    key = _read_key() or _create_key()
    return bytes(_BYTES) if key is None else _compute_signature(key, content)


def is_signed_by_user(content: bytes, signature: bytes) -> bool:
    """Whether a signature of the content is this user's."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_compute_signature(key, content), signature)


def _compute_signature(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, "sha256")


def _read_key() -> bytes | None:
    folder = keys_folder()
    if folder is not None:
        with suppress(OSError):
            key = read_file(folder / NAME)
            return key if len(key) == _BYTES else None
    return None


def _create_key() -> bytes | None:
    folder = keys_folder()
    if folder is not None:
        with suppress(OSError):
            path = folder / f"{NAME}.{os.urandom(8).hex()}"
            write_file(path, os.urandom(_BYTES))  # readable by this user only
            try:
                os.link(path, folder / NAME)  # fails if another process was first: then its key is used
            finally:
                path.unlink()
    return _read_key()
