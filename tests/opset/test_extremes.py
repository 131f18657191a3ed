"""Functions of numbers at the ends of their types' ranges, against numpy in float64, on every device."""

from __future__ import annotations

from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft

Array = np.ndarray[Any, Any]

DEVICES = ["cpu", "reference", "webgpu:0"]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
LAST_BITS = 16  # of the result's type, that a function may be off by
EXPONENTS = [0, -0.0, 1, -1, 2, 0.5, -0.5, 3, -2, 2.5, 10, np.inf, -np.inf, np.nan]

FUNCTIONS: dict[str, Any] = {
    "Sign": np.sign,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Erf": np.vectorize(erf, [float]),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Reciprocal": np.reciprocal,
    "Abs": np.abs,
    "Neg": np.negative,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


def edges(dtype: Any) -> Array:
    """Return numbers of a type around its limits and those of its exponential, of either sign."""
    info = ml_dtypes.finfo(dtype)
    largest, smallest, tiny, eps = map(float, (info.max, info.tiny, info.smallest_subnormal, info.eps))
    exponential, root = np.log(largest), largest**0.5
    sizes = [0.0, 0.5, 1 - eps / 2, 1, 1 + eps, 2, 3, 10, exponential * (1 - 2 * eps), exponential * (1 + 2 * eps)]
    sizes += [largest, largest / 2, root * (1 - eps), root * 1.01, smallest, smallest / 2, tiny, 7 * tiny]
    numbers = [sign * size for size in (*sizes, np.inf) for sign in (1, -1)]
    with np.errstate(over="ignore"):
        return np.array([*numbers, np.nan]).astype(dtype)


def check(actual: Array, expected: Array, arguments: tuple[Array, ...], op: str) -> None:
    """Compare with float64: results that fit the type are finite and close; subnormals may be flushed."""
    info = ml_dtypes.finfo(actual.dtype)
    with np.errstate(all="ignore"):
        nearest, numbers = expected.astype(actual.dtype).astype(np.float64), actual.astype(np.float64)
        error = np.abs(numbers - expected)
        same = (numbers == nearest) | (np.isnan(numbers) & np.isnan(nearest))
        close = error <= LAST_BITS * float(info.eps) * np.abs(expected) + float(info.tiny)
    bad = ~(same | (close & np.isfinite(numbers) & np.isfinite(nearest)))
    failures = [
        (*(float(x[place]) for x in arguments), numbers[place], expected[place]) for place in np.flatnonzero(bad)[:5]
    ]
    assert not failures, f"{op}: arguments, result and expected result: {failures}"


def element_type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def compile_model(
    nodes: list[onnx.NodeProto], inputs: list[str], constants: dict[str, Array], dtype: Any, device: str
) -> weft.Model:
    graph = helper.make_graph(
        nodes,
        "extremes",
        [helper.make_tensor_value_info(name, element_type(dtype), ["n"]) for name in inputs],
        [helper.make_tensor_value_info(node.output[0], element_type(dtype), ["n"]) for node in nodes],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return weft.load(model, device=device, cache=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_functions(dtype: Any, device: str) -> None:
    nodes = [helper.make_node(op, ["x"], [op]) for op in FUNCTIONS]
    x = edges(dtype)
    results = compile_model(nodes, ["x"], {}, dtype, device).run({"x": x})
    for op, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            check(results[op], function(x.astype(np.float64)), (x,), op)
    assert not np.signbit(results["Sign"][x == 0]).any(), "numpy and onnxruntime have +0 for both zeros"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_powers(dtype: Any, device: str) -> None:
    """Exponents of all magnitudes, as an input and as constants, which have faster code."""
    nodes = [helper.make_node("Pow", ["x", f"c{number}"], [f"y{number}"]) for number in range(len(EXPONENTS))]
    constants = {f"c{number}": np.array(exponent).astype(dtype) for number, exponent in enumerate(EXPONENTS)}
    model = compile_model([helper.make_node("Pow", ["x", "e"], ["y"]), *nodes], ["x", "e"], constants, dtype, device)
    with np.errstate(all="ignore"):
        exponents = np.array([*EXPONENTS, *edges(dtype).astype(np.float64)]).astype(dtype)
        x, e = (grid.ravel() for grid in np.meshgrid(edges(dtype), exponents))
        results = model.run({"x": x, "e": e})
        check(results["y"], np.power(x.astype(np.float64), e.astype(np.float64)), (x, e), "Pow")
        for number, exponent in enumerate(constants.values()):
            wide = np.full(x.shape, exponent, np.float64)
            check(results[f"y{number}"], np.power(x.astype(np.float64), wide), (x,), f"Pow by {exponent}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_signs_of_integers(dtype: Any, device: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, info.min, info.max, info.max // 2], dtype)
    model = compile_model([helper.make_node("Sign", ["x"], ["y"])], ["x"], {}, dtype, device)
    np.testing.assert_array_equal(model.run({"x": x})["y"], np.sign(x))
