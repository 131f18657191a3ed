"""Test `weft.Graph`: inputs, parameters, constants, outputs, files and compiled models."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builder.running import run, with_onnxruntime

import weft
from weft import ops
from weft.frontend import save, write
from weft.ir.dtypes import DType
from weft.ir.types import OptionalType, SequenceType, TensorType

X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -8.0]], np.float32)


def dense(name: str = "dense", seed: int = 0) -> weft.Graph:
    random = np.random.default_rng(seed)
    graph = weft.Graph(name)
    x = graph.input("x", ("batch", 3))
    w = graph.parameter("w", random.normal(size=(3, 4)).astype(np.float32))
    graph.output(ops.relu(x @ w + graph.parameter("b", np.ones(4, np.float32))), "y")
    return graph


def test_names_of_the_user_are_kept() -> None:
    graph = weft.Graph("named")
    x = graph.input("pixels", ("batch", 3), "float32")
    y = ops.mat_mul(x, graph.parameter("layer.w", np.ones((3, 3), np.float32)), name="product")
    graph.output(ops.relu(y), "activation")
    graph.output(y)
    graph.output(y, "again")
    graph.output(x, "same")
    written = graph.to_onnx()
    assert written.graph.name == "named"
    assert [value.name for value in written.graph.input] == ["pixels"]
    assert [value.name for value in written.graph.output] == ["activation", "product", "again", "same"]
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert written.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [node.name for node in written.graph.node][:2] == ["product", "relu_0"]
    assert [node.output[0] for node in written.graph.node][:2] == ["product", "activation"]
    assert "layer.w" in [tensor.name for tensor in written.graph.initializer]
    results = run(graph, {"pixels": X})
    np.testing.assert_array_equal(results["again"], results["product"])
    np.testing.assert_array_equal(results["same"], X)


def test_print_shows_values_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    graph = dense()
    printed = str(graph)
    assert printed.startswith("Graph('dense': 3 nodes, 1 output)\n")
    lines = [line.split() for line in printed.splitlines()]
    assert ["input", "x", "float32[batch,", "3]"] in lines
    assert ["parameter", "w", "float32[3,", "4]"] in lines
    assert ["output", "y", "=", "relu_0", "float32[batch,", "4]"] in lines
    assert ["MatMul", "x,", "w", "mat_mul_0", "float32[batch,", "4]"] in lines
    assert "<table" in graph._repr_html_()
    assert str(weft.Graph("empty")).startswith("Graph('empty': 0 nodes, 0 outputs)")


def test_print_cuts_large_graphs() -> None:
    graph = weft.Graph("deep")
    x = graph.input("x", (2, 3))
    for _ in range(100):
        x = ops.tanh(x)
    assert "60 more" in str(graph)
    assert len(str(graph).splitlines()) < 60


def test_inputs_and_parameters_as_outputs_under_their_own_names() -> None:
    graph = weft.Graph()
    x, w = graph.input("x", (2, 3)), graph.parameter("w", np.ones(2, np.float32))
    graph.outputs(x, w, twice=x, product=x * 2)
    results = run(graph, {"x": X})
    assert list(results) == ["x", "w", "twice", "product"]
    np.testing.assert_array_equal(results["x"], X)


def test_a_renamed_output_is_renamed_in_bodies() -> None:
    """A value that takes the name of an output is renamed in bodies, too."""
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    doubled = x * 2
    graph.outputs(y=doubled, z=ops.if_(x.sum() > 0, lambda: doubled + 1, lambda: doubled))
    results = run(graph, {"x": X})
    np.testing.assert_array_equal(results["z"], results["y"])


def test_shapes_of_inputs() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("batch", None, 3, np.int64(4)), "float16")
    assert [str(size) for size in x.shape] == ["batch", "x.1", "3", "4"]
    assert (x.dtype, x.ndim) == ("float16", 4)
    assert graph.input("scalar", ()).shape == ()
    graph.output(x + 1, "y")
    dims = graph.to_onnx().graph.input[0].type.tensor_type.shape.dim
    assert [dim.WhichOneof("value") for dim in dims] == ["dim_param", None, "dim_value", "dim_value"]


def test_inputs_of_other_types() -> None:
    graph = weft.Graph()
    tensor = TensorType(DType.float32, (2, 3))
    parts = graph.input_of("parts", SequenceType(tensor))
    maybe = graph.input_of("maybe", OptionalType(tensor))
    graph.outputs(first=ops.sequence_at(parts, 0), there=ops.optional_has_element(maybe))
    results = graph.compile(device="reference").run({"parts": [X, X + 1], "maybe": X})
    np.testing.assert_array_equal(results["first"], X)
    assert results["there"]
    onnx.checker.check_model(graph.to_onnx(), full_check=True)


@pytest.mark.parametrize("dtype", [str(dtype) for dtype in DType if dtype is not DType.string])
def test_parameters_of_every_dtype_are_in_the_file(dtype: str) -> None:
    values = np.arange(5).astype(DType(dtype).numpy)
    is_new = dtype.startswith("float6")  # only Cast accepts it, and onnx's package reads it as bits
    graph = weft.Graph(opset=28)
    w = graph.parameter("w", values)
    graph.output(w.astype("float32") if is_new else ops.identity(w), "y")
    (stored,) = graph.to_onnx().graph.initializer
    assert stored.data_type == DType(dtype).number
    result = graph.compile(device="reference").run({})["y"]
    np.testing.assert_array_equal(result.astype(np.complex128), values.astype(np.complex128))
    if not is_new:
        content = onnx.numpy_helper.to_array(stored)
        np.testing.assert_array_equal(content.astype(np.complex128), values.astype(np.complex128))


def test_strings() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("n",), "string")
    graph.outputs(same=x == ["a", "b"], both=ops.string_concat(x, np.array(["ä", ""])))
    results = run_texts(graph, np.array(["a", "c"], object))
    assert results["same"].tolist() == [True, False]
    assert results["both"].tolist() == ["aä", "c"]


def test_empty_lists_have_the_type_of_the_schema() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("n",), "string")
    graph.output(ops.string_normalizer(x, stopwords=[]), "y")
    onnx.checker.check_model(graph.to_onnx(), full_check=True)
    assert run_texts(graph, np.array(["a", "b"], object))["y"].tolist() == ["a", "b"]


def run_texts(graph: weft.Graph, x: Any) -> dict[str, Any]:
    expected = with_onnxruntime(graph.to_onnx(), {"x": x})
    results = graph.compile(device="reference").run({"x": x})
    assert {name: array.tolist() for name, array in results.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    return results


def test_a_parameter_is_a_copy() -> None:
    array = np.ones(3, np.float32)
    graph = weft.Graph()
    w = graph.parameter("w", array)
    array[:] = 7
    graph.output(graph.input("x", (3,)) + w, "y")
    assert run(graph, {"x": np.zeros(3, np.float32)})["y"].tolist() == [1, 1, 1]


def test_constants() -> None:
    graph = weft.Graph()
    assert graph.constant(1.5).dtype == "float32"
    assert graph.constant([1, 2]).dtype == "int64"
    assert graph.constant([1, 2], "uint8").dtype == "uint8"
    assert graph.constant(np.ones(2)).dtype == "float64"
    assert graph.constant(True).shape == ()
    assert graph.constant([1, 0], bool).dtype == "bool"
    with pytest.raises(weft.GraphError, match="must be bool, which cannot represent 2"):
        graph.constant(2, bool)


def test_functions_without_inputs_use_the_graph_of_a_with_statement() -> None:
    with weft.Graph() as graph:
        y = ops.random_uniform(shape=(2, 3), seed=1.0) + ops.constant(value_float=1.0)
        with weft.Graph() as inner:
            inner.output(ops.eye_like(np.zeros((2, 2), np.float32)), "eye")
        graph.output(y + ops.constant_of_shape([2, 3]), "y")
    assert run(inner, {})["eye"].tolist() == [[1, 0], [0, 1]]
    assert graph.compile(device="reference").run({})["y"].shape == (2, 3)


# -- models and files ------------------------------------------------------------------------------------------------


def test_compile_is_load_with_the_same_options(tmp_path: Path) -> None:
    graph = dense()
    path = tmp_path / "dense.onnx"
    written = graph.to_onnx(path)
    assert onnx.load(path) == written
    expected = with_onnxruntime(written, {"x": X})["y"]
    for model in (graph.compile(device="cpu", threads=1), weft.load(path, device="cpu", threads=1)):
        assert isinstance(model, weft.Model)
        np.testing.assert_allclose(model.run({"x": X})["y"], expected, rtol=1e-6)
    assert graph.compile(device="cpu", outputs=["b"]).run({"x": X})["b"].tolist() == [1, 1, 1, 1]
    assert (
        list(inspect.signature(weft.Graph.compile).parameters)[1:] == list(inspect.signature(weft.load).parameters)[1:]
    )
    with pytest.raises(weft.WeftError, match="precision"):
        graph.compile(precision="worst")


def test_equal_graphs_have_equal_files() -> None:
    assert dense().to_onnx().SerializeToString() == dense().to_onnx().SerializeToString()
    assert dense(seed=1).to_onnx().SerializeToString() != dense().to_onnx().SerializeToString()


def test_parameters_are_the_weights_of_the_model() -> None:
    model = dense().compile(device="cpu")
    assert {"w", "b"} <= set(model.weights)
    model.set_weight("b", np.full(4, 9, np.float32))
    expected = np.maximum(X @ np.asarray(model.weights["w"]) + 9, 0)
    np.testing.assert_allclose(model.run({"x": X})["y"], expected, rtol=1e-6)


def test_a_condition_on_a_dynamic_size_is_an_error() -> None:
    rows = weft.Graph().input("x", ("rows", 3)).shape[0]
    assert rows > 0
    with pytest.raises(weft.WeftError, match="depends on sizes known only at run time"):
        bool(rows > 4)


def test_errors_of_the_model_name_the_graph() -> None:
    with pytest.raises(weft.WeftError, match="<graph dense>"):
        dense().compile(device="cpu").run({"x": X[:, :2]})


def test_weights_beyond_the_limit_of_protobuf_are_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "MAX_MESSAGE_BYTES", 100)
    monkeypatch.setattr(write, "MAX_MESSAGE_BYTES", 100)
    path = tmp_path / "large.onnx"
    dense().to_onnx(path)
    assert len(list(tmp_path.glob("large.onnx.*.data"))) == 1
    with pytest.raises(weft.GraphError, match=r"graph.to_onnx\(path\)"):
        dense().compile()
    monkeypatch.undo()
    onnx.checker.check_model(path, full_check=True)
    np.testing.assert_allclose(
        weft.load(path, device="reference").run({"x": X})["y"],
        dense().compile(device="reference").run({"x": X})["y"],
    )


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(weft.InputError, match="cannot be written"):
        dense().to_onnx(tmp_path / "nowhere" / "dense.onnx")


def test_a_graph_may_grow_after_it_was_written() -> None:
    graph = dense()
    first = graph.to_onnx()
    x = graph.input("z", ("batch", 4))
    graph.output(x * 2, "more")
    assert len(graph.to_onnx().graph.output) == len(first.graph.output) + 1
    assert repr(graph) == "Graph('dense': 4 nodes, 2 outputs)"


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda g, _: g.input("x", ()), "the name 'x' is already used"),
        (lambda g, _: g.parameter("x", 1.0), "the name 'x' is already used"),
        (lambda g, _: g.input("", ()), "a name must be a string"),
        (lambda g, _: g.input(3, ()), "a name must be a string"),
        (lambda g, _: g.input("z", 3), "a shape is a list of sizes, not 3"),
        (lambda g, _: g.input("z", "batch"), "a shape is a list of sizes, not 'batch'"),
        (lambda g, _: g.input("z", (-1, 2)), "a size is an int, a name or None, not -1"),
        (lambda g, _: g.input("z", (1.5,)), "a size is an int, a name or None, not 1.5"),
        (lambda g, _: g.input("z", ("?",)), r"'\?' is not a name for a size"),
        (lambda g, _: g.input("z", (2,), "floaty"), "'floaty' is not a dtype of weft"),
        (lambda g, _: g.input("z", (2,), None), "None is not a dtype"),
        (lambda g, _: g.output(X, "y"), "an output must be a tensor"),
        (lambda g, _: g.output(weft.Graph().input("x", ()), "y"), "of another graph"),
        (lambda g, x: [g.output(x + 1, "y"), g.output(x + 2, "y")], "already has an output 'y'"),
        (lambda g, x: g.output(x + 1, "x"), "the name 'x' is already used"),
        (lambda g, _: g.to_onnx(), "graph 'g' has no output\n.*graph.output"),
        (lambda g, _: g.compile(), "graph 'g' has no output"),
        (lambda g, _: g.constant([[1], [2, 3]]), "cannot be converted to an array"),
        (lambda *_: weft.Graph(opset=99), "opset 99"),
        (lambda *_: weft.Graph(opset=0), "opset 0"),
        (lambda *_: weft.Graph(opset="new"), "opset 'new'"),
        (lambda *_: weft.Graph(name=7), "a name must be a string"),
    ],
)
def test_wrong_use(wrong: Any, message: str) -> None:
    graph = weft.Graph("g")
    x = graph.input("x", (2, 3))
    with pytest.raises(weft.GraphError, match=message) as caught:
        wrong(graph, x)
    assert str(caught.value).startswith(f"{__file__}:")
