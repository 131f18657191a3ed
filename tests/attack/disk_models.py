"""Models on disk for attacks on files: all values are small integers, so that numpy gives the exact bits of results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attack.verdict import Verdict, right, wrong
from onnx import TensorProto, helper, numpy_helper

import weft

Array = np.ndarray[Any, Any]
ROWS = 40
SMALL, LARGE = 24, 600  # columns; the weights of large models are more than what is copied into memory


@dataclass(frozen=True, slots=True)
class Numbers:
    """table[ids] @ weights + shift: the table is used in place, the weights are packed."""

    table: Array
    weights: Array
    shift: Array

    def result(self, ids: Array) -> Array:
        exact = self.table.astype(np.float64)[ids] @ self.weights.astype(np.float64) + self.shift
        return exact.astype(np.float32)


def numbers(seed: int, size: int) -> Numbers:
    random = np.random.default_rng(seed)

    def small(*shape: int) -> Array:
        return random.integers(-4, 5, shape).astype(np.float32)

    return Numbers(small(ROWS, size), small(size, size), small(size))


def proto(content: Numbers) -> onnx.ModelProto:
    """Build a model with two outputs, so that requesting one needs another program."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Add", ["product", "shift"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    arrays = {"table": content.table, "weights": content.weights, "shift": content.shift}
    graph = helper.make_graph(
        nodes,
        "numbers",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", content.shift.size]) for name in "yz"],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(content: Numbers, path: Path, external: bool) -> None:
    """Write the model, over an existing file in place, with the weights in a separate file."""
    model = proto(content)
    if external:
        onnx.external_data_helper.convert_model_to_external_data(model, location=data_of(path).name, size_threshold=0)
        arrays = (content.table, content.weights, content.shift)
        data_of(path).write_bytes(b"".join(array.tobytes() for array in arrays))
        offset = 0
        for tensor, array in zip(model.graph.initializer, arrays, strict=True):
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            del tensor.external_data[:]
            for key, value in (("location", data_of(path).name), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            offset += array.nbytes
    path.write_bytes(model.SerializeToString())


def data_of(path: Path) -> Path:
    return path.with_suffix(".data")


def ids(seed: int = 0, count: int = 7) -> Array:
    return np.random.default_rng(seed).integers(0, ROWS, count)


def compare_result(actual: Array, *allowed: Numbers) -> Verdict:
    """Compare a result for `ids()` bit by bit with those of the allowed contents."""
    if any(np.array_equal(actual, content.result(ids())) for content in allowed):
        return right()
    return wrong("another result than that of the file's content")


def run(model: weft.Model, **options: Any) -> Array:
    output: Array = model.run({"ids": ids()}, **options)["y"]
    return output
