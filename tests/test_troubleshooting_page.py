"""Test docs/troubleshooting.md: reproduce each message that its tables quote."""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from docs.sample_files import classifier
from frontend.samples import model as make_model
from frontend.samples import node, value
from onnx import TensorProto

import weft
from weft.backends.webgpu import adapters
from weft.cache import files as own_files
from weft.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
IMAGE = np.zeros((1, 3, 32, 32), np.float32)


def quoted_messages() -> list[str]:
    """Return the messages in the first column of the page's tables."""
    return [text for text in ROW.findall(PAGE.read_text(encoding="utf-8")) if not text.startswith("InternalError")]


def load(name: str, **options: Any) -> Callable[[], object]:
    return lambda: weft.load(name, **options)


def run(*arguments: Any, **inputs: Any) -> Callable[[], object]:
    return lambda: weft.load("model.onnx", device="cpu").run(*arguments, **inputs)


def call(*arguments: Any) -> Callable[[], object]:
    return lambda: weft.load("model.onnx", device="cpu")(*arguments)


def load_content(name: str, data: bytes) -> Callable[[], object]:
    def write_and_load() -> object:
        Path(name).write_bytes(data)
        return weft.load(name)

    return write_and_load


def load_program_of_another_user() -> object:
    weft.compile("model.onnx", "model.weft", graph=False)
    os.environ["WEFT_KEYS"] = str(Path("other").absolute())
    return weft.load("model.weft")


def load_old_opset() -> object:
    onnx.save(make_model([node("Gelu", ["x"], ["y"])], [value("x")], [value("y")], opsets={"": 11}), "old.onnx")
    return weft.load("old.onnx")


def load_unknown_operator() -> object:
    nodes = [node("Frobnicate", ["x"], ["y"], domain="com.acme")]
    onnx.save(make_model(nodes, [value("x")], [value("y")], opsets={"": 20, "com.acme": 1}), "unknown.onnx")
    return weft.load("unknown.onnx")


def run_mismatched_shapes() -> object:
    nodes = [node("Add", ["a", "b"], ["y"])]
    onnx.save(make_model(nodes, [value("a", ["n"]), value("b", ["m"])], [value("y", None)]), "sum.onnx")
    return weft.load("sum.onnx", device="cpu")(np.zeros(2, np.float32), np.zeros(3, np.float32))


def run_fixed_batch() -> object:
    onnx.save(make_model([node("Neg", ["x"], ["y"])], [value("x", [1, 3])], [value("y", [1, 3])]), "one.onnx")
    return weft.load("one.onnx", device="cpu")(np.zeros((2, 3), np.float32))


def load_without_wgpu() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapters, "is_installed", lambda: False)
        return weft.load("model.onnx", device="webgpu")


def run_invalid_text() -> object:
    nodes = [node("StringNormalizer", ["x"], ["y"])]
    strings = [value("x", ["n"], TensorProto.STRING)], [value("y", ["n"], TensorProto.STRING)]
    onnx.save(make_model(nodes, *strings), "text.onnx")
    return weft.load("text.onnx", device="cpu")(np.array([b"\xff"]))


def use_closed_folder() -> object:
    own_files._warned.clear()
    lstat = Path.lstat

    def refuse(path: Path) -> os.stat_result:
        if path.name == "models":
            raise PermissionError(13, "Permission denied", str(path))
        return lstat(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "lstat", refuse)
        own_files.make_folder(Path("closed").absolute())
        return own_files.is_private(Path("closed/models").absolute())


def use_open_folder() -> object:
    own_files._warned.clear()
    own_files.make_folder(Path("open").absolute())
    Path("open").chmod(0o777)
    own_files._checked.clear()
    return own_files.is_private(Path("open").absolute())


def load_with_little_memory() -> object:
    program = (
        "import resource, numpy, weft\n"
        "limit = int(open('/proc/self/statm').read().split()[0]) * 4096 + (100 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "weft.load('model.onnx', device='cpu', cache=False)\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    return process.stderr


def unpickle_moved_model() -> object:
    data = pickle.dumps(weft.load("model.onnx", device="cpu"))
    Path("model.onnx").rename("moved.onnx")
    return pickle.loads(data)


def log_a_load() -> object:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logger = logging.getLogger("weft")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        weft.load("model.onnx", device="cpu", cache=False)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return output.getvalue()


def run_with_latin_labels() -> object:
    Path("latin.txt").write_bytes("Hündchen\n".encode("latin-1") * 5)
    return run_command("run", "model.onnx", "--labels", "latin.txt")


def run_image_without_pillow() -> object:
    Path("photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        return run_command("run", "model.onnx", "photo.png")


def run_audio_without_soundfile() -> object:
    Path("speech.flac").write_bytes(b"fLaC" + bytes(64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        return run_command("run", "model.onnx", "speech.flac")


def run_command(*arguments: str) -> str:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        main(list(arguments))
    return out.getvalue() + err.getvalue()


LIMITED: dict[str, Any] = {"device": "cpu", "memory_limit": "1MB"}
CASES: dict[str, Callable[[], object]] = {
    "cannot be read: No such file or directory": load("nowhere.onnx"),
    "~ is not expanded: pass os.path.expanduser(path)": load("~/nowhere.onnx"),
    "models are read from files: download it first": load("https://example.org/model.onnx"),
    "this is a Git LFS pointer, not the model": load_content(
        "lfs.onnx", b"version https://git-lfs.github.com/spec/v1\n"
    ),
    "this is a web page": load_content("page.onnx", b"<!doctype html><html></html>"),
    "this is a zip archive": load_content("zip.onnx", b"PK\x03\x04" + bytes(100)),
    "not a complete ONNX file": lambda: load_content("cut.onnx", Path("model.onnx").read_bytes()[:999])(),
    "the model is empty": load_content("empty.onnx", b""),
    "the file holds machine code that this user did not compile": load_program_of_another_user,
    "unknown operator": load_unknown_operator,
    "does not exist in opset": load_old_opset,
    "the weights take … bytes, more than the memory_limit of": load("model.onnx", device="cpu", memory_limit="9KB"),
    "must be float32, not float64": call(IMAGE.astype(np.float64)),
    "must be float32, not uint8": call(IMAGE.astype(np.uint8)),
    "puts channels before rows": call(IMAGE.transpose(0, 2, 3, 1)),
    "has one dimension more, for a batch of one": call(IMAGE[0]),
    "this size is fixed in the file: run rows one by one": run_fixed_batch,
    "the model has no input 'image'": run({"image": IMAGE}),
    "inputs must be a dict of arrays by name, not a list": run([IMAGE]),
    "inputs come first, then the names of outputs": run(None, {"x": IMAGE}),
    "the inputs' shapes do not fit together": run_mismatched_shapes,
    "holds bytes that are not UTF-8": run_invalid_text,
    "there is no driver of an NVIDIA GPU": load("model.onnx", device="cuda"),
    "there is no GPU that WebGPU can use here": load("model.onnx", device="webgpu"),
    "pip install 'wgpu>=0.32'": load_without_wgpu,
    "there is no device 'tpu'": load("model.onnx", device="tpu"),
    "cuda failed, cpu is used instead": load("model.onnx", device=["cuda", "cpu"]),
    "no device can run this model": load("model.onnx", device=["cuda", "cpu"], strict=True),
    "compiled for cpu in": log_a_load,
    "a cache folder is not used: this user (…) cannot read": use_closed_folder,
    "other users may write to": use_open_folder,
    "a run for these sizes needs … bytes, more than the memory_limit of": lambda: weft.load("model.onnx", **LIMITED)(
        np.zeros((64, 3, 32, 32), np.float32)
    ),
    "but this process can get only": load_with_little_memory,
    "since the model was pickled": unpickle_moved_model,
    "weft.load has no argument 'providers'": load("model.onnx", providers=["CPU"]),
    "a weft.Model has no attribute 'predict'": lambda: weft.load("model.onnx", device="cpu").predict,  # type: ignore[attr-defined]
    "is not UTF-8 text": run_with_latin_labels,
    "images need Pillow": run_image_without_pillow,
    "audio files other than PCM WAV need soundfile": run_audio_without_soundfile,
}
WITHOUT_GPUS = ("there is no driver", "there is no GPU", "cuda failed", "no device can run")


@pytest.mark.parametrize("message", quoted_messages())
def test_message_is_raised(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [each for each in weft.devices() if each.available and each.name.startswith(("cuda", "webgpu"))]
    if message.startswith(WITHOUT_GPUS) and any(gpu.kind != "software" for gpu in gpus):
        pytest.skip("the message is about machines without a GPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_KEYS", str(tmp_path / "keys"))
    onnx.save(classifier(), "model.onnx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            output = str(CASES[message]())
        except weft.WeftError as error:
            output = str(error)
    output += "".join(f"\n{warning.message}" for warning in caught)
    assert re.search(".*".join(map(re.escape, message.split("…"))), output), output


def test_page_has_all_cases() -> None:
    assert sorted(CASES) == sorted(quoted_messages())
