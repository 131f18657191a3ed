"""Gradients, against central differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from opset.oracle import random_array

import weft
from weft.errors import UnsupportedModelError, WeftError

DOMAIN = "ai.onnx.preview.training"
STEP = 1e-5


def gradient_model(
    op: str, inputs: list[Any], shape: tuple[int, ...], count: int = 1, symbolic: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """weights * op(inputs), of the given shape, and its gradient by the first `count` inputs."""
    names = [f"x{number}" for number in range(len(inputs))]
    xs = names[:count]
    zs = [*(name for name, value in zip(names[count:], inputs[count:]) if value.dtype.kind == "f"), "weights"]
    gradients = [f"g{number}" for number in range(count)]
    nodes = [
        helper.make_node(op, names, ["f"], **attributes),
        helper.make_node("Mul", ["f", "weights"], ["y"]),
        helper.make_node("Gradient", [*xs, *zs], gradients, domain=DOMAIN, xs=xs, zs=zs, y="y"),
    ]

    def declare(name: str, value: Any) -> onnx.ValueInfoProto:
        named = symbolic and value.dtype.kind == "f"
        sizes = [f"{name}_{axis}" for axis in range(value.ndim)] if named else value.shape
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), sizes)

    declared = [declare(name, value) for name, value in zip(names, inputs) if name in (*xs, *zs)]
    stored = [onnx.numpy_helper.from_array(v, name) for name, v in zip(names, inputs) if name not in (*xs, *zs)]
    declared.append(helper.make_tensor_value_info("weights", onnx.TensorProto.DOUBLE, shape))
    results = [onnx.ValueInfoProto(name=name) for name in ["y", *gradients]]
    graph = helper.make_graph(nodes, op, declared, results, initializer=stored)
    imports = [helper.make_opsetid("", 26), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def by_differences(model: weft.Model, arguments: dict[str, Any], name: str) -> Any:
    """The same derivative, one element at a time."""
    result = np.zeros(arguments[name].shape)
    for place in np.ndindex(*arguments[name].shape):
        sums = []
        for sign in (1, -1):
            moved = arguments[name].copy()
            moved[place] += sign * STEP
            sums.append(model.run({**arguments, name: moved}, outputs=["y"])["y"].sum())
        result[place] = (sums[0] - sums[1]) / (2 * STEP)
    return result


def check_gradient(op: str, inputs: list[Any], shape: tuple[int, ...], count: int = 1, **attributes: Any) -> None:
    arguments = {f"x{number}": value for number, value in enumerate(inputs) if value.dtype.kind == "f"}
    arguments["weights"] = random_array(9, shape, np.float64)
    for symbolic in (False, True):
        model = weft.load(gradient_model(op, inputs, shape, count, symbolic, **attributes))
        actual = model.run(arguments)
        for number in range(count):
            expected = by_differences(model, arguments, f"x{number}")
            np.testing.assert_allclose(
                actual[f"g{number}"], expected, rtol=1e-5, atol=1e-6, err_msg=f"{op} by x{number}"
            )


def numbers(seed: int, *shape: int, low: float = 0.2, high: float = 0.9) -> Any:
    """Distinct numbers, so that no maximum is shared."""
    return random_array(seed, shape, np.float64, low=low, high=high)


FUNCTIONS = [
    "Neg", "Abs", "Sqrt", "Exp", "Log", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Tanh", "Asinh", "Atanh", "Erf", "Sigmoid", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Relu", "LeakyRelu",
    "Mish", "HardSwish", "HardSigmoid", "Identity", "Floor",
]  # fmt: skip


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions(op: str) -> None:
    check_gradient(op, [numbers(1, 2, 3)], (2, 3))
    if op not in ("Sqrt", "Log", "Floor"):
        check_gradient(op, [-numbers(1, 2, 3)], (2, 3))


def test_acosh() -> None:
    check_gradient("Acosh", [numbers(1, 4, low=1.1, high=3)], (4,))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
@pytest.mark.parametrize("shapes", [((2, 3), (3,)), ((3, 1), (2, 1, 4)), ((), (2,))], ids=str)
def test_broadcasting(op: str, shapes: Any) -> None:
    inputs = [numbers(2, *shapes[0]), numbers(3, *shapes[1])]
    check_gradient(op, inputs, np.broadcast_shapes(*shapes), 2)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (3, 2)), ((5, 1, 2, 3), (4, 3, 2))])
def test_matmul(shapes: Any) -> None:
    inputs = [numbers(4, *shapes[0]), numbers(5, *shapes[1])]
    check_gradient("MatMul", inputs, np.matmul(*inputs).shape, 2)


@pytest.mark.parametrize(
    "attributes", [{}, {"pads": [1, 0, 2, 1]}, {"strides": [2, 1], "dilations": [1, 2]}, {"group": 2}], ids=str
)
def test_convolutions(attributes: dict[str, Any]) -> None:
    x, w = numbers(6, 2, 4, 5, 6), numbers(7, 4, 4 // attributes.get("group", 1), 2, 2)
    before = attributes.get("pads", [0, 0, 0, 0])
    sizes = [size + before[axis] + before[axis + 2] for axis, size in enumerate((5, 6))]
    dilations, strides = attributes.get("dilations", [1, 1]), attributes.get("strides", [1, 1])
    spatial = [(size - d - 1) // s + 1 for size, d, s in zip(sizes, dilations, strides)]
    check_gradient("Conv", [x, w], (2, 4, *spatial), 2, **attributes)
    if not attributes:
        check_gradient("ConvTranspose", [x, w], (2, 4, 6, 7), 2)


@pytest.mark.parametrize(
    ("op", "inputs", "shape", "attributes"),
    [
        ("ReduceSum", [numbers(8, 2, 3, 4), np.array([1])], (2, 1, 4), {}),
        ("ReduceMean", [numbers(8, 2, 3, 4), np.array([0, 2])], (3,), {"keepdims": 0}),
        ("ReduceMax", [numbers(8, 2, 3, 4), np.array([1])], (2, 1, 4), {}),
        ("ReduceProd", [numbers(8, 2, 3, 4), np.array([0, 2])], (1, 3, 1), {}),
        ("ReduceProd", [np.array([[2.0, 0.0, 3.0]]), np.array([1])], (1, 1), {}),
        ("ReduceLogSumExp", [numbers(8, 2, 3), np.array([1])], (2, 1), {}),
        ("Softmax", [numbers(8, 2, 5)], (2, 5), {}),
        ("LayerNormalization", [numbers(8, 2, 5), numbers(7, 5), numbers(6, 5)], (2, 5), {}),
        ("MaxPool", [numbers(8, 1, 1, 5, 6)], (1, 1, 3, 3),
         {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ("AveragePool", [numbers(8, 1, 2, 5, 6)], (1, 2, 4, 5), {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", [numbers(8, 1, 2, 5, 6)], (1, 2, 1, 1), {}),
        ("Transpose", [numbers(8, 2, 3, 4)], (4, 2, 3), {"perm": [2, 0, 1]}),
        ("Reshape", [numbers(8, 2, 3), np.array([3, 2])], (3, 2), {}),
        ("Slice", [numbers(8, 6), np.array([4]), np.array([0]), np.array([0]), np.array([-2])], (2,), {}),
        ("Gather", [numbers(8, 3, 2), np.array([2, 0, 2])], (3, 2), {}),
        ("Expand", [numbers(8, 3, 1), np.array([2, 3, 4])], (2, 3, 4), {}),
        ("Pad", [numbers(8, 2, 3), np.array([1, 0, 0, 2])], (3, 5), {}),
        ("CumSum", [numbers(8, 2, 3), np.array(1)], (2, 3), {"exclusive": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_other_ops(op: str, inputs: list[Any], shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check_gradient(op, inputs, shape, **attributes)


def test_concat_of_both() -> None:
    check_gradient("Concat", [numbers(1, 2, 3), numbers(2, 2, 1)], (2, 4), 2, axis=1)


def test_what_does_not_matter_has_gradient_zero() -> None:
    nodes = [
        helper.make_node("Exp", ["a"], ["y"]),
        helper.make_node("Gradient", ["a", "b"], ["da", "db"], domain=DOMAIN, xs=["a", "b"], y="y"),
    ]
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in ("a", "b")]
    results = [onnx.ValueInfoProto(name=name) for name in ("da", "db")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", values, results), opset_imports=imports, ir_version=10)
    actual = weft.load(model).run({"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    assert actual["da"].tolist() == [1, 1]
    assert actual["db"].tolist() == [0, 0]


def test_mistakes() -> None:
    x = numbers(1, 3)
    model = gradient_model("Exp", [x], (3,))
    model.graph.node[2].attribute[1].strings[:] = [b"other"]
    with pytest.raises(WeftError):
        weft.load(model)
    with pytest.raises(UnsupportedModelError, match="cumulate"):
        weft.load(gradient_model("CumProd", [x, np.array(0)], (3,)))
