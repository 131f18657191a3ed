"""Calls as in other libraries: errors say what to write, with the model's own names."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
from frontend.samples import model, node, value
from runtime.test_calls import layers, picking

import weft
from weft.runtime import suggestions
from weft.runtime.options import LoadOptions

X = np.zeros((3, 16), np.float32)


@pytest.fixture(scope="module")
def one() -> weft.Model:
    """With the input x and the output y."""
    return weft.load(layers(), device="cpu")


@pytest.fixture(scope="module")
def two() -> weft.Model:
    """With the inputs x and i."""
    return weft.load(picking(), device="cpu")


CALLS: dict[str, tuple[Callable[[weft.Model], Any], str]] = {
    "onnxruntime's order": (lambda m: m.run(None, {"x": X}), 'model.run({"x": array})'),
    "names of outputs first": (lambda m: m.run(["y"], {"x": X}), 'model.run({"x": array}, outputs=["y"])'),
    "no names first": (lambda m: m.run([], {"x": X}), 'model.run({"x": array})'),
    "an array": (lambda m: m.run(X), 'model.run({"x": array}), or call the model with arrays in order: model(array)'),
    "a list": (lambda m: m.run([X]), "model(*arrays)"),
    "a name and an array": (lambda m: m.run("x", X), 'model.run({"x": array})'),
    "one output": (lambda m: m.run({"x": X}, "y"), "outputs=['y']"),
    "arrays as outputs": (lambda m: m.run({"x": X}, {"y": X}), "into="),
    "an array as outputs": (lambda m: m.run({"x": X}, X), "outputs must be a list of names, not a ndarray"),
    "a call with a dict": (lambda m: m({"x": X}), 'model.run({"x": array}), or model(**inputs)'),
    "an option in a call": (lambda m: m(X, keep=True), 'model.run({"x": array}, keep=…)'),
    "too many": (lambda m: m(X, X), "it takes x: float32[n, 16]"),
}


@pytest.mark.parametrize("case", CALLS)
def test_wrong_calls_get_a_suggestion(one: weft.Model, case: str) -> None:
    call, message = CALLS[case]
    with pytest.raises(weft.InputError, match=re.escape(message)):
        call(one)
    assert one.run({"x": X}, None)["y"].shape == (3, 16)


def test_suggestions_use_the_models_names(two: weft.Model) -> None:
    with pytest.raises(weft.InputError, match=re.escape('model.run({"x": array, "i": array})')):
        two.run([X[0], np.array([0])])
    with pytest.raises(weft.MissingAttributeError, match=re.escape("`model(array1, array2)`")):
        two.predict(X)
    many = suggestions.examples([f"input{number}" for number in range(9)])
    assert many["run"].endswith('"input3": array, …})')
    assert many["call"] == "model(array1, array2, array3, array4, …)"


def test_names_with_format_placeholders() -> None:
    odd = weft.load(model([node("Neg", ["{x}"], ["{run}"])], [value("{x}")], [value("{run}")]), device="cpu")
    with pytest.raises(weft.InputError, match=re.escape('{"{x}": array}')):
        odd.run(X)
    with pytest.raises(weft.MissingAttributeError, match=re.escape('{"{x}": array}')):
        odd.predict(X)


def test_model_without_inputs() -> None:
    constant = np.ones(2, np.float32)
    tensor = weft.load(model([node("Neg", ["c"], ["y"])], [], [value("y")], [_tensor("c", constant)]), device="cpu")
    with pytest.raises(weft.InputError, match="takes none"):
        tensor.run(X)


def _tensor(name: str, array: np.ndarray) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(array, name)


def test_unknown_result_names_get_a_suggestion(one: weft.Model) -> None:
    for results in (
        one.run({"x": X}),
        one.run({"x": X}),
        one.run({"x": X}, ["y"]),
        one.run({"x": X}, into={"y": X.copy()}),
    ):
        assert isinstance(results, dict)
        assert results == results.copy()
        assert (list(results), results.get("z"), "z" in results) == (["y"], None, False)
        for name in (0, -1):
            with pytest.raises(weft.UnknownNameError, match=re.escape("write ['y'], or call the model")) as caught:
                results[name]
            assert isinstance(caught.value, KeyError)
        for name in (1, "z", None):
            with pytest.raises(KeyError, match="it returned 'y'"):
                results[name]
        for other in (pickle.loads(pickle.dumps(results)), copy.deepcopy(results)):
            assert type(other) is dict
            np.testing.assert_array_equal(other["y"], results["y"])


def test_specs_by_name_and_position(two: weft.Model) -> None:
    assert isinstance(two.inputs, tuple)
    assert two.inputs["i"] is two.inputs[1] is two.inputs[-1]
    assert two.inputs[:1] == (two.inputs["x"],)
    assert pickle.loads(pickle.dumps(two.inputs))["i"] == two.inputs[1]
    with pytest.raises(weft.UnknownNameError, match="there is 'x', 'i'"):
        two.inputs["z"]
    with pytest.raises(IndexError):
        two.inputs[2]
    assert list(two.run({"x": X[0], "i": np.array([0])}, two.outputs)) == ["y"]


def test_unknown_weight_names_get_a_suggestion(one: weft.Model) -> None:
    with pytest.raises(weft.UnknownNameError, match="has no weight 'q'"):
        one.weights["q"]
    assert one.weights.get("q") is None


ATTRIBUTES = {
    "get_inputs": "`model.inputs`",
    "get_outputs": "`model.outputs`",
    "get_modelmeta": "`model.metadata`",
    "predict": '`model.run({"x": array})`',
    "forward": "`model(array)`",
    "eval": "leave it out",
    "to": "`model.on(device)`",
    "cuda": '`model.on("cuda")`',
    "cpu": '`model.on("cpu")`',
    "half": 'precision="fast"',
    "state_dict": "`model.weights`",
    "run_with_iobinding": "into={name: array}",
    "create_infer_request": "run_async",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(one: weft.Model, name: str) -> None:
    with pytest.raises(weft.MissingAttributeError, match=re.escape(ATTRIBUTES[name])) as caught:
        getattr(one, name)
    assert isinstance(caught.value, AttributeError)
    assert (caught.value.name, caught.value.obj) == (name, one)
    assert not hasattr(one, name)
    assert getattr(one, name, 7) == 7


def test_every_hint_is_reachable(one: weft.Model) -> None:
    for name in suggestions.ATTRIBUTES:
        with pytest.raises(weft.MissingAttributeError, match="hint: "):
            getattr(one, name)
    for name in suggestions.RUNNING:
        with pytest.raises(weft.UnknownOptionError, match="hint: "):
            one.run({"x": X}, **{name: 1})
    for name in suggestions.LOADING:
        with pytest.raises(weft.UnknownOptionError, match="hint: "):
            weft.load(layers(), **{name: 1})
    for name in suggestions.NAMES:
        with pytest.raises(weft.MissingAttributeError, match="hint: "):
            getattr(weft, name)


def test_no_hint_shadows_an_attribute() -> None:
    """Remove the hint when an attribute of that name is added."""
    assert [name for name in suggestions.ATTRIBUTES if hasattr(weft.Model, name)] == []
    rooms = {module.name for module in iter_modules(weft.__path__)}  # names of the package once they are imported
    assert [name for name in suggestions.NAMES if name in (*weft.__all__, *rooms) or hasattr(weft, name)] == []
    assert suggestions.LOADING.keys() & LoadOptions.__dataclass_fields__.keys() == set()


def test_unknown_attribute(one: weft.Model) -> None:
    with pytest.raises(AttributeError, match=r"a weft\.Model has no attribute 'zebra'"):
        one.zebra  # noqa: B018
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'zebra'"):
        weft.zebra  # noqa: B018
    assert not hasattr(one, "__array__")


def test_copies_and_pickles_do_not_need_attributes(one: weft.Model) -> None:
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other.run({"x": X})["y"].shape == (3, 16)


def test_device_cannot_be_assigned(one: weft.Model) -> None:
    with pytest.raises(weft.MissingAttributeError, match=r"model\.on"):
        one.device = "reference"
    assert one.device == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_feed": {"x": X}}, 'model.run({"x": array})'),
        ({"x": X}, 'model.run({"x": array})'),
        ({"output_names": ["y"]}, "outputs="),
        ({"outptus": ["y"]}, "write outputs="),
        ({"zebra": 1}, "it takes inputs, outputs, keep"),
    ],
)
def test_arguments_of_run(one: weft.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UnknownOptionError, match=re.escape(message)) as caught:
        one.run(**options)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": ["CPUExecutionProvider"]}, "device="),
        ({"sess_options": None}, "threads"),
        ({"devcie": "cpu"}, "write device="),
        ({"zebra": 1}, "it takes device"),
    ],
)
def test_arguments_of_load(options: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UnknownOptionError, match=message):
        weft.load(layers(), **options)
    with pytest.raises(weft.UnknownOptionError, match="options by name"):
        weft.load(layers(), "cpu")
