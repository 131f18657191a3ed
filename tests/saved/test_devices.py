"""Programs for several devices in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from saved.saved_models import sample, write_model

import weft
from weft.backends.cpu.device import CpuBackend
from weft.backends.device import LoadingDriver

GPU = "webgpu:0"


def result(source: object, **options: object) -> np.ndarray:
    return weft.load(source, **options).run({"x": sample()})["y"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    if GPU not in [device.name for device in weft.devices()]:
        pytest.skip("no webgpu:0; scripts/setup-gpu installs a software rasteriser")
    path = tmp_path / "m.weft"
    weft.compile(write_model(tmp_path / "m.onnx"), path, device=(GPU, "cpu"))
    return path


def test_each_device_runs_its_program(saved: Path, tmp_path: Path) -> None:
    for device in (GPU, "cpu"):
        assert np.array_equal(result(saved, device=device), result(tmp_path / "m.onnx", device=device))
        files = weft.load(saved, device=device).pool.files
        session = weft.load(saved, device=device).session()
        assert files.prepared(session.driver, "float32", None).program is session.whole.program


def test_another_driver_is_rejected(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = weft.load(saved, device=GPU).session()
    assert isinstance(session.driver, LoadingDriver)
    monkeypatch.setattr(type(session.driver), "identity", lambda _: "another")
    with pytest.raises(weft.DeviceError, match="needs another device, driver or version"):
        weft.load(saved, device=GPU)
    assert np.allclose(result(saved, device=GPU, recompile=True), result(saved, device="cpu"), rtol=1e-5)


def test_unavailable_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.weft"
    weft.compile(write_model(tmp_path / "m.onnx"), path)
    monkeypatch.setattr(CpuBackend, "devices", lambda _: [weft.Device("cpu", False, "out of order")])
    with pytest.raises(weft.DeviceError, match="'cpu' is not available: out of order"):
        weft.load(path)
