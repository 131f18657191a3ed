"""Code that is compiled after a load returns: runs wait for it, and forked children compile it themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cpu import codegen
from weft.cache import code, entries
from weft.ir.compiled import AwaitedObjects, CompiledProgram

X = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
W = np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(entries, "package_digest", lambda: "this version")  # sources may be edited while tests run
    code.shared_cache.cache_clear()
    yield tmp_path / "kept" / "models"
    entries.await_writes()
    code.shared_cache.cache_clear()


def written(path: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Softmax", ["m"], ["s"]),
            helper.make_node("MatMul", ["s", "v"], ["y"]),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.ascontiguousarray(W.T), "v")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def expected() -> Any:
    m = X.astype(np.float64) @ W
    s = np.exp(m - m.max(1, keepdims=True))
    return s / s.sum(1, keepdims=True) @ W.T


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make LLVM wait for an event."""
    opened = threading.Event()
    real = codegen.compile_module

    def waiting(*arguments: Any) -> bytes:
        opened.wait(60)
        return real(*arguments)

    monkeypatch.setattr(codegen, "compile_module", waiting)
    yield opened
    opened.set()


def test_runs_wait_for_code_and_loads_do_not(tmp_path: Path, folder: Path, gate: threading.Event) -> None:
    model = weft.load(written(tmp_path / "m.onnx"), device="cpu")
    program = model.session().whole.program
    assert isinstance(program, CompiledProgram)
    assert isinstance(program.objects, AwaitedObjects)
    assert model.memory({"n": 3}).peak > 0  # which takes no code
    assert not list(folder.glob("*.model"))
    results: list[Any] = []
    runner = threading.Thread(target=lambda: results.append(model.run({"x": X})["y"]))
    runner.start()
    runner.join(0.05)
    assert not results
    gate.set()
    runner.join()
    np.testing.assert_allclose(results[0], expected(), rtol=1e-5, atol=1e-5)
    entries.await_writes()
    assert len(list(folder.glob("*.model"))) == 1
    assert not list(folder.glob("*.part"))


def test_compilation_errors_are_raised_by_runs(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> bytes:
        raise weft.InternalError("LLVM cannot emit code: as it happens")

    with monkeypatch.context() as broken:
        broken.setattr(codegen, "compile_module", failing)
        model = weft.load(written(tmp_path / "m.onnx"), device="cpu")
        for _ in range(2):
            with pytest.raises(weft.InternalError, match="as it happens"):
                model.run({"x": X})
    entries.await_writes()
    assert [path.suffix for path in folder.iterdir() if path.suffix in (".model", ".part")] == []
    model.invalidate()
    again = weft.load(tmp_path / "m.onnx", device="cpu")
    np.testing.assert_allclose(again.run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-5)


_FORKING = """
import os, sys
import numpy as np
import weft
x = np.load(sys.argv[2])
model = weft.load(sys.argv[1], device="cpu")
child = os.fork()
result = model.run({"x": x})["y"]
np.testing.assert_allclose(result, np.load(sys.argv[3]), rtol=1e-5, atol=1e-5)
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_child_compiles_the_unfinished_code_of_its_parent(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", expected())
    arguments = [str(written(tmp_path / "m.onnx")), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    for number in range(2):
        environment = {**os.environ, "WEFT_CACHE": str(tmp_path / f"cache {number}")}
        done = subprocess.run(
            [sys.executable, "-c", _FORKING, *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


_LEAVING = """
import sys
import weft
weft.load(sys.argv[1], device="cpu")
"""


def test_process_that_ends_at_once_writes_a_complete_entry(tmp_path: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEAVING, str(written(tmp_path / "m.onnx"))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    suffixes = sorted(path.suffix for path in folder.iterdir() if path.is_file())
    assert suffixes in ([".about", ".model", ".used"], [])  # none where weft's own files changed meanwhile
