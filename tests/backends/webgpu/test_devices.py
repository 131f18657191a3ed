"""WebGPU adapters as devices: listing, names, and fallback of "auto"."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_api import X, Y, affine

import weft
from weft.backends.device import Device
from weft.backends.resident import executable
from weft.backends.webgpu import adapters as adapters_module
from weft.backends.webgpu import gpu, launches
from weft.cli import main
from weft.errors import DeviceError, DeviceLostError, FallbackWarning, KernelError, OutOfMemoryError
from weft.runtime.devices import choose

SOURCE = Path(weft.__file__).parents[1]
NAME = "webgpu:llvmpipe"


def gpu_device() -> Device:
    return choose(NAME)


@pytest.fixture
def as_if_real(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make llvmpipe the first device of "auto"."""
    monkeypatch.setenv("WEFT_DEVICE_CHAIN", f"{gpu_device().name},cpu")
    return gpu_device().name


# -- adapters --------------------------------------------------------------------------------------------------------


def test_listed() -> None:
    listed = {device.name: device for device in weft.devices()}
    outputs = listed[gpu_device().name]
    assert outputs == gpu_device()
    assert outputs.available
    assert "llvmpipe" in outputs.description
    assert (outputs.kind, "Mesa" in outputs.driver) == ("software", True)
    assert outputs.limits["max_groups"] == 65535
    assert "shader-f16" in outputs.features
    assert {device.kind for device in listed.values()} >= {"", "software"}


def test_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    listed = {device["name"]: device for device in json.loads(capsys.readouterr().out)}
    assert listed[gpu_device().name]["limits"]["max_lanes"] == gpu_device().limits["max_lanes"]
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("llvmpipe", "software, driver Mesa", "bound at once", "65535"))


def test_names() -> None:
    name = gpu_device().name
    assert choose(name).name == choose("webgpu:LLVMPIPE").name == name
    if all(device.kind in ("", "software") for device in weft.devices()):
        with pytest.raises(DeviceError, match=r"no GPU(.|\n)*llvmpipe"):
            choose("webgpu")
    for wrong in ("webgpu:99", "webgpu:voodoo", "webgpu:", "webgpu2"):
        with pytest.raises(DeviceError, match=r"llvmpipe|there is no device"):
            weft.load(affine(), device=wrong)


def test_auto_leaves_software_alone() -> None:
    assert choose("auto").kind != "software"


def test_without_wgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters_module, "is_installed", lambda: False)
    (listed,) = [device for device in weft.devices() if device.name.startswith("webgpu")]
    assert not listed.available
    assert "pip install 'wgpu>=0.32'" in listed.description
    for name in ("webgpu", "webgpu:0", "webgpu:llvmpipe"):
        with pytest.raises(DeviceError, match=r"not available(.|\n)*pip install"):
            weft.load(affine(), device=name)
    assert choose("auto").name == "cpu"


def test_wgpu_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def adapters() -> Any:
        raise DeviceError("wgpu does not start: no library", hint="another one")

    monkeypatch.setattr(adapters_module, "adapters", adapters)
    (listed,) = [device for device in weft.devices() if device.name.startswith("webgpu")]
    assert (listed.available, listed.description) == (False, "wgpu does not start: no library")
    with pytest.raises(DeviceError, match="does not start"):
        weft.load(affine(), device="webgpu")


def test_wgpu_is_imported_on_demand(tmp_path: Path) -> None:
    (tmp_path / "affine.onnx").write_bytes(affine().SerializeToString())
    code = f"""
import sys; sys.path.insert(0, {str(SOURCE)!r})
import weft
weft.load({str(tmp_path / "affine.onnx")!r}, device="cpu")
print("wgpu" in sys.modules, "weft.backends.webgpu" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["False", "False"], done.stderr


# -- models ----------------------------------------------------------------------------------------------------------


def test_model_device() -> None:
    model = weft.load(affine(), device=NAME)
    assert model.device == gpu_device().name
    assert model.device in repr(model)
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    assert model.explain() == ()
    assert model.memory({"batch": 2}).peak > 0


def test_model_is_loaded_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shaders are written once for a model and an adapter."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    first = weft.load(affine(), device=NAME)
    monkeypatch.setattr("weft.backends.webgpu.compile.emit", None)
    again = weft.load(affine(), device=NAME)
    np.testing.assert_array_equal(again(X)[0], first(X)[0])


# -- when the best one fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DeviceLostError("it is gone"), KernelError("no"), OutOfMemoryError("full")])
def test_auto_falls_back_when_a_load_fails(as_if_real: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def failing(selector: str = "") -> Any:
        raise error

    monkeypatch.setattr(gpu, "open_gpu", failing)
    with pytest.warns(FallbackWarning, match=f"{as_if_real} failed, cpu is used instead"):
        model = weft.load(affine())
    assert model.device == "cpu"
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    with pytest.raises(type(error)):
        weft.load(affine(), device=NAME)


def test_auto_falls_back_when_a_run_fails(as_if_real: str) -> None:
    model = weft.load(affine())
    assert model.device == as_if_real
    output = model.run({"x": X}, keep=["z"])["z"]
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    gpu.open_gpu("llvmpipe").handle.destroy()
    with pytest.warns(FallbackWarning, match="is lost"):
        outputs = model.run({"x": X}, keep=["y"])
    assert model.device == outputs["y"].device == "cpu"
    np.testing.assert_allclose(outputs["y"].numpy(), Y, rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    with pytest.raises(DeviceLostError):
        model.run({"x": output})
    with pytest.raises(DeviceLostError):
        output.numpy()


def test_auto_falls_back_when_a_kernel_is_refused(as_if_real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "write_module", lambda *_: "fn main( {")
    with pytest.warns(FallbackWarning, match="kernel"):
        model = weft.load(affine(), cache=False)
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    assert model.device == "cpu"


def test_inputs_move_with_the_model(as_if_real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the run failed, tensors are copied from the device."""
    model = weft.load(affine())
    output = model.to_device(X)

    def failing(*_: Any, **__: Any) -> Any:
        raise OutOfMemoryError("full")

    monkeypatch.setattr(executable.ResidentExecutable, "run", failing)
    with pytest.warns(FallbackWarning, match="full"):
        np.testing.assert_allclose(model.run({"x": output})["y"], Y, rtol=1e-6)


def test_input_errors_do_not_fall_back(as_if_real: str) -> None:
    model = weft.load(affine())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wrong in ({"x": X.astype(np.float64)}, {"x": X[0]}, {"x": weft.to_device(X, "cpu")}, {}):
            with pytest.raises(weft.WeftError):
                model.run(wrong)
    assert model.device == as_if_real
