"""Rewrites that would lose range, precision, a dimension or a limit are not made: numpy in float64 is the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import helper
from optimization.judging import CLOSE, judged, ops

import weft
from weft.optimization.optimize import optimize

Array = np.ndarray[Any, Any]
SEED = 24
HALF, SINGLE, DOUBLE = np.float16, np.float32, np.float64
ROUNDING = 1.5 * 2.0**23  # adding and subtracting it rounds float32 to whole numbers


def normal(*shape: int, dtype: Any = SINGLE) -> Array:
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


def build(nodes: list[onnx.NodeProto], x: Array, opset: int = 17, **constants: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    initializers = [tensor(name, np.asarray(array)) for name, array in constants.items()]
    return model(nodes, [value("x", x.shape, kind)], [value("y", None, kind)], initializers, opsets={"": opset})


def run(proto: onnx.ModelProto, x: Array) -> Array:
    result: Array = weft.load(proto, device="reference").run({"x": x})["y"]
    return result


def chain(*steps: tuple[str, float], dtype: Any = SINGLE) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """x, then each op with its constant as the second input."""
    names = ["x", *(f"v{number}" for number in range(len(steps) - 1)), "y"]
    nodes = [node(op, [names[at], f"c{at}"], [names[at + 1]]) for at, (op, _) in enumerate(steps)]
    return nodes, {f"c{at}": np.array(number, dtype) for at, (_, number) in enumerate(steps)}


@pytest.mark.parametrize(
    ("dtype", "steps", "data", "expected"),
    [
        (HALF, [("Mul", 1e-4), ("Mul", 1e-4)], 6e4, HALF(1e-4) * DOUBLE(HALF(1e-4)) * 6e4),
        (HALF, [("Mul", 300), ("Mul", 300)], 1e-4, 9.0),
        (SINGLE, [("Mul", 1e-30), ("Mul", 1e-30)], 1e38, 1e-22),
        (DOUBLE, [("Mul", 1e-200), ("Mul", 1e-200)], 1e300, 1e-100),
        (SINGLE, [("Add", 1e30), ("Add", -1e30)], 1.0, 0.0),
        (SINGLE, [("Add", 1e30), ("Sub", 1e30)], 1.0, 0.0),
        (SINGLE, [("Add", ROUNDING), ("Add", -ROUNDING)], 1.3, 1.0),
        (SINGLE, [("Sub", -ROUNDING), ("Sub", ROUNDING)], 1.3, 1.0),
    ],
)
def test_constants_of_chains_keep_their_range(dtype: Any, steps: Any, data: float, expected: float) -> None:
    nodes, constants = chain(*steps, dtype=dtype)
    x = np.full(3, data, dtype)
    report = optimize(build(nodes, x, **constants))
    np.testing.assert_allclose(run(report.model, x).astype(DOUBLE), expected, rtol=2e-3 if dtype is HALF else 1e-6)


def test_factors_that_fit_are_put_together() -> None:
    nodes, constants = chain(("Mul", 0.5), ("Mul", 3.0))
    report = judged(build(nodes, normal(4), **constants), {"x": normal(4)}, tolerance=CLOSE)
    assert ops(report) == {"Mul": 1}


LAYERS: dict[str, Callable[[Array, Array], Array]] = {
    "Conv": lambda x, w: np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]),
    "ConvTranspose": lambda x, w: np.einsum("nchw,ck->nkhw", x, w[:, :, 0, 0]),
    "MatMul": lambda x, w: np.einsum("nchw,wk->nchk", x, w),
}


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("place", ["before", "after", "moved"])
@pytest.mark.parametrize(("dtype", "scale", "data"), [(HALF, 1e-3, 2e2), (SINGLE, 3e-38, 1e3), (DOUBLE, 3e-308, 1e3)])
def test_weights_keep_their_range(op: str, place: str, dtype: Any, scale: float, data: float) -> None:
    """Weights near the smallest normal number of their type do not take a division by 255."""
    x = (normal(1, 4, 4, 4) * data).astype(dtype)
    weights = (normal(4, 4, dtype=DOUBLE) * scale).astype(dtype)
    kernel = weights if op == "MatMul" else weights[:, :, None, None]
    nodes = {
        "before": [node("Div", ["x", "c"], ["d"]), node(op, ["d", "w"], ["y"])],
        "after": [node(op, ["x", "w"], ["d"]), node("Div", ["d", "c"], ["y"])],
        "moved": [
            node(op, ["x", "w"], ["d"]),
            node("Transpose", ["d"], ["t"], perm=[0, 2, 1, 3]),
            node("Div", ["t", "c"], ["y"]),
        ],
    }[place]
    report = optimize(build(nodes, x, w=kernel, c=np.array(255, dtype)))
    expected = LAYERS[op](x.astype(DOUBLE), kernel.astype(DOUBLE)) / 255
    expected = expected.swapaxes(1, 2) if place == "moved" else expected
    found = run(report.model, x).astype(DOUBLE)
    unit = float(np.finfo(dtype).eps)
    smallest = float(np.finfo(dtype).smallest_subnormal)
    largest = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * unit * largest + smallest)


def test_factors_do_not_underflow_while_they_are_put_together() -> None:
    """In float64 itself: the compiler multiplies all factors behind a convolution."""
    x = np.full((1, 1, 2, 2), 1e200)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"], ["m"]), node("Mul", ["m", "k"], ["y"])]
    proto = build(nodes, x, w=np.ones((1, 1, 1, 1)), k=np.array([1e-200]))
    np.testing.assert_allclose(run(proto, x), 1e-200, rtol=1e-12)


def test_tiny_weights_beside_others_are_scaled() -> None:
    weights = normal(4, 4).astype(SINGLE)
    weights[0] = 1e-38
    nodes = [node("Div", ["x", "c"], ["d"]), node("MatMul", ["d", "w"], ["y"])]
    report = judged(build(nodes, normal(3, 4), w=weights, c=SINGLE(255)), {"x": normal(3, 4)}, tolerance=CLOSE)
    assert ops(report) == {"MatMul": 1}


@pytest.mark.parametrize("tail", ["Sub", "Mul"])
@pytest.mark.parametrize("flat", [False, True])
def test_sums_that_round_are_left_alone(tail: str, flat: bool) -> None:
    """`(x @ w + c) - c` rounds to whole numbers where c is large."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "c"], ["a"])]
    nodes += [node("Flatten", ["a"], ["f"])] if flat else []
    nodes += [node("Sub", ["f" if flat else "a", "c"], ["s" if tail == "Mul" else "y"])]
    nodes += [node("Mul", ["s", "half"], ["y"])] if tail == "Mul" else []
    x = normal(3, 4) * 4
    proto = build(nodes, x, w=normal(4, 4), c=SINGLE(ROUNDING), half=SINGLE(0.5))
    expected = np.round(x.astype(DOUBLE) @ normal(4, 4).astype(DOUBLE)) * (0.5 if tail == "Mul" else 1)
    np.testing.assert_array_equal(run(optimize(proto).model, x), expected)


def test_means_that_absorb_the_data_stay_in_their_normalisation() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "one", "m", "m", "one"], ["y"])]
    x = normal(1, 2, 3, 3)
    constants = {"w": normal(2, 2, 1, 1), "one": np.ones(2, SINGLE), "m": np.full(2, 1e30, SINGLE)}
    assert ops(optimize(build(nodes, x, **constants))) == {"Conv": 1, "BatchNormalization": 1}


BEHIND = [("Mul", ()), ("Mul", (5,)), ("Div", (1, 1)), ("Add", (5,)), ("Add", ()), ("Sub", (3, 1))]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (3, 1), (1, 1), (3, 5)])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("transposed", [0, 1])
def test_every_bias_of_a_product(shape: tuple[int, ...], behind: Any, transposed: int) -> None:
    op, other = behind
    weights = normal(5, 4) if transposed else normal(4, 5)
    nodes = [node("Gemm", ["x", "w", "b"], ["g"], transB=transposed), node(op, ["g", "k"], ["y"])]
    proto = build(nodes, normal(3, 4), w=weights, b=normal(*shape), k=normal(*other) + SINGLE(2))
    judged(proto, {"x": normal(3, 4)}, tolerance=CLOSE)


def test_epsilon_is_a_float32_number() -> None:
    nodes = [node("Gemm", ["x", "w"], ["g"]), node("BatchNormalization", ["g", "b", "b", "b", "v"], ["y"])]
    constants = {"w": normal(4, 5), "b": np.ones(5), "v": np.full(5, 1e-3)}
    x = normal(3, 4, dtype=DOUBLE)
    report = optimize(build(nodes, x, **{name: array.astype(DOUBLE) for name, array in constants.items()}))
    assert ops(report) == {"Gemm": 1}
    expected = (x @ constants["w"].astype(DOUBLE) - 1) / np.sqrt(1e-3 + DOUBLE(SINGLE(1e-5))) + 1
    np.testing.assert_allclose(run(report.model, x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 5), (3, 1), (1, 1), (3, 5), ()])
def test_every_bias_before_a_normalisation(shape: tuple[int, ...]) -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["g"]),
        node("BatchNormalization", ["g", "gain", "offset", "mean", "variance"], ["y"]),
    ]
    statistics = {name: np.abs(normal(5)) + SINGLE(0.5) for name in ("gain", "offset", "mean", "variance")}
    proto = build(nodes, normal(3, 4), w=normal(4, 5), b=normal(*shape), **statistics)
    judged(proto, {"x": normal(3, 4)}, tolerance=CLOSE)


LIMITS = [(0, -1), (0, 1), (1, None), (-1, None), (None, 2), (None, -2), (None, None), (2, 1)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("first", ["Relu", "Clip"])
def test_limits_one_after_the_other(limits: Any, opset: int, first: str) -> None:
    """The upper limit of a Clip wins where it is below the lower one."""
    low, high = limits
    told = {name: float(limit) for name, limit in (("min", low), ("max", high)) if limit is not None}
    names = [name if name in told else "" for name in ("min", "max")]
    relu = node("Relu", ["x" if first == "Relu" else "m"], ["m" if first == "Relu" else "y"])
    ends = ["x" if first == "Clip" else "m"], ["m" if first == "Clip" else "y"]
    clip = node("Clip", *ends, **told) if opset < 11 else node("Clip", [*ends[0], *names], ends[1])
    constants = {} if opset < 11 else {name: SINGLE(limit) for name, limit in told.items()}
    x = np.array([-3, -1, -0.5, 0, 0.5, 1, 3], SINGLE)
    report = optimize(build([relu, clip] if first == "Relu" else [clip, relu], x, opset, **constants))
    expected = np.maximum(x, 0) if first == "Relu" else x
    expected = np.minimum(np.maximum(expected, low if low is not None else -9), high if high is not None else 9)
    np.testing.assert_array_equal(run(report.model, x), expected if first == "Relu" else np.maximum(expected, 0))


def test_limits_that_only_a_run_knows() -> None:
    nodes = [node("Clip", ["x", "low", "h"], ["c"]), node("Relu", ["c"], ["y"])]
    inputs = [value("x", [3]), value("h", ())]
    proto = model(nodes, inputs, [value("y", [3])], [tensor("low", SINGLE(0))], opsets={"": 17})
    judged(proto, *({"x": normal(3), "h": np.array(limit, SINGLE)} for limit in (-1, 1)))


def test_magnitudes_of_integers_may_be_negative() -> None:
    x = np.array([-128, -1, 5], np.int8)
    report = optimize(build([node("Abs", ["x"], ["a"]), node("Relu", ["a"], ["y"])], x))
    np.testing.assert_array_equal(run(report.model, x), [0, 1, 5])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("op", "zero"), [("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Sub", -0.0)])
def test_zeros_keep_their_sign_where_it_must_be_exact(op: str, zero: float, exact: bool) -> None:
    nodes = [node(op, ["x", "zero"], ["s"]), node("Reciprocal", ["s"], ["y"])]
    x = np.array([-0.0, 0.0, 1.0], SINGLE)
    report = optimize(build(nodes, x, zero=SINGLE(zero)), exact=exact)
    changes = (op, str(zero)) in (("Add", "0.0"), ("Sub", "-0.0"))
    assert ops(report)[op] == int(exact and changes)
    if exact:
        sums = x + SINGLE(zero) if op == "Add" else x - SINGLE(zero)
        np.testing.assert_array_equal(np.signbit(run(report.model, x)), np.signbit(sums))


AXES = [([0], [0, 3]), ([0], [0]), ([-1], [2]), ([1], [-2]), ([0, 1], [0, 1]), ([0, 1], [1, 2]), ([0, -1], [0, 2]),
        ([2], [-1]), ([0], [-1]), ([1], [1, -1]), ([0], [0, -1])]  # fmt: skip


@pytest.mark.parametrize(("reduced", "added"), AXES)
@pytest.mark.parametrize(("op", "opset"), [("ReduceMax", 12), ("ReduceSum", 13), ("ReduceMean", 18), ("ArgMax", 13)])
@pytest.mark.parametrize("back", ["Unsqueeze", "Squeeze"])
def test_axes_count_in_the_rank_of_their_node(reduced: Any, added: Any, op: str, opset: int, back: str) -> None:
    """Those of Unsqueeze in the rank of its output."""
    x = normal(3, 2, 4)
    if op == "ArgMax" and len(reduced) > 1:
        return
    constants = {"r": np.array(reduced, np.int64), "a": np.array(added if back == "Unsqueeze" else reduced, np.int64)}
    keepdims = int(back == "Squeeze")
    if op == "ArgMax":
        first = node(op, ["x"], ["s"], axis=reduced[0], keepdims=keepdims)
    elif opset == 12:
        first = node(op, ["x"], ["s"], axes=reduced, keepdims=keepdims)
    else:
        first = node(op, ["x", "r"], ["s"], keepdims=keepdims)
    second = node(back, ["s"], ["y"], axes=constants["a"].tolist()) if opset == 12 else node(back, ["s", "a"], ["y"])
    initializers = [tensor(name, array) for name, array in constants.items()]
    outputs = [value("y", None, 7 if op == "ArgMax" else 1)]
    proto = model([first, second], [value("x", x.shape)], outputs, initializers, opsets={"": opset})
    judged(proto, {"x": x}, tolerance=CLOSE)


def test_texts_of_numbers_keep_their_type() -> None:
    nodes = [node("Cast", ["x"], ["w"], to=onnx.TensorProto.DOUBLE), node("Cast", ["w"], ["y"], to=8)]
    proto = model(nodes, [value("x", [1])], [value("y", [1], 8)], opsets={"": 17})
    assert ops(judged(proto, {"x": np.array([0.1], SINGLE)})) == {"Cast": 2}  # numpy: 0.1, and 0.10000000149011612


def test_a_last_element_is_picked_with_an_index_of_old_opsets() -> None:
    """Gather takes no negative indices before opset 11."""
    ends = {"start": [-1], "end": [np.iinfo(np.int64).max], "axis": [0]}
    nodes = [node("Slice", ["x", *ends], ["s"]), node("Squeeze", ["s"], ["y"], axes=[0])]
    constants = {name: np.array(content, np.int64) for name, content in ends.items()}
    report = judged(build(nodes, normal(3, 4), 10, **constants), {"x": normal(3, 4)})
    (index,) = (onnx.numpy_helper.to_array(each) for each in report.model.graph.initializer)
    assert index == 2
