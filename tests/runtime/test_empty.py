"""Empty tensors give onnxruntime's results on every device, with static and dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from attack.devices import DEVICES, missing
from attack.peer import Peer
from onnx import TensorProto, helper, numpy_helper
from opset.oracle import compare, node_model

import weft
from weft.errors import ExecutionError, InvalidModelError, WeftError

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["reference", *DEVICES])
def device(request: pytest.FixtureRequest) -> str:
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


def floats(*shape: int) -> Array:
    return np.ones(shape, np.float32)


NODES: dict[str, tuple[str, list[Array | None], dict[str, Any]]] = {
    "softmax over nothing": ("Softmax", [floats(2, 0)], {"axis": 1}),
    "log softmax over nothing": ("LogSoftmax", [floats(3, 0)], {"axis": -1}),
    "softmax of no rows": ("Softmax", [floats(0, 5)], {"axis": 1}),
    "einsum": ("Einsum", [floats(0, 3), floats(3, 0)], {"equation": "ij,jk->ik"}),
    "einsum over nothing": ("Einsum", [floats(2, 0), floats(0, 4)], {"equation": "ij,jk->ik"}),
    "product over nothing": ("MatMul", [floats(2, 0), floats(0, 3)], {}),
    "product of no rows": ("MatMul", [floats(0, 3), floats(3, 4)], {}),
    "product with a constant of nothing": ("MatMul", [floats(2, 0), floats(0, 3)], {"constants": (1,)}),
    "convolution of no images": ("Conv", [floats(0, 3, 5, 5), floats(4, 3, 3, 3)], {"constants": (1,)}),
    "layers of no rows": ("LayerNormalization", [floats(0, 4), floats(4), floats(4)], {}),
    "running sum": ("CumSum", [floats(0), np.array(0, np.int64)], {"exclusive": 1, "constants": (1,)}),
    "sum over nothing": ("ReduceSum", [floats(2, 0), np.array([1], np.int64)], {"constants": (1,)}),
    "joined with nothing": ("Concat", [floats(2, 0), floats(2, 3)], {"axis": 1}),
    "padded nothing": ("Pad", [floats(0, 2), np.array([1, 1, 1, 1], np.int64)], {"constants": (1,)}),
    "gathered by nothing": ("Gather", [floats(4, 3), np.zeros((0, 2), np.int64)], {}),
    "scattered nothing": (
        "ScatterElements", [floats(4, 3), np.zeros((0, 3), np.int64), floats(0, 3)], {}
    ),
    "reshaped with an inferred size": ("Reshape", [floats(0, 3, 4), np.array([0, -1], np.int64)], {"allowzero": 1}),
    "recurrent": ("GRU", [floats(5, 0, 3), floats(1, 6, 3), floats(1, 6, 2)], {"hidden_size": 2}),
    "padded by repetition across nothing": (
        "Pad", [floats(0, 2), np.array([0, 1, 0, 1], np.int64)], {"mode": "edge", "constants": (1,)}
    ),
    "no text": ("StringNormalizer", [np.zeros(0, object)], {"case_change_action": "UPPER"}),
    "resized to nothing": (
        "Resize", [floats(1, 1, 2, 2), None, None, np.array([1, 1, 0, 2], np.int64)], {"constants": (3,)}
    ),
}  # fmt: skip


PEER = Peer()  # in a process of its own: some of these kill onnxruntime
BY_RULE = {"recurrent": (5, 1, 0, 2), "running sum": (0,)}
"""Shapes by the rules of ops for which neither onnxruntime nor onnx's evaluator has an answer."""


FORMS = [
    (name, symbolic)
    for name in NODES
    for symbolic in (False, True)
    if not symbolic or name not in ("product with a constant of nothing", "convolution of no images")
]


@pytest.mark.parametrize(("name", "symbolic"), FORMS)
def test_nodes_with_empty_operands(name: str, symbolic: bool, device: str) -> None:
    op, inputs, options = NODES[name]
    built = node_model(op, inputs, opset=21, symbolic=symbolic, **options)
    input_names = {value.name for value in built.graph.input}
    fed = {f"x{number}": array for number, array in enumerate(inputs) if f"x{number}" in input_names}
    actual = weft.load(built, device=device, cache=False).run(fed)["y0"]
    answers = PEER.ask(built, fed)
    if answers:
        compare(actual, answers[0]["y0"], 1e-5, 1e-6, name)
    else:
        assert actual.shape == BY_RULE[name]


def graph(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], constants: dict[str, Array]) -> onnx.ModelProto:
    declared = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    built = helper.make_graph(nodes, "g", declared, [onnx.ValueInfoProto(name="y")], stored)
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def test_sizes_of_0_known_only_at_run_time(device: str) -> None:
    nodes = [
        helper.make_node("Compress", ["x", "keep"], ["c"], axis=0),
        helper.make_node("Transpose", ["c"], ["t"]),
        helper.make_node("Reshape", ["t", "flat"], ["f"]),
        helper.make_node("Div", ["f", "two"], ["y"]),
    ]
    constants = {"flat": np.array([-1], np.int64), "two": np.array([2], np.float32)}
    inputs = {"x": (TensorProto.FLOAT, ["n", 3]), "keep": (TensorProto.BOOL, ["n"])}
    model = weft.load(graph(nodes, inputs, constants), device=device, cache=False)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for keep in (np.zeros(4, bool), np.array([True, False, True, False]), np.zeros(4, bool)):
        assert np.array_equal(model.run({"x": x, "keep": keep})["y"], x[keep].T.reshape(-1) / 2)


@pytest.mark.parametrize(("sizes", "expected"), [([0, 1, -1], (0, 1, 12)), ([-1, 2, 6], (0, 2, 6)), ([3, -1], (3, 0))])
def test_computed_shapes_of_empty_tensors(sizes: list[int], expected: tuple[int, ...], device: str) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, ["n", 3, 4]), "shape": (TensorProto.INT64, [len(sizes)])}
    model = weft.load(graph(nodes, inputs, {}), device=device, cache=False)
    actual = model.run({"x": floats(0, 3, 4), "shape": np.array(sizes, np.int64)})["y"]
    assert actual.shape == expected


def test_empty_cache_needs_one_program_for_all_other_sizes(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """As in a decoder's first step: no keys yet, and another size that differs from call to call."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["keys"], axis=1),
        helper.make_node("MatMul", ["heard", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["share"], axis=-1),
        helper.make_node("Einsum", ["share", "keys"], ["y"], equation="tk,dk->td"),
    ]
    inputs = {
        "past": (TensorProto.FLOAT, [3, "before"]),
        "new": (TensorProto.FLOAT, [3, "now"]),
        "heard": (TensorProto.FLOAT, ["time", 3]),
    }
    built = graph(nodes, inputs, {})
    model = weft.load(built, device=device, cache=False)
    generator = np.random.default_rng(7)
    with caplog.at_level("INFO", "weft.compiling"):
        for before, now, time in ((0, 1, 4), (0, 1, 9), (2, 1, 9), (0, 5, 6), (0, 0, 3), (0, 2, 0), (0, 1, 12)):
            fed = {
                "past": generator.standard_normal((3, before)).astype(np.float32),
                "new": generator.standard_normal((3, now)).astype(np.float32),
                "heard": generator.standard_normal((time, 3)).astype(np.float32),
            }
            actual = model.run(fed)["y"]
            (theirs, *_) = PEER.ask(built, fed) or [{"y": np.zeros((time, 3), np.float32)}]
            compare(actual, theirs["y"], 1e-5, 1e-6, f"sizes {before}, {now}, {time}")
    compiled = [record for record in caplog.records if "one more program" in record.message]
    assert 1 <= len(compiled) <= 3  # without keys; without keys at all; without keys and time


def test_attention_with_an_empty_batch(device: str) -> None:
    inputs = [floats(0, 2, 4, 8), floats(0, 2, 6, 8), floats(0, 2, 6, 8)]
    for symbolic in (False, True):
        built = node_model("Attention", inputs, opset=23, symbolic=symbolic)
        fed = {f"x{number}": array for number, array in enumerate(inputs)}
        assert weft.load(built, device=device, cache=False).run(fed)["y0"].shape == (0, 2, 4, 8)


def test_impossible_sizes_are_refused(device: str) -> None:
    for op in ("ConstantOfShape", "Reshape"):
        constants = {"shape": np.array([2**40, 2**40, 0], np.int64)}
        operands = ["shape"] if op == "ConstantOfShape" else ["x", "shape"]
        inputs = {} if op == "ConstantOfShape" else {"x": (TensorProto.FLOAT, [0])}
        attributes = {"allowzero": 1} if op == "Reshape" else {}
        built = graph([helper.make_node(op, operands, ["y"], name="culprit", **attributes)], inputs, constants)
        with pytest.raises(InvalidModelError, match=r"no array has.*culprit"):
            weft.load(built, device=device, cache=False)


def test_argmax_of_an_empty_axis_is_refused(device: str) -> None:
    built = node_model("ArgMax", [floats(3, 0)], opset=21, axis=1)
    with pytest.raises(WeftError, match="without elements"):
        weft.load(built, device=device, cache=False).run({"x0": floats(3, 0)})


# -- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8], ids=str)
@pytest.mark.parametrize("op", ["Sqrt", "Exp", "Log", "Sin", "IsInf", "IsNaN", "Sigmoid", "Tanh", "Erf"])
def test_unsupported_types_are_refused(op: str, dtype: Any, device: str) -> None:
    built = node_model(op, [np.ones(3, dtype)], opset=21)
    built.graph.node[0].name = "culprit"
    with pytest.raises(InvalidModelError, match=rf"x0.*{np.dtype(dtype).name}.*culprit"):
        weft.load(built, device=device, cache=False)


# -- lengths and indices ---------------------------------------------------------------------------------------------

LENGTHS = np.array([2, 9], np.int32)
ONES = floats(4, 2, 3)


def sequence(op: str, gates: int) -> tuple[str, list[Array | None], dict[str, Any]]:
    inputs = [ONES, floats(1, 2 * gates, 3), floats(1, 2 * gates, 2), None, LENGTHS]
    return op, inputs, {"hidden_size": 2}


def sizes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def mel(rate: int, upper: float) -> tuple[str, list[Array | None], dict[str, Any]]:
    edges = [np.array(edge, np.float32) for edge in (0, upper)]
    return "MelWeightMatrix", [*(np.array(size, np.int64) for size in (8, 16, rate)), *edges], {}


FAULTS: dict[str, tuple[Callable[[], tuple[str, list[Array | None], dict[str, Any]]], str]] = {
    "LSTM": (lambda: sequence("LSTM", 4), "sequence_lens.*9"),
    "GRU": (lambda: sequence("GRU", 3), "sequence_lens.*9"),
    "RNN": (lambda: sequence("RNN", 1), "sequence_lens.*9"),
    "ReverseSequence": (lambda: ("ReverseSequence", [ONES, LENGTHS.astype(np.int64)], {}), "sequence_lens.*9"),
    "negative length": (
        lambda: ("ReverseSequence", [ONES, np.array([-1, 2], np.int64)], {}), "sequence_lens.*-1"
    ),
    "RoiAlign": (
        lambda: ("RoiAlign", [floats(2, 1, 4, 4), floats(1, 4), np.array([5], np.int64)], {"sampling_ratio": 1}),
        "batch_indices.*5",
    ),
    "MaxRoiPool": (
        lambda: ("MaxRoiPool", [floats(2, 1, 4, 4), np.array([[7, 0, 0, 2, 2]], np.float32)], {"pooled_shape": [1, 1]}),
        "rois.*7",
    ),
    "Attention": (
        lambda: (
            "Attention",
            [floats(2, 1, 3, 4), floats(2, 1, 5, 4), floats(2, 1, 5, 4), None, None, None, np.array([5, 6], np.int64)],
            {"opset": 24},
        ),
        "nonpad_kv_seqlen.*6",
    ),
    "GroupQueryAttention": (
        lambda: (
            "GroupQueryAttention",
            [*[floats(1, 2, 8)] * 3, None, None, np.array([9], np.int32), np.array(2, np.int32)],
            {"domain": "com.microsoft", "opset": 1, "num_heads": 1, "kv_num_heads": 1, "constants": (6,), "outputs": 3},
        ),
        "seqlens_k.*9",
    ),
    "Gather": (lambda: ("Gather", [ONES, np.array([7], np.int64)], {}), "index 7"),
    "a kernel larger than its image": (
        lambda: ("Conv", [floats(1, 1, 2, 2), floats(1, 1, 3, 3)], {}), "larger than the padded input"
    ),
    "a window larger than its image": (
        lambda: ("MaxPool", [floats(1, 1, 2, 2)], {"kernel_shape": [5, 5]}), "larger than the padded input"
    ),
    "Pad that repeats nothing": (lambda: ("Pad", [floats(0, 2), sizes(1, 0, 0, 0)], {"mode": "edge"}), "repeat"),
    "Pad that repeats what it cropped": (
        lambda: ("Pad", [floats(1, 2), sizes(1, 0, -1, 0)], {"mode": "reflect"}), "repeat"
    ),
    "Col2Im": (
        lambda: ("Col2Im", [floats(1, 5, 15), sizes(5, 5), sizes(1, 3)], {"pads": [0, 1, 0, 1]}), "whole blocks"
    ),
    "MaxUnpool": (
        lambda: (
            "MaxUnpool",
            [floats(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64), sizes(1, 1, 3, 5)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        "output_shape",
    ),
    "AffineGrid": (lambda: ("AffineGrid", [floats(2, 2, 3), sizes(2, 3, 0, 6)], {}), "positive"),
    "STFT": (lambda: ("STFT", [floats(1, 128, 1), np.array(8), None, np.array(129)], {}), "as long as a frame"),
    "a sample_rate of 0": (lambda: mel(0, 4096), "sample_rate"),
    "bands beyond the spectrum": (lambda: mel(3, 4096), "upper_edge_hertz"),
    "NonMaxSuppression": (
        lambda: (
            "NonMaxSuppression",
            [floats(1, 2, 4), floats(1, 1, 2), sizes(2), np.array([1.5], np.float32)],
            {},
        ),
        "iou_threshold.*1.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_lengths_and_indices_out_of_range(name: str, device: str) -> None:
    make, message = FAULTS[name]
    op, inputs, options = make()
    opset = options.pop("opset", 21)
    built = node_model(op, inputs, opset=opset, symbolic=True, **options)
    built.graph.node[0].name = "culprit"
    input_names = {value.name for value in built.graph.input}
    model = weft.load(built, device=device, cache=False)
    fed = {f"x{number}": array for number, array in enumerate(inputs) if f"x{number}" in input_names}
    with pytest.raises((ExecutionError, weft.InputError), match=message) as caught:
        model.run(fed)
    assert "culprit" in str(caught.value)
