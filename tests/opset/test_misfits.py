"""Shapes, types, sizes and data that do not fit an op: each is a weft error that names the node and the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attack.devices import DEVICES, missing
from frontend.samples import model, node, subgraph, tensor, value
from onnx import TensorProto, helper
from single_nodes import BOOL, INT64, floats, ints, refuse, save, single

import weft
from weft.errors import ExecutionError, InputError, ModelError, OutOfMemoryError

# -- shapes and types that do not fit an op --------------------------------------------------------------------------

MISFITS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Add", [[2, 3], [2, 4]], {}),
    ("Add", [[2], ([2], INT64)], {}),
    ("And", [[2], [2]], {}),
    ("Not", [[2]], {}),
    ("BitwiseAnd", [[2], [2]], {}),
    ("Where", [[2], [2], [2]], {}),
    ("Where", [([2], BOOL), [2], ([2], INT64)], {}),
    ("Sum", [[2], [3]], {}),
    ("Pow", [[2], [3]], {}),
    ("PRelu", [[2, 3], [2]], {}),
    ("Clip", [[2], [2], [2]], {}),
    ("MatMul", [[2, 3], [2, 3]], {}),
    ("MatMul", [[], [2, 3]], {}),
    ("MatMul", [[2, 2, 3], [3, 3, 2]], {}),
    ("MatMulInteger", [([2, 3], TensorProto.UINT8), ([2, 3], TensorProto.UINT8)], {}),
    ("Gemm", [[2, 3, 4], [3, 4]], {}),
    ("Gemm", [[2, 3], [4, 3]], {}),
    ("Gemm", [[2, 3], [3, 4], [5]], {}),
    ("Einsum", [[2, 3], [4, 5]], {"equation": "ij,jk->ik"}),
    ("Einsum", [[2, 3]], {"equation": "ijk->i"}),
    ("Einsum", [[2, 3]], {"equation": "ij->iz"}),
    ("Einsum", [[2, 3]], {"equation": "i->->j"}),
    ("Det", [[2, 3]], {}),
    ("Det", [[2]], {}),
    ("Conv", [[2, 3], floats(4, 3, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 2, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"kernel_shape": [5, 5]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [0, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [-1, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"dilations": [0, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"pads": [1, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"auto_pad": "SIDEWAYS"}),
    ("Conv", [[1, 4, 8, 8], floats(4, 2, 3, 3)], {"group": 0}),
    ("Conv", [[1, 4, 8, 8], floats(5, 2, 3, 3)], {"group": 2}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3), floats(5)], {}),
    ("ConvTranspose", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {}),
    ("ConvTranspose", [[1, 3, 8], floats(3, 4, 3, 3)], {}),
    ("MaxPool", [[1, 3]], {"kernel_shape": [2, 2]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [2]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [2, 2], "strides": [0, 0]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [0, 0]}),
    ("AveragePool", [[1, 3, 8, 8]], {"kernel_shape": [2, 2], "pads": [1]}),
    ("GlobalAveragePool", [[3]], {}),
    ("BatchNormalization", [[1, 3, 4], floats(3), floats(3), floats(3), floats(4)], {}),
    ("BatchNormalization", [[3], floats(3), floats(3), floats(3), floats(3)], {}),
    ("InstanceNormalization", [[1, 3, 4], floats(4), floats(3)], {}),
    ("LayerNormalization", [[2, 3], floats(3)], {"axis": 2}),
    ("LayerNormalization", [[2, 3], floats(4)], {}),
    ("GroupNormalization", [[1, 4, 5], floats(4), floats(4)], {"num_groups": 3}),
    ("LpNormalization", [[2, 3]], {"axis": 5}),
    ("Softmax", [[2, 3]], {"axis": 2}),
    ("LogSoftmax", [[2, 3]], {"axis": -3}),
    ("ArgMax", [[2, 3]], {"axis": 2}),
    ("ReduceSum", [[2, 3], ints(2)], {}),
    ("ReduceSum", [[2, 3], ints(0, -2)], {}),
    ("ReduceMax", [[2, 3], ints(-3)], {}),
    ("CumSum", [[2, 3], np.array(2, np.int64)], {}),
    ("Concat", [[2, 3], [2, 3]], {"axis": 2}),
    ("Concat", [[2, 3], [2, 4]], {"axis": 0}),
    ("Concat", [[2, 3], [2]], {"axis": 0}),
    ("Concat", [[2], ([2], INT64)], {"axis": 0}),
    ("Transpose", [[2, 3]], {"perm": [0]}),
    ("Transpose", [[2, 3]], {"perm": [0, 0]}),
    ("Transpose", [[2, 3]], {"perm": [0, 2]}),
    ("Reshape", [[4, 6], ints(5, 5)], {}),
    ("Reshape", [[4, 6], ints(-1, -1)], {}),
    ("Reshape", [[4, 6], ints(-2, 6)], {}),
    ("Reshape", [[4, 6], ints(5, -1)], {}),
    ("Reshape", [[4, 6], ints(0, -1, 0)], {}),
    ("Reshape", [[4, 6], ints(0, -1)], {"allowzero": 1}),
    ("Reshape", [[4, 6], floats(2)], {}),
    ("Reshape", [[4, 6], ints(2**40, 2**40)], {}),
    ("Flatten", [[2, 3]], {"axis": 3}),
    ("Squeeze", [[2, 1], ints(0)], {}),
    ("Squeeze", [[2, 1], ints(5)], {}),
    ("Squeeze", [[], ints(0)], {}),
    ("Unsqueeze", [[2], ints(0, 0)], {}),
    ("Unsqueeze", [[2], ints(5)], {}),
    ("Slice", [[4], ints(0, 1), ints(2)], {}),
    ("Slice", [[4], ints(0), ints(2), ints(3)], {}),
    ("Slice", [[4], ints(0), ints(2), ints(0), ints(0)], {}),
    ("Slice", [[4, 4], ints(0, 0), ints(2, 2), ints(0, 0)], {}),
    ("Split", [[4], ints(1, 2)], {}),
    ("Split", [[4], ints(5, -1)], {}),
    ("Split", [[4], ints(2, 2)], {"axis": 1}),
    ("Gather", [[2, 3], ints(0)], {"axis": 2}),
    ("Gather", [[2, 3], floats(1)], {}),
    ("GatherElements", [[2, 3], ints(0)], {}),
    ("GatherElements", [[2, 3], ints(0)[None]], {"axis": 2}),
    ("GatherND", [[2, 3], ints(0, 0, 0)[None]], {}),
    ("ScatterElements", [[2, 3], ints(0)[None], floats(1, 2)], {}),
    ("ScatterElements", [[2, 3], ints(0), floats(1)], {}),
    ("ScatterND", [[2, 3], ints(0, 0, 0)[None], floats(1)], {}),
    ("ScatterND", [[2, 3], ints(0)[None], floats(1, 4)], {}),
    ("Expand", [[2, 3], ints(2, 4)], {}),
    ("Expand", [[2, 3], ints(-1, 3)], {}),
    ("Tile", [[2, 3], ints(2)], {}),
    ("Tile", [[2, 3], ints(-1, 1)], {}),
    ("Pad", [[2, 3], ints(1, 1)], {}),
    ("Pad", [[2, 3], ints(-2, 0, -2, 0)], {}),
    ("Pad", [[2, 3], ints(0, 0, 0, 0)], {"mode": "sideways"}),
    ("Resize", [[1, 1, 2, 2]], {}),
    ("Resize", [[1, 1, 2, 2], None, floats(3)], {}),
    ("Resize", [[1, 1, 2, 2], None, -floats(4)], {}),
    ("Resize", [[1, 1, 2, 2], None, None, ints(1, 1, -4, 4)], {}),
    ("Resize", [[1, 1, 2, 2], None, floats(4)], {"mode": "magic"}),
    ("DepthToSpace", [[1, 3, 2, 2]], {"blocksize": 2}),
    ("DepthToSpace", [[1, 4, 2, 2]], {"blocksize": 0}),
    ("SpaceToDepth", [[1, 4, 3, 3]], {"blocksize": 2}),
    ("OneHot", [ints(1), ints(-2), floats(2)], {}),
    ("OneHot", [ints(1), ints(3), floats(3)], {}),
    ("TopK", [[3], ints(4)], {}),
    ("TopK", [[3], ints(-1)], {}),
    ("TopK", [[3], ints(1)], {"axis": 1}),
    ("Range", [np.array(0), np.array(5), np.array(0)], {}),
    ("Range", [ints(0, 1), np.array(5), np.array(1)], {}),
    ("ConstantOfShape", [ints(-1)], {}),
    ("ConstantOfShape", [floats(1)], {}),
    ("EyeLike", [[2]], {}),
    ("Trilu", [[3]], {}),
    ("QuantizeLinear", [[2, 3], floats(4)], {}),
    ("QuantizeLinear", [[2, 3], floats(3)], {"axis": 2}),
    ("DequantizeLinear", [([2, 3], TensorProto.INT8), floats(3)], {"axis": 0}),
    ("LSTM", [[5, 1], floats(1, 8, 3), floats(1, 8, 2)], {"hidden_size": 2}),
    ("LSTM", [[5, 1, 3], floats(1, 8, 4), floats(1, 8, 2)], {"hidden_size": 2}),
    ("GRU", [[5, 1, 3], floats(1, 6, 3), floats(1, 6, 5)], {"hidden_size": 2}),
    ("GRU", [[5, 1, 3], floats(1, 6, 3), floats(1, 6, 2)], {"hidden_size": 2, "direction": "sideways"}),
    ("RNN", [[5, 1, 3], floats(1, 2, 3), floats(1, 2, 2)], {"hidden_size": 2, "activations": ["Magic"]}),
    ("Compress", [[2, 3], ([2], BOOL)], {"axis": 2}),
    ("Unique", [[2, 3]], {"axis": 2}),
    ("ReverseSequence", [[4, 4], ints(1, 2)], {}),
    ("NonMaxSuppression", [[1, 2], [1, 1, 2]], {}),
    ("GridSample", [[1, 1, 2, 2], [1, 2, 2, 3]], {}),
    ("RoiAlign", [[1, 1, 4, 4], [1, 5], ([1], INT64)], {}),
    ("Col2Im", [[1, 5, 4], ints(3, 3), ints(2, 2)], {}),
    ("SoftmaxCrossEntropyLoss", [[2, 3], ([4], INT64)], {}),
    ("Attention", [[1, 2, 4], [1, 3, 4], [1, 3, 4]], {"q_num_heads": 3, "kv_num_heads": 3}),
    ("RotaryEmbedding", [[1, 2, 3, 5], floats(4, 2), floats(4, 2), ([1, 3], INT64)], {}),
    ("SequenceAt", [[2], np.array(0, np.int64)], {}),
    ("SequenceInsert", [[2], [2]], {}),
    ("StringConcat", [[2], [2]], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), MISFITS, ids=lambda part: re.sub(r"\s+", " ", str(part))[:60])
def test_misfits(tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    outputs = 2 if op in ("Split", "TopK") else 1
    refuse(tmp_path, single(op, inputs, outputs, **attributes), ModelError, "culprit", op)


# -- control flow ----------------------------------------------------------------------------------------------------


def looping(body: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    return model(
        [node("Loop", list(inputs), list(outputs), name="culprit", body=body)],
        [value("x"), value("n", [], INT64)],
        [value(name, None) for name in outputs],
    )


def loop_body(count: int, results: Sequence[str] = ("still", "w")) -> onnx.GraphProto:
    arguments = [value("i", [], INT64), value("going", [], BOOL), value("v"), value("u")][:count]
    return helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Neg", ["x"], ["w"])],
        "body", arguments, [value(name, None) for name in results],
    )  # fmt: skip


@pytest.mark.parametrize(
    "built",
    [
        looping(loop_body(2), ["n", "", "x"], ["y"]),
        looping(loop_body(4), ["n", "", "x"], ["y"]),
        looping(loop_body(3, ["still"]), ["n", "", "x"], ["y"]),
        looping(loop_body(3), ["n", "", "x"], ["y", "z"]),
        looping(loop_body(3, ["w", "w"]), ["n", "", "x"], ["y"]),
        single("If", [[2]], then_branch=subgraph("t", [], []), else_branch=subgraph("e", [], [])),
        single("If", [([], BOOL)]),
        single("Loop", [([], INT64), None, [2]]),
        single("Scan", [[2]], num_scan_inputs=5, body=subgraph("s", [node("Neg", ["a"], ["b"])], ["b"], [value("a")])),
    ],
    ids=["few inputs", "many inputs", "no carry", "many outputs", "no condition", "If on floats", "no branches",
         "no body", "Scan"],
)  # fmt: skip
def test_control_flow_that_does_not_fit(tmp_path: Path, built: onnx.ModelProto) -> None:
    refuse(tmp_path, built, ModelError, "culprit")


# -- past memory -----------------------------------------------------------------------------------------------------

HUGE = 2**40


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("ConstantOfShape", [ints(HUGE)], {}),
        ("ConstantOfShape", [ints(2**20, 2**20, 4)], {}),
        ("ConstantOfShape", [ints(2**62, 2**62)], {}),
        ("Expand", [floats(1), ints(HUGE)], {}),
        ("Expand", [[1], ints(HUGE)], {}),
        ("Tile", [floats(1), ints(HUGE)], {}),
        ("Tile", [[3], ints(HUGE)], {}),
        ("Range", [np.array(0), np.array(HUGE), np.array(1)], {}),
        ("Range", [np.array(0.0), np.array(1e300), np.array(1.0)], {}),
        ("Pad", [[3], ints(HUGE, HUGE)], {}),
        ("Resize", [[1, 1, 2, 2], None, None, ints(1, 1, 2**20, 2**20)], {}),
        ("Resize", [[1, 1, 2, 2], None, np.float32([1, 1, 1e6, 1e6])], {}),
        ("OneHot", [ints(1), np.array(HUGE), np.float32([0, 1])], {}),
        ("MatMul", [[2**20, 1], [1, 2**20]], {}),
        ("RandomNormal", [], {"shape": [2**20, 2**20]}),
        ("EyeLike", [[2**19, 2**18]], {}),
        ("Conv", [[1, 1, 4], floats(1, 1, 1)], {"pads": [HUGE, HUGE]}),
        ("MaxPool", [[1, 1, 4]], {"kernel_shape": [1], "pads": [HUGE, HUGE]}),
    ],
    ids=lambda part: re.sub(r"\s+", " ", str(part))[:50],
)
def test_results_past_memory(tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """At load or in the run, an error names the node, and nothing is allocated."""
    path = save(tmp_path, single(op, inputs, **attributes))

    def load_and_run() -> None:
        loaded = weft.load(path)
        loaded.run({spec.name: np.broadcast_to(np.float32(1), spec.shape) for spec in loaded.inputs})

    with pytest.raises((OutOfMemoryError, ModelError, ExecutionError)) as caught:
        load_and_run()
    assert "culprit" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("op", "shape"),
    [("Expand", [HUGE]), ("ConstantOfShape", [2**20, 2**20]), ("Tile", [HUGE]), ("Expand", [2**62, 2**62])],
)
def test_sizes_past_memory_that_arrive_with_the_data(tmp_path: Path, op: str, shape: list[int]) -> None:
    arguments = [([len(shape)], INT64)] if op == "ConstantOfShape" else [floats(1), ([len(shape)], INT64)]
    path = save(tmp_path, single(op, arguments))
    loaded = weft.load(path)
    with pytest.raises((OutOfMemoryError, ExecutionError)) as caught:
        loaded(shape)
    assert "culprit" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile"])
def test_sizes_that_no_array_has_though_one_is_nothing(tmp_path: Path, op: str, device: str) -> None:
    reason = missing(device)
    if reason:
        pytest.skip(reason)
    shape = [HUGE, HUGE, 0]
    arguments = [([3], INT64)] if op == "ConstantOfShape" else [floats(1, 1, 1), ([3], INT64)]
    loaded = weft.load(save(tmp_path, single(op, arguments)), device=device)
    with pytest.raises(ExecutionError, match="culprit"):
        loaded(shape)


# -- data that does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "feeds", "message"),
    [
        ("Gather", [[3], ([1], INT64)], {}, [floats(3), ints(3)], "index 3 is out of range"),
        ("Gather", [[3], ([1], INT64)], {}, [floats(3), ints(-4)], "out of range"),
        ("GatherElements", [[3], ([1], INT64)], {}, [floats(3), ints(7)], "out of range"),
        ("GatherND", [[3], ([1, 1], INT64)], {}, [floats(3), ints(5)[None]], "out of range"),
        ("ScatterElements", [[3], ([1], INT64), [1]], {}, [floats(3), ints(9), floats(1)], "out of range"),
        ("ScatterND", [[3], ([1, 1], INT64), [1]], {}, [floats(3), ints(9)[None], floats(1)], "out of range"),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(4, 4)], ""),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(4, -1)], ""),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(-2, -3)], ""),
        ("Reshape", [["n"], ([2], INT64)], {}, [floats(6), ints(0, -1)], None),
        ("Expand", [[2], ([1], INT64)], {}, [floats(2), ints(5)], ""),
        ("Tile", [[2], ([1], INT64)], {}, [floats(2), ints(-5)], ""),
        ("Split", [[4], ([2], INT64)], {}, [floats(4), ints(1, 1)], ""),
        ("TopK", [[3], ([1], INT64)], {}, [floats(3), ints(5)], ""),
        ("Range", [([], INT64)] * 3, {}, [ints(0)[0], ints(5)[0], ints(0)[0]], ""),
        ("Slice", [[4], ([1], INT64), ([1], INT64), ([1], INT64), ([1], INT64)], {},
         [floats(4), ints(0), ints(2), ints(0), ints(0)], ""),
        ("Slice", [[4], ([1], INT64), ([1], INT64), ([1], INT64)], {}, [floats(4), ints(0), ints(2), ints(7)], ""),
        ("Unsqueeze", [[4], ([1], INT64)], {}, [floats(4), ints(9)], ""),
        ("ReduceSum", [[4], ([1], INT64)], {}, [floats(4), ints(9)], ""),
        ("ConstantOfShape", [([1], INT64)], {}, [ints(-4)], ""),
        ("Pad", [[4], ([2], INT64)], {}, [floats(4), ints(-3, -3)], ""),
        ("Concat", [["n"], ["n", "m"]], {"axis": 0}, None, ""),
    ],
    ids=lambda part: re.sub(r"\s+", " ", str(part))[:40],
)  # fmt: skip
def test_data_that_does_not_fit(
    tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any], feeds: list[Any] | None, message: str | None
) -> None:
    path = save(tmp_path, single(op, inputs, 2 if op in ("Split", "TopK") else 1, **attributes))
    if message is None:
        weft.load(path)(*feeds or ())
        return
    with pytest.raises(ModelError if feeds is None else (ExecutionError, InputError)) as caught:
        weft.load(path)(*feeds or ())
    for text in (str(path), "culprit", message):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "feeds"),
    [
        ([node("Shape", ["x"], ["s"]), node("Sub", ["s", "two"], ["t"]),
          node("ConstantOfShape", ["t"], ["y"], name="culprit")], floats(1)),
        ([node("Shape", ["x"], ["s"]), node("Mod", ["s", "zero"], ["q"], name="culprit"),
          node("Reshape", ["x", "q"], ["y"], name="culprit")], floats(2)),
    ],
    ids=["negative size", "remainder by zero"],
)  # fmt: skip
def test_arithmetic_of_shapes(tmp_path: Path, nodes: list[onnx.NodeProto], feeds: np.ndarray) -> None:
    built = model(nodes, [value("x", ["n"])], [value("y", None)], [tensor("two", ints(2)), tensor("zero", ints(0))])
    path = save(tmp_path, built)
    with pytest.raises(weft.WeftError) as caught:
        weft.load(path)(feeds)
    for text in (str(path), "culprit"):
        assert text in str(caught.value)


@pytest.mark.parametrize("divisor", ["zero", "none"])
def test_division_by_zero_in_shapes(tmp_path: Path, divisor: str) -> None:
    """Integers divided by 0 are 0 wherever they are computed, while loading or in a run; nothing traps."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Sub", ["s", "two"], ["none"]),
        node("Div", ["s", divisor], ["q"]),
        node("ConstantOfShape", ["q"], ["y"]),
    ]
    built = model(nodes, [value("x", ["n"])], [value("y", None)], [tensor("two", ints(2)), tensor("zero", ints(0))])
    assert weft.load(save(tmp_path, built))(floats(2)).shape == (0,)
