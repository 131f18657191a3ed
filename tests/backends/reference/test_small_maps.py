"""Host steps on few elements: the fast path and the general one agree for any number of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from peers import onnxruntime_run

import weft
from weft.backends.reference.indexing_maps import compile_indexing_map
from weft.backends.reference.maps import evaluate_map
from weft.backends.reference.small_maps import compile_small_map
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Map
from weft.ir.scalar import Apply, Index, Literal, Load
from weft.ir.types import TensorType

RNG = np.random.default_rng(3)
TEXTS = ["a", "foo", "Bar", "", "x y"]
STRING, FLOAT, INT64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64


def value(name: str, kind: int, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def texts(*shape: int) -> np.ndarray:
    return np.array(RNG.choice(TEXTS, shape), object)


LABELS = helper.make_node(
    "LabelEncoder",
    ["x"],
    ["i"],
    domain="ai.onnx.ml",
    keys_strings=["a", "foo", "Bar"],
    values_int64s=[1, 2, 3],
    default_int64=0,
)
WORDS = helper.make_tensor("words", STRING, [4], [b"no", b"one", b"two", b"three"])
SAME = helper.make_tensor("same", STRING, [1], [b"aa"])
MODELS = {
    "labels": helper.make_graph(
        [LABELS, helper.make_node("Gather", ["words", "i"], ["y"])],
        "labels",
        [value("x", STRING, "n")],
        [value("y", STRING, "n")],
        [WORDS],
    ),
    "joined": helper.make_graph(
        [
            helper.make_node("StringConcat", ["x", "x"], ["twice"]),
            helper.make_node("Equal", ["twice", "same"], ["equal"]),
            helper.make_node("Where", ["equal", "x", "twice"], ["text"]),
            helper.make_node("Cast", ["equal"], ["y"], to=FLOAT),
        ],
        "joined",
        [value("x", STRING, "n")],
        [value("y", FLOAT, "n"), value("text", STRING, "n")],
        [SAME],
    ),
    "columns": helper.make_graph(
        [helper.make_node("Gather", ["x", "which"], ["part"], axis=1), helper.make_node("Transpose", ["part"], ["y"])],
        "columns",
        [value("x", STRING, "n", 3), value("which", INT64, 2)],
        [value("y", STRING, 2, "n")],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_strings_of_any_number(name: str) -> None:
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(MODELS[name], opset_imports=domains, ir_version=9)
    loaded = weft.load(model, device="cpu")
    for count in (1, 3, 1, 3, 64, 65, 300, 1, 65):
        feeds = {"x": texts(count, 3), "which": RNG.integers(-3, 3, 2)} if name == "columns" else {"x": texts(count)}
        actual = loaded.run(feeds)
        for target, array in zip(onnxruntime_run(model, feeds), actual.values(), strict=True):
            assert (array.dtype, array.shape) == (target.dtype, target.shape)
            assert array.tolist() == target.tolist()
        for array in actual.values():
            assert not any(np.shares_memory(array, content) for content in feeds.values())


def test_index_out_of_range_is_reported() -> None:
    model = helper.make_model(MODELS["columns"], opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    loaded = weft.load(model, device="cpu")
    for _ in range(3):
        loaded.run({"x": texts(2, 3), "which": np.array([0, 1])})
        with pytest.raises(weft.WeftError, match="Gather"):
            loaded.run({"x": texts(2, 3), "which": np.array([0, 3])})


def test_literals_have_their_type() -> None:
    """0.1 is another number in float32, which comparisons must use."""
    size = dims.symbol("n")
    here = Index(dims.axis(0, size))
    tenth = Literal(0.1, DType.float32)
    loaded = Load(0, (here,), DType.float32)
    chosen = Apply("select", (Apply("equal", (loaded, tenth), DType.bool), here, Literal(-1, DType.int64)), DType.int64)
    operand, result = TensorType(DType.float32, (size,)), TensorType(DType.int64, (size,))
    primitive = Map(chosen)
    compute = compile_small_map(primitive, [operand], result)
    assert compute is not None
    for array in (np.array([0.1, 0.2, 0.1], np.float32), np.array([np.nan, np.inf], np.float32)):
        sizes = {"n": len(array)}
        expected = evaluate_map(primitive, [array], (len(array),), sizes)
        actual = compute([array], sizes)
        assert actual is not None
        np.testing.assert_array_equal(actual, expected, strict=True)
    assert compute([np.zeros(65, np.float32)], {"n": 65}) is None


def axis(position: int, size: Any) -> Index:
    return Index(dims.axis(position, size))


N, M = dims.symbol("n"), dims.symbol("m")
PICKS = {
    "column": (Load(0, (axis(0, N), Index(1)), DType.string), (N, 1)),
    "row": (Load(0, (Index(2), axis(0, M)), DType.string), (M,)),
    "all": (Load(0, (axis(0, N), axis(1, M)), DType.string), (N, M)),
    "part": (Load(0, (axis(0, 2), axis(1, M)), DType.string), (2, M)),
    "one": (Load(0, (Index(1), Index(2)), DType.string), (1, 1)),
}
OTHERS = {
    "turned": (Load(0, (axis(1, N), axis(0, M)), DType.string), (M, N)),
    "repeated": (Load(0, (axis(0, N), Index(0)), DType.string), (N, 5)),
    "diagonal": (Load(0, (axis(0, 2), axis(0, 2)), DType.string), (2,)),
    "moved": (Load(0, (Index(dims.axis(0, 2) + 1), Index(0)), DType.string), (2,)),
}


@pytest.mark.parametrize("name", PICKS)
def test_selected_elements(name: str) -> None:
    expression, shape = PICKS[name]
    x = texts(3, 4)
    sizes = {"n": 3, "m": 4}
    primitive = Map(expression)
    pick = compile_indexing_map(primitive, TensorType(DType.string, shape))
    assert pick is not None
    target = tuple(dims.evaluate(size, sizes) for size in shape)
    picked = pick([x], sizes)
    assert picked is not None
    assert picked.shape == target
    assert picked.tolist() == evaluate_map(primitive, [x], target, sizes).tolist()
    assert pick([x[:1, :1]], sizes) is None


@pytest.mark.parametrize("name", OTHERS)
def test_selection_with_arithmetic(name: str) -> None:
    expression, shape = OTHERS[name]
    assert compile_indexing_map(Map(expression), TensorType(DType.string, shape)) is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_entries_by_position(wrapped: bool) -> None:
    place = Load(1, (axis(0, N),), DType.int64)
    zero = Apply("less", (place, Literal(0, DType.int64)), DType.bool)
    below = Apply("select", (zero, Apply("add", (place, Index(5)), DType.int64), place), DType.int64)
    primitive = Map(Load(0, (below if wrapped else place,), DType.string, True))
    pick = compile_indexing_map(primitive, TensorType(DType.string, (N,)))
    assert pick is not None
    table, places = texts(5), np.array([4, 0, 2, 2])
    assert pick([table, places], {"n": 4}).tolist() == table[places].tolist()
    turned = pick([table, places - 4], {"n": 4})
    assert turned is None if not wrapped else turned.tolist() == table[places - 4].tolist()
    with pytest.raises(IndexError):
        pick([table, places + 3], {"n": 4})
