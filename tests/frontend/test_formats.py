"""Errors identify files that are not ONNX models, and give a hint for paths that do not exist."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from frontend.samples import model, node

import weft
from weft.frontend.formats import identify_format


def archive(*names: str) -> bytes:
    stream = io.BytesIO()
    if names:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as zip_file:
            for name in names:
                zip_file.writestr(name, b"content" * 200)
    else:
        with tarfile.open(fileobj=stream, mode="w") as tar_file:
            tar_file.addfile(tarfile.TarInfo("model.onnx"))
    return stream.getvalue()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


def safetensors() -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(4)


PROTO = model([node("Neg", ["x"], ["y"])]).SerializeToString()
FILES: dict[str, tuple[bytes, str]] = {
    "zip": (archive("readme.txt"), "zip archive"),
    "zip with a model": (archive("readme.txt", "folder/a model.onnx"), "pass folder/a model.onnx"),
    "torch": (archive("whole/data.pkl", "whole/data/0"), "PyTorch"),
    "TorchScript": (archive("m/data.pkl", "m/code/__torch__.py", "m/constants.pkl"), "TorchScript"),
    "torch.export": (archive("m/archive_format", "m/models/model.json"), "torch.export"),
    "Keras": (archive("metadata.json", "config.json", "model.weights.h5"), "Keras model"),
    "arrays": (archive("x.npy", "y.npy"), "npz"),
    "tar": (archive(), "tar archive"),
    "old pickle": (pickle.dumps({"a": 1}, protocol=2), "pickle"),
    "pickle": (pickle.dumps({"a": list(range(99))}, protocol=4), "pickle"),
    "newer pickle": (pickle.dumps([1, 2], protocol=5), "pickle"),
    "pickle protocol 3": (pickle.dumps({"a": 1}, protocol=3), "pickle"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3" + bytes(99), "TensorFlow Lite"),
    "ort": (b"\x24\0\0\0ORTM" + bytes(99), "onnxruntime's own format"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(99), "GGUF"),
    "gzip": (gzip.compress(PROTO), "gzip"),
    "bzip2": (bz2.compress(PROTO), "bzip2"),
    "xz": (lzma.compress(PROTO), "xz"),
    "XML": (b'<?xml version="1.0"?><net name="a"/>', "OpenVINO"),
    "a page": (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "safetensors": (safetensors(), "safetensors"),
    "JSON": (b'{"model": 1}', "JSON"),
    "JSON, a list": (b"[1, 2, 3]", "JSON"),
    "a server's JSON": (b'{"error": "Repository not found"}', "server's error message"),
    "a server's XML": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "server's error message"),
    "a server's text": (b"Entry not found", "text file that begins with 'Entry not found'"),
    "a page with a byte order mark": ("\ufeff<!-- x --><html>".encode(), "web page"),
    "text": ("äöü日本".encode() * 200, "text file that begins"),
    "a model as text": (b"ir_version: 8\ngraph {\n}\n", "written as text"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(99), "image"),
    "WAV": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(99), "audio"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\n" + bytes(99), "PDF"),
    "a program": (b"\x7fELF\x02\x01" + bytes(99), "program"),
    "zeros": (bytes(4000), "all zeros"),
    "an array": (array(), "numpy array"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
}


@pytest.mark.parametrize("kind", FILES)
def test_other_formats(kind: str, tmp_path: Path) -> None:
    content, message = FILES[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(weft.InvalidModelError, match=message):
            weft.load(source)


def test_other_protobuf_formats_are_identified_by_suffix(tmp_path: Path) -> None:
    """Their first bytes look like those of an ONNX model."""
    for name, message in (("a.mlmodel", "Core ML"), ("saved_model.pb", "TensorFlow"), ("a.pdmodel", "PaddlePaddle")):
        (tmp_path / name).write_bytes(b"\x08\x01\x12\x04abcd")
        with pytest.raises(weft.InvalidModelError, match=message):
            weft.load(tmp_path / name)


def test_external_weights_instead_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "big.onnx").write_bytes(PROTO)
    (tmp_path / "other.onnx").write_bytes(PROTO)
    for name in ("big.onnx.data", "big.bin", "big.onnx_data"):
        (tmp_path / name).write_bytes(np.random.default_rng(0).standard_normal(500).astype(np.float32).tobytes())
        with pytest.raises(weft.InvalidModelError, match=r"in the same folder: big\.onnx"):
            weft.load(tmp_path / name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["onnx/model.onnx"], "onnx/model.onnx"),
        (["saved_model.pb"], "SavedModel"),
        (["config.json", "model.safetensors"], "optimum-cli"),
        (["model.xml", "model.bin"], "OpenVINO"),
        ([], "path of a file"),
    ],
)
def test_folders(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(weft.ModelError, match=message):
        weft.load(tmp_path)


def test_a_model_may_begin_with_another_formats_magic_number() -> None:
    """Fields may come in any order, and unknown ones are ignored."""
    for field in (b"\x12\x02PK", b"\x82\x7d\x04BZhX", b"\x32\x05<html"):
        assert weft.load(field + PROTO).inputs[0].name == "x"
    assert identify_format(PROTO) is None
    assert identify_format(b"") is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("https://example.com/model.onnx", "download it first"),
        ("~/model.onnx", "expanduser"),
        ("", "the path is empty"),
        ("nowhere/model.onnx", "check the path"),
    ],
)
def test_missing_paths(path: str, message: str) -> None:
    with pytest.raises(weft.ModelError, match=message) as caught:
        weft.load(path)
    assert not path or str(caught.value).count(path) == 1


def test_hints_for_misspelled_paths(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(PROTO)
    with pytest.raises(weft.ModelError, match=r"did you mean model\.onnx\?"):
        weft.load(tmp_path / "Model.onx")
    with pytest.raises(weft.ModelError, match=r"hint: check the path$"):
        weft.load(tmp_path / "other.onnx")
    with pytest.raises(weft.ModelError, match="check the path"):
        weft.load("model\0.onnx")
    with pytest.raises(weft.ModelError, match=r"a file in it: model\.onnx"):
        weft.load(tmp_path)
    with pytest.raises(weft.ModelError, match="pass it as a string"):
        weft.load(str(tmp_path / "model.onnx").encode())


def test_file_objects_at_their_end(tmp_path: Path) -> None:
    stream = io.BytesIO()
    stream.write(PROTO)
    path = tmp_path / "model.onnx"
    path.write_bytes(PROTO)
    with path.open("rb") as file:
        file.read()
        for source in (stream, file):
            with pytest.raises(weft.ModelError, match=r"file\.seek\(0\)"):
                weft.load(source)
            source.seek(0)
            assert weft.load(source).inputs[0].name == "x"
    with pytest.raises(weft.InvalidModelError, match="empty"):
        weft.load(io.BytesIO())


@pytest.mark.parametrize(
    ("name", "device"),
    [("CPU", "'cpu'"), ("CUDAExecutionProvider", "'cuda'"), ("gpu", "'webgpu'")],
)
def test_device_names_of_other_libraries_get_a_suggestion(name: str, device: str) -> None:
    with pytest.raises(weft.DeviceError, match=f"did you mean .*{device}"):
        weft.load(PROTO, device=name)
