"""Devices of installed packages: listed by entry points, used if named, harmless if broken."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_api import X, Y, affine

import weft
from weft.cache.files import VARIABLE
from weft.cli import main
from weft.errors import DeviceError
from weft.runtime.devices import choose
from weft.runtime.policy import route

PACKAGE = Path(__file__).parents[1] / "foreign_device"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / "package")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.fixture(autouse=True)
def _on_the_path(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    yield
    for name in ("acme_weft", "acme_weft_broken", "acme_card"):
        sys.modules.pop(name, None)


def test_listed_after_built_in_devices(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {device.name: device for device in weft.devices()}
    foreign = {name: device.available for name, device in listed.items() if name.startswith("acme")}
    assert list(listed)[-6:] == list(foreign)
    broken = {"acme_absent": False, "acme_broken": False, "acme_other": False}
    assert foreign == {"acme:0": True, "acme:1": True, "acme_card": True} | broken
    assert listed["acme_broken"].description == (
        "acme_weft_broken:DEVICE, of an installed package: OSError: libacme.so is not there"
    )
    assert "no chip answers" in listed["acme_absent"].description
    assert "it is a str" in listed["acme_other"].description
    assert main(["devices"]) == 0
    assert all(text in capsys.readouterr().out for text in ("chip 1",))
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-6]["limits"] == {"vector_bytes": 16}


def test_model_runs_on_a_foreign_device() -> None:
    acme = __import__("acme_weft")
    model = weft.load(affine(), device="acme")
    assert (model.device, model.explain(), acme.COMPILED) == ("acme:0", (), ["acme:0"])
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    device_tensor = model.run({"x": X}, keep=["y"])["y"]
    assert device_tensor.device == "acme:0"
    np.testing.assert_allclose(device_tensor.numpy(), Y, rtol=1e-6)
    assert weft.to_device(X, "acme:1").device == "acme:1"
    assert model.memory({"batch": 2}).peak > 0
    with pytest.raises(DeviceError, match="'acme:0' cannot time its kernels"):
        model.profile({"x": X})


def test_foreign_programs_are_cached() -> None:
    acme = __import__("acme_weft")
    weft.load(affine(), device="acme")
    weft.load(affine(), device="acme")
    weft.load(affine(), device="cpu")
    assert acme.COMPILED == ["acme:0"]


def two_sections() -> onnx.ModelProto:
    """Build x [n, 8] -> y = relu(x @ w), a host step, and z = y @ w after it."""
    w = numpy_helper.from_array(W, "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("NonZero", ["y"], ["found"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
        helper.make_node("Gather", ["z", "i"], ["g"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [1])
    outputs = [onnx.ValueInfoProto(name=name) for name in ("y", "found", "z", "g")]
    return helper.make_model(helper.make_graph(nodes, "g", [x, i], outputs, [w]), ir_version=9)


W = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
FIRST = np.zeros(1, np.int64)


def test_device_with_its_own_memory() -> None:
    """Weights are uploaded once, tensors stay on the device, each set of sizes has a plan, launches are timed."""
    card = __import__("acme_card").CARD
    model, expected = (weft.load(two_sections(), device=device) for device in ("acme_card", "reference"))
    uploaded = card.written
    for count in (3, 5, 3):
        x = np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)
        actual, expected_outputs = (each.run({"x": x, "i": FIRST}) for each in (model, expected))
        for name in expected_outputs:
            np.testing.assert_allclose(actual[name], expected_outputs[name], rtol=1e-5, atol=1e-6)
    assert card.written - uploaded < 3 * (5 * 8 * 4 * 3 + 64)  # inputs, and what the host hands back
    device_tensor = model.run({"x": model.to_device(x), "i": FIRST}, keep=["z"])["z"]
    assert (device_tensor.device, device_tensor.shape) == ("acme_card", (3, 8))
    np.testing.assert_array_equal(device_tensor.numpy(), actual["z"])
    assert model.memory({"n": 4}).weights >= W.nbytes
    assert [kernel.name for kernel in model.profile({"x": x, "i": FIRST}, repeat=1).kernels]
    with pytest.raises(weft.ExecutionError, match="out of range"):
        model.run({"x": x, "i": FIRST + 7})


def test_device_memory_is_limited_and_released() -> None:
    card = __import__("acme_card").CARD
    model = weft.load(two_sections(), device="acme_card")
    with pytest.raises(weft.OutOfMemoryError):
        model.run({"x": np.zeros((1 << 20, 8), np.float32), "i": FIRST})
    model.run({"x": np.zeros((3, 8), np.float32), "i": FIRST})
    with pytest.raises(weft.OutOfMemoryError, match="memory_limit"):
        weft.load(two_sections(), device="acme_card", memory_limit=100)
    del model
    gc.collect()
    assert card.allocated == 0


def test_foreign_devices_are_used_only_if_named() -> None:
    assert not choose("auto").name.startswith("acme")
    assert not any(name.startswith("acme") for name in route().devices)


@pytest.mark.parametrize("name", ["acme_broken", "acme_absent", "acme_other", "acme:7", "acme:"])
def test_unavailable_devices_give_a_reason(name: str) -> None:
    with pytest.raises(DeviceError, match=r"libacme|no chip answers|it is a str|there is no device"):
        weft.load(affine(), device=name)


def test_backends_are_imported_on_demand() -> None:
    code = """
import sys, weft
weft.load(sys.argv[1], device="reference")
print(*(name for name in ("weft.backends.cpu", "weft.backends.webgpu", "acme_weft") if name in sys.modules))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(Path(weft.__file__).parent / "cli" / "demo_data" / "digits.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_devices_without_calibration_come_last() -> None:
    model = weft.load(affine(), device=weft.DevicePolicy(allow=["acme:0", "cpu"]))
    assert model.device == "cpu"
    assert [entry.reason for entry in model.report().ranking[1:]] == ["device 'acme:0' cannot be measured"]
    alone = weft.load(affine(), device=weft.DevicePolicy(allow=["acme:1", "acme:0"]))
    assert alone.device == "acme:1"  # in the order that was given
