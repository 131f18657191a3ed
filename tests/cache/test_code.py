"""The cache of compiled code: shared by processes, limited in size, and never the cause of an error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.cache import files
from weft.cache.code import CodeCache, shared_cache
from weft.cache.digests import key_of


def test_put_and_get(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "deep" / "folder")
    assert cache.get("a") is None
    cache.put("a", b"first")
    cache.put("a", b"second")
    cache.put("empty", b"")
    assert (cache.get("a"), cache.get("empty")) == (b"second", b"")
    assert {path.suffix for path in (tmp_path / "deep" / "folder").iterdir()} == {".weft"}


def test_keys_depend_on_the_boundaries_of_parts() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("abc", "")}) == 4


def test_renamed_entries_are_not_used(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put("a", b"first")
    cache.put("b", b"second")
    (tmp_path / "b.weft").replace(tmp_path / "a.weft")
    assert cache.get("a") is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "magic", "longer"])
def test_damaged_entries_count_as_missing(tmp_path: Path, damage: str) -> None:
    cache = CodeCache(tmp_path)
    cache.put("a", bytes(range(200)))
    (entry,) = tmp_path.iterdir()
    data = entry.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    entry.write_bytes(
        {"cut": data[:60], "flip": flipped, "empty": b"", "magic": b"X" + data[1:], "longer": data + b"!"}[damage]
    )
    assert cache.get("a") is None
    assert list(tmp_path.iterdir()) == []
    cache.put("a", b"again")
    assert cache.get("a") == b"again"


def test_least_recently_used_entries_go(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, max_bytes=10_000)
    for number in range(12):
        cache.put(f"k{number}", bytes(700))
        os.utime(tmp_path / f"k{number}.weft", (time.time() - 5000 + number,) * 2)
    assert cache.get("k0") is not None  # updates its last use
    for number in range(12, 20):
        cache.put(f"k{number}", bytes(700))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total <= 10_000 + 10_000 // 16 + 800
    assert cache.get("k0") is not None
    assert cache.get("k1") is None
    assert cache.get("k19") is not None


def test_abandoned_unfinished_files_are_removed(tmp_path: Path) -> None:
    old, young = tmp_path / "old.part", tmp_path / "young.part"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 9999,) * 2)
    CodeCache(tmp_path).put("a", b"data")
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for folder in (file, file / "below", Path(os.devnull) / "x"):
        cache = CodeCache(folder)
        cache.put("a", b"data")
        assert cache.get("a") is None


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(tmp_path)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    cache.put("a", b"data")
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_there_is_no_cache() -> None:
    cache = CodeCache(None)
    cache.put("a", b"data")
    assert cache.get("a") is None


def test_the_environment_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, folder in ((str(tmp_path), tmp_path / "code"), ("", None)):
        monkeypatch.setenv(files.VARIABLE, text)
        shared_cache.cache_clear()
        assert shared_cache().folder == folder
    monkeypatch.delenv(files.VARIABLE)
    shared_cache.cache_clear()
    folder = shared_cache().folder
    assert folder is not None
    assert "weft" in folder.parts
    shared_cache.cache_clear()


WRITER = """
import sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from weft.cache.code import CodeCache
cache = CodeCache(Path(sys.argv[1]), max_bytes=60_000)
for repetition in range(60):
    for number in range(8):
        expected = bytes([number]) * (1000 + number)
        content = cache.get(f"k{number}")
        assert content is None or content == expected, (repetition, number)
        cache.put(f"k{number}", expected)
        cache.put(f"own{sys.argv[2]}-{repetition}", expected)
print("fine")
"""


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    """Readers see complete entries or none while other processes write and trim."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number), *filter(None, sys.path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    assert [writer.communicate(timeout=120)[0].strip() for writer in writers] == ["fine"] * 6
    assert not list(tmp_path.glob("*.part"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 130_000
