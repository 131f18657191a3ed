"""What scripts/bench-gpu and scripts/test-cuda share: models from skeletons, inputs, processes with a limit, results.

It needs Python, numpy and onnx, and weft on the path; torch and others where they are there.
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
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
HALF_MOST = 65504.0
MOST_TOLD = 600  # characters of what a process said


@dataclass(frozen=True)
class Case:
    """A model of the list with the sizes that it is run with."""

    model: str
    batch: int = 1
    length: int = 0  # of a sequence

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


def load_filled(path: Path) -> onnx.ModelProto:
    """The model; weights that are left out are drawn as their texts say ("normal MEAN STD SEED")."""
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


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose floats are float16, clamped to its range: inputs, outputs, weights, constants and casts."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _halve_graph(copy.graph)
    return copy


def _halve_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    kept = {name for node in graph.node if node.op_type == "Resize" for name in node.input[1:3]}  # roi and scales
    for weight in graph.initializer:
        if weight.name not in kept:
            _halve_tensor(weight)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        is_kept = kept.intersection(node.output)
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
            elif attribute.type == onnx.AttributeProto.TENSOR and not is_kept:
                _halve_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _halve_graph(attribute.g)


def _halve_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -HALF_MOST, HALF_MOST).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def product_model(
    rows: int, depth: int, columns: int, dtype: Any = np.float32, weights: np.ndarray | None = None
) -> onnx.ModelProto:
    """y = x times w, with w an input or a constant."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = [helper.make_tensor_value_info("x", kind, [rows, depth])]
    if weights is None:
        given.append(helper.make_tensor_value_info("w", kind, [depth, columns]))
    constants = [] if weights is None else [numpy_helper.from_array(weights, "w")]
    result = helper.make_tensor_value_info("y", kind, [rows, columns])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "product", given, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def inputs_for(model: onnx.ModelProto, case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs; masks are all 1, types of tokens all 0."""
    random = np.random.default_rng(seed)
    constants = {weight.name for weight in model.graph.initializer}
    given: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        sizes = {"batch": case.batch, "seq": case.length or 1}
        shape = [dim.dim_value or sizes.get(dim.dim_param, 1) for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if np.issubdtype(dtype, np.floating):
            given[value.name] = random.standard_normal(shape, np.float32).astype(dtype)
        elif "mask" in value.name:
            given[value.name] = np.ones(shape, dtype)
        elif "type" in value.name:
            given[value.name] = np.zeros(shape, dtype)
        else:
            given[value.name] = random.integers(0, 1000, shape).astype(dtype)
    return given


def expected_outputs(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    """Who says so, and the outputs: onnxruntime on the processor where it is installed, else weft there."""
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


def relative_error(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> float:
    """The largest difference of any output, of that output's largest magnitude; infinite where shapes or NaN differ."""
    worst = 0.0
    for name, wanted in expected.items():
        array, wide = np.asarray(found[name], np.float64), np.asarray(wanted, np.float64)
        if array.shape != wide.shape or not np.array_equal(np.isfinite(array), np.isfinite(wide)):
            return float("inf")
        finite = np.isfinite(wide)
        scale = np.abs(wide[finite]).max(initial=0.0) or 1.0
        worst = max(worst, float(np.abs(array[finite] - wide[finite]).max(initial=0.0) / scale))
    return worst


def waiter(device: str) -> Callable[[], None]:
    """What waits until a device has done all that it was given."""
    kind, _, which = device.partition(":")
    if kind not in ("cuda", "webgpu"):
        return lambda: None
    return importlib.import_module(f"weft.backends.{kind}.gpu").open_gpu(which).wait


# -- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, None where it ran out of time, and the end of what it said."""

    code: int | None
    said: str


def run_limited(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command; at the limit it is ended, with all that it started."""
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
        said, _ = process.communicate(timeout=seconds)
        return Ended(process.returncode, said)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return Ended(None, said)


def last_words(said: str) -> str:
    """The end of what a process said, on one line."""
    return " | ".join(line.strip() for line in said.strip().splitlines()[-4:])[-MOST_TOLD:]


# -- what is told ----------------------------------------------------------------------------------------------------


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need, numbers to the right."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[number]) for row in texts), 0) for number, name in enumerate(columns)]
    print(f"\n{title}")
    print("  ".join(name.ljust(width) for name, width in zip(columns, widths)))
    for row, cells in zip(rows, texts):
        parts = (
            text.ljust(width) if isinstance(cell, str) else text.rjust(width)
            for cell, text, width in zip(row, cells, widths)
        )
        print("  ".join(parts).rstrip())
    sys.stdout.flush()


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def save_results(kind: str, device: str, results: Mapping[str, Any], target: Path | None) -> Path:
    """Write them as JSON, under bench/results if nothing else is said, with what they were measured on."""
    facts = machine()
    path = target or RESULTS / f"{facts['commit']}-{device.replace(':', '-')}-{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": facts, "device": device, **results}, indent=1, default=str) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What runs here: commit, GPU, versions."""
    commit = run_limited(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], 10)
    facts: dict[str, Any] = {
        "commit": commit.said.strip() if commit.code == 0 else "unknown",
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    try:
        asked = run_limited(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
        facts["gpu"] = asked.said.strip().splitlines()[0] if asked.code == 0 else None
    except OSError:
        facts["gpu"] = None
    for name in ("torch", "transformers", "torchvision", "onnxruntime", "onnx", "numpy", "llvmlite"):
        try:
            from importlib.metadata import version

            facts[name] = version(name)
        except ImportError:
            facts[name] = None
    return facts
