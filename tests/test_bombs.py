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
from onnx import ModelProto

import weft
from weft.errors import ModelError, UnsupportedModelError
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
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1).astype(spec.dtype.numpy)


@pytest.mark.parametrize(
    ("make", "size", "said"),
    [
        (structures.nested_loops(False, True), 30, "nest too deeply"),
        (structures.functions_doubling, 40, "expand to more than"),
        (structures.functions_empty, 40, "expand to more than"),
        (large_numbers.declared, 2**31, "more than any run could hold"),
        (large_numbers.computed("Expand"), 2**62, "more than any run could hold"),
        (large_numbers.computed("Tile"), 2**40, "more than any run could hold"),
        (large_numbers.padded_convolution, 2**40, "more than any run could hold"),
        (large_numbers.folded("ConstantOfShape"), 2**31, "more than any run could hold"),
    ],
)
def test_is_refused(make: Callable[[int], ModelProto], size: int, said: str, device: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
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
    total: Any = 0
    with pytest.raises(dims.UndecidedError):
        for number in range(dims.MOST_TERMS + 1):
            total = total + dims.symbol(f"s{number}") if number % 1000 else total * total + dims.symbol(f"t{number}")
            total = total * (1 + a + b)


def test_expansion_of_functions_names_the_limit() -> None:
    with pytest.raises(ModelError, match="nodes"):
        weft.load(structures.functions_in_branches(30).SerializeToString(), device="reference")
