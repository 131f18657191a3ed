"""`strict` refuses to leave steps to the host that a device has no kernels for."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_device import acme_card
from frontend.samples import model, node, tensor, value
from onnx import TensorProto
from peers import onnxruntime_run

import weft
from weft.cache.files import VARIABLE
from weft.errors import DeviceError
from weft.ir.dtypes import DType
from weft.ir.target import Target
from weft.runtime import devices


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("acme_card", "foreign_device.acme_card:DEVICE", devices.GROUP)
    monkeypatch.setattr(devices, "_entries", lambda: [entry])
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the card compute nothing in float64."""
    target = acme_card.CardDriver.target

    def limited_target(self: acme_card.CardDriver, precision: str) -> Target:
        return replace(target(self, precision), missing_types=frozenset({DType.float64}))

    monkeypatch.setattr(acme_card.CardDriver, "target", limited_target)
    monkeypatch.setattr(acme_card.CardDriver, "identity", lambda _: "a card without float64")


def _float64_model() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Two float32 products with a float64 product between them."""
    weights = np.random.default_rng(2).standard_normal((64, 64)) / 8
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="before"),
        node("Cast", ["a"], ["b"], to=TensorProto.DOUBLE, name="widen"),
        node("MatMul", ["b", "v"], ["c"], name="precise"),
        node("Cast", ["c"], ["d"], to=TensorProto.FLOAT, name="narrow"),
        node("MatMul", ["d", "w"], ["y"], name="after"),
    ]
    constants = [tensor("w", weights.astype(np.float32)), tensor("v", weights)]
    built = model(nodes, [value("x", ["rows", 64])], [value("y", ["rows", 64])], constants)
    return built, {"x": np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)}


@pytest.mark.usefixtures("without_float64")
def test_missing_kernels_run_on_the_host() -> None:
    built, feed = _float64_model()
    loaded = weft.load(built, device="acme_card")
    steps = {name for step in loaded.explain() if not step.by_nature for name in step.node.split(" + ")}
    assert "precise" in steps
    np.testing.assert_allclose(loaded.run(feed)["y"], onnxruntime_run(built, feed)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("cached", [False, True])
def test_missing_kernels_are_an_error(cached: bool) -> None:
    if cached:
        weft.load(_float64_model()[0], device="acme_card")
    with pytest.raises(DeviceError, match=r"would not run on acme_card: .*precise.*float64"):
        weft.load(_float64_model()[0], device="acme_card", strict=True)


def test_complete_kernels_pass() -> None:
    built, feed = _float64_model()
    loaded = weft.load(built, device="acme_card", strict=True)
    np.testing.assert_allclose(loaded.run(feed)["y"], onnxruntime_run(built, feed)[0], rtol=1e-4, atol=1e-5)


def test_joined_names_are_no_device() -> None:
    with pytest.raises(DeviceError, match=r"there is no device 'webgpu\+cpu'"):
        weft.load(_float64_model()[0], device="webgpu+cpu")
