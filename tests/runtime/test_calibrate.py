"""Calibrations are measured once through the devices' drivers, cached, and measured again when outdated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cost.calibrations import PLAIN

from weft.backends.cpu.device import CpuBackend, CpuDriver
from weft.backends.device import Device
from weft.cache.files import VARIABLE
from weft.cli import main
from weft.cost.calibration import Calibration, from_record
from weft.errors import DeviceError
from weft.ir.dtypes import DType
from weft.runtime import calibrate
from weft.runtime.calibrate import device_identity, get_calibration, known_calibration, measure_calibration

Measure = Callable[[], int]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(calibrate, "package_digest", lambda: "this weft")
    monkeypatch.setattr(calibrate, "_calibrations", {})


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Replace measurements by instant ones; return a function that counts them."""
    measured: list[Calibration] = []

    def measure(_: object, identity: str) -> Calibration:
        measured.append(replace(PLAIN, identity=identity, launch_seconds=float(len(measured) + 1)))
        return measured[-1]

    monkeypatch.setattr(calibrate._Measurement, "calibration", measure)
    return lambda: len(measured)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the calibrations in memory, as in another process."""
    monkeypatch.setattr(calibrate, "_calibrations", {})


def test_cpu_calibration_is_complete() -> None:
    heard: list[str] = []
    calibration = measure_calibration("cpu", 1, heard.append)
    assert calibration.device == "cpu"
    assert calibration.peak.flops > 0
    assert dict(calibration.products)[DType.float32] > 0
    assert calibration.run_seconds > 0
    assert calibration.launch_seconds > 0
    assert calibration.host_step_seconds > 0
    assert (calibration.units, calibration.upload.seconds, calibration.saturation) == (1, 0.0, 0.0)
    assert "products of float32" in heard
    assert get_calibration("cpu", 1) is calibration


def test_calibration_is_measured_once_and_cached(measurements: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_calibration("cpu", None) is None
    first = get_calibration("cpu")
    assert get_calibration("cpu") is first
    forget(monkeypatch)
    assert get_calibration("cpu") == first
    assert known_calibration("cpu", None) == first
    assert measurements() == 1
    assert measure_calibration("cpu") != first
    assert measurements() == 2


def test_measured_again_when_driver_hardware_threads_or_weft_change(
    measurements: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_calibration("cpu")
    get_calibration("cpu", 1)
    assert measurements() == 2
    monkeypatch.setattr(CpuDriver, "identity", lambda _: "another processor")
    get_calibration("cpu")
    assert measurements() == 3
    changed = [Device("cpu", True, "the same name, another driver", driver="2.0")]
    monkeypatch.setattr(CpuBackend, "devices", lambda _: changed)
    get_calibration("cpu")
    assert measurements() == 4
    monkeypatch.setattr(calibrate, "package_digest", lambda: "another weft")
    get_calibration("cpu")
    assert measurements() == 5


@pytest.mark.parametrize("damage", ["", "[]", "{}", "nonsense", '{"device": "cpu"}'])
def test_damaged_files_are_ignored(
    damage: str, measurements: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_calibration("cpu")
    (file,) = (tmp_path / "calibrations").iterdir()
    file.write_text(damage)
    forget(monkeypatch)
    get_calibration("cpu")
    assert measurements() == 2
    assert from_record(json.loads(file.read_text())).identity == device_identity("cpu", None)


def test_calibration_of_another_device_is_ignored(
    measurements: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_calibration("cpu")
    (file,) = (tmp_path / "calibrations").iterdir()
    file.write_text(file.read_text().replace(device_identity("cpu", None), "0" * 64))
    forget(monkeypatch)
    get_calibration("cpu")
    assert measurements() == 2


def test_files_writable_by_others_are_ignored(
    measurements: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_calibration("cpu")
    (file,) = (tmp_path / "calibrations").iterdir()
    file.chmod(0o666)
    forget(monkeypatch)
    with pytest.warns(UserWarning, match="not used"):
        get_calibration("cpu")
    assert measurements() == 2


def test_devices_without_a_compiler_cannot_be_measured() -> None:
    with pytest.raises(DeviceError, match="compiles no kernels"):
        get_calibration("reference")
    assert len(device_identity("reference", None)) == 64


def test_devices_command_calibrates(measurements: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--calibrate", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert from_record(printed["calibrations"]["cpu"]).launch_seconds > 0
    assert "compiles no kernels" in printed["not measured"]["reference"]
    assert main(["devices", "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "float32 products" in shown
    assert "1 G/s" in shown
    assert "shares the host's memory" in shown
    assert measurements() >= 2
