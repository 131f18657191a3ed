"""Rates of adapters: profiles scaled by a measurement, which is cached on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.backends.webgpu import calibration
from weft.backends.webgpu.adapters import Adapter, find_adapter
from weft.cost.profiles import LARGE_GPU, SOFTWARE_GPU, find_scale, scale_profile
from weft.cost.roofline import Peak
from weft.errors import DeviceError


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """An adapter that looks like a GPU, without a cached calibration."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(calibration, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(calibration, "open_gpu", lambda selector: selector)
    calibration.find_rates.cache_clear()
    adapter = find_adapter("llvmpipe")
    return replace(adapter, kind="discrete", name="fake")


def replace_measurement(monkeypatch: pytest.MonkeyPatch, peak: Peak | None) -> list[Any]:
    measured: list[Any] = []

    def measure_peak(gpu: Any) -> Peak:
        measured.append(gpu)
        if peak is None:
            raise DeviceError("it has no clock")
        return peak

    monkeypatch.setattr(calibration, "measure_peak", measure_peak)
    return measured


def test_software_adapters_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = replace_measurement(monkeypatch, Peak(1e9, 1e9))
    calibration.find_rates.cache_clear()
    assert calibration.find_rates(find_adapter("llvmpipe")) == SOFTWARE_GPU
    assert measured == []


def test_a_gpu_is_measured_once(hardware: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = replace_measurement(monkeypatch, Peak(LARGE_GPU.unit_flops * 132 / 30, 1.3e11))
    rates = calibration.find_rates(hardware)
    assert rates.compute_units == 132 // 32
    assert rates.memory_bandwidth == LARGE_GPU.memory_bandwidth / 32
    assert rates.unit_flops == LARGE_GPU.unit_flops
    calibration.find_rates.cache_clear()
    assert calibration.find_rates(hardware) == rates
    assert len(measured) == 1


def test_unmeasurable_adapters_count_as_large_gpus(hardware: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = replace_measurement(monkeypatch, None)
    assert calibration.find_rates(hardware) == LARGE_GPU
    assert len(measured) == 1


@pytest.mark.parametrize("content", [b"", b"[1]", b"[1, 2.5]", b"[99, 0]", b'{"a": 1}', b"null"])
def test_damaged_files_are_measured_again(hardware: Adapter, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    peak = Peak(LARGE_GPU.unit_flops * 132, LARGE_GPU.memory_bandwidth / 0.6)
    measured = replace_measurement(monkeypatch, peak)
    calibration.find_rates(hardware)
    (file,) = (Path(str(calibration.cache_folder())) / "peaks").iterdir()
    file.write_bytes(content)
    calibration.find_rates.cache_clear()
    assert calibration.find_rates(hardware) == LARGE_GPU
    assert len(measured) == 2


@pytest.mark.parametrize("factor", [0.75, 0.9, 1.0, 1.1, 1.3])
def test_the_same_device_is_of_the_same_class_however_it_was_measured(factor: float) -> None:
    peak = Peak(LARGE_GPU.unit_flops * 132 * factor, LARGE_GPU.memory_bandwidth / 0.6 * factor)
    assert scale_profile(LARGE_GPU, find_scale(peak, LARGE_GPU)) == LARGE_GPU


def test_measurements_are_limited() -> None:
    assert scale_profile(LARGE_GPU, find_scale(Peak(1.0, 1.0), LARGE_GPU)).compute_units >= 1
    assert scale_profile(LARGE_GPU, find_scale(Peak(1e20, 1e20), LARGE_GPU)).compute_units <= 132 * 8
