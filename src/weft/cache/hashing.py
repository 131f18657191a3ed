"""SHA-256 for a process that has little to hash: Python's own, since OpenSSL takes longer to load than that takes.

Where there is much to hash, OpenSSL's is several times as quick.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

MUCH = 1 << 20  # bytes for which OpenSSL is loaded


class Hash(Protocol):
    """What digests some bytes."""

    def update(self, content: Buffer, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def sha256(content: Buffer = b"", size: int = 0) -> Hash:
    """The hash of some bytes, of which so many will be in all."""
    if max(size, memoryview(content).nbytes) < MUCH and "hashlib" not in sys.modules:
        made = _own(content)
        if made is not None:
            return made
    from hashlib import sha256 as quick

    return quick(content)


def keyed_sha256(key: bytes, content: bytes) -> bytes:
    """HMAC with SHA-256, for a key of at most 64 bytes."""
    padded = key.ljust(64, b"\0")
    inner = sha256(bytes(byte ^ 0x36 for byte in padded) + content).digest()
    return sha256(bytes(byte ^ 0x5C for byte in padded) + inner).digest()


def _own(content: Buffer) -> Hash | None:
    """Python's own, which has another name in each half of its versions."""
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256 as own
        else:
            from _sha256 import sha256 as own  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    made: Hash = own(content)
    return made
