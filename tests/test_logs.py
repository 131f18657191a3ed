"""weft's log lines: they report loads and fallbacks, escape names from files, and are off by default."""

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
    """Save a model with one host step, whose node has this name."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4])
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name=node), helper.make_node("MatMul", ["x", "w"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], [y, z], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / name)
    return folder / name


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "weft")
    return lambda: [f"{record.name} {record.levelname} {record.getMessage()}" for record in caplog.records]


def test_a_load_is_logged(log_lines: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path)
    model = weft.load(path, device="cpu")
    text = "\n".join(log_lines())
    for expected in (
        f"weft.compiling INFO {path}: compiled for cpu in ",
        f"weft.compiling INFO {path}: 1 step left to the host: n",
        f"weft.devices INFO {path}: cpu serves: named by argument",
        f"weft.loading INFO {path}: loaded in ",
        "opset ai.onnx 17",
        f"weft.loading DEBUG {path}: tracing took ",
    ):
        assert expected in text
    model.run({"x": np.ones((2, 4), np.float32)}, outputs=["z"])
    assert f"weft.compiling INFO {path}: one more program is compiled for cpu: for any shapes, giving z" in log_lines()
    del model
    assert not any("taken from" in line for line in log_lines())


def test_a_load_from_the_cache_is_logged(
    log_lines: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path)
    weft.load(path, device="cpu")
    if package_digest() is None:
        pytest.skip("weft's own files changed while it runs")
    weft.load(path, device="cpu")
    assert f"weft.cache INFO {path}: the program for cpu is taken from the cache" in log_lines()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no user ids")
def test_an_unused_cache_is_logged(
    log_lines: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    with pytest.warns(weft.CacheWarning):
        weft.load(model_file(tmp_path), device="cpu")
    assert any(line.startswith("weft.cache WARNING") and "other users may write" in line for line in log_lines())


def test_names_from_files_are_escaped(
    log_lines: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "")
    path = model_file(tmp_path, f"{EVIL[:20]}.onnx".replace("/", ""), EVIL.replace("\ud800", ""))
    weft.load(path, device="cpu")
    assert any(
        r"left to the host: node\n12:00:00 CRITICAL root: all is lost\x1b[31m\u202e\u2028" in line
        for line in log_lines()
    )
    assert all(line.isprintable() for line in log_lines())
    logs.LOADING.info("%s and %d, %.1f, %s", EVIL * 100, 3, 0.5, ValueError(EVIL))
    assert log_lines()[-1].isprintable()
    assert " and 3, 0.5, node\\n" in log_lines()[-1]
    assert len(log_lines()[-1]) < 6000


def test_tracebacks_are_formatted_on_one_line() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        place = logs.format_traceback(error)
    assert place.startswith("ValueError at test_logs.py:")
    assert place.isprintable()


PROGRAM = """
import sys
import weft
model = weft.load(sys.argv[1], device="cpu")
print("logging" in sys.modules)
"""


def run_process(path: Path, code: str = PROGRAM, **variables: str) -> tuple[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "WEFT_CACHE": str(path.parent / "cache"), **variables}
    process = subprocess.run(
        [sys.executable, "-c", code, path], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip(), process.stderr


def test_logging_is_off_by_default_and_respects_the_programs_configuration(tmp_path: Path) -> None:
    path = model_file(tmp_path)
    assert run_process(path)[1] == ""
    assert run_process(path) == ("False", "")  # a load from the cache needs no logging
    lines = run_process(path, WEFT_LOG="info")[1]
    assert "INFO weft.loading: " in lines
    assert "DEBUG" not in lines
    configured = "import logging; logging.basicConfig(level=logging.DEBUG, format='ours %(message)s')" + PROGRAM
    lines = run_process(path, configured, WEFT_LOG="debug")[1]
    assert lines.count(": loaded in ") == 1
    assert all(line.startswith("ours ") for line in lines.splitlines())
    lines = run_process(path, WEFT_LOG="loud")[1]
    assert "WEFT_LOG is 'loud': use debug, info or warning" in lines
    assert "INFO weft.loading" in lines


def test_logging_does_not_wait_for_the_lock_that_a_fork_holds(
    log_lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forking thread holds the lock of `logging` while it waits for compilations, which log."""
    loggers = (logs.LOADING, logs.COMPILING, logs.CACHE, logs.DEVICES)
    logs.LOADING.info("creates the loggers")

    def log() -> None:
        for logger in loggers:
            logger.debug("line %d", 1)

    with logging._lock:  # type: ignore[attr-defined]
        thread = threading.Thread(target=log, daemon=True)
        thread.start()
        thread.join(120.0)
        assert not thread.is_alive()
    assert log_lines()[-4:] == [f"{logger.name} DEBUG line 1" for logger in loggers]
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    logs.LOADING.warning("nothing")
    assert len(log_lines()) == 5
