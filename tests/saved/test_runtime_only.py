"""A compiled model runs in an installation of weft and numpy alone; what needs more says which package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weft

WITHOUT_PACKAGES = """
import sys
import numpy as np
import weft

class MissingPackages:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, MissingPackages())
model = weft.load("sums.weft", trusted=True)
"""
RUN = """
two, one = np.ones((2, 4), np.float32), np.ones((1, 4), np.float32)
print(model(two, two).shape)
model.memory({"n": 2, "m": 2}), model.report(), model.bench(seconds=0.01), str(model), weft.devices()
for attempt in (lambda: model(two, one), lambda: model.weights["w"], lambda: model.save("again.onnx")):
    try:
        attempt()
    except weft.WeftError as error:
        print(error.problem)
"""
ATTEMPT = """
try:
    {statement}
except weft.WeftError as error:
    print(error)
"""
DEPENDENCIES = ("llvmlite", "ml_dtypes", "onnx", "platformdirs", "rich")  # of weft, other than numpy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a compiled model."""
    folder = tmp_path_factory.mktemp("compiled")
    graph = weft.Graph("sums")
    a = graph.input("a", ("n", 4), "float32")
    graph.output(a + graph.input("b", ("m", 4), "float32"), "sum")  # assumes that n and m are equal
    graph.to_onnx(folder / "sums.onnx")
    weft.compile(folder / "sums.onnx", folder / "sums.weft")
    return folder


def run_without(packages: tuple[str, ...], program: str, folder: Path) -> list[str]:
    """Run a program where some packages are not installed, and return the lines that it prints."""
    command = [sys.executable, "-c", WITHOUT_PACKAGES + program, *packages]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_compiled_model_needs_only_numpy(folder: Path) -> None:
    problem = "this needs the package onnx, which is not installed"
    assert run_without(DEPENDENCIES, RUN, folder) == ["(2, 4)", problem, problem, problem]


@pytest.mark.parametrize(
    ("statement", "subject", "package"),
    [
        ("model.profile()", "sums.weft: this", "llvmlite"),
        ("model.kernels", "sums.weft: this", "llvmlite"),
        ("model.view()", "sums.weft: this", "onnx"),
        ("weft.view(model)", "weft.view", "onnx"),
        ("weft.quantize('sums.onnx', 'int8.onnx', to='int8')", "weft.quantize", "onnx"),
        ("import weft.compat.onnxruntime", "weft.compat.onnxruntime", "ml_dtypes"),
    ],
)
def test_error_names_missing_package(statement: str, subject: str, package: str, folder: Path) -> None:
    problem, hint = run_without((package,), ATTEMPT.format(statement=statement), folder)
    assert problem == f"{subject} needs the package {package}, which is not installed"
    assert hint.startswith(f"  hint: pip install {package}")
