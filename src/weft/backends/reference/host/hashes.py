"""Hashes of strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.arrays import Array

_WORD = 2**32


def murmur_hash_3(x: Array, *, seed: int, signed: bool) -> tuple[Array]:
    """Compute MurmurHash3_x86_32 of each string's UTF-8 bytes."""
    hashes = np.array([_hash(str(text).encode(), seed) for text in x.flat], np.uint32).reshape(x.shape)
    return (hashes.view(np.int32) if signed else hashes,)


def _hash(content: bytes, seed: int) -> int:
    state = seed
    aligned_size = len(content) // 4 * 4
    for start in range(0, aligned_size, 4):
        word = int.from_bytes(content[start : start + 4], "little")
        state = (_rotate(state ^ _scramble(word), 13) * 5 + 0xE6546B64) % _WORD
    if aligned_size < len(content):
        state ^= _scramble(int.from_bytes(content[aligned_size:], "little"))
    state ^= len(content)
    state = (state ^ state >> 16) * 0x85EBCA6B % _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 % _WORD
    return state ^ state >> 16


def _scramble(word: int) -> int:
    return _rotate(word * 0xCC9E2D51 % _WORD, 15) * 0x1B873593 % _WORD


def _rotate(word: int, count: int) -> int:
    return (word << count | word >> 32 - count) % _WORD


HASHES: dict[str, Callable[..., tuple[Any, ...]]] = {"murmur_hash_3": murmur_hash_3}
