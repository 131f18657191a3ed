"""KServe's client of the inference protocol, in a process and an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
from waiting import LONG_PATIENCE, require_client

from weft.server.run import BackgroundServer

PROGRAM = Path(__file__).with_name("kserve_client.py")


def test_client(server: BackgroundServer) -> None:
    command = [str(require_client("kserve")), str(PROGRAM), server.grpc_address]
    process = subprocess.run(command, capture_output=True, timeout=LONG_PATIENCE, text=True, check=False)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout.splitlines()[-1])
    left, right = np.arange(32).reshape(2, 16), 3
    expected = {"OUTPUT0": (left + right).tolist(), "OUTPUT1": (left - right).tolist()}
    assert [report[name] for name in ("live", "ready", "model")] == [True] * 3
    for form in (True, False):
        assert report[f"simple {form}"] == ["7", "1", expected]
        assert report[f"texts {form}"] == ["one", "zwölf"]
    assert report["halves"] == [[0.5, -2.0]]
    assert report["error"][0] == "NOT_FOUND"
    assert "Request for unknown model: 'absent'" in report["error"][1]
    assert report["loading"] == ["lengths", True, "lengths", True]
