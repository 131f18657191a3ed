"""A small model for tests of saved programs, and processes that load it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft

SOURCE = Path(weft.__file__).parents[1]
COMPILING = ("onnx", "llvmlite", "ml_dtypes", "rich", "weft.opset", "weft.passes", "weft.fuse", "weft.kernels")

_PROGRAM = f"""
import sys
import numpy as np
import weft
options = dict(text.split("=") for text in sys.argv[2:])
model = weft.load(sys.argv[1], **{{name: eval(value) for name, value in options.items()}})
x = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
print(model.run({{"x": x}})["y"].tobytes().hex())
print(*(name for name in {COMPILING} if name in sys.modules))
"""


def write_model(path: Path, seed: int = 3, external: bool = False) -> Path:
    """Write a model with packed weights, weights that are not packed, and a guard."""
    random = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(random.normal(size=(8, 48)).astype(np.float32), "w"),
        numpy_helper.from_array(random.normal(size=(48,)).astype(np.float32), "b"),
        numpy_helper.from_array(random.normal(size=(48, 5)).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["m"], name="first"),
        helper.make_node("Softmax", ["m"], ["s"], name="rows", axis=-1),
        helper.make_node("MatMul", ["s", "v"], ["p"], name="second"),
        helper.make_node("Relu", ["p"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    extra = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0} if external else {}
    onnx.save(model, path, **extra)
    return path


def sample() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)


def run_in_process(path: Path, *options: str, **variables: str) -> tuple[str, list[str]]:
    """Run a model in a new process. Return the output in hexadecimal, and the modules of `COMPILING` it imported."""
    command = [sys.executable, "-c", _PROGRAM, str(path), *options]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "WEFT_DENY_DEVICES": "cuda,webgpu", **variables}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result, *imported = process.stdout.splitlines()
    return result, imported[0].split() if imported else []
