"""Only code of this user or with `trusted=True` runs, and only if this version of weft can run it."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from saved.saved_models import run_in_process, sample, write_model

import weft
from weft.cache import digests, serialization
from weft.cache.entries import await_writes
from weft.saved import files as saved_files
from weft.saved import layout, manifest, signing


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "m.weft"
    weft.compile(write_model(tmp_path / "m.onnx"), path)
    return path


def result(source: object, **options: object) -> np.ndarray:
    return weft.load(source, **options).run({"x": sample()})["y"]


def test_key_is_private_and_created_once(saved: Path, tmp_path: Path) -> None:
    (key,) = (tmp_path / "keys").iterdir()
    content = key.read_bytes()
    assert len(content) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    weft.compile(tmp_path / "m.onnx", tmp_path / "n.weft")
    assert [key.read_bytes()] == [path.read_bytes() for path in (tmp_path / "keys").iterdir()] == [content]


def test_file_of_another_user_is_rejected_trusted_or_recompiled(saved: Path, tmp_path: Path) -> None:
    expected = result(saved)
    other_user = {"WEFT_KEYS": str(tmp_path / "other"), "WEFT_CACHE": str(tmp_path / "other-cache")}
    with pytest.raises(AssertionError, match=r"UntrustedModelError[\s\S]*trusted=True[\s\S]*recompile=True"):
        run_in_process(saved, **other_user)
    assert not (tmp_path / "other-cache" / "models").exists()
    assert run_in_process(saved, "trusted=True", **other_user) == (expected.tobytes().hex(), [])
    with pytest.raises(AssertionError, match="UntrustedModelError"):
        run_in_process(saved, **other_user)  # although the cache has a copy
    recompiled, imported = run_in_process(saved, "recompile=True", **other_user)
    assert recompiled == expected.tobytes().hex()
    assert {"llvmlite", "onnx", "weft.kernels"} <= set(imported)


def test_nothing_is_signed_without_a_folder_for_keys(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_KEYS", "")
    other = tmp_path / "n.weft"
    weft.compile(tmp_path / "m.onnx", other)
    for path in (saved, other):
        with pytest.raises(weft.UntrustedModelError, match="did not compile"):
            weft.load(path)
    assert np.array_equal(result(other, trusted=True), result(tmp_path / "m.onnx", device="cpu"))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="without user ids, folders of users are trusted")
def test_key_that_others_may_write_is_ignored(saved: Path, tmp_path: Path) -> None:
    (key,) = (tmp_path / "keys").iterdir()
    key.chmod(0o666)
    with pytest.warns(weft.CacheWarning, match="other users may write"), pytest.raises(weft.UntrustedModelError):
        weft.load(saved)
    key.chmod(0o600)
    assert result(saved).shape == (3, 5)


def forge(path: Path, change: Callable[[dict], None] | None = None, program: bytes | None = None) -> bytes:
    """Return the file with a changed manifest or program, with correct checksums and this user's signature."""
    content = path.read_bytes()
    header = layout.read_header(layout.BytesContent(memoryview(content)), "m")
    assert header.graph is not None
    last_block = header.manifest.blocks[-1]
    manifest_start = last_block.start + last_block.size
    fields = json.loads(content[manifest_start : header.graph.start])
    blocks = content[layout.HEADER_SIZE : manifest_start]
    if program is not None:
        number = fields["programs"][0]["program"]
        old = header.manifest.blocks[number]
        blocks = content[layout.HEADER_SIZE : old.start] + program + content[old.start + old.size : manifest_start]
        for later in fields["blocks"][number + 1 :]:
            later[0] += len(program) - old.size
        fields["blocks"][number] = [old.start, len(program), digests.digest(memoryview(program))]
    if change is not None:
        change(fields)
    text = json.dumps(fields).encode()
    graph = content[header.graph.start :]
    signed = layout.make_signed_part(text, layout.HEADER_SIZE + len(blocks), len(graph))
    return layout.make_header(signed, signing.sign(signed)) + blocks + text + graph


def test_forged_file_without_changes_runs(saved: Path) -> None:
    assert np.array_equal(result(forge(saved)), result(saved))


def test_programs_of_another_meaning_are_rejected_or_recompiled(saved: Path) -> None:
    content = forge(saved, lambda fields: fields.update(meaning=layout.MEANING + 1, version="7.3"))
    with pytest.raises(weft.UnsupportedModelError, match=r"saved by weft 7\.3[\s\S]*recompile=True"):
        weft.load(content)
    assert np.array_equal(result(content, recompile=True), result(saved))


def test_changed_records_are_rejected_or_recompiled(saved: Path) -> None:
    def change(fields: dict) -> None:
        fields["programs"][0]["records"]["weft.ir.work.Task"] += " more"

    with pytest.raises(weft.UnsupportedModelError, match=r"weft\.ir\.work\.Task has changed"):
        weft.load(forge(saved, change))

    def add_unknown(fields: dict) -> None:
        fields["programs"][0]["records"]["weft.ir.work.Nothing"] = "x"

    with pytest.raises(weft.UnsupportedModelError, match="Nothing has changed"):
        weft.load(forge(saved, add_unknown))
    assert np.array_equal(result(forge(saved, change), recompile=True), result(saved))


def test_another_format_is_rejected(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(layout.MAGIC)] = 9
    with pytest.raises(weft.UnsupportedModelError, match="format 9, but this version of weft reads format 1"):
        weft.load(bytes(content), recompile=True)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil",)


def test_trusted_program_is_read_as_data(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for program in (
        pickle.dumps(Evil()),
        pickle.dumps((pickle.dumps(Evil()), ())),
        pickle.dumps((pickle.dumps(((), pickle.dumps(Evil()))), ())),
        pickle.dumps((1, 2)),
        b"",
        serialization.add_code(serialization.serialize((1, 2)).structure, ()),
    ):
        with pytest.raises(weft.InvalidModelError, match="damaged"):
            weft.load(forge(saved, program=program), trusted=True)
    assert not (tmp_path / "evil").exists()


def test_file_is_checked_again_only_after_a_change(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    read_blocks = saved_files.read_blocks
    monkeypatch.setattr(saved_files, "read_blocks", lambda *arguments: calls.append(1) or read_blocks(*arguments))
    with saved.open("rb") as file:
        has_reliable_times = digests.has_reliable_times(SimpleNamespace(descriptor=file.fileno()))
    weft.load(saved)
    assert len(calls) == (0 if has_reliable_times else 1)  # `compile` has recorded the digests of its file
    content = bytearray(saved.read_bytes())
    for offset in (len(content) // 2, len(content) - 3, 200):
        content[offset] ^= 4
        with saved.open("r+b") as file:
            file.write(content)
        with pytest.raises(weft.InvalidModelError, match="checksum"):
            weft.load(saved)
        content[offset] ^= 4
    saved.write_bytes(content)
    assert result(saved).shape == (3, 5)


def test_copies_are_named_by_content_and_written_again(saved: Path, tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    (copy,) = models.glob("*.model")
    expected = result(saved)
    copy.unlink()
    assert np.array_equal(result(saved), expected)
    await_writes()
    assert list(models.glob("*.model")) == [copy]
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 8)
    assert np.array_equal(result(saved), expected)


def test_manifest_round_trip() -> None:
    name = sha256(b"x").hexdigest()
    program = manifest.SavedProgram(
        "cpu", "native", {"cpu": {"features": ["a"]}}, "float32", ("y",), {"n": 3}, 0, (0,), {"k": 0}, {"r": "a b"}
    )
    original = manifest.Manifest(1, "0.1", "m.onnx", name, True, (program,), (manifest.Block(10, 5, name),))
    content = manifest.to_bytes(original)
    assert manifest.from_bytes(content, 10, 15) == original
    assert manifest.from_bytes(manifest.to_bytes(replace(original, programs=())), 10, 15).programs == ()
    for start, end in ((9, 15), (10, 16), (0, 0)):
        with pytest.raises(ValueError, match="blocks"):
            manifest.from_bytes(content, start, end)
    for wrong in (b"", b"{}", b"[]", b"[" * 100_000, content[:-3], b"\xff\xfe", b"3", b"null"):
        with pytest.raises(ValueError):
            manifest.from_bytes(wrong, 10, 15)


@pytest.mark.parametrize("options", [{}, {"precision": "strict"}, {"device": "reference"}, {"recompile": True}])
def test_damage_is_detected_even_with_a_warm_cache(saved: Path, options: dict[str, object]) -> None:
    content = bytearray(saved.read_bytes())
    expected = result(bytes(content), **options)
    await_writes()
    for offset in (layout.HEADER_SIZE + 3, len(content) // 2, len(content) - 1):
        content[offset] ^= 1
        with pytest.raises(weft.InvalidModelError, match="checksum"):
            weft.load(bytes(content), **options)
        content[offset] ^= 1
    assert np.array_equal(result(bytes(content), **options), expected)
