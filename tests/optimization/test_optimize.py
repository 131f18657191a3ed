"""Optimised models: what is left, that it means the same in onnxruntime, and that sizes that are open stay so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import branching, calling, model, node, subgraph, tensor, value, with_external, wrap
from onnx import TensorProto, helper
from optimization.judging import CLOSE, judged, ops

import weft
from weft.errors import InputError, UnsupportedModelError
from weft.optimization.optimize import optimize

Array = np.ndarray[Any, Any]
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
SEED = 7


def normal(*shape: int, seed: int = SEED) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def heads(**options: Any) -> onnx.ModelProto:
    """What exporters write for `x.view(x.size(0), x.size(1), 2, 3).transpose(1, 2)`."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"], axis=0),
        node("Shape", ["x"], ["s2"]),
        node("Gather", ["s2", "one"], ["length"], axis=0),
        node("Unsqueeze", ["batch", "axes"], ["batch1"]),
        node("Unsqueeze", ["length", "axes"], ["length1"]),
        node("Concat", ["batch1", "length1", "two", "three"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 1, 3]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axes": integers(0), "two": integers(2), "three": integers(3)}
    initializers = [tensor(name, array) for name, array in constants.items()]
    inputs, outputs = [value("x", ["batch", "length", 6])], [value("y", ["batch", 2, "length", 3])]
    return model(nodes, inputs, outputs, initializers, opsets={"": 17}, **options)


def test_shapes_are_folded_where_sizes_are_open() -> None:
    feeds = [{"x": normal(batch, length, 6)} for batch, length in ((2, 5), (1, 1), (0, 4), (3, 0))]
    report = judged(heads(), *feeds)
    assert ops(report) == {"Reshape": 1, "Transpose": 1}
    assert report.nodes == (9, 2)
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_sizes_are_fixed_where_told() -> None:
    report = judged(heads(), {"x": normal(2, 5, 6)}, sizes={"batch": 2})
    shape = report.model.graph.input[0].type.tensor_type.shape.dim
    assert (shape[0].dim_value, shape[1].dim_param) == (2, "length")
    assert report.model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 2
    with pytest.raises(InputError, match=r"no dynamic dim batsch(?s:.)*batch, length"):
        optimize(heads(), sizes={"batsch": 2})


def test_sizes_that_may_broadcast_are_not_taken_for_equal() -> None:
    nodes = [node("Add", ["a", "b"], ["s"]), node("Shape", ["s"], ["shape"]), node("Expand", ["a", "shape"], ["y"])]
    inputs = [value("a", ["n"]), value("b", ["m"])]
    feeds = [{"a": normal(n), "b": normal(m)} for n, m in ((1, 5), (5, 5), (5, 1))]
    report = judged(model(nodes, inputs, [value("y", ["k"])]), *feeds)
    assert ops(report)["Expand"] == 1


def convolutions(opset: int = 17) -> onnx.ModelProto:
    """Convolutions with all that can go into their weights behind them."""
    weights = {
        "w0": normal(8, 3, 3, 3) / 5, "w1": normal(8, 4, 2, 2) / 4, "b1": normal(8), "gain": np.abs(normal(8)) + 0.5,
        "offset": normal(8), "mean": normal(8), "variance": np.abs(normal(8)) + 0.5, "scale": normal(8, 1, 1),
        "shift": normal(1, 8, 1, 1), "half": np.float32([0.5]), "w3": normal(8, 5), "b3": normal(5),
    }  # fmt: skip
    statistics = ["gain", "offset", "mean", "variance"]
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", *statistics], ["n0"]),
        node("Relu", ["n0"], ["r0"]),
        node("ConvTranspose", ["r0", "w1", "b1"], ["c1"], group=2, strides=[2, 2]),
        node("BatchNormalization", ["c1", *statistics], ["n1"]),
        node("Mul", ["n1", "scale"], ["m1"]),
        node("Add", ["shift", "m1"], ["a1"]),
        node("Relu", ["a1"], ["r1"]),
        node("GlobalAveragePool", ["r1"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w3"], ["p"]),
        node("Add", ["p", "b3"], ["z"]),
        node("Div", ["z", "half"], ["y"]),
    ]
    initializers = [tensor(name, array) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x", ["n", 3, "h", "w"])], [value("y", ["n", 8])], initializers)
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    return wrap(graph, opsets={"": opset}, ir_version=4)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24])
def test_weights_take_what_follows(opset: int) -> None:
    report = judged(convolutions(opset), {"x": normal(2, 3, 6, 5)}, tolerance=CLOSE)
    left = {"Conv": 1, "ConvTranspose": 1, "Relu": 2, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1}
    assert ops(report) == left
    assert report.opset == opset


def test_exact_leaves_arithmetic_as_it_is() -> None:
    report = judged(convolutions(), {"x": normal(1, 3, 4, 4)}, exact=True)
    assert report.nodes == (13, 13)


def test_shared_weights_and_results_are_left_alone() -> None:
    """What another node reads keeps its meaning."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Mul", ["c", "two"], ["y"]),
        node("Conv", ["x", "w"], ["d"], strides=[2, 2]),
        node("Mul", ["d", "two"], ["e"]),
        node("Add", ["e", "d"], ["z"]),
    ]
    constants = [tensor("w", normal(4, 3, 1, 1)), tensor("two", np.float32([2]))]
    built = model(nodes, [value("x", [1, 3, 4, 4])], [value("y", None), value("z", None)], constants, opsets={"": 17})
    report = judged(built, {"x": normal(1, 3, 4, 4)}, tolerance=CLOSE)
    assert ops(report) == {"Conv": 2, "Mul": 1, "Add": 1}


@pytest.mark.parametrize("opset", [10, 12, 18, 21])
def test_movement_is_put_together(opset: int) -> None:
    pads: list[int] = [0, 0, 1, 1, 0, 0, 1, 1]
    constants = [tensor("w", normal(4, 3, 3, 3)), tensor("shape", integers(0, 0, -1)), tensor("pads", integers(*pads))]
    constants += [tensor("flat", integers(0, -1)), tensor("axes", integers(3))]
    padding = node("Pad", ["x"], ["p"], pads=pads) if opset < 11 else node("Pad", ["x", "pads"], ["p"])
    unsqueeze = node("Unsqueeze", ["f"], ["u"], axes=[3]) if opset < 13 else node("Unsqueeze", ["f", "axes"], ["u"])
    nodes = [
        padding,
        node("Conv", ["p", "w"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Transpose", ["t"], ["t2"], perm=[0, 3, 1, 2]),
        node("Reshape", ["t2", "shape"], ["f"]),
        unsqueeze,
        node("Reshape", ["u", "flat"], ["z"]),
        node("Cast", ["z"], ["k"], to=TensorProto.DOUBLE),
        node("Cast", ["k"], ["y"], to=TensorProto.FLOAT),
    ]
    built = model(nodes, [value("x", [2, 3, 5, 4])], [value("y", [2, 80])], constants, opsets={"": opset})
    assert ops(judged(built, {"x": normal(2, 3, 5, 4)}, tolerance=CLOSE)) == {"Conv": 1, "Reshape": 1}


def test_outputs_keep_their_names_and_are_given_by_nodes() -> None:
    """Outputs that are inputs, constants, the same value twice, or behind nodes that do nothing."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Identity", ["r"], ["a"]),
        node("Identity", ["r"], ["b"]),
        node("Identity", ["x"], ["c"]),
        node("Add", ["w", "w"], ["d"]),
        node("Neg", ["r"], ["e"]),
    ]
    outputs = [value(name) for name in "abcde"]
    report = judged(model(nodes, [value("x")], outputs, [tensor("w", normal(2, 3))]), {"x": normal(2, 3)})
    assert ops(report) == {"Relu": 1, "Identity": 2, "Constant": 1, "Neg": 1}


def test_equal_nodes_are_merged_and_random_ones_are_not() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Exp", ["x"], ["b"]),
        node("Add", ["a", "b"], ["s"]),
        node("RandomNormal", [], ["p"], shape=[2, 3]),
        node("RandomNormal", [], ["q"], shape=[2, 3]),
        node("Sub", ["p", "q"], ["y"]),
    ]
    report = judged(model(nodes, [value("x")], [value("s"), value("y")]))
    assert ops(report) == {"Exp": 1, "Add": 1, "RandomNormal": 2, "Sub": 1}


def test_scales_of_weights_stay_with_them() -> None:
    nodes = [
        node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=1),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    constants = [tensor("q", np.arange(12, dtype=np.int8).reshape(4, 3)), tensor("scale", np.float32([1, 2, 3]))]
    constants.append(tensor("zero", np.zeros(3, np.int8)))
    built = model(nodes, [value("x", [2, 3])], [value("y", [2, 4])], constants, opsets={"": 17})
    assert ops(judged(built, {"x": normal(2, 3)}))["DequantizeLinear"] == 1


def test_folding_does_not_blow_files_up() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["big"], value=tensor("", np.float32([3]))),
        node("Add", ["x", "big"], ["y"]),
    ]
    built = model(nodes, [value("x", [1])], [value("y", None)], [tensor("shape", integers(600, 700))])
    assert ops(judged(built, {"x": normal(1)})) == {"ConstantOfShape": 1, "Add": 1}
    assert ops(judged(built, {"x": normal(1)}, growth=None)) == {"Add": 1}
    assert optimize(built, growth=None).bytes[1] > 600 * 700 * 4


def test_weights_that_two_forms_are_read_of_are_not_doubled() -> None:
    """A table and its transposed form, as tied embeddings have them."""
    nodes = [
        node("Gather", ["table", "i"], ["e"]),
        node("Transpose", ["table"], ["t"], perm=[1, 0]),
        node("MatMul", ["e", "t"], ["y"]),
    ]
    built = model(nodes, [value("i", ["n"], INT64)], [value("y", None)], [tensor("table", normal(700, 600))])
    assert ops(judged(built, {"i": integers(3, 1)}))["Transpose"] == 1
    assert "Transpose" not in ops(judged(built, {"i": integers(3, 1)}, growth=None, tolerance=CLOSE))


def test_branches_that_are_always_taken_stand_in_the_graph() -> None:
    then_graph = subgraph("then", [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["r"])], ["r"])
    else_graph = subgraph("else", [node("Abs", ["x"], ["a"]), node("Exp", ["a"], ["r"])], ["r"])
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["columns"]),
        node("Equal", ["columns", "three"], ["c"]),
        node("If", ["c"], ["p"], then_branch=then_graph, else_branch=else_graph),
        node("If", ["k"], ["q"], then_branch=then_graph, else_branch=else_graph),
        node("Add", ["p", "q"], ["y"]),
    ]
    constants = [tensor("one", np.int64(1)), tensor("three", np.int64(3))]
    built = model(nodes, [value("x", ["n", 3]), value("k", [], BOOL)], [value("y", None)], constants, opsets={"": 17})
    report = judged(built, {"x": normal(2, 3), "k": np.array(False)}, {"x": normal(1, 3), "k": np.array(True)})
    assert ops(report) == {"Relu": 2, "Neg": 2, "If": 1, "Abs": 1, "Exp": 1, "Add": 1}


def test_bodies_read_what_is_outside() -> None:
    feeds = [{"x": normal(2, 3), "c": np.array(flag)} for flag in (True, False)]
    judged(branching(), *feeds)


def test_functions_are_inlined() -> None:
    feeds = [{"x": normal(2, 3), "c": np.array(flag)} for flag in (True, False)]
    report = judged(calling(), *feeds, tolerance=CLOSE)
    assert not report.model.functions


def test_loops_do_not_carry_what_they_never_change() -> None:
    body = helper.make_graph(
        [
            node("MatMul", ["state", "weights"], ["product"]),
            node("Add", ["product", "bias"], ["next"]),
            node("Identity", ["weights"], ["weights_out"]),
            node("Identity", ["bias"], ["bias_out"]),
            node("Identity", ["more"], ["more_out"]),
        ],
        "body",
        [
            value("turn", [], INT64),
            value("more", [], BOOL),
            value("state", [2, 3]),
            value("weights", [3, 3]),
            value("bias", [3]),
        ],
        [value("more_out", [], BOOL), value("next", [2, 3]), value("weights_out", [3, 3]), value("bias_out", [3])],
    )
    nodes = [
        node("Loop", ["turns", "", "x", "w", "b"], ["last", "w_last", "b_last"], body=body),
        node("Add", ["last", "b_last"], ["y"]),
    ]
    constants = [tensor("w", normal(3, 3)), tensor("b", normal(3)), tensor("turns", np.int64(3))]
    report = judged(model(nodes, [value("x")], [value("y")], constants), {"x": normal(2, 3)}, tolerance=CLOSE)
    (loop,) = [each for each in report.model.graph.node if each.op_type == "Loop"]
    assert len(loop.output) == 1
    assert ops(report)["Gemm"] == 1


def test_loops_that_carry_nothing_name_two_inputs() -> None:
    """A condition that is left out is named as such: engines want two inputs."""
    body = helper.make_graph(
        [
            node("Identity", ["more"], ["more_out"]),
            node("Identity", ["state"], ["state_out"]),
            node("Mul", ["state", "state"], ["square"]),
        ],
        "body",
        [value("turn", [], INT64), value("more", [], BOOL), value("state", [3])],
        [value("more_out", [], BOOL), value("state_out", [3]), value("square", [3])],
    )
    nodes = [node("Loop", ["turns", "", "x"], ["last", "y"], body=body)]
    inputs = [value("x", [3]), value("turns", [], INT64)]
    built = model(nodes, inputs, [value("y", ["n", 3])], opsets={"": 17})
    report = judged(built, {"x": normal(3), "turns": np.array(2)})
    assert list(report.model.graph.node[0].input) == ["turns", ""]


def test_weights_that_can_be_overridden_stay_inputs() -> None:
    nodes = [node("Add", ["w", "v"], ["s"]), node("Mul", ["x", "s"], ["y"])]
    constants = [tensor("w", normal(3)), tensor("v", normal(3))]
    built = model(nodes, [value("x"), value("w", [3])], [value("y")], constants)
    report = judged(built, {"x": normal(2, 3)}, {"x": normal(2, 3), "w": normal(3, seed=1)})
    assert ops(report) == {"Add": 1, "Mul": 1}


def test_old_files_have_weights_that_are_no_inputs_afterwards() -> None:
    built = model(
        [node("Add", ["x", "w"], ["y"])], [value("x"), value("w", [3])], [value("y")], [tensor("w", normal(3))]
    )
    built.ir_version = 3
    report = judged(built, {"x": normal(2, 3)})
    assert [each.name for each in report.model.graph.input] == ["x"]
    built.ir_version = 10
    assert len(optimize(built, keep_inputs=True).model.graph.input) == 2


def test_what_weft_does_not_know_stays() -> None:
    nodes = [
        node("Add", ["w", "w"], ["v"]),
        node("Unheard", ["x", "v"], ["u"], domain="acme", factor=2.0),
        node("Identity", ["u"], ["i"]),
        node("Relu", ["i"], ["y"]),
    ]
    built = model(nodes, [value("x")], [value("y", None)], [tensor("w", normal(3))], opsets={"": 17, "acme": 2})
    report = optimize(built)
    assert ops(report) == {"Unheard": 1, "Relu": 1}
    assert {entry.domain: entry.version for entry in report.model.opset_import} == {"": 17, "acme": 2}
    assert optimize(report.model).done == {}


def test_what_a_file_says_besides_is_kept(tmp_path: Path) -> None:
    built = heads(producer_name="somebody", producer_version="7", doc_string="what it is", model_version=3)
    built.metadata_props.add(key="labels", value="a,b")
    built.graph.input[0].doc_string = "hidden states"
    onnx.save(built, tmp_path / "in.onnx")
    weft.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    assert (written.producer_name, written.producer_version, written.model_version) == ("somebody", "7", 3)
    assert written.doc_string == "what it is"
    assert written.graph.input[0] == built.graph.input[0]
    assert written.graph.output[0] == built.graph.output[0]
    assert written.metadata_props[0].value == "a,b"
    (inner,) = written.graph.value_info
    assert [dim.dim_param or dim.dim_value for dim in inner.type.tensor_type.shape.dim] == ["batch", "length", 2, 3]


def test_weights_beside_a_file_are_taken_in(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    report = weft.optimize(path, tmp_path / "whole.onnx")
    assert report.bytes[1] == (tmp_path / "whole.onnx").stat().st_size
    onnx.load(tmp_path / "whole.onnx", load_external_data=False)
    one, other = weft.load(path), weft.load(tmp_path / "whole.onnx")
    feed = {spec.name: np.ones([2 if isinstance(dim, str) else dim for dim in spec.shape or ()], np.float32)
            for spec in one.inputs}  # fmt: skip
    for name, array in one.run(feed).items():
        np.testing.assert_array_equal(array, other.run(feed)[name])


def test_a_newer_opset() -> None:
    report = judged(heads(), {"x": normal(2, 5, 6)}, opset=21)
    assert report.opset == 21
    with pytest.raises(UnsupportedModelError, match="only made newer"):
        optimize(heads(), opset=11)


def test_wrong_options_and_paths() -> None:
    with pytest.raises(InputError, match="no such folder"):
        optimize(heads(), "/nowhere/at/all/out.onnx")
    with pytest.raises(InputError, match="growth must be"):
        optimize(heads(), growth=-1)
    with pytest.raises(InputError, match="whole number"):
        optimize(heads(), sizes={"batch": "two"})


def test_states_that_begin_with_zeros_need_not_be_told() -> None:
    """What exporters write for a recurrent layer: zeros of a shape that the batch decides."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "axes"], ["b"]),
        node("Concat", ["two", "b", "four"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Slice", ["zeros", "axes", "single", "axes"], ["h"]),
        node("LSTM", ["x", "w", "r", "", "", "h", "h"], ["y"], hidden_size=4),
    ]
    constants = {
        "one": np.int64(1), "axes": integers(0), "single": integers(1), "two": integers(2), "four": integers(4),
        "w": normal(1, 16, 3), "r": normal(1, 16, 4),
    }  # fmt: skip
    initializers = [tensor(name, array) for name, array in constants.items()]
    built = model(nodes, [value("x", ["t", "n", 3])], [value("y", None)], initializers, opsets={"": 17})
    assert ops(judged(built, {"x": normal(5, 2, 3)})) == {"LSTM": 1}


def test_orders_that_are_undone_later_go() -> None:
    """Channels last between two convolutions, with constants for each channel."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Transpose", ["x"], ["u"], perm=[0, 2, 3, 1]),
        node("Mul", ["t", "slopes"], ["m"]),
        node("Add", ["m", "u"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Concat", ["r", "s"], ["k"], axis=-1),
        node("Transpose", ["k"], ["b"], perm=[0, 3, 1, 2]),
        node("Conv", ["b", "v"], ["y"]),
    ]
    constants = [tensor("w", normal(3, 3, 1, 1)), tensor("v", normal(2, 6, 1, 1)), tensor("slopes", normal(3))]
    built = model(nodes, [value("x", ["n", 3, "h", 4])], [value("y", None)], constants, opsets={"": 17})
    report = judged(built, {"x": normal(2, 3, 5, 4)}, tolerance=CLOSE)
    assert "Transpose" not in ops(report)


def test_products_need_no_matrices_and_no_factors() -> None:
    """Linear layers as exporters flatten them, and scaled on both sides of attention."""
    nodes = [
        node("Reshape", ["x", "rows"], ["flat"]),
        node("Gemm", ["flat", "w"], ["g"]),
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "zero", "two"], ["lead"]),
        node("Concat", ["lead", "six"], ["shape"], axis=0),
        node("Reshape", ["g", "shape"], ["q"]),
        node("Mul", ["q", "half"], ["q2"]),
        node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        node("Mul", ["k", "half"], ["k2"]),
        node("MatMul", ["q2", "k2"], ["y"]),
    ]
    constants = {
        "rows": integers(-1, 6), "w": normal(6, 6), "zero": integers(0), "two": integers(2), "six": integers(6),
        "half": np.float32(0.5),
    }  # fmt: skip
    initializers = [tensor(name, array) for name, array in constants.items()]
    built = model(nodes, [value("x", ["n", "t", 6])], [value("y", None)], initializers, opsets={"": 17})
    report = judged(built, {"x": normal(2, 5, 6)}, tolerance=CLOSE)
    assert ops(report) == {"MatMul": 2, "Transpose": 1, "Mul": 1}


def test_one_of_many_is_picked_and_axes_are_moved_one_by_one() -> None:
    nodes = [
        node("Slice", ["x", "one", "two", "zero"], ["part"]),
        node("Squeeze", ["part", "zero"], ["a"]),
        node("Reshape", ["a", "merged"], ["m"]),
        node("Transpose", ["m"], ["t"], perm=[0, 2, 1]),
        node("Reshape", ["t", "apart"], ["y"]),
    ]
    constants = {
        "one": integers(1), "two": integers(2), "zero": integers(0), "merged": integers(-1, 4, 5),
        "apart": integers(-1, 2, 5, 4),
    }  # fmt: skip
    initializers = [tensor(name, array) for name, array in constants.items()]
    built = model(nodes, [value("x", [3, "n", 2, 4, 5])], [value("y", None)], initializers, opsets={"": 17})
    feeds = [{"x": normal(3, count, 2, 4, 5)} for count in (2, 0)]
    assert ops(judged(built, *feeds)) == {"Gather": 1, "Transpose": 1}


def test_large_tables_are_not_looked_through() -> None:
    trees = {"nodes_treeids": [0] * 5000, "nodes_nodeids": list(range(5000))}
    nodes = [node("Identity", ["x"], ["a"]), node("Trees", ["a"], ["y"], domain="ai.onnx.ml", **trees)]
    built = model(nodes, [value("x")], [value("y", None)], opsets={"": 17, "ai.onnx.ml": 3})
    assert ops(optimize(built)) == {"Trees": 1}


def test_nodes_that_break_the_rules_of_their_op_stay() -> None:
    """The file is no worse than it was, and whoever runs it says what is wrong."""
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Reshape", ["a"], ["b"]),
        node("Add", ["b"], ["c"]),
        node("Transpose", ["c"], ["d"], perm=[0.5, 1.5]),
        node("Concat", ["d"], ["e"]),
        node("Conv", ["e"], ["y"], group="all"),
    ]
    report = optimize(model(nodes, [value("x")], [value("y", None)], opsets={"": 17}))
    assert ops(report) == {"Reshape": 1, "Add": 1, "Transpose": 1, "Concat": 1, "Conv": 1}
    assert optimize(report.model).done == {}


@pytest.mark.parametrize(("op", "opset"), [("ReduceMax", 11), ("ReduceSum", 17), ("ReduceMean", 18), ("ArgMax", 17)])
def test_axes_are_reduced_where_they_lie(op: str, opset: int) -> None:
    if op == "ArgMax":
        reduce = node(op, ["t"], ["y"], axis=-1, keepdims=0)
    elif op == "ReduceMax":
        reduce = node(op, ["t"], ["y"], axes=[1, 2], keepdims=0)
    else:
        reduce = node(op, ["t", "axes"], ["y"], keepdims=0)
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]), reduce]
    kind = INT64 if op == "ArgMax" else TensorProto.FLOAT
    built = model(
        nodes, [value("x", ["n", 3, 4, 5])], [value("y", None, kind)], [tensor("axes", integers(1, 2))],
        opsets={"": opset},
    )  # fmt: skip
    assert ops(judged(built, {"x": normal(2, 3, 4, 5)}, tolerance=CLOSE)) == {op: 1}
