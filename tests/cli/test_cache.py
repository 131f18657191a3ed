"""`weft cache`: cached files are listed, removed and verified; other files are not touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.cache import code, entries
from weft.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "package_digest", lambda: "this version")  # weft may be edited while tests run
    code.shared_cache.cache_clear()
    yield tmp_path / "cache"
    code.shared_cache.cache_clear()


def load(tmp_path: Path) -> weft.Model:
    weights = numpy_helper.from_array(np.ones((8, 5), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [weights],
    )
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    model = weft.load(path, device="cpu")
    model.run({"x": np.ones((2, 8), np.float32)})
    entries.await_writes()
    return model


def cache_json(capsys: pytest.CaptureFixture[str], *arguments: str, result: int = 0) -> Any:
    capsys.readouterr()
    assert main(["cache", *arguments, "--json"]) == result
    return json.loads(capsys.readouterr().out)


def test_list_and_size(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path)
    assert cache_json(capsys, "dir") == {"folder": str(folder)}
    (entry,) = cache_json(capsys, "list")
    assert entry["file"] == str(tmp_path / "product.onnx")
    assert (entry["device"], entry["kind"]) == ("cpu", "model")
    assert Path(entry["entry"]).stat().st_size == entry["bytes"]
    sizes = cache_json(capsys, "size")
    assert sizes["bytes"] == sum(kind["bytes"] for kind in sizes["kinds"].values()) > entry["bytes"]
    assert sizes["kinds"]["model"]["files"] == 1
    for what in ("dir", "size", "list", "verify"):
        assert main(["cache", what]) == 0
    printed = capsys.readouterr().out
    assert "product.onnx" in printed.replace("\n", "")
    assert "0 damaged" in printed


def test_clean(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path)
    foreign = folder / "models" / "foreign.txt"
    foreign.write_text("not a file of weft")
    assert cache_json(capsys, "clean")["removed"] == 0
    (entry,) = (folder / "models").glob("*.model")
    past = time.time() - 40 * 86_400
    os.utime(entry.with_suffix(".used"), (past, past))
    assert cache_json(capsys, "clean", "--older-than", "41")["removed"] == 0
    assert cache_json(capsys, "clean")["removed"] == 1
    assert not list(folder.glob(f"models/{entry.stem}*"))
    assert cache_json(capsys, "size")["kinds"]["code"]["files"] > 0
    cache_json(capsys, "clean", "--all")
    assert [path for path in folder.rglob("*") if path.is_file()] == [foreign]
    assert load(tmp_path).run({"x": np.ones((2, 8), np.float32)})["y"].tolist() == [[8.0] * 5] * 2


def test_verify(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path)
    assert cache_json(capsys, "verify")["damaged"] == []
    (entry,) = (folder / "models").glob("*.model")
    entry.chmod(0o600)
    data = bytearray(entry.read_bytes())
    data[4096] ^= 1  # an array's first byte
    entry.write_bytes(data)
    kernel = sorted((folder / "code").glob("*.weft"))[0]
    kernel.write_bytes(kernel.read_bytes()[:-1])
    record = cache_json(capsys, "verify", result=1)
    assert {Path(file["entry"]) for file in record["damaged"]} == {entry, kernel}
    assert not entry.exists()
    assert cache_json(capsys, "verify")["damaged"] == []


def test_cache_is_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WEFT_CACHE", "")
    assert cache_json(capsys, "dir") == {"folder": None}
    assert main(["cache", "list"]) == 1
    assert "WEFT_CACHE" in capsys.readouterr().err
