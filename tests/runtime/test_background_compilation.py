"""Models that run at once while a better device is compiled in the background."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_api import X, Y, affine

import weft
from weft.backends.cpu.device import CpuDriver
from weft.backends.cpu.executable import CpuExecutable
from weft.errors import DeviceError, InputError
from weft.runtime import background_compilation
from weft.runtime.ranking import Ranked, Ranking

GPU = "webgpu:llvmpipe"
GPU_NAME = "webgpu:0"


def chain(length: int = 12) -> onnx.ModelProto:
    """Build a chain of nodes, which the reference runs one by one."""
    nodes = [helper.make_node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    nodes.append(helper.make_node("MatMul", [f"v{length}", "w"], ["y"]))
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])
    w = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w]))


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == "weft-warming":
            thread.join(120)
            assert not thread.is_alive()


def fixed_ranking(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """Replace the benchmark by one with a fixed result."""

    def rank_by_benchmark(devices: Any, ready: Any) -> Ranking:
        for device in devices:
            ready(device)()
        ranked = sorted(devices, key=lambda device: device != best)
        return Ranking("benchmark", tuple(Ranked(device, 1.0, "so it is") for device in ranked))

    monkeypatch.setattr(background_compilation, "rank_by_benchmark", rank_by_benchmark)


def test_model_moves_when_the_better_device_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, real = threading.Event(), CpuDriver.begin

    def slow(*arguments: Any, **keywords: Any) -> Any:
        assert compiling.wait(60)
        return real(*arguments, **keywords)

    monkeypatch.setattr(CpuDriver, "begin", slow)
    fixed_ranking(monkeypatch, "cpu")
    model = weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False)
    assert model.device == "reference"
    np.testing.assert_allclose(model(X)[0], Y)
    device_tensor = model.run({"x": X}, keep=["z"])["z"]
    compiling.set()
    join()
    assert model.device == "cpu"
    np.testing.assert_allclose(model(X)[0], Y)
    np.testing.assert_allclose(model.run({"x": device_tensor})["z"], X)  # what the other device kept is still good
    served = [(service.device, service.reason) for service in model.report().services]
    assert [device for device, _ in served] == ["reference", "cpu"]
    assert "while cpu gets ready" in served[0][1]
    assert "it is ready, and faster (cpu: so it is, reference: so it is)" in served[1][1]


def test_model_stays_if_the_other_device_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_ranking(monkeypatch, "reference")
    model = weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False)
    join()
    assert model.device == "reference"
    assert set(model.devices) == {"reference", "cpu"}


def test_devices_are_timed_on_random_and_sample_inputs() -> None:

    for sample in (None, {"v0": np.ones((256, 64), np.float32)}):
        model = weft.load(chain(), device=["cpu", "reference"], warm="background", cache=False, sample=sample)
        join()
        assert [attempt.device for attempt in model.report().attempts] == []
        assert set(model.devices) == {"reference", "cpu"}
        actual = model.run({"v0": np.ones((3, 64), np.float32)})["y"]
        assert actual.shape == (3, 64)


def test_background_failure_is_reported_as_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no code today")

    monkeypatch.setattr(CpuDriver, "begin", failing)
    model = weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False)
    join()
    assert model.device == "reference"
    (attempt,) = model.report().attempts
    assert (attempt.device, attempt.stage) == ("cpu", "loading")
    assert "no code today" in attempt.reason


def test_failure_while_timing_is_reported_as_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no run today")

    monkeypatch.setattr(CpuExecutable, "run", failing)
    model = weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False)
    join()
    assert model.device == "reference"
    assert [(a.device, a.stage) for a in model.report().attempts] == [("cpu", "running")]


def test_model_stays_if_it_has_no_random_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt is reported, and no thread raises."""
    thread_errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", thread_errors.append)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    built = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]))
    model = weft.load(built, device=["cpu", "reference"], warm="background", cache=False)
    join()
    assert (model.device, model.report().attempts, thread_errors) == ("reference", (), [])
    np.testing.assert_array_equal(model(X), -X)
    with pytest.raises(InputError, match="no input 'z'"):
        weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False, sample={"z": X})


def test_cached_model_needs_no_background_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    model = weft.load(affine(), device=[GPU, "cpu"], warm="background")
    assert model.report().services[0].device == "cpu"
    join()
    assert GPU_NAME in model.devices
    assert weft.load(affine(), device=[GPU, "cpu"], warm="background").device == GPU_NAME
    assert not [thread for thread in threading.enumerate() if thread.name == "weft-warming"]


def test_background_thread_ends_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, real, compiled = threading.Event(), CpuDriver.begin, []

    def slow(*arguments: Any, **keywords: Any) -> Any:
        assert compiling.wait(60)
        arguments[-1]("generating code", 0.5)  # what says how far it is
        compiled.append(1)
        return real(*arguments, **keywords)

    monkeypatch.setattr(CpuDriver, "begin", slow)
    model = weft.load(affine(), device=["cpu", "reference"], warm="background", cache=False)
    del model
    gc.collect()
    compiling.set()
    join()
    assert not compiled


def test_background_thread_ends_with_the_process(tmp_path: Path) -> None:
    file = tmp_path / "chain.onnx"
    onnx.save(chain(400), file)
    code = f"""
import weft
model = weft.load({str(file)!r}, device=["cpu", "reference"], warm="background", cache=False)
print(model.device)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["reference"], "")


def test_other_values_are_refused() -> None:
    for wrong in ("front", True, 3):
        with pytest.raises(DeviceError, match="warm must be None or 'background'"):
            weft.load(affine(), warm=wrong)
    with pytest.raises(InputError, match="sample must be a dict of arrays by name"):
        weft.load(affine(), sample=[X])
