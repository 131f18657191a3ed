"""Test that operators and methods of tensors match numpy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from builder.running import run

import weft
from weft import ops

X = np.array([[-3.5, -1.0, 0.5], [1.0, 2.0, 7.25]], np.float32)
Y = np.array([[2.0, -0.75, 0.5], [-1.0, 3.0, 2.0]], np.float32)
M = np.array([[-7, -1, 4], [5, 6, 9]], np.int64)
N = np.array([[2, -3, 4], [-2, 5, 1]], np.int64)
P = np.array([[True, False, True], [False, False, True]])
Q = np.array([[True, True, False], [False, True, True]])

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
LOGIC = (operator.and_, operator.or_, operator.xor)


def inputs(graph: weft.Graph, **arrays: np.ndarray) -> list[weft.Tensor]:
    return [graph.input(name, array.shape, array.dtype) for name, array in arrays.items()]


def check(graph: weft.Graph, expected: dict[str, Any], **arrays: np.ndarray) -> None:
    results = run(graph, arrays)
    for name, array in expected.items():
        assert results[name].shape == np.shape(array), name
        assert results[name].dtype == np.asarray(array).dtype, name
        np.testing.assert_allclose(results[name], array, rtol=1e-5, err_msg=name)


def test_two_tensors() -> None:
    graph = weft.Graph()
    x, y, m, n, p, q = inputs(graph, x=X, y=Y, m=M, n=N, p=P, q=Q)
    expected: dict[str, Any] = {}
    groups: tuple[tuple[Any, ...], ...] = (
        ((*ARITHMETIC, operator.truediv, *COMPARISONS), x, y, X, Y),
        ((*ARITHMETIC, *COMPARISONS, *LOGIC), m, n, M, N),
        (LOGIC, p, q, P, Q),
    )
    for functions, a, b, left, right in groups:
        for function in functions:
            name = f"{function.__name__}_of_{left.dtype}"
            graph.output(function(a, b), name)
            expected[name] = function(left, right)
    check(graph, expected, x=X, y=Y, m=M, n=N, p=P, q=Q)


def test_a_tensor_and_a_number_from_either_side() -> None:
    graph = weft.Graph()
    x, m = inputs(graph, x=X, m=M)
    expected: dict[str, Any] = {}
    for function in (*ARITHMETIC, operator.truediv, *COMPARISONS):
        for name, number in (("int", 2), ("float", -0.75), ("numpy", np.float32(3.0)), ("wide", np.float64(0.5))):
            graph.outputs(**{f"{function.__name__}_{name}": function(x, number)})
            graph.outputs(**{f"r{function.__name__}_{name}": function(number, x)})
            expected[f"{function.__name__}_{name}"] = function(X, np.float32(number))
            expected[f"r{function.__name__}_{name}"] = function(np.float32(number), X)
    for function in (*ARITHMETIC, *COMPARISONS, *LOGIC):
        graph.output(function(m, 3), f"{function.__name__}_of_integers")
        expected[f"{function.__name__}_of_integers"] = function(M, 3)
    check(graph, expected, x=X, m=M)


def test_powers() -> None:
    graph = weft.Graph()
    x, m = inputs(graph, x=X, m=M)
    graph.outputs(square=x**2, root=abs(x) ** 0.5, exponential=2**x, cube=m**3)
    expected = {"square": X**2, "root": np.abs(X) ** np.float32(0.5), "exponential": np.float32(2) ** X, "cube": M**3}
    check(graph, expected, x=X, m=M)


def test_sizes_as_operands() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("rows", 3))
    rows: Any = x.shape[0]
    expected: dict[str, Any] = {}
    for function in (*ARITHMETIC, operator.truediv, *COMPARISONS, operator.pow):
        graph.output(function(x, rows), f"{function.__name__}_size")
        graph.output(function(rows, x), f"size_{function.__name__}")
        expected[f"{function.__name__}_size"] = function(X, np.float32(2))
        expected[f"size_{function.__name__}"] = function(np.float32(2), X)
    graph.output(x[rows - 1, [0, 2]], "picked")
    check(graph, {**expected, "picked": X[1, [0, 2]]}, x=X)


def test_one_tensor() -> None:
    graph = weft.Graph()
    x, m, p = inputs(graph, x=X, m=M, p=P)
    graph.outputs(negative=-x, positive=+x, size=abs(x), no=~p, bits=~m, rows=sum(x))
    expected = {"negative": -X, "positive": X, "size": np.abs(X), "no": ~P, "bits": ~M, "rows": sum(X)}
    check(graph, expected, x=X, m=M, p=P)


def test_products_and_arrays_from_either_side() -> None:
    graph = weft.Graph()
    (x,) = inputs(graph, x=X)
    w = np.arange(6.0).reshape(3, 2)
    graph.outputs(right=x @ w, left=w.astype(np.float32) @ x, scaled=np.array([1.0, 2.0, 3.0]) * x)
    single = w.astype(np.float32)
    check(graph, {"right": X @ single, "left": single @ X, "scaled": np.float32([1, 2, 3]) * X}, x=X)


def test_methods() -> None:
    graph = weft.Graph()
    (x,) = inputs(graph, x=X)
    graph.outputs(
        integers=x.astype("int32"),
        flags=x.astype(bool),
        flat=x.reshape(-1),
        other=x.reshape((3, 2)),
        reversed=x.T,
        swapped=x.transpose(1, 0),
        negative=x.transpose([-1, -2]),
        squeezed=x[:1].squeeze(0),
        sum=x.sum(),
        mean=x.mean(axis=0),
        max=x.max(axis=(0, 1)),
        min=x.min(axis=-1, keepdims=True),
        prod=x.prod(axis=1),
    )
    expected = {
        "integers": X.astype(np.int32),
        "flags": X.astype(bool),
        "flat": X.reshape(-1),
        "other": X.reshape(3, 2),
        "reversed": X.T,
        "swapped": X.T,
        "negative": X.T,
        "squeezed": X[0],
        "sum": X.sum(),
        "mean": X.mean(axis=0),
        "max": X.max(),
        "min": X.min(axis=-1, keepdims=True),
        "prod": X.prod(axis=1),
    }
    check(graph, expected, x=X)


def test_integers_are_not_divided_silently() -> None:
    graph = weft.Graph()
    (m,) = inputs(graph, m=M)
    for divide in (lambda: m / 2, lambda: 2 / m):
        with pytest.raises(weft.GraphError, match="does not divide integers") as caught:
            divide()
        assert "use //" in str(caught.value)


def test_truth_and_dynamic_length_of_a_tensor_are_errors() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("rows", 3))
    with pytest.raises(weft.GraphError, match=r"weft\.ops\.if_"):
        bool(x > 0)
    with pytest.raises(weft.GraphError, match="length of 'x' is not known"):
        len(x)
    assert len(x.T) == 3
    assert [row.shape for row in x.T] == [(x.shape[0],)] * 3


def test_tensors_are_keys_by_identity() -> None:
    graph = weft.Graph()
    x, y = graph.input("x", (2,)), graph.input("y", (2,))
    assert {x: 1, y: 2}[x] == 1


def test_split_in_an_opset_with_sizes_as_an_attribute() -> None:
    graph = weft.Graph(opset=11)
    first, second = ops.split(graph.input("x", X.shape), [1, 2], axis=1)
    graph.outputs(first=first, second=second)
    check(graph, {"first": X[:, :1], "second": X[:, 1:]}, x=X)


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_older_opsets(opset: int) -> None:
    graph = weft.Graph(opset=opset)
    x = graph.input("x", ("rows", 3))
    y = (x[:, None, ::2].mean(axis=-1) % 0.7).squeeze(1) + x.shape[0] * 2
    graph.outputs(y=y, z=ops.split(x, num_outputs=3, axis=1)[1])
    expected = X[:, None, ::2].mean(axis=-1) % np.float32(0.7)
    check(graph, {"y": expected.squeeze(1) + np.float32(4), "z": X[:, 1:2]}, x=X)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.bool_])
def test_integers_are_accumulated_as_in_numpy(dtype: Any) -> None:
    """In 64 bits; a mean is a float32 that was computed in float64."""
    low, high = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.array([[high, high, 1], [low, 1, high]], dtype)
    graph = weft.Graph()
    (tensor,) = inputs(graph, x=x)
    graph.outputs(sum=tensor.sum(), rows=tensor.sum(axis=1), product=tensor.prod(axis=0, keepdims=True))
    graph.outputs(mean=tensor.mean(), column=tensor.mean(axis=0))
    results = graph.compile(device="reference", cache=False).run({"x": x})
    expected = {"sum": x.sum(), "rows": x.sum(axis=1), "product": x.prod(axis=0, keepdims=True)}
    for name, array in expected.items():
        assert results[name].dtype == array.dtype, name
        np.testing.assert_array_equal(results[name], array, err_msg=name)
    np.testing.assert_array_equal(results["mean"], np.float32(x.mean()))
    np.testing.assert_array_equal(results["column"], x.mean(axis=0).astype(np.float32))


def test_the_mean_of_large_integers_does_not_overflow() -> None:
    x = np.array([2**30, 1, -(2**30)])
    graph = weft.Graph()
    graph.output(inputs(graph, x=x)[0].mean(), "mean")
    assert run(graph, {"x": x})["mean"] == np.float32(1 / 3)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.float32, np.float64])
def test_quotients_match_python(dtype: Any) -> None:
    """Including 1.0 and 0.1, the least integer, and division of floats by 0."""
    random = np.random.default_rng(5)
    if np.dtype(dtype).kind == "f":
        a = np.concatenate([[1.0, -1.0, 1.0, 0.0, 5.0, -5.0, 6.0, -0.3], random.standard_normal(50)]).astype(dtype)
        b = np.concatenate([[0.1, 0.1, 0.0, 0.0, np.inf, np.inf, 0.1, 0.1], random.standard_normal(50)]).astype(dtype)
    else:
        info = np.iinfo(dtype)
        a = random.integers(info.min, info.max, 60, dtype, endpoint=True)
        b = random.integers(info.min, info.max, 60, dtype, endpoint=True) // dtype(5)
        a[:6] = [info.min, info.min, info.max, info.max, info.min + 1, 7]
        b[:6] = [3, info.max, info.max, 7, 2, 2]
        b[b == 0] = 1
        if info.min:
            b[(b == -1) & (a == info.min)] = 1
            b[1] = -3
    graph = weft.Graph()
    x, y = inputs(graph, a=a, b=b)
    graph.outputs(quotient=x // y, remainder=x % y)
    for device in ("reference", "cpu"):
        results = graph.compile(device=device, cache=False).run({"a": a, "b": b})
        with np.errstate(all="ignore"):
            for name, expected in (("quotient", a // b), ("remainder", a % b)):
                assert results[name].dtype == expected.dtype
                np.testing.assert_array_equal(results[name], expected, err_msg=f"{name} on {device}")


def test_numbers_out_of_range_are_refused() -> None:
    graph = weft.Graph()
    u, m, b = (graph.input(name, (2,), name) for name in ("uint64", "int64", "uint8"))
    for call in (
        lambda: u + -1,
        lambda: u * np.array([-1, 2]),
        lambda: m + np.array([2**64 - 1, 0], np.uint64),
        lambda: b + np.array([-1, 0], np.int8),
        lambda: m + 2.0**63,
        lambda: m**-1,
        lambda: m ** np.array([1, -2]),
        lambda: m / 2,
    ):
        with pytest.raises(weft.GraphError):
            call()
