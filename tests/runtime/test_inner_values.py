"""Inner values as outputs, named at load time or in a run, compared with onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import branching, model, node, tensor, value
from models.catalog import load_catalog, random_inputs
from onnx import TensorProto

import weft
from weft.compat.onnxruntime.contender import OnnxruntimeContender
from weft.ir.compiled import CompiledProgram
from weft.plan.program import weight_bytes
from weft.report.deviation import difference

CATALOG = {entry.name: entry for entry in load_catalog()}
DEVICES = ("cpu", "reference")
X = np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)


def network() -> onnx.ModelProto:
    random = np.random.default_rng(2)
    return model(
        [
            node("MatMul", ["x", "a"], ["product"]),
            node("Relu", ["product"], ["positive"]),
            node("MatMul", ["positive", "b"], ["scores"]),
            node("Softmax", ["scores"], ["y"]),
        ],
        [value("x", ["n", 8])],
        [value("y", ["n", 40])],
        [
            tensor("a", random.standard_normal((8, 20)).astype(np.float32)),
            tensor("b", random.standard_normal((20, 40)).astype(np.float32)),
        ],
    )


def expected(built: onnx.ModelProto, names: list[str], inputs: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    onnx.save(built, tmp_path / "model.onnx")
    return OnnxruntimeContender("onnxruntime", str(tmp_path / "model.onnx"), inputs).values(names)


@pytest.mark.parametrize("device", DEVICES)
def test_run_returns_inner_values(device: str, tmp_path: Path) -> None:
    loaded = weft.load(network(), device=device)
    names = ["scores", "positive", "y", "product"]
    actual = loaded.run({"x": X}, outputs=names)
    assert list(actual) == names
    for name, array in expected(network(), names, {"x": X}, tmp_path).items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-5)
    again = loaded.run({"x": X[:1]}, outputs=["positive"])["positive"]
    np.testing.assert_allclose(again, actual["positive"][:1], rtol=1e-5, atol=1e-6)
    assert list(loaded.run({"x": X})) == ["y"]


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_and_weights_are_values_too(device: str) -> None:
    actual = weft.load(network(), device=device).run({"x": X}, outputs=["x", "a", "product"])
    np.testing.assert_array_equal(actual["x"], X)
    assert actual["x"] is not X
    np.testing.assert_allclose(actual["product"], X @ actual["a"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_load_with_inner_values_as_outputs(device: str, tmp_path: Path) -> None:
    part = weft.load(network(), device=device, outputs=["positive"])
    assert [str(spec) for spec in part.outputs] == ["positive: float32[n, 20]"]
    positive = expected(network(), ["positive"], {"x": X}, tmp_path)["positive"]
    np.testing.assert_allclose(part(X), positive, rtol=1e-5, atol=1e-6)
    assert [spec.name for spec in weft.load(network(), device=device).outputs] == ["y"]  # a cache entry of its own


def test_unneeded_weights_are_dropped() -> None:
    part = weft.load(network(), device="cpu", outputs=["positive"])
    whole = weft.load(network(), device="cpu")
    sizes = []
    for loaded in (part, whole):
        program = loaded.session().whole.program
        assert isinstance(program, CompiledProgram)
        sizes.append(weight_bytes(program))
    assert sizes[0] < 8 * 40 * 4 < sizes[1]


def test_unsupported_ops_outside_the_part_do_not_matter() -> None:
    built = model([node("Relu", ["x"], ["good"]), node("Unheard", ["good"], ["y"])])
    with pytest.raises(weft.UnsupportedModelError, match="Unheard"):
        weft.load(built, device="cpu")
    assert weft.load(built, device="cpu", outputs=["good"])(X[:2, :3]).shape == (2, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_inner_values_can_stay_on_the_device(device: str) -> None:
    loaded = weft.load(network(), device=device)
    outputs = loaded.run({"x": X}, outputs=["positive", "y"], keep=["positive"])
    assert isinstance(outputs["positive"], weft.DeviceTensor)
    assert isinstance(outputs["y"], np.ndarray)
    plain = loaded.run({"x": X}, outputs=["positive"])["positive"]
    np.testing.assert_array_equal(outputs["positive"].numpy(), plain)


@pytest.mark.parametrize("device", DEVICES)
def test_overridden_defaults_and_inputs_without_rank(device: str) -> None:
    built = model(
        [node("Mul", ["x", "factor"], ["scaled"]), node("Neg", ["scaled"], ["y"])],
        [value("x", None), value("factor", [1])],
        [value("y", None)],
        [tensor("factor", np.array([2], np.float32))],
    )
    loaded = weft.load(built, device=device)
    for x in (X, X[0]):
        np.testing.assert_array_equal(loaded.run({"x": x}, outputs=["scaled"])["scaled"], 2 * x)
        feeds = {"x": x, "factor": np.array([3], np.float32)}
        actual = loaded.run(feeds, outputs=["scaled", "factor"])
        np.testing.assert_array_equal(actual["scaled"], 3 * x)
        np.testing.assert_array_equal(actual["factor"], feeds["factor"])


@pytest.mark.parametrize("device", DEVICES)
def test_models_that_run_node_by_node(device: str) -> None:
    """The axes are data, so there is no program before the run."""
    built = model(
        [node("Abs", ["x"], ["size"]), node("ReduceSum", ["size", "axes"], ["total"]), node("Neg", ["total"], ["y"])],
        [value("x", [3, 8]), value("axes", ["k"], TensorProto.INT64)],
        [value("y", None)],
    )
    loaded = weft.load(built, device=device)
    inputs = {"x": X, "axes": np.array([1], np.int64)}
    actual = loaded.run(inputs, outputs=["total", "size"])
    np.testing.assert_allclose(actual["total"], np.abs(X).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(actual["size"], np.abs(X))


@pytest.mark.parametrize("device", DEVICES)
def test_unknown_names_are_refused(device: str) -> None:
    loaded = weft.load(branching(), device=device)
    with pytest.raises(weft.InputError, match="inside a body of If"):
        loaded.run({}, outputs=["ie"])
    with pytest.raises(weft.InputError, match="did you mean"):
        weft.load(network(), device=device, outputs=["positve"])
    for wrong in ("y", [], [3]):
        with pytest.raises(weft.InputError, match="outputs must be a list of names"):
            weft.load(network(), device=device, outputs=wrong)


@pytest.mark.parametrize(
    "name", ["reachy-mini__fknetwork_int8", "silero-vad__silero_vad_16k_op15", "g2p-id__bert_pron"]
)
def test_all_inner_values_agree_with_onnxruntime(name: str, record_property: Any) -> None:
    entry = CATALOG[name]
    if entry.missing:
        record_property("left out", entry.missing)
        pytest.skip(entry.missing)
    inputs = random_inputs(entry)
    loaded = weft.load(str(entry.path), device="cpu")
    names = [output for one in loaded.source.graph.nodes for output in one.outputs if output]
    actual = loaded.run(inputs, outputs=names)
    expected_values = OnnxruntimeContender("onnxruntime", str(entry.path), inputs).values(names)
    errors = {each: difference(expected_values[each], actual[each]).error for each in names}
    assert max(errors.values()) < 1e-5, max(errors, key=lambda each: errors[each])


def test_changed_weights_affect_inner_values() -> None:
    whole, part = weft.load(network(), device="cpu"), weft.load(network(), device="cpu", outputs=["positive"])
    before = whole.run({"x": X}, outputs=["positive"])["positive"]
    for loaded in (whole, part):
        loaded.set_weight("a", 2 * np.asarray(loaded.weights["a"]))
        after = loaded.run({"x": X}, outputs=["positive"])["positive"]
        np.testing.assert_allclose(after, 2 * before, rtol=1e-5)
