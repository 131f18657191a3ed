"""Reading a damaged file returns a model or raises a WeftError whose cause is not a bug in weft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from frontend import samples

from weft.errors import WeftError
from weft.frontend import read_model

SEED = 20240611
FLIPS = 1500
EXPECTED_CAUSES = {"DecodeError", "UnicodeDecodeError", "OSError", "FileNotFoundError", "ValueError"}
"""Errors of protobuf, the file system and numpy about damaged data; any other error is a bug in weft."""

MODELS: dict[str, Callable[[], bytes]] = {
    "branching": lambda: samples.branching().SerializeToString(),
    "calling": lambda: samples.calling().SerializeToString(),
    "raw dtypes": lambda: samples.every_dtype(raw=True).SerializeToString(),
    "listed dtypes": lambda: samples.every_dtype(raw=False).SerializeToString(),
    "large": lambda: samples.large_weights(300).SerializeToString(),
}


def check(source: object, label: str) -> None:
    try:
        read_model(source)
    except WeftError as error:
        cause = error.__cause__
        assert cause is None or type(cause).__name__ in EXPECTED_CAUSES, (label, repr(cause))


def flip_bits(content: bytes, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    for _ in range(count):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[place] ^= 1 << rng.integers(0, 8)
        yield bytes(damaged)


def splice(content: bytes, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Remove, repeat and replace slices."""
    for _ in range(count):
        start, stop = sorted(rng.integers(0, len(content), 2))
        stop = min(stop, start + 64)
        match rng.integers(0, 3):
            case 0:
                yield content[:start] + content[stop:]
            case 1:
                yield content[:stop] + content[start:]
            case _:
                yield content[:start] + rng.bytes(int(stop - start)) + content[stop:]


@pytest.mark.parametrize("name", MODELS)
def test_truncated(name: str) -> None:
    content = MODELS[name]()
    for end in sorted({*range(0, len(content), max(1, len(content) // 500)), *range(len(content) - 50, len(content))}):
        check(content[:end], f"{name} truncated to {end} bytes")


@pytest.mark.parametrize("damage", [flip_bits, splice])
@pytest.mark.parametrize("name", MODELS)
def test_damaged(name: str, damage: Callable[..., Iterator[bytes]]) -> None:
    print(f"seed {SEED}")
    content = MODELS[name]()
    read_model(content)
    for number, damaged in enumerate(damage(content, np.random.default_rng(SEED), FLIPS)):
        check(damaged, f"{name} {damage.__name__}, seed {SEED}, number {number}")


def test_damaged_with_external_data(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    path = samples.with_external(tmp_path)
    content = path.read_bytes()
    for number, damaged in enumerate(flip_bits(content, np.random.default_rng(SEED), FLIPS)):
        path.write_bytes(damaged)
        check(path, f"external, seed {SEED}, number {number}")
