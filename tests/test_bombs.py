"""Small files that ask for much: each runs as onnxruntime runs it, or is refused; none takes time without bound.

That something ends is what is tested, within the limit that all tests have; no test asserts a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from attack import large_numbers, structures
from attack.devices import DEVICES, missing
from onnx import ModelProto, TensorProto, helper, numpy_helper

import weft
from weft.errors import ModelError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.kernels.algorithms import Way, spend


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
def test_runs_as_elsewhere(name: str, device: str) -> None:
    make, size = RUN[name]
    content = make(size).SerializeToString()
    model = weft.load(content, device=device, cache=False)
    inputs = {spec.name: _data(spec) for spec in model.inputs}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (found,) = model.run(inputs).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def _data(spec: Any) -> Any:
    shape = [size if isinstance(size, int) else 40 for size in spec.shape]
    return np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1, spec.dtype.numpy)


@pytest.mark.parametrize(
    ("make", "size", "said"),
    [
        (structures.nested_loops(False, True), 30, "nest too deeply"),
        (structures.functions_doubling, 40, "expand to more than"),
        (structures.functions_empty, 40, "expand to more than"),
        (large_numbers.declared, 2**31, "any run could hold|no array has"),
        (large_numbers.computed("Expand"), 2**62, "any run could hold|no array has"),
        (large_numbers.computed("Tile"), 2**40, "any run could hold|no array has"),
        (large_numbers.padded_convolution, 2**40, "any run could hold|no array has"),
        (large_numbers.folded("ConstantOfShape"), 2**31, "any run could hold|no array has"),
    ],
)
def test_is_refused(make: Callable[[int], ModelProto], size: int, said: str, device: str) -> None:
    with pytest.raises(ModelError, match=said):
        weft.load(make(size).SerializeToString(), device=device, cache=False)


def test_an_image_that_fills_any_memory_is_not_cut_into_strips() -> None:
    content = large_numbers.padded_convolution(2**31 - 1).SerializeToString()
    model = weft.load(content, device="cpu", cache=False)
    with pytest.raises(weft.WeftError):
        model.run({"x": np.zeros((1, 4, 8, 8), np.float32)})


def test_layers_of_no_work_end_the_choice() -> None:
    layer = Value(0, TensorType(DType.float32, (1, 0, 8, 8)))
    ways = [Way(1, 0.0, 0), Way(2, 0.0, 0)]
    assert spend({layer: ways}, 1000) == {layer: ways[0]}


def test_more_threads_than_a_call_can_use() -> None:
    model = weft.load(structures.products(3).SerializeToString(), device="cpu", threads=10**9, cache=False)
    assert model.memory({"n": 4}).arena >= 0


def test_sizes_too_long_to_compute_with() -> None:
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


def _sizes_beyond_32_bits() -> ModelProto:
    """Numbers made of sizes, which no tensor has: products, powers of two, negative ones, and many at once."""
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
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("shape", [(3, 2), (0, 3_000_000_000), (2_000_000, 0)])
def test_numbers_made_of_sizes_are_no_sizes(shape: tuple[int, int], device: str) -> None:
    content = _sizes_beyond_32_bits().SerializeToString()
    inputs = {"x": np.zeros(shape, np.float32)}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (found,) = weft.load(content, device=device, cache=False).run(inputs).values()
    np.testing.assert_array_equal(found, expected)


def test_loops_in_loops_that_are_never_done(device: str) -> None:
    """2**31 iterations of one addition: neither a load nor a run lists them all."""

    def load_and_run() -> None:
        model = weft.load(structures.nested_scans(31).SerializeToString(), device=device, cache=False)
        model.run({spec.name: _data(spec) for spec in model.inputs})

    with pytest.raises(weft.WeftError, match=r"<bytes>: loops in loops"):
        load_and_run()
