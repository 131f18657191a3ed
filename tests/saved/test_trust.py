"""Whose code runs: this user's own, and that of others only if he says so; and what of weft it must fit."""

from __future__ import annotations

import json
import os
import pickle
import stat
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from saved.saved_models import run_elsewhere, sample, write_model

import weft
from weft.cache import digests, serialization
from weft.cache.entries import await_writing
from weft.saved import files as saved_files
from weft.saved import layout, manifest, signing


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "m.weft"
    weft.compile(write_model(tmp_path / "m.onnx"), path)
    return path


def result(source: object, **options: object) -> np.ndarray:
    return weft.load(source, **options).run({"x": sample()})["y"]


def test_the_key_is_this_users_alone_and_made_once(saved: Path, tmp_path: Path) -> None:
    (key,) = (tmp_path / "keys").iterdir()
    content = key.read_bytes()
    assert len(content) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    weft.compile(tmp_path / "m.onnx", tmp_path / "n.weft")
    assert [key.read_bytes()] == [path.read_bytes() for path in (tmp_path / "keys").iterdir()] == [content]


def test_a_strangers_file_is_refused_trusted_or_compiled_anew(saved: Path, tmp_path: Path) -> None:
    expected = result(saved)
    strange = {"WEFT_KEYS": str(tmp_path / "other"), "WEFT_CACHE": str(tmp_path / "other-cache")}
    with pytest.raises(AssertionError, match=r"UntrustedModelError[\s\S]*trusted=True[\s\S]*recompile=True"):
        run_elsewhere(saved, **strange)
    assert not (tmp_path / "other-cache" / "models").exists()
    assert run_elsewhere(saved, "trusted=True", **strange) == (expected.tobytes().hex(), [])
    with pytest.raises(AssertionError, match="UntrustedModelError"):
        run_elsewhere(saved, **strange)  # though a copy lies in the cache
    anew, imported = run_elsewhere(saved, "recompile=True", **strange)
    assert anew == expected.tobytes().hex()
    assert {"llvmlite", "onnx", "weft.kernels"} <= set(imported)


def test_without_a_place_for_a_key_nothing_is_signed(
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
def test_a_key_that_others_could_have_written_is_none(saved: Path, tmp_path: Path) -> None:
    (key,) = (tmp_path / "keys").iterdir()
    key.chmod(0o666)
    with pytest.warns(weft.CacheWarning, match="other users may write"), pytest.raises(weft.UntrustedModelError):
        weft.load(saved)
    key.chmod(0o600)
    assert result(saved).shape == (3, 5)


def forged(path: Path, change: object = None, program: bytes | None = None) -> bytes:
    """The file with another manifest or program, sealed anew and signed with this user's key."""
    content = path.read_bytes()
    head = layout.read_head(layout.BytesContent(memoryview(content)), "m")
    place, length = head.manifest.blocks[-1].start + head.manifest.blocks[-1].size, 0
    assert head.graph is not None
    length = head.graph.start - place
    fields = json.loads(content[place : place + length])
    blocks = content[layout.HEAD : place]
    if program is not None:
        number = fields["programs"][0]["program"]
        old = head.manifest.blocks[number]
        blocks = content[layout.HEAD : old.start] + program + content[old.start + old.size : place]
        moved = len(program) - old.size
        for later in fields["blocks"][number + 1 :]:
            later[0] += moved
        fields["blocks"][number] = [old.start, len(program), digests.digest(memoryview(program))]
    if callable(change):
        change(fields)
    text = json.dumps(fields).encode()
    graph = content[head.graph.start :]
    signed = layout.head_to_sign(text, layout.HEAD + len(blocks), len(graph))
    return layout.signed_head(signed, signing.signature(signed)) + blocks + text + graph


def test_forging_for_tests_changes_nothing_by_itself(saved: Path) -> None:
    assert np.array_equal(result(forged(saved)), result(saved))


def test_programs_of_another_meaning_are_refused_or_compiled_anew(saved: Path) -> None:
    content = forged(saved, lambda fields: fields.update(meaning=layout.MEANING + 1, version="7.3"))
    with pytest.raises(weft.UnsupportedModelError, match=r"saved by weft 7\.3[\s\S]*recompile=True"):
        weft.load(content)
    assert np.array_equal(result(content, recompile=True), result(saved))


def test_records_that_have_changed_since_are_found_before_they_are_read(saved: Path) -> None:
    def change(fields: dict) -> None:
        fields["programs"][0]["records"]["weft.ir.work.Task"] += " more"

    with pytest.raises(weft.UnsupportedModelError, match=r"weft\.ir\.work\.Task has changed"):
        weft.load(forged(saved, change))

    def forget(fields: dict) -> None:
        fields["programs"][0]["records"]["weft.ir.work.Nothing"] = "x"

    with pytest.raises(weft.UnsupportedModelError, match="Nothing has changed"):
        weft.load(forged(saved, forget))
    assert np.array_equal(result(forged(saved, change), recompile=True), result(saved))


def test_another_format_is_named(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(layout.MAGIC)] = 9
    with pytest.raises(weft.UnsupportedModelError, match="format 9, where this weft reads format 1"):
        weft.load(bytes(content), recompile=True)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil",)


def test_a_program_is_data_even_if_it_is_trusted(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for program in (
        pickle.dumps(Evil()),
        pickle.dumps((pickle.dumps(Evil()), ())),
        pickle.dumps((pickle.dumps(((), pickle.dumps(Evil()))), ())),
        pickle.dumps((1, 2)),
        b"",
        serialization.with_code(serialization.serialize((1, 2)).structure, ()),
    ):
        with pytest.raises(weft.InvalidModelError, match="damaged"):
            weft.load(forged(saved, program=program), trusted=True)
    assert not (tmp_path / "evil").exists()


def test_a_file_is_checked_once_and_again_when_it_has_changed(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    check = saved_files.read_blocks
    monkeypatch.setattr(saved_files, "read_blocks", lambda *given: checked.append(1) or check(*given))
    with saved.open("rb") as file:
        known = digests.times_tell(_Opened(file.fileno()))
    weft.load(saved)
    assert len(checked) == (0 if known else 1)  # what was just written is known
    content = bytearray(saved.read_bytes())
    for place in (len(content) // 2, len(content) - 3, 200):
        content[place] ^= 4
        with saved.open("r+b") as file:
            file.write(content)
        with pytest.raises(weft.InvalidModelError, match="checksum"):
            weft.load(saved)
        content[place] ^= 4
    saved.write_bytes(content)
    assert result(saved).shape == (3, 5)


class _Opened:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor


def test_copies_are_named_by_content_and_made_again_when_they_are_gone(saved: Path, tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    (copy,) = models.glob("*.model")
    expected = result(saved)
    copy.unlink()
    assert np.array_equal(result(saved), expected)
    await_writing()
    assert list(models.glob("*.model")) == [copy]
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 8)
    assert np.array_equal(result(saved), expected)


def test_manifests_keep_what_is_in_them() -> None:
    name = sha256(b"x").hexdigest()
    program = manifest.SavedProgram(
        "cpu", "native", {"cpu": {"features": ["a"]}}, "float32", ("y",), {"n": 3}, 0, (0,), {"k": 0}, {"r": "a b"}
    )
    made = manifest.Manifest(1, "0.1", "m.onnx", name, True, (program,), (manifest.Block(10, 5, name),))
    content = manifest.to_bytes(made)
    assert manifest.from_bytes(content, 10, 15) == made
    assert manifest.from_bytes(manifest.to_bytes(replace(made, programs=())), 10, 15).programs == ()
    for start, end in ((9, 15), (10, 16), (0, 0)):
        with pytest.raises(ValueError, match="blocks"):
            manifest.from_bytes(content, start, end)
    for wrong in (b"", b"{}", b"[]", b"[" * 100_000, content[:-3], b"\xff\xfe", b"3", b"null"):
        with pytest.raises(ValueError):
            manifest.from_bytes(wrong, 10, 15)


@pytest.mark.parametrize("options", [{}, {"precision": "strict"}, {"device": "reference"}, {"recompile": True}])
def test_damage_is_found_though_everything_is_cached(saved: Path, options: dict[str, object]) -> None:
    content = bytearray(saved.read_bytes())
    expected = result(bytes(content), **options)
    await_writing()
    for place in (layout.HEAD + 3, len(content) // 2, len(content) - 1):
        content[place] ^= 1
        with pytest.raises(weft.InvalidModelError, match="checksum"):
            weft.load(bytes(content), **options)
        content[place] ^= 1
    assert np.array_equal(result(bytes(content), **options), expected)
