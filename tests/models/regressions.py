"""Time every class of models that was once slow: `python -m models.regressions [CLASS...]`.

(With PYTHONPATH=src:tests.) regressions.tsv has a row for each: the class, its model (a small one that is made here, or
one of the lists), and onnxruntime's time in weft's, on one thread, before the class was mended and since. It prints
the ratio of today beside them; `--write` puts it into the list. It is for people: no test asserts a time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import weft
from models.catalog import HERE, load_catalog, random_inputs
from models.further import _difference, _take_turns
from models.survey import session

REGRESSIONS_TSV = HERE / "regressions.tsv"
COLUMNS = ("class", "model", "before", "since")
BuiltModel = tuple[ModelProto, dict[str, Any]]
FLOAT, HALF, STRING = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.STRING
_random = np.random.default_rng(0)


def _floats(*shape: int) -> Any:
    return _random.standard_normal(shape).astype(np.float32)


def _model(
    nodes: Sequence[Any], inputs: dict[str, Any], outputs: dict[str, int], weights: dict[str, Any]
) -> BuiltModel:
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info(name, _type(array), array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs


def _type(array: Any) -> int:
    return STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)


def _convolutions(size: int, channels: int = 64, dtype: Any = np.float32, **attributes: Any) -> BuiltModel:
    """Three convolutions with activations between them."""
    nodes, weights, before = [], {}, "x"
    for number in range(3):
        weights[f"w{number}"] = (_floats(channels, channels, size, size) * 0.05).astype(dtype)
        nodes.append(helper.make_node("Conv", [before, f"w{number}"], [f"c{number}"], **attributes))
        before = f"y{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [before]))
    x = _floats(1, channels, 64, 64).astype(dtype)
    return _model(nodes, {"x": x}, {before: HALF if dtype is np.float16 else FLOAT}, weights)


def instance_normalization() -> BuiltModel:
    model, inputs = _convolutions(3, 32, pads=[1] * 4)
    graph = model.graph
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones(32, np.float32), "one"),
            numpy_helper.from_array(np.zeros(32, np.float32), "zero"),
        ]
    )
    for node in graph.node:
        if node.op_type == "Relu":
            node.CopyFrom(helper.make_node("InstanceNormalization", [node.input[0], "one", "zero"], list(node.output)))
    return model, inputs


def transposed_convolution() -> BuiltModel:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)
    return _model([node], {"x": _floats(1, 64, 48, 48)}, {"y": FLOAT}, {"w": _floats(64, 64, 4, 4)})


def recurrent(op: str, gates: int, hidden: int, length: int) -> BuiltModel:
    weights = {"w": _floats(1, gates * hidden, hidden) * 0.05, "r": _floats(1, gates * hidden, hidden) * 0.05}
    node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden)
    return _model([node], {"x": _floats(length, 1, hidden)}, {"y": FLOAT}, weights)


def byte_recurrent() -> BuiltModel:
    """DynamicQuantizeLSTM."""
    hidden = 128
    weights: dict[str, Any] = {
        name: _random.integers(-127, 127, (1, hidden, 4 * hidden)).astype(np.int8) for name in ("w", "r")
    }
    weights |= {
        "b": np.zeros((1, 8 * hidden), np.float32),
        "s": np.full(1, 0.001, np.float32),
        "z": np.zeros(1, np.int8),
    }
    inputs = ["x", "w", "r", "b", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=hidden)
    return _model([node], {"x": _floats(30, 1, hidden)}, {"y": FLOAT}, weights)


def byte_convolution() -> BuiltModel:
    """ConvInteger between quantizations, as dynamic quantization writes it."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("ConvInteger", ["q", "w", "zero"], ["c"], pads=[1] * 4),
        helper.make_node("Cast", ["c"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]
    weights = {"w": _random.integers(-127, 127, (64, 64, 3, 3)).astype(np.int8)}
    return _model(nodes, {"x": _floats(1, 64, 48, 48)}, {"y": FLOAT}, weights)


def strings() -> BuiltModel:
    nodes = [
        helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[1, 2]
        ),
    ]
    return _model(nodes, {"x": np.array(["A", "b", "c"], object)}, {"y": TensorProto.INT64}, {})


def loop() -> BuiltModel:
    """A decoder's loop with a tensor that grows."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["state", "row"], ["next"], axis=0),
            helper.make_node("ReduceSum", ["next", "axes"], ["total"], keepdims=1),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
            helper.make_tensor_value_info("total", FLOAT, None),
        ],
    )
    node = helper.make_node("Loop", ["turns", "", "x"], ["y", "totals"], body=body)
    weights = {"turns": np.array(50), "row": np.ones((1, 64), np.float32), "axes": np.array([0])}
    return _model([node], {"x": _floats(1, 64)}, {"y": FLOAT, "totals": FLOAT}, weights)


def first_of(size: int, count: int) -> BuiltModel:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=0)]
    return _model(nodes, {"x": _floats(size)}, {"y": FLOAT, "i": TensorProto.INT64}, {"k": np.array([count])})


def computed_filters() -> BuiltModel:
    """A filter bank that grows from two rows of numbers."""
    nodes = [
        helper.make_node("Add", ["column", "row"], ["t"]),
        helper.make_node("Sin", ["t"], ["s"]),
        helper.make_node("MatMul", ["x", "s"], ["y"]),
    ]
    weights = {"column": _floats(600, 1), "row": _floats(1, 700)}
    return _model(nodes, {"x": _floats(20, 600)}, {"y": FLOAT}, weights)


def small_maps() -> BuiltModel:
    """Filters of nine taps, of which one meets an element."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    return _model([node], {"x": _floats(1, 512, 1, 1)}, {"y": FLOAT}, {"w": _floats(512, 512, 3, 3)})


MAKERS: dict[str, Callable[[], BuiltModel]] = {
    "convolution 5x5": lambda: _convolutions(5, pads=[2] * 4),
    "convolution 7x7": lambda: _convolutions(7, pads=[3] * 4),
    "convolution dilated": lambda: _convolutions(3, pads=[2] * 4, dilations=[2, 2]),
    "convolution float16": lambda: _convolutions(3, dtype=np.float16, pads=[1] * 4),
    "convolution transposed": transposed_convolution,
    "convolution of bytes": byte_convolution,
    "instance normalization": instance_normalization,
    "GRU large": lambda: recurrent("GRU", 3, 512, 30),
    "LSTM small": lambda: recurrent("LSTM", 4, 32, 1),
    "LSTM of bytes": byte_recurrent,
    "loop that grows": loop,
    "sort of one row": lambda: first_of(100_000, 100_000),
    "first hundreds of a row": lambda: first_of(8400, 300),
    "filters that are computed": computed_filters,
    "filters larger than what they see": small_maps,
    "strings of a few": strings,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="models.regressions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--write", choices=("before", "since"), help="put the ratios into this column of the list")
    args = parser.parse_args(arguments)
    rows = read()
    table = Table(*COLUMNS, "today")
    for row in rows:
        if args.classes and row["class"] not in args.classes:
            continue
        try:
            today = f"{ratio(row['model']):.2f}"
        except weft.WeftError as error:
            today = f"failed: {error}"
        table.add_row(*(row[column] for column in COLUMNS), today)
        print(f"{row['class']}: {today}", file=sys.stderr, flush=True)
        if args.write:
            row[args.write] = today
    if args.write:
        lines = ["\t".join(COLUMNS), *("\t".join(row[column] for column in COLUMNS) for row in rows)]
        REGRESSIONS_TSV.write_text("\n".join(lines) + "\n", encoding="utf-8")
    Console().print(table)
    return 0


def read() -> list[dict[str, str]]:
    with REGRESSIONS_TSV.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def ratio(name: str) -> float:
    """Return onnxruntime's time divided by weft's for a model built here or listed in a catalog."""
    with tempfile.TemporaryDirectory() as folder:
        path, inputs = find(name, Path(folder))
        peer, loaded = session(path), weft.load(path, device="cpu", threads=1)
        names = [spec.name for spec in peer.get_outputs()]
        off = _difference(loaded.run(inputs), dict(zip(names, peer.run(None, inputs))))
        if off > 0.02:
            raise weft.ExecutionError(f"{name} differs by {off:.1e}")
        mine, theirs = _take_turns(loaded, peer, inputs, names)
        return theirs / mine


def find(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    if name in MAKERS:
        model, inputs = MAKERS[name]()
        path = folder / "made.onnx"
        path.write_bytes(model.SerializeToString())
        return path, inputs
    models = {model.name: model for model in (*load_catalog(), *load_catalog(more=True))}
    if name not in models or models[name].missing:
        raise weft.InputError(
            f"{name} is not here", hint="`scripts/fetch-models` gets models, with --more those of the other list"
        )
    return models[name].file, random_inputs(models[name])


if __name__ == "__main__":
    sys.exit(main())
