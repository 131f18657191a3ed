"""Test the functions of `weft.ops`: signatures, conversion of arguments, and errors that name a line."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime_state
import pytest
from builder.running import run, with_onnxruntime

import weft
from weft import ops
from weft.builder.naming import function_names, module_name, python_name
from weft.builder.signatures import newest_definition
from weft.frontend.schemas import newest_opsets
from weft.ir.dtypes import DType
from weft.opset import registry

X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -8.0]], np.float32)

MORE_OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2, "DynamicQuantizeLSTM": 3}
"""The number of outputs of a call, for ops whose schema has more optional outputs in newer versions of onnxruntime."""


def definitions() -> list[registry.Definition]:
    """Return the definitions that a new graph uses."""
    ops = {(each.domain, each.name) for each in registry.definitions()}
    return [newest_definition(*op) for op in sorted(ops)]


# -- names and signatures---------------------------------------------------------------------------------------------


def test_every_op_has_a_function() -> None:
    for definition in definitions():
        space = getattr(ops, module_name(definition.domain)) if definition.domain else ops
        name = python_name(definition.name)
        assert name.isidentifier()
        assert name in dir(space)
        assert getattr(space, name).__name__ == name
        assert getattr(space, name) is getattr(space, name)
    for domain in {definition.domain for definition in definitions()}:
        assert len(function_names(domain)) == sum(each.domain == domain for each in definitions())


@pytest.mark.parametrize(
    ("op", "name"),
    [("If", "if_"), ("MatMul", "mat_mul"), ("ReduceL1", "reduce_l1"), ("GatherND", "gather_nd"), ("LSTM", "lstm"),
     ("IsNaN", "is_nan"), ("QLinearConv", "q_linear_conv"), ("Col2Im", "col2im"), ("TopK", "top_k"), ("MoE", "moe"),
     ("DynamicQuantizeLSTM", "dynamic_quantize_lstm"), ("MatMulNBits", "mat_mul_n_bits"), ("PRelu", "prelu")],
)  # fmt: skip
def test_names_follow_one_rule(op: str, name: str) -> None:
    assert python_name(op) == name


def test_importing_weft_imports_ops_lazily() -> None:
    code = """
import sys, weft
assert not [name for name in sys.modules if name.startswith(("weft.builder", "weft.ops", "weft.opset", "numpy"))]
assert weft.ops.conv.__name__ == "conv"
assert weft.ops.microsoft.fused_mat_mul.__name__ == "fused_mat_mul"
from weft.ops.ml import tree_ensemble
from weft.ops import relu, if_
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(weft.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_signatures_are_those_of_the_definitions() -> None:
    signature = inspect.signature(ops.conv)
    assert list(signature.parameters)[:3] == ["x", "w", "b"]
    assert signature.parameters["group"].default == 1
    assert signature.parameters["strides"].kind is inspect.Parameter.KEYWORD_ONLY
    assert signature.parameters["name"].default is None
    assert inspect.signature(ops.layer_normalization).parameters["outputs"].default == 1
    assert "Conv" in (ops.conv.__doc__ or "")
    with pytest.raises(AttributeError, match="no op 'convolve'"):
        ops.convolve  # type: ignore[attr-defined]  # noqa: B018


def test_numbers_of_outputs_are_those_of_the_schemas() -> None:
    microsoft_schemas = {
        (each.domain, each.name): each
        for each in onnxruntime_state.get_all_operator_schema()
        if each.domain == "com.microsoft"
    }
    versions = newest_opsets()
    compared = 0
    for definition in definitions():
        key = (definition.domain, definition.name)
        version = versions.get(definition.domain, 1)
        if onnx.defs.has(definition.name, version, definition.domain):
            schema: Any = onnx.defs.get_schema(definition.name, version, definition.domain)
        elif key in microsoft_schemas:
            schema = microsoft_schemas[key]
        else:
            continue
        if definition.outputs is None:
            assert schema.max_output > 100, definition.qualified_name
        else:
            least, most = definition.outputs
            assert least == MORE_OUTPUTS.get(definition.name, schema.min_output), definition.qualified_name
            assert most == schema.max_output, definition.qualified_name
        compared += 1
    assert compared > 250


# -- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bfloat16"])
def test_constants_take_the_dtype_of_the_other_operand(dtype: str) -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3), dtype)
    for other in (2, [1, 2, 3], np.array([1, 2, 3]), np.float64(2), np.ones((2, 3))):
        assert (x + other).dtype == dtype
        assert ops.where(x > other, x, other).dtype == dtype
    assert ops.clip(x, 0, 6).dtype == dtype
    assert ops.clip(x, max=6).dtype == dtype
    assert ops.max(x, 1, 2).dtype == dtype


def test_numbers_are_not_rounded_before_conversion_to_a_wider_type() -> None:
    graph = weft.Graph()
    x = graph.input("x", (1,), "float64")
    graph.outputs(sum=x + 0.1, power=x**0.1, where=ops.where(x > 1e300, x, 0.1), scaled=x * [0.1])
    results = run(graph, {"x": np.array([1.5])})
    assert results["sum"] == 1.5 + 0.1
    assert results["where"] == 0.1
    assert results["scaled"] == 1.5 * 0.1
    np.testing.assert_allclose(results["power"], 1.5**0.1, rtol=1e-14)


def test_dtypes_of_constants_without_a_tensor_of_the_same_type() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    assert ops.where(x > 0, 1, 2).dtype == "int64"
    assert ops.where(x > 0, 1, 0.5).dtype == "float32"
    assert ops.where(x > 0, np.float64(1), 0.5).dtype == "float64"
    assert ops.one_hot(x.astype("int64"), 5, [0.0, 1.0]).dtype == "float32"
    assert ops.gather(x, [0, 1], axis=1).shape == (2, 2)
    assert ops.dropout(x, 0.5, False).dtype == "float32"
    assert ops.microsoft.fused_mat_mul(x, np.ones((3, 4))).dtype == "float32"


@pytest.mark.parametrize(
    ("dtype", "other", "message"),
    [
        ("int64", 0.5, "must be int64, which cannot represent 0.5"),
        ("uint8", 300, "must be uint8, which cannot represent 300"),
        ("uint8", -1, "must be uint8, which cannot represent -1"),
        ("float16", 1e9, "must be float16, which cannot represent 1000000000.0"),
        ("float32", 1e300, "must be float32, which cannot represent 1e\\+300"),
        ("float32", 2**70, "neither a number nor a string"),
        ("float32", "text", "must be float32, not string"),
        ("float32", True, "must be float32, not bool"),
        ("float32", [[1, 2], [3]], "cannot be converted to an array"),
        ("float32", object(), "neither a number nor a string"),
        ("float32", np.array("2020-01-01", "datetime64[D]"), "has no ONNX counterpart"),
    ],
)
def test_constants_that_do_not_fit(dtype: str, other: Any, message: str) -> None:
    x = weft.Graph().input("x", (2, 3), dtype)
    with pytest.raises(weft.ModelError, match=message):
        x + other


def test_forms_of_attributes() -> None:
    graph = weft.Graph()
    x = graph.input("x", (1, 1, 8, 8))
    w = np.ones((1, 1, 3, 3), np.float32)
    y = ops.conv(x, w, strides=np.array([2, 2]), pads=[np.int32(1)] * 4, group=np.int64(1))
    assert y.shape == (1, 1, 4, 4)
    assert ops.reduce_sum(x, [2, 3], keepdims=False).shape == (1, 1)
    assert ops.leaky_relu(x, alpha=1).dtype == "float32"
    for dtype in ("float16", np.float16, np.dtype("float16"), DType.float16, 10):
        assert ops.cast(x, to=dtype).dtype == "float16"
        assert ops.eye_like(x[0, 0], dtype=dtype).dtype == "float16"
    assert x.astype(str).dtype == "string"


def test_constants_may_be_infinite_or_nan() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2,), "float16")
    graph.output(ops.where(x > 0, -np.inf, np.nan), "y")
    assert str(run(graph, {"x": np.array([1, -1], np.float16)})["y"].tolist()) == "[-inf, nan]"


def test_gradients_name_values() -> None:
    graph = weft.Graph(opset={"": 12, "ai.onnx.preview.training": 1})
    x, w = graph.input("x", (3,)), graph.input("w", (3,))
    loss = ops.reduce_sum(x * x * w, keepdims=0, name="loss")
    graph.outputs(*ops.preview_training.gradient(x, w, xs=["x", "w"], y=loss.name))
    results = list(graph.compile(device="reference").run({"x": X[0], "w": X[1]}).values())
    np.testing.assert_allclose(results, [2 * X[0] * X[1], X[0] ** 2], rtol=1e-6)


def test_a_list_of_tensors_is_several_inputs() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    assert ops.concat([x, x, X], axis=0).shape == ops.concat(x, x, X, axis=0).shape == (6, 3)


def test_optional_outputs() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    y, mean, deviation = ops.layer_normalization(x, np.ones(3), outputs=3)
    values, indices = ops.top_k(x, [2])
    graph.outputs(y=y, mean=mean, deviation=deviation, values=values, indices=indices)
    results = run(graph, {"x": X})
    np.testing.assert_allclose(results["mean"][:, 0], X.mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(results["indices"], [[2, 0], [0, 1]])


def test_ops_of_other_domains() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("n", 3))
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, _, _, total = ops.microsoft.skip_layer_normalization(x[None], x[None], np.ones(3), outputs=4)
    graph.outputs(
        product=ops.microsoft.fused_mat_mul(x, w, transB=1, alpha=0.5),
        gelu=ops.microsoft.bias_gelu(x, [0.5, 0.0, -0.5]),
        normal=y,
        total=total,
        scaled=ops.ml.scaler(x, offset=[1, 2, 3], scale=[2.0] * 3),
        labels=ops.ml.label_encoder(x.astype("int64"), keys_int64s=[1, 0], values_strings=["one", "none"]),
    )
    inputs = {"x": X}
    expected = with_onnxruntime(graph.to_onnx(), inputs)
    results = graph.compile(device="reference").run(inputs)
    for name, array in expected.items():
        if array.dtype == object:
            assert results[name].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(results[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(expected["product"], 0.5 * X @ w.T, rtol=1e-6)
    np.testing.assert_allclose(expected["total"][0], 2 * X, rtol=1e-6)


def test_arithmetic_on_sizes() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("batch", "time", 6))
    batch, time, width = x.shape
    assert isinstance(width, int)
    graph.outputs(
        heads=x.reshape(batch, time, 2, width // 2).transpose(0, 2, 1, 3),
        merged=x.reshape(batch * time, -1),
        halves=x[:, : time // 2].mean(axis=1) * time,
        padded=ops.pad(x, [0, 0, 0, 0, time % 3, 0]),
        ranged=ops.range(graph.constant(0), batch + time, 1),
        spread=ops.expand(graph.constant(1.0), (batch, time)),
        both=graph.constant(0.0) + batch,
    )
    data = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    results = run(graph, {"x": data}, ("reference", "cpu"))
    np.testing.assert_array_equal(results["heads"], data.reshape(2, 5, 2, 3).transpose(0, 2, 1, 3))
    np.testing.assert_allclose(results["halves"], data[:, :2].mean(axis=1) * 5, rtol=1e-5)
    assert results["padded"].shape == (2, 7, 6)
    np.testing.assert_array_equal(results["ranged"], np.arange(7))
    assert results["both"] == 2


def test_tensors_among_sizes() -> None:
    graph = weft.Graph()
    x, n = graph.input("x", ("rows", 6)), graph.input("n", (), "int32")
    y = x.reshape([n, -1, 3])
    assert y.ndim == 3
    graph.output(y, "y")
    assert run(graph, {"x": np.ones((4, 6), np.float32), "n": np.array(2, np.int32)})["y"].shape == (2, 4, 3)


def test_ops_that_are_traced_at_run_time() -> None:
    """The rank depends on data: only the dtype is known."""
    graph = weft.Graph()
    x, shape = graph.input("x", ("n",)), graph.input("shape", ("rank",), "int64")
    y = ops.reshape(x, shape)
    assert y.dtype == "float32"
    with pytest.raises(weft.GraphError, match="known only at run time"):
        _ = y.shape
    z = (y * 2 + 1) / 4
    assert z.dtype == "float32"
    assert (z > 0).dtype == "bool"
    assert z.astype("int32").dtype == "int32"
    graph.output(z.reshape(-1), "z")
    graph.output(z, "open", shape=(None, None))
    results = run(graph, {"x": X.reshape(-1), "shape": np.array([3, 2])})
    np.testing.assert_array_equal(results["z"], (X.reshape(-1) * 2 + 1) / 4)
    assert results["open"].shape == (3, 2)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_names_op_shapes_and_line_where_its_traceback_ends() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("batch", 4))
    with pytest.raises(weft.InvalidModelError) as caught:
        x @ np.zeros((5, 6))
    frames = traceback.extract_tb(caught.value.__traceback__)
    place = f"{__file__}:{frames[0].lineno}"
    assert str(caught.value).startswith(f"{place}: MatMul(a: float32[batch, 4], b: float32[5, 6]): ")
    assert len(frames) <= 3
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: ops.conv(x, X, stride=(2, 2)), r"conv: got an unexpected keyword argument 'stride'\n.*strides=None"),
        (lambda x: ops.conv(x), "missing a required argument: 'w'"),
        (lambda x: ops.conv(x, None), "Conv needs its input 'w'"),
        (lambda x: ops.relu(x, x), "too many positional arguments"),
        (lambda x: ops.loop(x, 3), r"loop: missing a required argument: 'states'\n.*loop\(trip_count, condition"),
        (lambda x: ops.split(x, outputs=3), r"split: got an unexpected keyword argument 'outputs'\n.*num_outputs=None"),
        (lambda x: ops.concat(x, x), "concat: missing a required argument: 'axis'"),
        (lambda x: ops.concat(x, x, axis="first"), "attribute 'axis' must be int, not 'first'"),
        (lambda x: ops.transpose(x, perm=[0.5]), r"attribute 'perm' must be tuple\[int, ...\], but it has 0.5"),
        (lambda x: ops.transpose(x, perm=1), "attribute 'perm' must be"),
        (lambda x: ops.softmax(x, axis=7), "axis 7 is out of range for rank 2"),
        (lambda x: ops.cast(x, to="float12"), "'float12' is not a dtype of weft\n.*float32"),
        (lambda _: ops.relu(3.0), "which graph this node belongs to"),
        (lambda _: ops.random_normal(shape=(2,)), "with graph:"),
        (lambda x: ops.relu(weft.Graph().input("x", ())) + x, "of another graph"),
        (lambda x: ops.bitwise_and(x, 1), "input 'a' of BitwiseAnd cannot be float32\n.*to int16, int32"),
        (lambda x: ops.if_(x.sum(), lambda: x, lambda: x), "input 'condition' of If cannot be float32\n.*to bool"),
        (lambda x: ops.add(x, x.astype("int64")), "float32 and input 'b' of Add int64, but both must have.*\n.*astype"),
        (lambda x: ops.microsoft.bias_gelu(x, x[0].astype("float64")), "it does not accept these types"),
        (lambda x: ops.add(x, [x.sum(), 1.0]), "but a list with sizes or tensors must hold integers\n.*concat"),
        (lambda x: x.reshape([x.astype("int64").max(), 0.5]), "must hold integers, not 0.5"),
        (lambda x: ops.relu([[x, 1.0], [2.0, 3.0]]), "which graph this node|has no elements before a run"),
        (lambda x: np.asarray(x), "has no elements before a run"),
        (lambda x: np.tanh(np.array([x])), "has no elements before a run"),
        (lambda x: ops.split(x), "pass either `split`, the sizes of the parts"),
        (lambda x: ops.layer_normalization(x, X[0], outputs=4), "has 1 to 3 outputs, not 4"),
        (lambda x: ops.layer_normalization(x, X[0], outputs=0), "has 1 to 3 outputs, not 0"),
        (lambda x: ops.layer_normalization(x, X[0], outputs="all"), "has 1 to 3 outputs, not 'all'"),
        (lambda x: ops.relu(x, name=""), "a name must be a string that is not empty"),
        (lambda x: ops.relu(x, name="x"), "the name 'x' is already used"),
        (lambda x: ops.swiglu(x, x), r"SwiGLU does not exist in opset 23.*\n.*weft.Graph\(opset=28\)"),
        (lambda x: ops.upsample(x, [1.0, 2.0]), r"was removed from ai.onnx.*\n.*weft.Graph\(opset=9\)"),
        (lambda x: ops.ml.tree_ensemble_regressor(x), r"weft.Graph\(opset=\{'ai.onnx.ml': 4\}\)"),
    ],
)  # fmt: skip
def test_wrong_calls(wrong: Any, message: str) -> None:
    x = weft.Graph().input("x", (2, 3))
    with pytest.raises(weft.ModelError, match=message) as caught:
        wrong(x)
    assert str(caught.value).startswith(f"{__file__}:")


def test_a_failed_call_leaves_the_graph_unchanged() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    rows = graph.input("rows", ("n", 7)).shape[0]
    for wrong in (np.ones((7, 7)), [rows, rows * 2, 3, 4, 5]):
        with pytest.raises(weft.InvalidModelError):
            ops.add(x.astype("int64"), wrong, name="total")
    graph.output(ops.add(x, 1, name="total"))
    written = graph.to_onnx()
    assert [node.op_type for node in written.graph.node] == ["Cast", "Cast", "Add"]
    assert len(written.graph.initializer) == 1


# -- user-defined ops ------------------------------------------------------------------------------------------------


def test_user_defined_ops() -> None:
    @registry.op("Halve", domain="com.acme.tests")
    def halve(x: registry.Tensor, *, times: int = 1) -> registry.Tensor:
        """Divide by two several times."""
        return x * 0.5**times

    try:
        graph = weft.Graph()
        x = graph.input("x", ("n", 3))
        acme = ops.domain("com.acme.tests")
        y = acme.halve(x, times=2)
        assert y.shape == x.shape
        assert "several times" in (acme.halve.__doc__ or "")
        graph.output(y, "y")
        assert {entry.domain: entry.version for entry in graph.to_onnx().opset_import}["com.acme.tests"] == 1
        np.testing.assert_array_equal(graph.compile(device="reference").run({"x": X})["y"], X / 4)
    finally:
        del registry._registrations["com.acme.tests", "Halve"]
