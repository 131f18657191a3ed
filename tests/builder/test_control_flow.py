"""Control flow with Python functions as bodies: branches, loops and scans, nested, with captured tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder.running import run

import weft
from weft import Tensor, ops

X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -8.0]], np.float32)


def test_a_branch_may_change_the_shape() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("rows", 3))
    y = ops.if_(x.sum() > 0, lambda: x * 2, lambda: ops.concat(x, x, axis=0), name="choice")
    assert y.dtype == "float32"
    assert y.shape[1] == 3
    graph.output(y, "y")
    np.testing.assert_array_equal(run(graph, {"x": np.abs(X)})["y"], np.abs(X) * 2)
    np.testing.assert_array_equal(run(graph, {"x": -np.abs(X)})["y"], np.concatenate([-np.abs(X)] * 2))


def test_branches_may_return_several_values_of_the_enclosing_graph() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    first, second, third = ops.if_(x[0, 0] > 0, lambda: (x, x, 1.5), lambda: [x + 1, x - 1, x.mean()])
    graph.outputs(first=first, second=second, third=third)
    results = run(graph, {"x": X})
    np.testing.assert_array_equal(results["second"], X)
    assert results["third"] == 1.5
    assert run(graph, {"x": -X})["third"] == (-X).mean(dtype=np.float32)


def test_a_constant_condition_keeps_both_branches() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    y = ops.if_(graph.constant(True), lambda: x + 1, lambda: x.sum())
    assert y.shape == (2, 3)
    graph.output(y, "y")
    np.testing.assert_array_equal(run(graph, {"x": X})["y"], X + 1)


def test_a_loop_ends_by_a_condition_on_data() -> None:
    graph = weft.Graph()
    number = graph.input("number", (), "int64")

    def step(_: Tensor, value: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        following = ops.where(value % 2 == 0, value // 2, 3 * value + 1)
        return following != 1, following, count + 1, following

    last, count, path = ops.loop(None, number != 1, [number, 0], step)
    assert (last.shape, count.dtype, path.ndim) == ((), "int64", 1)
    graph.outputs(count=count, path=path)
    for start, expected in ((27, 111), (6, 8), (1, 0)):
        results = run(graph, {"number": np.array(start)}, ("reference", "cpu"))
        assert results["count"] == expected == len(results["path"])


def test_the_state_of_a_loop_may_grow_and_its_body_is_traced_again() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("rows", 3))
    calls: list[Any] = []

    def step(number: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(rows.shape)
        w = graph.parameter("w", np.eye(3, dtype=np.float32) * 2)
        wider = ops.concat(rows, ops.mat_mul(x, w, name="product"), axis=0)
        return number < 2, wider.reshape(wider.shape[0], 3), rows.sum()

    rows, sums = ops.loop(10, None, [x], step)
    assert len(calls) == 2
    assert calls[0] == x.shape != calls[1]
    graph.outputs(rows=rows, sums=sums)
    results = run(graph, {"x": X}, ("reference", "cpu"))
    np.testing.assert_array_equal(results["rows"], np.concatenate([X, 2 * X, 2 * X, 2 * X]))
    names = [initializer.name for initializer in graph.to_onnx().graph.initializer]
    assert names.count("w") == 1


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_counted_loop(trips: int) -> None:
    graph = weft.Graph()
    x, count = graph.input("x", ("n", 3)), graph.input("count", (), "int64")
    total, rows = ops.loop(count, None, [x], lambda i, s: (None, s + i.astype("float32"), s[0]))
    graph.outputs(total=total, rows=rows)
    results = run(graph, {"x": X, "count": np.array(trips)})
    np.testing.assert_array_equal(results["total"], X + sum(range(trips)))
    assert results["rows"].shape == (trips, 3)


def test_a_scan_along_other_axes_and_backwards() -> None:
    graph = weft.Graph()
    x, y = graph.input("x", ("n", "t")), graph.input("y", ("t", "n"))

    def cell(state: Tensor, column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.5 * state + column * row
        return state, state

    start = ops.expand(graph.constant(0.0), (x.shape[0],))
    last, states = ops.scan([start], [x, y], cell, axes=[1, 0], reverse=[False, True])
    assert states.shape == (x.shape[1], x.shape[0])
    graph.outputs(last=last, states=states)
    other = np.arange(6, dtype=np.float32).reshape(3, 2)
    results = run(graph, {"x": X, "y": other}, ("reference", "cpu"))
    state = np.zeros(2, np.float32)
    for column, row in zip(X.T, other[::-1]):
        state = np.float32(0.5) * state + column * row
    np.testing.assert_allclose(results["last"], state, rtol=1e-6)


def test_nested_bodies_use_tensors_of_all_enclosing_graphs() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    scale = graph.parameter("scale", np.float32(2))

    def outer(i: Tensor, total: Tensor) -> tuple[Any, ...]:
        shifted = total + i.astype("float32")

        def inner(_: Tensor, value: Tensor) -> tuple[Any, ...]:
            return None, ops.if_((value * scale).sum() > shifted.sum(), lambda: value - x, lambda: value + x * scale)

        (result,) = ops.loop(2, None, [shifted], inner)
        return None, result

    (total,) = ops.loop(3, None, [x], outer)
    graph.output(total, "total")
    expected = X
    for i in range(3):
        shifted = expected + np.float32(i)
        value = shifted
        for _ in range(2):
            value = value - X if (value * 2).sum() > shifted.sum() else value + X * 2
        expected = value
    np.testing.assert_allclose(run(graph, {"x": X}, ("reference", "cpu"))["total"], expected, rtol=1e-5)


def test_a_body_for_each_element_of_a_sequence() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("n", 3))
    parts = ops.split_to_sequence(x, keepdims=0)
    (doubled,) = ops.sequence_map(parts, x, body=lambda row, whole: row * 2 + whole.sum())
    graph.output(ops.concat_from_sequence(doubled, axis=0, new_axis=1), "y")
    np.testing.assert_allclose(run(graph, {"x": X})["y"], X * 2 + X.sum(), rtol=1e-6)


def test_functions_without_tensors_are_added_to_the_body() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    y = ops.if_(x.sum() > 0, lambda: ops.random_uniform(shape=(2, 3), seed=1.0), lambda: x)
    graph.output(y, "y")
    written = graph.to_onnx()
    assert [node.op_type for node in written.graph.node] == ["ReduceSum", "Greater", "If"]


def test_a_function_as_an_attribute_is_traced_when_its_op_calls_it() -> None:
    graph = weft.Graph(opset={"ai.onnx.preview": 1})
    q = graph.input("q", (1, 2, 4, 8))
    y = ops.preview.flex_attention(q, q, q, score_mod=lambda scores, *_: scores * 0.5)
    assert y.shape == (1, 2, 4, 8)
    graph.output(y, "y")
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 8)).astype(np.float32)
    exact = x.astype(np.float64)
    scores = exact @ exact.swapaxes(-1, -2) / np.sqrt(8) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ exact
    np.testing.assert_allclose(graph.compile(device="reference").run({"q": x})["y"], expected, rtol=1e-5)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_in_a_body_names_its_line() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))

    def step(_: Tensor, state: Tensor) -> tuple[Any, ...]:
        return None, state @ x  # the line that is wrong

    with pytest.raises(weft.InvalidModelError) as caught:
        ops.loop(3, None, [x], step)
    line = step.__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"{__file__}:{line}: MatMul(a: float32[2, 3], b: float32[2, 3])")


def test_an_exception_of_the_body_passes_through_and_leaves_the_graph_unchanged() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))

    def step(_: Tensor, state: Tensor) -> tuple[Any, ...]:
        graph.parameter("w", np.ones(3))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ops.loop(3, None, [x], step)
    graph.output(x + graph.parameter("w", np.ones(3, np.float32)), "y")
    np.testing.assert_array_equal(run(graph, {"x": X})["y"], X + 1)


def test_a_branch_that_fails_undoes_the_other() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))

    def first() -> Tensor:
        return ops.add(x, graph.parameter("w", np.ones(3, np.float32)), name="sum")

    with pytest.raises(weft.GraphError, match="cast one of them"):
        ops.if_(x.sum() > 0, first, lambda: x.astype("int64"))
    graph.output(ops.if_(x.sum() > 0, first, lambda: x * x.shape[0]), "y")
    np.testing.assert_array_equal(run(graph, {"x": X})["y"], X * 2)


def test_a_tensor_of_a_body_cannot_be_used_outside() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    leaked: list[Tensor] = []

    def step(_: Tensor, state: Tensor) -> tuple[Any, ...]:
        leaked.append(state * 2)
        return None, leaked[0]

    ops.loop(3, None, [x], step)
    with pytest.raises(weft.GraphError, match="return it from the body"):
        leaked[0] + 1
    with pytest.raises(weft.GraphError, match="return it from the body"):
        graph.output(leaked[0], "y")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda _: (None,), "returns 1 values; with 1 states it must return at least 2"),
        (lambda s: s, "returns 1 values"),
        (lambda s: (None, s.astype("int64")), r"state 0 changes from float32\[2, 3\] to int64\[2, 3\]"),
        (lambda s: (s.sum(), s), "the condition must be a bool"),
        (lambda s: (None, s, None), "returns None"),
        (lambda s: (None, s, object()), "neither a number nor a string"),
    ],
)
def test_bodies_of_loops_with_wrong_results(returned: Any, message: str) -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    with pytest.raises(weft.ModelError, match=message):
        ops.loop(3, None, [x], lambda _, s: returned(s))


def test_other_wrong_bodies() -> None:
    graph = weft.Graph()
    x = graph.input("x", (2, 3))
    with pytest.raises(weft.GraphError, match="`then` returns 1 tensors, `otherwise` 2"):
        ops.if_(x.sum() > 0, lambda: [x], lambda: [x, x])
    with pytest.raises(weft.GraphError, match=r"result 0 is float32\[2, 3\] in one branch and int64\[2, 3\]"):
        ops.if_(x.sum() > 0, lambda: x, lambda: x.astype("int64"))
    with pytest.raises(weft.GraphError, match="then must be a function"):
        ops.if_(x.sum() > 0, x, lambda: x)  # type: ignore[call-overload]
    with pytest.raises(weft.GraphError, match="is None"):
        ops.loop(3, None, [x, None], lambda _, *s: (None, *s))  # type: ignore[list-item]
    with pytest.raises(weft.GraphError, match="which graph"):
        ops.if_(True, lambda: x, lambda: x)
    with pytest.raises(weft.GraphError, match="for 1 states"):
        ops.scan([x], [x], lambda *_: ())
    with pytest.raises(weft.GraphError, match="axes has 2 entries for 1 sequences"):
        ops.scan([], [x], lambda row: row, axes=[0, 1])
    with pytest.raises(weft.GraphError, match="axis 5 is out of range"):
        ops.scan([], [x], lambda row: row, axes=[5])
    with pytest.raises(weft.GraphError, match="added inside of a body"):
        ops.if_(x.sum() > 0, lambda: graph.input("z", (2, 3)), lambda: x)
    with pytest.raises(weft.GraphError, match="inside of a body"):
        ops.scan([], [x], lambda row: graph.output(row))  # type: ignore[func-returns-value]


def test_bodies_with_wrong_parameters() -> None:
    graph = weft.Graph()
    x = graph.input("x", (), "float32")
    with pytest.raises(weft.GraphError, match="body does not accept its arguments: missing"):
        weft.ops.loop(3, None, [x], lambda turn, condition, state: (condition, state))  # noqa: ARG005
    with pytest.raises(weft.GraphError, match="then does not accept its arguments"):
        weft.ops.if_(x > 0, lambda a: a, lambda: x)  # type: ignore[arg-type, misc]
