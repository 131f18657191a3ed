"""Programs in .clients (scripts/setup-clients): KServe's client for REST, granian instead of uvicorn, OpenTelemetry."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server import models
from server.test_operation import start
from waiting import LONG_PATIENCE, PATIENCE, require_client, wait_for

import weft

PROGRAM = Path(__file__).with_name("other_servers.py")


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return models.write_dense(tmp_path / "dense.onnx")


def _run(module: str, part: str, argument: object) -> Any:
    command = [str(require_client(module)), str(PROGRAM), part, str(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kserve(dense: Path) -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    expected = weft.load(dense, device="cpu")(x)
    with start(dense) as server:
        report = _run("kserve", "kserve", server.url)
    assert [report[name] for name in ("live", "ready", "model", "absent")] == [True, True, True, False]
    for binary in (True, False):
        np.testing.assert_array_equal(np.float32(report[f"outputs {binary}"]), expected)
        assert report[f"id {binary}"] == "7"


def test_spans_of_opentelemetry(dense: Path) -> None:
    report = _run("opentelemetry.sdk", "tracing", dense)
    assert report["name"] == "GET /v2/models/{model}"
    assert report["trace"] == "0af7651916cd43dd8448eb211c80319c"  # of the client's header
    assert report["parent"] == "b7ad6b7169203331"
    assert report["attributes"]["weft.request_id"] == "mine"


@pytest.mark.parametrize("program", ["uvicorn", "granian"])
def test_app_runs_under_other_programs(program: str, dense: Path) -> None:
    (dense.parent / "service.py").write_text(
        f"import weft.server\napp = weft.server.app({str(dense)!r}, device='cpu')\n"
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    if program == "granian":
        command = [
            str(require_client("granian")),
            "-m",
            "granian",
            "--interface",
            "asgi",
            "service:app",
            "--port",
            str(port),
        ]
    else:
        command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, cwd=dense.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: _is_ready(url), f"{program} answers")
        x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
        entry = {"name": "x", "datatype": "FP32", "shape": [3, 8], "data": x.ravel().tolist()}
        outputs = httpx.post(f"{url}/v2/models/dense/infer", json={"inputs": [entry]}, timeout=PATIENCE).json()[
            "outputs"
        ]
        expected = weft.load(dense, device="cpu")(x)
        np.testing.assert_array_equal(np.float32(outputs[0]["data"]).reshape(3, 4), expected)
        body = httpx.post(f"{url}/v2/models/dense/infer", content=os.urandom(200_000), timeout=PATIENCE)
        assert body.status_code == 400
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v2/health/ready", timeout=PATIENCE).status_code == 200
    except httpx.HTTPError:
        return False
