"""Run onnxruntime in its own process, since some models crash it: `python -m attack.rival` answers on its pipes."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
SECONDS = 20.0
_process: subprocess.Popen[bytes] | None = None


class RivalError(Exception):
    """onnxruntime has no result: it refuses the model, or it died or took too long."""


def run(model: onnx.ModelProto | bytes, feeds: Mapping[str, Array], outputs: list[str] | None = None) -> list[Any]:
    """Return all outputs, computed without optimisations; raise RivalError if there are none."""
    global _process
    if _process is None or _process.poll() is not None:
        command = [sys.executable, "-m", "attack.rival"]
        _process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        atexit.register(_process.kill)
    assert _process.stdin is not None
    assert _process.stdout is not None
    content = model if isinstance(model, bytes) else model.SerializeToString()
    request = pickle.dumps((content, dict(feeds), outputs))
    try:
        _process.stdin.write(struct.pack("<Q", len(request)) + request)
        _process.stdin.flush()
        answer = _read_message(_process.stdout.fileno())
    except (OSError, EOFError, TimeoutError) as error:
        _process.kill()
        _process.wait()
        _process = None
        raise RivalError(f"onnxruntime died or hung: {error!r}") from error
    results, message = pickle.loads(answer)
    if results is None:
        raise RivalError(message)
    return list(results)


def _read_message(descriptor: int) -> bytes:
    (size,) = struct.unpack("<Q", _read_exactly(descriptor, 8))
    return _read_exactly(descriptor, size)


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not select.select([descriptor], [], [], SECONDS)[0]:
            raise TimeoutError
        part = os.read(descriptor, min(1 << 20, size - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _serve() -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while header := sys.stdin.buffer.read(8):
        model, feeds, outputs = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", header)[0]))
        try:
            session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
            reply: tuple[Any, str] = session.run(outputs, feeds), ""
        except Exception as error:
            reply = None, f"{type(error).__name__}: {error}"
        data = pickle.dumps(reply)
        answers.write(struct.pack("<Q", len(data)) + data)
        answers.flush()


if __name__ == "__main__":
    _serve()
