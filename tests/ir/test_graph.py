"""Graphs with chosen outputs: the remaining nodes, and errors for unknown names."""

from __future__ import annotations

import onnx
import pytest
from frontend.samples import branching, model, node, tensor

import weft
from weft.frontend import read_model
from weft.ir.graph import Graph, with_outputs
from weft.runtime.model_files import is_defined


def graph_of(built: onnx.ModelProto) -> Graph:
    return read_model(built, is_defined=is_defined).graph


def chain() -> onnx.ModelProto:
    return model(
        [
            node("Mul", ["x", "a"], ["first"], "one"),
            node("Neg", ["first"], ["second"], "two"),
            node("Add", ["second", "b"], ["y"], "three"),
            node("Abs", ["first"], ["aside"], "four"),
        ],
        initializers=[tensor("a", [[2.0]]), tensor("b", [[1.0]])],
    )


def test_only_needed_nodes_remain() -> None:
    part = with_outputs(graph_of(chain()), ["second", "first"])
    assert [output.name for output in part.outputs] == ["second", "first"]
    assert [node.name for node in part.nodes] == ["one", "two"]
    assert set(part.initializers) == {"a"}
    assert [value.name for value in part.inputs] == ["x"]


@pytest.mark.parametrize("name", ["x", "b", "y", "aside"])
def test_every_value_can_be_an_output(name: str) -> None:
    assert [output.name for output in with_outputs(graph_of(chain()), [name]).outputs] == [name]


def test_values_captured_by_subgraphs_remain() -> None:
    whole = graph_of(branching())
    outer = whole.nodes[-1]
    part = with_outputs(whole, [outer.outputs[0]])
    assert {name for node in part.nodes for name in node.outputs} >= {"n"}


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(weft.InputError, match=r"no output 'secand'(?s:.)*did you mean second"):
        with_outputs(graph_of(chain()), ["secand"])
    with pytest.raises(weft.InputError, match=r"no output 7(?s:.)*its outputs are y"):
        with_outputs(graph_of(chain()), [7])  # type: ignore[list-item]


def test_values_inside_bodies_are_explained() -> None:
    with pytest.raises(weft.InputError, match=r"'ie' is a value inside a body of If(?s:.)*use an output of the node"):
        with_outputs(graph_of(branching()), ["ie"])


def test_value_passed_through_a_function_keeps_its_name() -> None:
    """The function returns its input, so no node of the graph produces `same`."""
    handing_on = onnx.helper.make_function(
        "local", "Two", ["v"], ["v", "w"], [node("Neg", ["v"], ["w"])], [onnx.helper.make_opsetid("", 20)]
    )
    built = model(
        [node("Two", ["x"], ["same", "other"], domain="local"), node("Add", ["same", "other"], ["y"])],
        opsets={"": 20, "local": 1},
        functions=[handing_on],
    )
    assert with_outputs(graph_of(built), ["same"]).outputs[0].shows == "x"
