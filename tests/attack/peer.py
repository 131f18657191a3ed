"""What onnxruntime and onnx's own evaluator make of a model, asked in a process of its own: some cases kill it.

`python -m attack.peer` takes pickled (model, inputs) and answers with the outputs of those that have some.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

Answer = dict[str, Any]  # outputs by name
_LENGTH = struct.Struct("<Q")
IR_VERSION = 10  # what onnxruntime takes
PATIENCE = 15.0  # seconds for an answer


class Peer:
    """Both of them; started with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Answer] | None:
        """The outputs by name, onnxruntime's first, of all peers with an answer; None if it crashes them."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, (model.SerializeToString(), inputs))
            if not select.select([process.stdout], [], [], PATIENCE)[0]:
                raise EOFError
            return _read(process.stdout)  # type: ignore[no-any-return]
        except (BrokenPipeError, EOFError):
            process.kill()
            process.wait()
            self._process = None
            return None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attack.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self._process


def _write(stream: Any, content: Any) -> None:
    data = pickle.dumps(content)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: Any) -> Any:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


def _answers(content: bytes, inputs: dict[str, Any]) -> list[Answer]:
    answers = []
    for run in (_run_onnxruntime, _run_evaluator):
        try:
            with np.errstate(all="ignore"):
                answers.append(run(content, inputs))
        except Exception:  # whatever they raise for what they do not take
            continue
    return answers


def _run_onnxruntime(content: bytes, inputs: dict[str, Any]) -> Answer:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = onnx.load_from_string(content)
    model.ir_version = min(model.ir_version, IR_VERSION)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))


def _run_evaluator(content: bytes, inputs: dict[str, Any]) -> Answer:
    model = onnx.load_from_string(content)
    results = ReferenceEvaluator(model).run(None, inputs)
    return dict(zip([output.name for output in model.graph.output], results))


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        while True:
            _write(answers, _answers(*_read(sys.stdin.buffer)))
    except EOFError:
        pass


if __name__ == "__main__":
    main()
