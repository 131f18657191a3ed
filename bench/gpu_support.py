"""Helpers of scripts/bench-gpu and scripts/test-cuda: models, inputs, processes with a time limit, results.

Needs numpy, onnx, and weft on the path. Uses onnxruntime if it is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
FLOAT16_MAX = 65504.0
MAX_CHARACTERS = 600  # of the output of a failed process that a report quotes


@dataclass(frozen=True)
class Case:
    """A model and the sizes to run it with."""

    model: str
    batch: int = 1
    length: int = 0  # of the sequence

    @property
    def name(self) -> str:
        return "-".join(str(part) for part in (self.model, self.batch, self.length) if part)


CASES = (
    Case("resnet50"),
    Case("resnet50", 32),
    Case("mobilenet_v3_large"),
    Case("efficientnet_b0"),
    Case("bert_base", 1, 128),
    Case("bert_base", 8, 128),
    Case("bert_base", 32, 128),
    Case("gpt2", 1, 64),
    Case("llama_small", 1, 64),
    Case("whisper_tiny_encoder"),
    Case("vit_small"),
    Case("yolov8n_like"),
)


# -- models ----------------------------------------------------------------------------------------------------------


def load_with_weights(path: Path) -> onnx.ModelProto:
    """Load a model, and draw missing weights as their doc string says ("normal MEAN STD SEED")."""
    model = onnx.load(path)
    for weight in model.graph.initializer:
        kind, *numbers = weight.doc_string.split()[:4] or [""]
        if kind == "normal" and not weight.raw_data:
            mean, deviation, seed = float(numbers[0]), float(numbers[1]), int(numbers[2])
            drawn = np.random.default_rng(seed).standard_normal(tuple(weight.dims), np.float32)
            dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
            weight.raw_data = (drawn * np.float32(deviation) + np.float32(mean)).astype(dtype).tobytes()
            weight.doc_string = ""
    return model


def convert_to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with float16 for float32, clamped: inputs, outputs, weights, constants and casts."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _halve_graph(copy.graph)
    return copy


def _halve_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    float32_names = {
        name for node in graph.node if node.op_type == "Resize" for name in node.input[1:3]
    }  # roi and scales
    for weight in graph.initializer:
        if weight.name not in float32_names:
            _halve_tensor(weight)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        stays_float32 = float32_names.intersection(node.output)
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
            elif attribute.type == onnx.AttributeProto.TENSOR and not stays_float32:
                _halve_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _halve_graph(attribute.g)


def _halve_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def build_product_model(
    rows: int, depth: int, columns: int, dtype: Any = np.float32, weights: np.ndarray | None = None
) -> onnx.ModelProto:
    """Build y = x @ w, with w an input or a constant."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [rows, depth])]
    if weights is None:
        inputs.append(helper.make_tensor_value_info("w", kind, [depth, columns]))
    constants = [] if weights is None else [numpy_helper.from_array(weights, "w")]
    result = helper.make_tensor_value_info("y", kind, [rows, columns])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "product", inputs, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def make_inputs(model: onnx.ModelProto, case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random inputs; masks are all 1, token types all 0."""
    random = np.random.default_rng(seed)
    constants = {weight.name for weight in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        sizes = {"batch": case.batch, "seq": case.length or 1}
        shape = [dim.dim_value or sizes.get(dim.dim_param, 1) for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if np.issubdtype(dtype, np.floating):
            inputs[value.name] = random.standard_normal(shape, np.float32).astype(dtype)
        elif "mask" in value.name:
            inputs[value.name] = np.ones(shape, dtype)
        elif "type" in value.name:
            inputs[value.name] = np.zeros(shape, dtype)
        else:
            inputs[value.name] = random.integers(0, 1000, shape).astype(dtype)
    return inputs


def compute_expected_outputs(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> tuple[str, dict[str, np.ndarray]]:
    """Return the name of an engine and its outputs: onnxruntime on the CPU if it can run the model, else weft there."""
    names = [output.name for output in model.graph.output]
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return "onnxruntime", dict(zip(names, session.run(names, dict(inputs))))
    except Exception as error:
        import weft

        print(f"onnxruntime: {str(error)[:200]}", file=sys.stderr)
        return "weft on cpu", weft.load(model, device="cpu").run(inputs)


def relative_error(actual: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest error relative to an output's largest magnitude; infinite if shapes or NaN differ."""
    worst = 0.0
    for name, expected_array in expected.items():
        array, wide = np.asarray(actual[name], np.float64), np.asarray(expected_array, np.float64)
        if array.shape != wide.shape or not np.array_equal(np.isfinite(array), np.isfinite(wide)):
            return float("inf")
        finite = np.isfinite(wide)
        scale = np.abs(wide[finite]).max(initial=0.0) or 1.0
        worst = max(worst, float(np.abs(array[finite] - wide[finite]).max(initial=0.0) / scale))
    return worst


def wait_function(device: str) -> Callable[[], None]:
    """Return a function that waits until a device is idle."""
    kind, _, selector = device.partition(":")
    if kind not in ("cuda", "webgpu"):
        return lambda: None
    return importlib.import_module(f"weft.backends.{kind}.gpu").open_gpu(selector).wait


# -- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessResult:
    """The exit code of a process, None if it timed out, and its output."""

    code: int | None
    output: str


def run_limited(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> ProcessResult:
    """Run a command; kill it and its children at the time limit."""
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return ProcessResult(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return ProcessResult(None, output)


def last_lines(output: str) -> str:
    """Return the last lines of the output of a process, on one line."""
    return " | ".join(line.strip() for line in output.strip().splitlines()[-4:])[-MAX_CHARACTERS:]


# -- results ---------------------------------------------------------------------------------------------------------


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with numbers aligned to the right."""
    texts = [[_format_cell(cell) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[number]) for row in texts), 0) for number, name in enumerate(columns)]
    print(f"\n{title}")
    print("  ".join(name.ljust(width) for name, width in zip(columns, widths)))
    for row, cells in zip(rows, texts):
        padded = (
            text.ljust(width) if isinstance(cell, str) else text.rjust(width)
            for cell, text, width in zip(row, cells, widths)
        )
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


def _format_cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def save_results(kind: str, device: str, results: Mapping[str, Any], target: Path | None) -> Path:
    """Write results and a description of the machine as JSON, by default into bench/results."""
    machine = describe_machine()
    path = target or RESULTS / f"{machine['commit']}-{device.replace(':', '-')}-{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "device": device, **results}, indent=1, default=str) + "\n")
    return path


def describe_machine() -> dict[str, Any]:
    """Return the commit, the processor, the GPU and the versions of packages."""
    commit = run_limited(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], 10)
    facts: dict[str, Any] = {
        "commit": commit.output.strip() if commit.code == 0 else "unknown",
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    try:
        query = run_limited(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
        facts["gpu"] = query.output.strip().splitlines()[0] if query.code == 0 else None
    except OSError:
        facts["gpu"] = None
    for name in ("torch", "transformers", "torchvision", "onnxruntime", "onnx", "numpy", "llvmlite"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    return facts
