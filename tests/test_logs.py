"""What weft says through `logging`: a line for what is worth one, in the words of no file, and nothing unless asked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import logs
from weft.cache.sources import package_digest

SOURCE = Path(__file__).parent.parent / "src"
EVIL = "node\n12:00:00 CRITICAL root: all is lost\x1b[31m\u202e\u2028\ud800"


def model_file(folder: Path, name: str = "model.onnx", node: str = "n") -> Path:
    """A model with a step for the host, whose node has a name of our choice."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4])
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name=node), helper.make_node("MatMul", ["x", "w"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], [y, z], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / name)
    return folder / name


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "weft")
    return lambda: [f"{record.name} {record.levelname} {record.getMessage()}" for record in caplog.records]


def test_a_load_is_told(said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path)
    model = weft.load(path, device="cpu")
    told = "\n".join(said())
    for expected in (
        f"weft.compiling INFO {path}: compiled for cpu in ",
        f"weft.compiling INFO {path}: 1 step left to the host: n",
        f"weft.devices INFO {path}: cpu serves: named by argument",
        f"weft.loading INFO {path}: loaded in ",
        "opset ai.onnx 17",
        f"weft.loading DEBUG {path}: tracing took ",
    ):
        assert expected in told
    model.run({"x": np.ones((2, 4), np.float32)}, outputs=["z"])
    assert f"weft.compiling INFO {path}: one more program is compiled for cpu: for any shapes, giving z" in said()
    del model
    assert not any("taken from" in line for line in said())


def test_what_is_taken_from_the_cache_is_told(
    said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path)
    weft.load(path, device="cpu")
    if package_digest() is None:
        pytest.skip("weft's own files changed while it runs")
    weft.load(path, device="cpu")
    assert f"weft.cache INFO {path}: the program for cpu is taken from the cache" in said()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no user ids")
def test_a_cache_that_is_not_used_is_told(
    said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    with pytest.warns(weft.CacheWarning):
        weft.load(model_file(tmp_path), device="cpu")
    assert any(line.startswith("weft.cache WARNING") and "other users may write" in line for line in said())


def test_names_from_files_stay_in_their_line(
    said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "")
    path = model_file(tmp_path, f"{EVIL[:20]}.onnx".replace("/", ""), EVIL.replace("\ud800", ""))
    weft.load(path, device="cpu")
    assert any(
        r"left to the host: node\n12:00:00 CRITICAL root: all is lost\x1b[31m\u202e\u2028" in line for line in said()
    )
    assert all(line.isprintable() for line in said())
    logs.LOADING.info("%s and %d, %.1f, %s", EVIL * 100, 3, 0.5, ValueError(EVIL))
    assert said()[-1].isprintable()
    assert " and 3, 0.5, node\\n" in said()[-1]
    assert len(said()[-1]) < 6000


def test_where_an_error_was_raised_is_told_in_one_line() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        place = logs.format_traceback(error)
    assert place.startswith("ValueError at test_logs.py:")
    assert place.isprintable()


PROGRAM = """
import sys
import weft
found = weft.load(sys.argv[1], device="cpu")
print("logging" in sys.modules)
"""


def fresh(path: Path, code: str = PROGRAM, **variables: str) -> tuple[str, str]:
    around = {**os.environ, "PYTHONPATH": str(SOURCE), "WEFT_CACHE": str(path.parent / "cache"), **variables}
    done = subprocess.run([sys.executable, "-c", code, path], env=around, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_nobody_hears_anything_unless_he_listens_and_then_says_so_himself(tmp_path: Path) -> None:
    path = model_file(tmp_path)
    assert fresh(path)[1] == ""
    assert fresh(path) == ("False", "")  # a load from the cache needs no logging
    told = fresh(path, WEFT_LOG="info")[1]
    assert "INFO weft.loading: " in told
    assert "DEBUG" not in told
    configured = "import logging; logging.basicConfig(level=logging.DEBUG, format='ours %(message)s')" + PROGRAM
    told = fresh(path, configured, WEFT_LOG="debug")[1]
    assert told.count(": loaded in ") == 1
    assert all(line.startswith("ours ") for line in told.splitlines())
    told = fresh(path, WEFT_LOG="loud")[1]
    assert "WEFT_LOG is 'loud': use debug, info or warning" in told
    assert "INFO weft.loading" in told


def test_what_is_said_waits_for_no_fork(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that forks holds the lock of `logging` while it waits for compilations, which say what they do."""
    loggers = (logs.LOADING, logs.COMPILING, logs.CACHE, logs.DEVICES)
    logs.LOADING.info("the loggers are there")

    def say() -> None:
        for one in loggers:
            one.debug("%d is said", 1)

    with logging._lock:  # type: ignore[attr-defined]
        speaker = threading.Thread(target=say, daemon=True)
        speaker.start()
        speaker.join(120.0)
        assert not speaker.is_alive()
    assert said()[-4:] == [f"{one.name} DEBUG 1 is said" for one in loggers]
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    logs.LOADING.warning("nothing")
    assert len(said()) == 5
