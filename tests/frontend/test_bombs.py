"""Small files that demand a lot of work or memory: they run like in onnxruntime, or are rejected quickly.

The tests' general timeout catches cases that do not end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from attack import large_numbers, structures
from attack.devices import DEVICES, missing
from onnx import ModelProto, TensorProto, helper, numpy_helper

import weft
from weft.errors import InputError, InternalError, ModelError, short_repr
from weft.fuse.winograd import TileCandidate, choose_candidates
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Value
from weft.ir.types import TensorType


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


RUN: dict[str, tuple[Callable[[int], ModelProto], int]] = {
    "a chain of slices": (large_numbers.shape_extremes("Div", "Min"), 40),
    "slices of a symbolic size": (structures.slices, 24),
    "pairs of sizes": (large_numbers.shape_pairs, 24),
    "nested loops": (structures.nested_loops(True), 18),
    "nested branches": (structures.nested_ifs, 24),
    "a sum of many": (structures.same_input("Sum"), 600),
    "a mean of many": (structures.same_input("Mean"), 600),
    "a maximum of many": (structures.same_input("Max"), 600),
    "diamonds": (structures.diamonds("Add"), 80),
    "doubled sizes": (large_numbers.shape_sums, 60),
}


@pytest.mark.parametrize("name", RUN)
def test_runs_like_onnxruntime(name: str, device: str) -> None:
    make, size = RUN[name]
    content = make(size).SerializeToString()
    model = weft.load(content, device=device, cache=False)
    inputs = {spec.name: _data(spec) for spec in model.inputs}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (result,) = model.run(inputs).values()
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def _data(spec: Any) -> Any:
    shape = [size if isinstance(size, int) else 40 for size in spec.shape]
    return np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1, spec.element.numpy)


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (large_numbers.declared, 2**31, "any run could hold|no array has"),
        (large_numbers.computed("Expand"), 2**62, "any run could hold|no array has"),
        (large_numbers.computed("Tile"), 2**40, "any run could hold|no array has"),
        (large_numbers.padded_convolution, 2**40, "any run could hold|no array has"),
        (large_numbers.folded("BlackmanWindow"), 2**40, "any run could hold|no array has"),
        (large_numbers.folded("ConstantOfShape"), 2**31, "any run could hold|no array has"),
    ],
)
def test_is_rejected(make: Callable[[int], ModelProto], size: int, message: str, device: str) -> None:
    with pytest.raises(ModelError, match=message):
        weft.load(make(size).SerializeToString(), device=device, cache=False)


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (structures.nested_loops(False, True), 30, "nest too deeply"),
        (structures.functions_doubling, 40, "expand to more than"),
        (structures.functions_empty, 40, "expand to more than"),
    ],
)
def test_is_rejected_before_compilation(make: Callable[[int], ModelProto], size: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        weft.load(make(size).SerializeToString(), device="cpu", cache=False)


def test_a_huge_image_is_not_split_into_strips() -> None:
    content = large_numbers.padded_convolution(2**31 - 1).SerializeToString()
    model = weft.load(content, device="cpu", cache=False)
    with pytest.raises(weft.WeftError):
        model.run({"x": np.zeros((1, 4, 8, 8), np.float32)})


def test_choosing_tiles_for_an_empty_layer_ends() -> None:
    layer = Value(0, TensorType(DType.float32, (1, 0, 8, 8)))
    candidates = [TileCandidate(1, 0.0, 0), TileCandidate(2, 0.0, 0)]
    assert choose_candidates({layer: candidates}, 1000) == {layer: candidates[0]}


def test_more_threads_than_a_call_can_use() -> None:
    model = weft.load(structures.products(3).SerializeToString(), device="cpu", threads=10**9, cache=False)
    assert model.memory({"n": 4}).arena >= 0


def test_intractable_dims() -> None:
    a, b = dims.symbol("a"), dims.symbol("b")
    assert dims.is_tractable((a, b, 3))
    nested: Any = a
    for _ in range(12):
        nested = nested - dims.minimum(nested, b)
    assert not dims.is_tractable((nested,))
    assert not dims.is_tractable((a * 2**63,))
    many: Any = dims.product(1 + dims.symbol(f"s{number}") for number in range(12))
    with pytest.raises(dims.UndecidedError):
        many * many


# -- nesting -----------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded, number = encoded + bytes([number & 0x7F | 0x80]), number >> 7
    return encoded + bytes([number])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _nested_graphs(depth: int) -> bytes:
    """Serialize an If in an If in an If..., too deeply nested for protobuf to parse or write."""
    graph = _field(1, _field(1, b"x") + _field(2, b"q") + _field(4, b"Relu"))
    for _ in range(depth):
        branch = _field(1, b"then_branch") + _field(6, graph) + _varint(20 << 3) + _varint(5)
        graph = _field(1, _field(1, b"c") + _field(2, b"q") + _field(4, b"If") + _field(5, branch))
    return _varint(1 << 3) + _varint(10) + _field(7, graph)


def _nested_type(number: int, depth: int) -> bytes:
    """Serialize a model with an input that is an optional of optionals, or a sequence of sequences."""
    type = _field(1, _varint(1 << 3) + _varint(1))
    for _ in range(depth):
        type = _field(number, _field(1, type))
    return structures.unary("Relu")(1).SerializeToString() + _field(7, _field(11, _field(1, b"s") + _field(2, type)))


DEEP: dict[str, Callable[[], bytes]] = {
    **{f"graphs, {depth}": partial(_nested_graphs, depth) for depth in (32, 33, 200, 2000, 20_000)},
    **{
        f"type {number}, {depth}": partial(_nested_type, number, depth)
        for number in (4, 9)
        for depth in (50, 1000, 20_000)
    },
}


@pytest.mark.parametrize("name", DEEP)
def test_deeply_nested_files_are_rejected(name: str, tmp_path: Path) -> None:
    content = DEEP[name]()
    path = tmp_path / "deep.onnx"
    path.write_bytes(content)
    for source in (content, path, content[: len(content) // 2], content[:-1]):
        with pytest.raises(ModelError) as caught:
            weft.load(source, device="cpu", cache=False)
        assert "RecursionError" not in str(caught.value)


@pytest.mark.parametrize("depth", [1, 1000, 20_000])
def test_unknown_fields_are_skipped(depth: int) -> None:
    """protobuf skips them too, however deeply they nest."""
    unknown = b""
    for _ in range(depth):
        unknown = _field(200, unknown)
    content = structures.unary("Relu")(1).SerializeToString()
    model = weft.load(content + unknown + _field(300, bytes(1 << 20)), device="cpu", cache=False)
    np.testing.assert_array_equal(model.run({"x": np.array([-1, 0, 1, 2], np.float32)})["y"], [0, 0, 1, 2])
    with pytest.raises(ModelError):
        weft.load(content + _field(300, bytes(1 << 20))[:-1], device="cpu", cache=False)


def test_deeply_nested_types_are_rejected(device: str) -> None:
    weft.load(structures.nested_sequences(20).SerializeToString(), device=device, cache=False)
    with pytest.raises(ModelError, match="nest more than 64 deep"):
        weft.load(structures.nested_sequences(1000).SerializeToString(), device=device, cache=False)


@pytest.mark.parametrize("trips", [2, 3000])
@pytest.mark.parametrize("times", [1, 2])
def test_sequences_of_sequences_are_rejected(trips: int, times: int, device: str) -> None:
    """ONNX has none; a loop could nest them to any depth, or double them in every iteration."""
    any_type = helper.make_value_info("s", onnx.TypeProto()), helper.make_value_info("r", onnx.TypeProto())
    body = structures.subgraph(
        "body",
        [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("SequenceConstruct", ["s"] * times, ["r"])],
        [structures.value("i", (), structures.INT64), structures.value("c", (), structures.BOOL), any_type[0]],
        [structures.value("o", (), structures.BOOL), any_type[1]],
    )
    proto = structures.model(
        [helper.make_node("Loop", ["t", "", "x"], ["y"], body=body)],
        [structures.value("x"), structures.value("t", (), structures.INT64)],
        [helper.make_value_info("y", onnx.TypeProto())],
    )
    with pytest.raises(weft.WeftError, match="a sequence is made of tensors") as caught:
        weft.load(proto, device=device, cache=False).run({"x": np.zeros(4, np.float32), "t": np.array(trips)})
    assert not isinstance(caught.value, InternalError)


def test_deeply_nested_inputs_are_rejected(device: str) -> None:
    deep: list[Any] = [1.0]
    for _ in range(5000):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    model = weft.load(structures.unary("Relu")(1), device=device, cache=False)
    for nested_input in (deep, endless):
        with pytest.raises(InputError, match="more than 64 deep"):
            model.run({"x": nested_input})
        with pytest.raises(InputError, match="must be whole numbers"):
            model.memory({"x": nested_input})


def test_short_repr_of_objects_without_a_repr() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "int" in short_repr(10**5000)
    assert "Mute" in short_repr(Mute())
    assert len(short_repr(["a" * 1000] * 1000)) == 60
    assert short_repr([(1, 2.0), "b"]) == "[(1, 2.0), 'b']"


# -- empty layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"])
@pytest.mark.parametrize(("channels", "results"), [(4, 0), (0, 4), (0, 0)])
@pytest.mark.parametrize(("groups", "is_constant"), [(1, True), (2, False)])
def test_convolutions_without_channels(
    op: str, channels: int, results: int, groups: int, is_constant: bool, device: str
) -> None:
    """Empty sums are 0; onnxruntime returns uninitialized memory in some cases."""
    proto, inputs = _convolution(op, channels, results, groups, is_constant)
    result = weft.load(proto, device=device, cache=False).run(inputs)["y"]
    zero = 3 if op == "QLinearConv" else 0
    np.testing.assert_array_equal(result, np.full((1, results, *((10, 10) if op == "ConvTranspose" else (6, 6))), zero))


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("groups", [0, -1])
@pytest.mark.parametrize("is_constant", [True, False])
def test_convolutions_without_groups_are_rejected(op: str, groups: int, is_constant: bool, device: str) -> None:
    proto, _ = _convolution(op, 4, 4, groups, is_constant)
    with pytest.raises(ModelError, match=f"group is {groups}"):
        weft.load(proto, device=device, cache=False)


def _convolution(
    op: str, channels: int, results: int, groups: int, is_constant: bool
) -> tuple[ModelProto, dict[str, Any]]:
    kind = np.uint8 if op in ("ConvInteger", "QLinearConv") else np.float32
    divisor = max(groups, 1)
    shape = (channels, results // divisor, 3, 3) if op == "ConvTranspose" else (results, channels // divisor, 3, 3)
    x, w = np.full((1, channels, 8, 8), 5, kind), np.full(shape, 7, kind)
    scales = {"s": np.float32(0.5), "z": np.uint8(3)} if op == "QLinearConv" else {}
    names = ["x", "s", "z", "w", "s", "z", "s", "z"] if scales else ["x", "w"]
    node = helper.make_node(op, names, ["y"], group=groups)
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    inputs = [structures.value("x", x.shape, dtype)]
    if not is_constant:
        inputs.append(structures.value("w", w.shape, dtype))
    result = {"QLinearConv": TensorProto.UINT8, "ConvInteger": TensorProto.INT32}.get(op, TensorProto.FLOAT)
    constants = {**scales, **({"w": w} if is_constant else {})}
    proto = structures.model([node], inputs, [structures.value("y", None, result)], constants)
    return proto, {"x": x} if is_constant else {"x": x, "w": w}


def _sizes_beyond_32_bits() -> ModelProto:
    """Compute numbers from sizes that no tensor can have: products, large multiples, negative ones, many at once."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["shape", "far"], ["scaled"]),
        helper.make_node("Neg", ["scaled"], ["negative"]),
        helper.make_node("Add", ["negative", "one"], ["moved"]),
        helper.make_node("ReduceProd", ["shape"], ["product"]),
        helper.make_node("Concat", ["shape", "scaled", "negative", "moved", "product"], ["few"], axis=0),
        *(helper.make_node("Add", ["few", f"c{number}"], [f"f{number}"]) for number in range(9)),
        helper.make_node("Concat", [f"f{number}" for number in range(9)], ["all"], axis=0),
        helper.make_node("Cast", ["all"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = {"far": [2**40, 2**33 - 1], "one": [1]} | {f"c{number}": [7**number] for number in range(9)}
    initializers = [numpy_helper.from_array(np.array(content, np.int64), name) for name, content in constants.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("shape", [(3, 2), (0, 3_000_000_000), (2_000_000, 0)])
def test_numbers_computed_from_sizes_are_not_limited_like_sizes(shape: tuple[int, int], device: str) -> None:
    content = _sizes_beyond_32_bits().SerializeToString()
    inputs = {"x": np.zeros(shape, np.float32)}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (result,) = weft.load(content, device=device, cache=False).run(inputs).values()
    np.testing.assert_array_equal(result, expected)


def test_nested_scans_of_many_iterations_are_rejected(device: str) -> None:
    """2**31 iterations of one addition: neither a load nor a run enumerates them."""

    def load_and_run() -> None:
        model = weft.load(structures.nested_scans(31).SerializeToString(), device=device, cache=False)
        model.run({spec.name: _data(spec) for spec in model.inputs})

    with pytest.raises(weft.WeftError, match=r"<bytes>: nested loops"):
        load_and_run()
