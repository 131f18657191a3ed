"""Digests are the same, whichever implementation gives them."""

from __future__ import annotations

import hashlib
import hmac
import sys

import numpy as np
import pytest

from weft.cache import hashing


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5000, hashing.MUCH + 1])
def test_digests_are_those_of_the_standard_library(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(size).bytes(size)
    expected = hashlib.sha256(content).digest()
    assert hashing.sha256(content).digest() == expected
    monkeypatch.delitem(sys.modules, "hashlib")
    for own in (hashing.sha256(content), hashing.sha256(memoryview(content), size)):
        assert own.digest() == expected
    parts = hashing.sha256()
    for start in range(0, size, 700):
        parts.update(content[start : start + 700])
    assert parts.hexdigest() == expected.hex()


def test_keyed_digests_are_those_of_the_standard_library() -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        key, content = random.bytes(32), random.bytes(int(random.integers(300)))
        assert hashing.keyed_sha256(key, content) == hmac.digest(key, content, "sha256")
