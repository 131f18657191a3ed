"""Fallback when a device is absent, fails while compiling or in a run; one model on several devices."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_api import X, Y, affine

import weft
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.webgpu.driver import WebGpuDriver
from weft.cli import main
from weft.errors import DeviceError, DeviceFallbackError, DeviceLostError, FallbackWarning
from weft.runtime import session_pool

GPU = "webgpu:llvmpipe"
GPU_NAME = "webgpu:0"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Ignore fallback warnings, which other tests check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


def breaking(monkeypatch: pytest.MonkeyPatch, error: Exception, after: int = 0) -> None:
    """Let the GPU's runs fail from some run on, after its inputs are uploaded."""
    real, lock, count = ResidentExecutable.run, threading.Lock(), [0]

    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with lock:
            count[0] += 1
            broken = count[0] > after
        result = real(self, *arguments, **keywords)
        if broken:
            raise error
        return result

    monkeypatch.setattr(ResidentExecutable, "run", run)
    monkeypatch.setattr(ResidentExecutable, "shortcut", lambda *_: None)


def test_absent_device_falls_back_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "weft"),
        pytest.warns(FallbackWarning, match="cuda, webgpu:99 failed, cpu is used instead") as messages,
    ):
        model = weft.load(affine(), device=["cuda", "webgpu:99", "cpu"])
    assert messages[0].filename == __file__  # it points at who asked for the chain
    np.testing.assert_allclose(model(X)[0], Y)
    report = model.report()
    assert (report.device, report.pick) == ("cpu", "chain")
    assert [(a.device, a.stage) for a in report.attempts] == [("cuda", "finding"), ("webgpu:99", "finding")]
    assert "no driver of an NVIDIA GPU" in str(report)
    assert any("cuda is not available" in record.message for record in caplog.records)


@pytest.mark.parametrize("error", [RuntimeError("shader compiler crashed"), DeviceError("no"), MemoryError()])
def test_failure_while_compiling_falls_back(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(WebGpuDriver, "compile", failing)
    with pytest.warns(FallbackWarning, match=f"{GPU_NAME} failed, cpu is used instead"):
        model = weft.load(affine(), device=[GPU, "cpu"], cache=False)
    np.testing.assert_allclose(model(X)[0], Y)
    (attempt,) = model.report().attempts
    assert (attempt.device, attempt.stage) == (GPU_NAME, "loading")
    with pytest.raises((type(error), weft.OutOfMemoryError)):
        weft.load(affine(), device=[GPU, "cpu"], cache=False, strict=True)


@pytest.mark.parametrize("error", [RuntimeError("the bus is gone"), DeviceLostError("it is gone")])
def test_failure_during_concurrent_runs_falls_back_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Every thread gets the right result, and one attempt is reported."""
    model = weft.load(affine(), device=[GPU, "cpu"])
    breaking(monkeypatch, error, after=5)
    results: dict[tuple[int, int], Any] = {}

    def work(thread: int) -> None:
        for turn in range(6):
            x = X + np.float32(100 * thread + turn)
            results[thread, turn] = (x, model.run({"x": x}))

    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 24
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    for x, actual in results.values():
        np.testing.assert_allclose(actual["y"], x @ weights + np.float32([10, 20]), rtol=1e-6)
        np.testing.assert_array_equal(actual["z"], -x)
    assert [warning.category for warning in messages] == [FallbackWarning]
    report = model.report()
    assert [(a.device, a.stage) for a in report.attempts] == [(GPU_NAME, "running")]
    assert [service.device for service in report.services] == [GPU_NAME, "cpu"]
    assert model.devices == ("cpu",)


def test_tensors_on_a_failed_device_can_still_be_used(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    """If they can be read, later runs on the next device accept them."""
    model = weft.load(affine(), device=[GPU, "cpu"])
    device_tensor = model.to_device(X)
    breaking(monkeypatch, RuntimeError("no more"))
    for _ in range(2):
        actual = model.run({"x": device_tensor}, keep=["z"])
        np.testing.assert_allclose(actual["y"], Y, rtol=1e-6)
        assert actual["z"].device == "cpu"


def test_strict_runs_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = weft.load(affine(), device=[GPU, "cpu"], strict=True)
    breaking(monkeypatch, DeviceLostError("it is gone"))
    with pytest.raises(DeviceLostError):
        model.run({"x": X})
    assert model.device == GPU_NAME
    with pytest.raises(DeviceFallbackError, match="cuda failed in finding"):
        weft.load(affine(), device=["cuda", "cpu"], strict=True)


def test_all_attempts_are_listed(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    model = weft.load(affine(), device=["cuda", GPU])
    breaking(monkeypatch, RuntimeError("no more"))
    with pytest.raises(DeviceFallbackError) as caught:
        model.run({"x": X})
    assert [(a.device, a.stage) for a in caught.value.attempts] == [("cuda", "finding"), (GPU_NAME, "running")]
    assert "RuntimeError: no more" in str(caught.value)


def test_input_errors_do_not_fall_back() -> None:
    index = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ["n"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    table = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    node = onnx.helper.make_node("Gather", ["table", "i"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [index], [y], [table])
    model = weft.load(onnx.helper.make_model(graph), device=["cpu", "reference"])
    with pytest.raises(weft.ExecutionError):
        model.run({"i": np.int64([9])})
    with pytest.raises(weft.InputError):
        model.run({"i": np.float32([1])})
    assert (model.device, model.report().attempts) == ("cpu", ())


# -- one model on several devices ------------------------------------------------------------------------------------


def test_a_model_on_several_devices() -> None:
    model = weft.load(affine(), device="cpu")
    there = model.on(GPU)
    assert (there.device, model.devices) == (GPU_NAME, ("cpu",))  # compiled with its first use
    np.testing.assert_allclose(there(X)[0], Y, rtol=1e-6)
    assert model.devices == there.devices == ("cpu", GPU_NAME)
    assert there.session() is model.on(GPU_NAME).session()
    assert there.inputs == model.inputs
    assert {share.device for share in model.report().shares} == {"cpu", GPU_NAME}
    model.invalidate(GPU)
    assert model.devices == ("cpu",)
    np.testing.assert_allclose(there(X)[0], Y, rtol=1e-6)
    model.invalidate()
    assert model.devices == ()
    np.testing.assert_allclose(model(X)[0], Y)
    with pytest.raises(DeviceError, match="there is no device"):
        model.on("abacus")


def test_warmed_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    model = weft.load(affine(), device=["reference", "cpu", GPU], cache=False)
    assert model.devices == ("reference",)

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("shader compiler crashed")

    monkeypatch.setattr(WebGpuDriver, "compile", failing)
    assert model.warm_all() == model.devices == ("reference", "cpu")
    assert [a.device for a in model.report().attempts] == [GPU_NAME]


def test_compiled_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = weft.load(affine(), device="reference")
    opened = []
    real = session_pool.open_session
    monkeypatch.setattr(
        session_pool, "open_session", lambda pipeline: opened.append(pipeline.driver.name) or real(pipeline)
    )
    there = model.on("cpu")
    threads = [threading.Thread(target=there.run, args=({"x": X},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == ["cpu"]


def test_run_command_reports_the_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    file = tmp_path / "affine.onnx"
    file.write_bytes(affine().SerializeToString())
    assert main(["report", str(file), "--device", f"cuda,cpu,{GPU}", "--all", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["device"] == "cpu"
    assert [attempt["device"] for attempt in printed["attempts"]] == ["cuda"]
    assert {share["device"] for share in printed["shares"]} == {"cpu", GPU_NAME}
    assert main(["report", str(file), "--device", "cuda,cpu"]) == 0
    assert "no driver of an NVIDIA GPU" in capsys.readouterr().out
    assert main(["report", str(file), "--device", "cuda,cpu", "--strict"]) == 1
