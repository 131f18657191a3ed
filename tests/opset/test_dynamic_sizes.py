"""Sizes that are known only in a run: named dims, broadcasting behind them, and sizes that depend on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import branching, model, node, subgraph, tensor, value
from onnx import TensorProto, helper
from peers import onnxruntime_run

import weft
from weft.compiler import Pipeline

RNG = np.random.default_rng(7)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# -- dynamic sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 0])
def test_dynamic_dims(batch: int) -> None:
    weights = random(3, 2)
    built = model(
        [node("MatMul", ["x", "w"], ["p"]), node("Softmax", ["p"], ["y"])],
        [value("x", ["batch", 3])],
        [value("y", None)],
        [tensor("w", weights)],
    )
    x = random(batch, 3)
    y = weft.load(built)(x)
    exponents = np.exp(x.astype(np.float64) @ weights)
    np.testing.assert_allclose(y, exponents / exponents.sum(1, keepdims=True), rtol=1e-5)
    assert y.shape == (batch, 2)


def test_empty_tensors_where_sizes_were_taken_for_positive() -> None:
    built = model(
        [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Concat", ["x", "x"], ["c"], axis=1),
         node("Shape", ["c"], ["d"]), node("Softmax", ["x"], ["e"], axis=0)],
        [value("x", ["n", "m"])],
        [value(name, None) for name in "scde"],
    )  # fmt: skip
    loaded = weft.load(built)
    for shape in ((0, 3), (3, 0), (0, 0), (1, 1)):
        x = random(*shape)
        total, joined, size, _ = loaded(x)
        assert total == x.sum(dtype=np.float32)
        assert joined.shape == tuple(size) == (shape[0], 2 * shape[1])


@pytest.mark.parametrize("shapes", [((5,), (5,)), ((1,), (5,)), ((5,), (1,)), ((1,), (1,)), ((0,), (1,))])
def test_broadcasting_that_the_names_do_not_show(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    built = model([node("Add", ["x", "y"], ["z"])], [value("x", ["a"]), value("y", ["b"])], [value("z", None)])
    loaded = weft.load(built)
    x, y = (random(*shape) for shape in shapes)
    np.testing.assert_array_equal(loaded(x, y), x + y)
    np.testing.assert_array_equal(loaded(random(4), random(4)).shape, (4,))


def test_sizes_that_never_agree_may_still_broadcast() -> None:
    """n and 2n always differ, but [1] and [2] broadcast."""
    built = model(
        [node("Concat", ["x", "x"], ["c"], axis=0), node("Sub", ["x", "c"], ["y"], name="difference")],
        [value("x", ["n"])],
        [value("y", None)],
    )
    loaded = weft.load(built)
    np.testing.assert_array_equal(loaded(np.ones(1, np.float32)), [0, 0])
    with pytest.raises(weft.InputError, match="difference"):
        loaded(np.ones(3, np.float32))


def test_what_follows_sizes_that_never_agree() -> None:
    """Later contradictions are not errors of the model either."""
    built = model(
        [
            node("Concat", ["x", "x"], ["c"], axis=0),
            node("Mul", ["c", "x"], ["m"]),
            node("Concat", ["c", "m"], ["y"], axis=1),
        ],
        [value("x", ["n", 2])],
        [value("y", None)],
    )
    x = np.float32([[2, 3]])
    np.testing.assert_array_equal(weft.load(built)(x), [[2, 3, 4, 9]] * 2)


@pytest.mark.parametrize(
    ("shapes", "fits"),
    [
        (((2, 3, 4), (2, 4, 5)), True),
        (((1, 3, 4), (6, 4, 5)), True),
        (((6, 3, 4), (1, 4, 5)), True),
        (((2, 3, 4), (3, 4, 5)), False),
        (((2, 3, 4), (2, 5, 4)), False),
    ],
)
def test_broadcast_batches_of_a_product(shapes: tuple[tuple[int, ...], tuple[int, ...]], fits: bool) -> None:
    built = model(
        [node("MatMul", ["x", "y"], ["z"], name="product")],
        [value("x", ["a", "m", "k"]), value("y", ["b", "l", "n"])],
        [value("z", None)],
    )
    loaded = weft.load(built)
    x, y = (random(*shape) for shape in shapes)
    if fits:
        np.testing.assert_allclose(loaded(x, y), np.matmul(x.astype(np.float64), y), rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(weft.InputError, match="product"):
            loaded(x, y)


def test_a_dim_name_for_two_sizes() -> None:
    """Some exporters give unrelated dims one name: valid sizes run, others raise an error that names both."""
    apart = weft.load(
        model(
            [node("ReduceSum", ["x"], ["p"], keepdims=0), node("ReduceSum", ["y"], ["q"], keepdims=0),
             node("Add", ["p", "q"], ["z"])],
            [value("x", ["n"]), value("y", ["n"])],
            [value("z", None)],
        )
    )  # fmt: skip
    assert apart(np.ones(3, np.float32), np.ones(4, np.float32)) == 7
    together = weft.load(
        model([node("Add", ["x", "y"], ["z"], name="sum")], [value("x", ["n"]), value("y", ["n"])], [value("z", None)])
    )
    np.testing.assert_array_equal(together(np.ones(1, np.float32), np.ones(4, np.float32)), [2, 2, 2, 2])
    with pytest.raises(weft.InputError) as caught:
        together(np.ones(3, np.float32), np.ones(4, np.float32))
    for text in ("'n' is 3", "input 'x'", "4", "input 'y'", "sum"):
        assert text in str(caught.value)


def test_the_order_of_shapes_does_not_matter() -> None:
    """A program kept for one shape is not used for another."""
    built = model([node("Add", ["x", "y"], ["z"])], [value("x", ["a"]), value("y", ["b"])], [value("z", None)])
    loaded = weft.load(built)
    pairs = [(1, size) for size in range(2, 25)] + [(size, 1) for size in range(2, 25)] + [(1, 3), (3, 3)]
    for a, b in pairs:
        x, y = random(a), random(b)
        np.testing.assert_array_equal(loaded(x, y), x + y)


# -- sizes that depend on data ---------------------------------------------------------------------------------------


def compare(built: onnx.ModelProto, loaded: weft.Model, *feeds: Any) -> None:
    named = dict(zip([entry.name for entry in built.graph.input], map(np.asarray, feeds)))
    expected = onnxruntime_run(built, named)
    actual = loaded.run(named)
    for (name, array), reference in zip(actual.items(), expected, strict=True):
        assert array.dtype == reference.dtype, name
        assert array.shape == reference.shape, name
        np.testing.assert_allclose(array, reference, rtol=1e-5, atol=1e-6, err_msg=name)


def test_nonzero() -> None:
    built = model(
        [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("GatherND", ["x", "t"], ["y"]),
         node("Shape", ["y"], ["n"])],
        [value("x", ["a", "b"])],
        [value("i", None, TensorProto.INT64), value("y", None), value("n", None, TensorProto.INT64)],
    )  # fmt: skip
    loaded = weft.load(built)
    for x in (np.float32([[0, 1], [2, 0]]), np.zeros((3, 3), np.float32), random(4, 5)):
        compare(built, loaded, x)


def detector(*, allowzero: int = 0) -> onnx.ModelProto:
    """Select the rows of x whose first number is positive, scale them, and choose among them, as detectors do."""
    constants = {"none": 0, "axis": [1], "firsts": [3], "start": [0], "long": [-1]}
    return model(
        [node("Gather", ["x", "none"], ["scores"], axis=1), node("Relu", ["scores"], ["kept"]),
         node("NonZero", ["kept"], ["places"]), node("Transpose", ["places"], ["rows"]),
         node("GatherND", ["x", "rows"], ["found"]), node("Shape", ["found"], ["shape"]),
         node("Mul", ["found", "found"], ["square"]),
         node("Reshape", ["square", "shape"], ["boxes"], allowzero=allowzero),
         node("GatherND", ["scores", "rows"], ["best"]), node("NonZero", ["best"], ["order"]),
         node("Slice", ["order", "start", "firsts", "axis"], ["first"]),
         node("Reshape", ["first", "long"], ["chosen"]), node("Gather", ["boxes", "chosen"], ["y"], axis=0)],
        [value("x", ["n", 4])],
        [value("y", None), value("boxes", None)],
        [tensor(name, np.int64(content)) for name, content in constants.items()],
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("allowzero", [0, 1])
def test_nothing_found(device: str, allowzero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program for any shapes serves that too, not one node at a time."""
    built = detector(allowzero=allowzero)
    loaded = weft.load(built, device=device)
    monkeypatch.setattr(Pipeline, "run_eagerly", None)
    compare(built, loaded, random(6, 4))
    compare(built, loaded, -np.abs(random(6, 4)))
    compare(built, loaded, np.abs(random(6, 4)) + 1)


def test_nothing_found_node_by_node() -> None:
    """Indices that are none are never out of range, in a tensor of nothing too."""
    built = detector()
    x = -np.abs(random(6, 4))
    actual = weft.load(built, device="reference").session().pipeline.run_eagerly({"x": x}, ("y", "boxes"))
    for array, reference in zip(actual, onnxruntime_run(built, {"x": x}), strict=True):
        np.testing.assert_array_equal(array, reference)


def test_reshape_by_data() -> None:
    built = model(
        [node("Reshape", ["x", "s"], ["r"]), node("ReduceSum", ["r", "axis"], ["y"]), node("Add", ["r", "y"], ["z"])],
        [value("x", ["a", "b"]), value("s", [2], TensorProto.INT64)],
        [value("y", None), value("z", None)],
        [tensor("axis", [1])],
    )
    loaded = weft.load(built)
    for shape in ([6, 4], [-1, 3], [24, 1], [0, -1], [1, 24]):
        compare(built, loaded, random(4, 6), np.int64(shape))
    with pytest.raises(weft.WeftError, match="Reshape"):
        loaded(random(4, 6), [5, 5])


def test_reshape_of_unknown_rank() -> None:
    built = model(
        [node("Reshape", ["x", "s"], ["r"]), node("Mul", ["r", "r"], ["y"])],
        [value("x", ["a", "b"]), value("s", ["k"], TensorProto.INT64)],
        [value("y", None)],
    )
    loaded = weft.load(built)
    for shape in ([24], [2, 3, 4], [1, -1, 2, 2]):
        compare(built, loaded, random(4, 6), np.int64(shape))


def test_slice_by_data() -> None:
    built = model(
        [node("Slice", ["x", "start", "end", "axes", "step"], ["y"]), node("Add", ["y", "y"], ["z"])],
        [value("x", ["n", 5])] + [value(name, [1], TensorProto.INT64) for name in ("start", "end", "step")],
        [value("y", None), value("z", None)],
        [tensor("axes", [0])],
    )
    loaded = weft.load(built)
    cases = [(0, 3, 1), (1, 9, 2), (-1, -9, -1), (5, 2, 1), (-3, -1, 1), (8, 0, -3), (0, 2**62, 1)]
    for start, end, step in cases:
        compare(built, loaded, random(8, 5), np.int64([start]), np.int64([end]), np.int64([step]))


def test_range_by_data() -> None:
    built = model(
        [node("Range", ["start", "limit", "delta"], ["r"]), node("Mul", ["r", "r"], ["y"])],
        [value(name, [], TensorProto.INT64) for name in ("start", "limit", "delta")],
        [value("y", None, TensorProto.INT64)],
    )
    loaded = weft.load(built)
    for start, limit, delta in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (0, 5, -1), (-4, 4, 3)):
        compare(built, loaded, np.int64(start), np.int64(limit), np.int64(delta))


def test_expand_by_data() -> None:
    built = model(
        [node("Expand", ["x", "s"], ["y"]), node("ReduceSum", ["y"], ["z"], keepdims=0)],
        [value("x", ["a", "b"]), value("s", [2], TensorProto.INT64)],
        [value("y", None), value("z", None)],
    )
    loaded = weft.load(built)
    for shape, size in (((1, 3), [4, 3]), ((2, 1), [2, 5]), ((2, 3), [1, 1]), ((2, 3), [2, 3]), ((1, 1), [6, 1])):
        compare(built, loaded, random(*shape), np.int64(size))


def test_broken_assumptions_about_data() -> None:
    """Two data-dependent sizes that the trace took for equal, and that broadcast instead."""
    built = model(
        [node("Range", ["zero", "n", "one"], ["r"]), node("Range", ["zero", "m", "one"], ["q"]),
         node("Add", ["r", "q"], ["y"])],
        [value("n", [], TensorProto.INT64), value("m", [], TensorProto.INT64)],
        [value("y", None, TensorProto.INT64)],
        [tensor("zero", np.int64(0)), tensor("one", np.int64(1))],
    )  # fmt: skip
    loaded = weft.load(built)
    for n, m in ((4, 4), (1, 4), (4, 1), (1, 1)):
        compare(built, loaded, np.int64(n), np.int64(m))
    with pytest.raises(weft.WeftError, match="Add"):
        loaded(3, 4)


def test_a_model_without_declared_ranks() -> None:
    built = model(
        [node("Add", ["x", "y"], ["z"]), node("Softmax", ["z"], ["s"]), node("ReduceMean", ["s"], ["m"], keepdims=0)],
        [value("x", None), value("y", None)],
        [value("z", None), value("m", None)],
    )
    loaded = weft.load(built)
    assert loaded.inputs[0].shape is None
    for shapes in (((2, 3), (3,)), ((4,), (4,)), ((1, 2, 3), (3, 1, 1))):
        compare(built, loaded, *(random(*shape) for shape in shapes))


def test_control_flow_on_data() -> None:
    built = branching()
    loaded = weft.load(built)
    for flag in (True, False):
        compare(built, loaded, random(2, 3), np.array(flag))


def test_a_loop_that_grows_its_carry() -> None:
    body = helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Concat", ["v", "v"], ["w"], axis=0),
         node("ReduceSum", ["w"], ["t"], keepdims=0)],
        "body",
        [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL), value("v", None)],
        [value("still", [], TensorProto.BOOL), value("w", None), value("t", None)],
    )  # fmt: skip
    built = model(
        [node("Loop", ["n", "", "x"], ["y", "s"], body=body)],
        [value("n", [], TensorProto.INT64), value("x", ["k"])],
        [value("y", None), value("s", None)],
    )
    loaded = weft.load(built)
    for trips in (1, 2, 4):
        compare(built, loaded, np.int64(trips), random(3))


def test_if_with_shapes_that_differ() -> None:
    built = model(
        [
            node("If", ["c"], ["t"], then_branch=subgraph("a", [node("Concat", ["x", "x"], ["p"], axis=0)], ["p"]),
                 else_branch=subgraph("b", [node("ReduceSum", ["x"], ["q"])], ["q"])),
            node("Neg", ["t"], ["y"]),
        ],
        [value("x", ["n", 3]), value("c", [], TensorProto.BOOL)],
        [value("y", None)],
    )  # fmt: skip
    loaded = weft.load(built)
    for flag in (True, False):
        compare(built, loaded, random(2, 3), np.array(flag))
