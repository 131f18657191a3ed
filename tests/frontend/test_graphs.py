"""Reading graphs: names, order, attributes, types and opsets."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx.defs
import pytest
from frontend import samples
from frontend.samples import model, node, subgraph, tensor, value
from onnx import AttributeProto, TensorProto, helper

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend import read_model
from weft.ir.dims import symbol
from weft.ir.dtypes import DType
from weft.ir.graph import Graph
from weft.ir.types import MapType, OptionalType, SequenceType, TensorType


def test_metadata() -> None:
    proto = model([node("Relu", ["x"], ["y"])], producer_name="tests", producer_version="2")
    helper.set_model_props(proto, {"author": "someone"})
    read = read_model(proto)
    assert (read.producer, read.metadata, read.ir_version) == ("tests 2", {"author": "someone"}, 10)
    assert read.opsets == {"": 20}
    assert str(read.graph.nodes[0]) == "y = Relu(x)"
    assert read.graph.nodes[0].version == 20


def test_nodes_are_sorted_stably() -> None:
    read = read_model(
        model(
            [
                node("Neg", ["b"], ["y"]),
                node("Relu", ["x"], ["a"]),
                node("Abs", ["a"], ["b"]),
                node("Exp", ["x"], ["z"]),
            ]
        )
    )
    assert [entry.op for entry in read.graph.nodes] == ["Relu", "Abs", "Neg", "Exp"]


def test_order_respects_values_that_subgraphs_capture() -> None:
    graph = read_model(samples.branching()).graph
    assert [entry.op for entry in graph.nodes] == ["Abs", "If"]
    then_branch = graph.nodes[1].attributes["then_branch"]
    inner = then_branch.nodes[1].attributes["then_branch"]
    assert inner.nodes[0].inputs == ("x", "a")
    assert then_branch.outputs[0].type == TensorType(DType.float32, None)


def test_shadowing_names_in_subgraphs_are_renamed() -> None:
    deeper = subgraph("deeper", [node("Neg", ["a"], ["x"])], ["x"])
    branch = subgraph(
        "branch",
        [node("Abs", ["x.1"], ["a"]), node("If", ["c"], ["x"], then_branch=deeper, else_branch=deeper)],
        ["x"],
        [value("x.1")],
    )
    read = read_model(
        model(
            [node("Relu", ["x"], ["a"]), node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
            [value("x"), value("c", [], TensorProto.BOOL)],
        )
    )
    inner = read.graph.nodes[1].attributes["then_branch"]
    assert inner.nodes[0].inputs == ("x.1",)
    assert inner.nodes[0].outputs == ("a.1",)
    assert inner.outputs[0].name == inner.nodes[1].outputs[0] == "x.2"
    innermost = inner.nodes[1].attributes["then_branch"]
    assert innermost.nodes[0].inputs == ("a.1",)
    assert innermost.nodes[0].outputs == ("x.3",) == (innermost.outputs[0].name,)


def test_long_chains_and_equal_node_names() -> None:
    count = 5 * sys.getrecursionlimit()
    nodes = [node("Relu", [f"v{index}"], [f"v{index + 1}"], name="same") for index in range(count)]
    read = read_model(model(nodes[::-1], [value("v0")], [value(f"v{count}")]))
    assert [entry.outputs[0] for entry in read.graph.nodes] == [f"v{index + 1}" for index in range(count)]
    assert len({entry.name for entry in read.graph.nodes}) == count


def test_unnamed_nodes_get_unique_names() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Abs", ["a"], ["y"], name="Relu_a")]
    assert [entry.name for entry in read_model(model(nodes)).graph.nodes] == ["Relu_a", "Relu_a_1"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["y"], name="2nd")], "'y' is defined more than once.*2nd"),
        ([node("Relu", ["x"], ["x"])], "'x' is defined more than once"),
        ([node("Relu", ["nothing"], ["y"], name="culprit")], "'nothing'.*culprit"),
        ([node("Relu", ["x"], ["z"])], "output 'y' is not defined"),
        ([node("Add", ["x", "b"], ["a"], name="A"), node("Abs", ["a"], ["b"], name="B"), node("Neg", ["b"], ["y"])],
         "2 nodes form a cycle: .*A → B|B → A"),
        ([node("Add", ["x", "y"], ["y"], name="self")], "cycle: self → self"),
        ([node("", ["x"], ["y"])], "no operator"),
    ],
)  # fmt: skip
def test_unresolved_names(nodes: list[onnx.NodeProto], message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read_model(model(nodes))


def test_cycles_through_subgraphs_are_found() -> None:
    branch = subgraph("branch", [node("Neg", ["y"], ["b"])], ["b"])
    looped = node("If", ["c"], ["y"], name="loop", then_branch=branch, else_branch=branch)
    with pytest.raises(InvalidModelError, match="cycle: loop → loop"):
        read_model(model([looped], [value("c", [], TensorProto.BOOL)]))


def test_subgraph_values_are_not_visible_outside() -> None:
    branch = subgraph("branch", [node("Neg", ["x"], ["b"])], ["b"])
    nodes = [node("If", ["c"], ["a"], then_branch=branch, else_branch=branch), node("Relu", ["b"], ["y"])]
    with pytest.raises(InvalidModelError, match="'b'"):
        read_model(model(nodes, [value("x"), value("c", [], TensorProto.BOOL)]))


def test_duplicate_inputs_and_initializers() -> None:
    relu = [node("Relu", ["x"], ["y"])]
    with pytest.raises(InvalidModelError, match="'x' is defined more than once"):
        read_model(model(relu, [value("x"), value("x")]))
    with pytest.raises(InvalidModelError, match="'w' is defined more than once"):
        read_model(model(relu, initializers=[tensor("w", 1.0), tensor("w", 2.0)]), strict=True)
    with pytest.raises(InvalidModelError, match="has no name"):
        read_model(model(relu, initializers=[tensor("", 1.0)]), strict=True)


def test_inputs_with_initializers_are_defaults() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"])], [value("x"), value("w", [3])], initializers=[tensor("w", np.ones(3, "f"))]
    )
    graph = read_model(proto).graph
    assert [entry.name for entry in graph.inputs] == ["x"]
    assert [entry.name for entry in graph.defaults] == ["w"]
    assert graph.initializers["w"].tolist() == [1, 1, 1]


def test_declared_types() -> None:
    tensor_type = helper.make_tensor_type_proto(TensorProto.INT64, ["n", 2])
    inputs = [
        value("x", ["batch", None, 3, -1, 0, "?"]),
        value("no shape", None, TensorProto.BFLOAT16),
        value("x.1", ["batch", "x.1.1"]),
        value("x/1", [None]),
        helper.make_value_info("sequence", helper.make_sequence_type_proto(tensor_type)),
        helper.make_value_info("optional", helper.make_optional_type_proto(tensor_type)),
        helper.make_value_info("map", helper.make_map_type_proto(TensorProto.STRING, tensor_type)),
    ]
    read = read_model(model([node("Relu", ["x"], ["y"])], inputs, [helper.make_empty_tensor_value_info("y")]))
    types = {entry.name: entry.type for entry in read.graph.inputs}
    unknown = [symbol(f"x.{position}") for position in (1, 3, 5)]
    assert types["x"].shape == (symbol("batch"), unknown[0], 3, unknown[1], 0, unknown[2])
    assert types["no shape"] == TensorType(DType.bfloat16, None)
    assert types["x/1"].shape == (symbol("x_1.0"),)
    element = TensorType(DType.int64, (symbol("n"), 2))
    assert types["sequence"] == SequenceType(element)
    assert types["optional"] == OptionalType(element)
    assert types["map"] == MapType(DType.string, element)
    assert read.graph.outputs[0].type is None


def test_fresh_dims_avoid_declared_names() -> None:
    inputs = [value("x", [None]), value("z", ["x.0"])]
    read = read_model(model([node("Relu", ["x"], ["y"])], inputs))
    assert read.graph.inputs[0].type.shape == (symbol("x.0.1"),)


def test_invalid_types() -> None:
    with pytest.raises(InvalidModelError, match=r"no declared type.*value x"):
        read_model(model([node("Relu", ["x"], ["y"])], [helper.make_empty_tensor_value_info("x")]))
    with pytest.raises(UnsupportedModelError, match="sparse_tensor_type"):
        read_model(
            model([node("Relu", ["x"], ["y"])], [helper.make_sparse_tensor_value_info("x", TensorProto.FLOAT, [2])])
        )


def test_attributes_become_plain_values() -> None:
    branch = subgraph("branch", [node("Neg", ["x"], ["b"])], ["b"])
    tensor_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    custom = node(
        "Custom", ["x"], ["y"], domain="custom", i=3, f=0.5, s="text", t=tensor("t", [1, 2]), g=branch, tp=tensor_type,
        ints=[1, 2], floats=[0.5, 1.5], strings=["a", "b"], tensors=[tensor("u", [3])], graphs=[branch, branch],
    )  # fmt: skip
    custom.attribute.append(AttributeProto(name="zero", type=AttributeProto.INT))
    custom.attribute.append(AttributeProto(name="untyped", ints=[4]))
    custom.attribute.append(AttributeProto(name="odd", type=AttributeProto.STRING, s=b"\xff"))
    custom_node = read_model(model([custom], opsets={"": 20, "custom": 3})).graph.nodes[0]
    assert (custom_node.version, custom_node.domain) == (3, "custom")
    attributes = dict(custom_node.attributes)
    assert attributes.pop("t").tolist() == [1, 2]
    assert [array.tolist() for array in attributes.pop("tensors")] == [[3]]
    assert isinstance(attributes.pop("g"), Graph)
    assert [graph.name for graph in attributes.pop("graphs")] == ["branch", "branch"]
    assert attributes == {
        "i": 3, "f": 0.5, "s": "text", "tp": TensorType(DType.float32, (2,)), "ints": (1, 2), "floats": (0.5, 1.5),
        "strings": ("a", "b"), "zero": 0, "untyped": (4,), "odd": "\udcff",
    }  # fmt: skip


@pytest.mark.parametrize(
    "attribute",
    [
        AttributeProto(name="a", type=AttributeProto.INT, f=1.0),
        AttributeProto(name="a", type=AttributeProto.TENSOR),
        AttributeProto(name="a", type=AttributeProto.INTS, ints=[1], floats=[1.0]),
        AttributeProto(name="a"),
        AttributeProto(name="a", i=1, f=1.0),
        AttributeProto(name="a", type=AttributeProto.INT, ref_attr_name="outer"),
        AttributeProto(name="", type=AttributeProto.INT, i=1),
        AttributeProto(name="twice", type=AttributeProto.INT, i=1),
    ],
)
def test_contradictory_attributes(attribute: AttributeProto) -> None:
    relu = node("Relu", ["x"], ["y"], name="culprit", twice=1)
    relu.attribute.append(attribute)
    with pytest.raises(InvalidModelError, match=r"attribute.*culprit"):
        read_model(model([relu]))


def test_opsets() -> None:
    relu = [node("Relu", ["x"], ["y"], domain="ai.onnx")]
    read = read_model(model(relu, opsets={"ai.onnx": 13}))
    assert read.opsets == {"": 13}
    assert (read.graph.nodes[0].domain, read.graph.nodes[0].version) == ("", 13)
    newest = onnx.defs.onnx_opset_version()
    read_model(model(relu, opsets={"": newest}))
    with pytest.raises(UnsupportedModelError, match=f"up to {newest}.*\n.*newer onnx"):
        read_model(model(relu, opsets={"": newest + 1}))
    with pytest.raises(UnsupportedModelError, match="opset 0 of"):
        read_model(model(relu, opsets={"": 0}))
    with pytest.raises(UnsupportedModelError, match=r"ai\.onnx\.ml"):
        read_model(model(relu, opsets={"": 20, "ai.onnx.ml": 99}))
    with pytest.raises(InvalidModelError, match="both imported"):
        read_model(model(relu, opsets={"": 20, "ai.onnx": 19}), strict=True)
    with pytest.raises(InvalidModelError, match=r"does not import.*Relu_y"):
        read_model(model(relu, opsets={"custom": 1}), strict=True)


def test_domains_without_imports() -> None:
    gelu = [node("Gelu", ["x"], ["y"], domain="com.microsoft")]
    assert read_model(model(gelu)).graph.nodes[0].version == 1
    with pytest.raises(InvalidModelError, match="domain strange"):
        read_model(model([node("Relu", ["x"], ["y"], domain="strange")]))
    old = model([node("Relu", ["x"], ["y"])], ir_version=2)
    del old.opset_import[:]
    assert read_model(old).graph.nodes[0].version == 1
