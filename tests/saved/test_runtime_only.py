"""A compiled model runs in an installation of weft and numpy alone; what needs more says which package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import weft

PROGRAM = """
import sys
import numpy as np
import weft

class MissingPackages:
    def find_spec(self, name, path=None, target=None):
        if name in ("llvmlite", "ml_dtypes", "onnx", "platformdirs", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, MissingPackages())
two, one = np.ones((2, 4), np.float32), np.ones((1, 4), np.float32)
model = weft.load(sys.argv[1], trusted=True)
print(model(two, two).shape)
model.memory({"n": 2, "m": 2}), model.report(), model.bench(seconds=0.01), str(model), weft.devices()
for attempt in (lambda: model(two, one), lambda: model.weights["w"], lambda: model.save("again.onnx")):
    try:
        attempt()
    except weft.WeftError as error:
        print(error.problem)
"""


def test_compiled_model_needs_only_numpy(tmp_path: Path) -> None:
    graph = weft.Graph("sums")
    a = graph.input("a", ("n", 4), "float32")
    graph.output(a + graph.input("b", ("m", 4), "float32"), "sum")  # assumes that n and m are equal
    graph.to_onnx(tmp_path / "sums.onnx")
    weft.compile(tmp_path / "sums.onnx", tmp_path / "sums.weft")
    command = [sys.executable, "-c", PROGRAM, "sums.weft"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    problem = "this needs the package onnx, which is not installed"
    assert process.stdout.splitlines() == ["(2, 4)", problem, problem, problem]
