"""Wrong op definitions of users: each error names the op, its file and line, and what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import weft
from weft.opset import registry
from weft.opset.functions import equal, sqrt
from weft.opset.language import Tensor, build, constant, elementwise, host, slice_axis

DOMAIN = "com.acme.wrong"


@pytest.fixture(autouse=True)
def no_registrations_left() -> Iterator[None]:
    yield
    registry._registrations.pop((DOMAIN, "Op"), None)


def load(function: Callable[..., Any], outputs: int = 1, **options: Any) -> weft.Model:
    registry.op("Op", domain=DOMAIN)(function)
    names = [f"y{number}" for number in range(outputs)]
    node = helper.make_node("Op", ["x"], names, name="n", domain=DOMAIN)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], values), opset_imports=opsets)
    return weft.load(onnx.ModelProto.FromString(model.SerializeToString()), device="reference", **options)


def load_error(function: Callable[..., Any], outputs: int = 1, line: int = 1) -> weft.OpDefinitionError:
    """Load a model with a wrong definition; the error must name the op, and this line of its function."""
    with pytest.raises(weft.OpDefinitionError) as caught:
        load(function, outputs)
    first = inspect.unwrap(function).__code__.co_firstlineno
    assert f"{DOMAIN}.Op ({__file__}:{first + line})" in str(caught.value)
    return caught.value


def test_numpy_functions_of_a_tensor() -> None:
    def exp(x: Tensor) -> Tensor:
        return np.exp(x)  # type: ignore[call-overload, no-any-return]

    def mean(x: Tensor) -> Tensor:
        return np.mean(x)  # type: ignore[call-overload, no-any-return]

    def join(x: Tensor) -> Tensor:
        return np.concatenate([x, x])  # type: ignore[list-item, return-value]

    def inside(x: Tensor) -> Tensor:
        return elementwise(lambda v: np.tanh(v), x)  # type: ignore[call-overload]

    for function, name, counterpart in (
        (exp, "exp", "functions.exp"),
        (mean, "mean", "language.mean"),
        (join, "concatenate", "language.concat"),
        (inside, "tanh", "functions.tanh"),
    ):
        error = load_error(function)
        assert f"numpy.{name} was called on a traced" in str(error)
        assert error.hint == f"use weft.opset.{counterpart}"
        registry._registrations.pop((DOMAIN, "Op"))


def test_a_tensor_as_an_array() -> None:
    def convert(x: Tensor) -> Tensor:
        return constant(np.asarray(x))

    assert "numpy was called on a traced tensor" in str(load_error(convert))


def test_arrays_beside_tensors() -> None:
    def left(x: Tensor) -> Tensor:
        return np.ones(4, np.float32) + x  # type: ignore[return-value]

    def right(x: Tensor) -> Tensor:
        return x * np.ones(4, np.float32)  # type: ignore[no-any-return]

    for function in (left, right):
        error = load_error(function)
        assert "a numpy array of shape (4,)" in str(error)
        assert "constant(array)" in str(error.hint)
        registry._registrations.pop((DOMAIN, "Op"))


def test_numbers_of_numpy_are_numbers() -> None:
    def scale(x: Tensor) -> Tensor:
        return np.float32(2) * x + np.float64(1) - np.array(3.0)

    np.testing.assert_array_equal(load(scale)(np.ones((2, 4), np.float32)), np.zeros((2, 4), np.float32))


def test_functions_of_python_on_a_tensor() -> None:
    def power(x: Tensor) -> Tensor:
        return x * math.exp(x)  # type: ignore[arg-type, no-any-return]

    def first(x: Tensor) -> Tensor:
        return x[0]  # type: ignore[index, no-any-return]

    error = load_error(power)
    assert "must be real number, not Tensor" in str(error)
    assert "no values while its op is traced" in str(error.hint)
    registry._registrations.pop((DOMAIN, "Op"))
    assert "gather, slice_axis" in str(load_error(first).hint)


@pytest.mark.parametrize("annotation", [None, "int", "None", "np.ndarray"])
def test_return_annotations_that_name_no_outputs(annotation: str | None) -> None:
    def unclear(x: Tensor) -> Tensor:
        return x

    del unclear.__annotations__["return"]
    if annotation is not None:
        unclear.__annotations__["return"] = annotation
    with pytest.raises(weft.OpDefinitionError, match="return") as caught:
        registry.op("Op", domain=DOMAIN)(unclear)
    assert f"({__file__}:{unclear.__code__.co_firstlineno})" in str(caught.value)
    assert "-> tuple[Tensor, Tensor]" in str(caught.value.hint)
    assert (DOMAIN, "Op") not in registry._registrations
    registry.op("Op", domain=DOMAIN, outputs=(1, 2))(unclear)


def test_branches_on_values() -> None:
    def whole(x: Tensor) -> Tensor:
        if x > 0:
            return x
        return -x  # type: ignore[no-any-return]

    def chained(x: Tensor) -> Tensor:
        return elementwise(lambda v: sqrt(v) if 0 < v < 1 else v, x)

    for function in (whole, chained):
        error = load_error(function)
        assert "is used as a condition" in str(error)
        assert "where(condition, a, b)" in str(error.hint)
        registry._registrations.pop((DOMAIN, "Op"))


def test_branches_on_sizes_run_uncompiled_with_a_warning() -> None:

    def branch(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] > 3 else x + 2  # type: ignore[no-any-return]

    with pytest.warns(weft.FallbackWarning) as warned:
        model = load(branch)
    message = str(warned[0].message)
    assert f"{DOMAIN}.Op ({__file__}:{branch.__code__.co_firstlineno + 1})" in message
    assert "whether 3 < rows depends on sizes" in message
    for rows, added in ((3, 2), (4, 1)):
        np.testing.assert_array_equal(model(np.zeros((rows, 4), np.float32)), np.full((rows, 4), added))


def test_sizes_as_numbers() -> None:
    def divide(x: Tensor) -> Tensor:
        return x / float(x.shape[0])  # type: ignore[arg-type, no-any-return]

    def repeat(x: Tensor) -> Tensor:
        return sum((slice_axis(x, 0, i, 1) for i in range(x.shape[0])), x)  # type: ignore[arg-type]

    for function in (divide, repeat):
        assert "a dynamic size is symbolic" in str(load_error(function).hint)
        registry._registrations.pop((DOMAIN, "Op"))


RESULTS: dict[str, tuple[Callable[[Tensor], Any], str, str]] = {
    "nothing": (lambda _: None, "None", "return statement"),
    "number": (lambda _: 3.5, "the float 3.5", "constant"),
    "array": (lambda _: np.ones(3), "a numpy array", "constant"),
    "size": (lambda x: x.shape[0], "the size rows", "dims_tensor"),
    "shape": (lambda x: (x.shape[0],), "the size rows", "dims_tensor"),
    "element": (lambda x: x.at(0, 0), "an element", "elementwise"),
    "text": (lambda _: "y", "the str 'y'", "None"),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_the_wrong_kind(kind: str) -> None:
    compute, description, hint = RESULTS[kind]

    def wrong(x: Tensor) -> Tensor:
        return compute(x)  # type: ignore[no-any-return]

    error = load_error(wrong, line=0)
    assert f"returned {description} as its result, not a Tensor" in str(error)
    assert hint in str(error.hint)


def test_wrong_numbers_of_results() -> None:
    def too_many(x: Tensor) -> Tensor:
        return x, x  # type: ignore[return-value]

    def too_few(x: Tensor) -> tuple[Tensor, Tensor]:
        return x  # type: ignore[return-value]

    for function, count, expected in ((too_many, "2 outputs", 1), (too_few, "1 output", 2)):
        for outputs in (1, 2):
            error = load_error(function, outputs, line=0)
            assert f"returned {count}; its signature says {expected}" in str(error)
            registry._registrations.pop((DOMAIN, "Op"))


def test_functions_of_elements_that_give_no_element() -> None:
    def compare(x: Tensor) -> Tensor:
        return elementwise(lambda v: v == 0, x)

    def whole(x: Tensor) -> Tensor:
        return build(x.shape, lambda *_: x)  # type: ignore[arg-type, return-value]

    error = load_error(compare)
    assert "the function given to elementwise returned bool, not an element" in str(error)
    assert equal.__name__ in str(error.hint)
    registry._registrations.pop((DOMAIN, "Op"))
    assert "the function given to build returned Tensor" in str(load_error(whole))


def test_names_that_are_missing() -> None:
    def misspelt(x: Tensor) -> Tensor:
        return squareroot(x)  # type: ignore[name-defined, no-any-return] # noqa: F821

    assert "NameError: name 'squareroot' is not defined" in str(load_error(misspelt))


def test_failures_on_a_model_are_errors_of_the_model() -> None:
    """A definition that raises ValueError refuses a model; it is not wrong itself."""

    def refuse(x: Tensor) -> Tensor:
        raise ValueError("an even number of rows is needed")

    with pytest.raises(weft.InvalidModelError, match="an even number of rows") as caught:
        load(refuse)
    assert not isinstance(caught.value, weft.OpDefinitionError)
    assert f"({__file__}:{refuse.__code__.co_firstlineno + 1})" in str(caught.value)


def test_errors_of_a_helper_name_the_line_that_calls_it() -> None:
    def call(x: Tensor) -> Tensor:
        return host("no such function", x, [])[0]  # type: ignore[arg-type]

    load_error(call)
