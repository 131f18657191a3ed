"""The rates of adapters: what a measurement makes of a profile, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.backends.webgpu import calibration
from weft.backends.webgpu.adapters import Adapter, find_adapter
from weft.cost.profiles import LARGE_GPU, SOFTWARE_GPU, scale_of, scaled
from weft.cost.roofline import Peak
from weft.errors import DeviceError


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """An adapter that passes for a GPU, with no calibration kept."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(calibration, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(calibration, "open_gpu", lambda wanted: wanted)
    calibration.rates_of.cache_clear()
    found = find_adapter("llvmpipe")
    return replace(found, kind="discrete", name="made up")


def measuring(monkeypatch: pytest.MonkeyPatch, peak: Peak | None) -> list[Any]:
    measured: list[Any] = []

    def known_peak(gpu: Any) -> Peak:
        measured.append(gpu)
        if peak is None:
            raise DeviceError("it has no clock")
        return peak

    monkeypatch.setattr(calibration, "known_peak", known_peak)
    return measured


def test_software_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch, Peak(1e9, 1e9))
    calibration.rates_of.cache_clear()
    assert calibration.rates_of(find_adapter("llvmpipe")) == SOFTWARE_GPU
    assert measured == []


def test_a_gpu_is_measured_once(hardware: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch, Peak(LARGE_GPU.unit_flops * 132 / 30, 1.3e11))
    rates = calibration.rates_of(hardware)
    assert rates.compute_units == 132 // 32
    assert rates.memory_bandwidth == LARGE_GPU.memory_bandwidth / 32
    assert rates.unit_flops == LARGE_GPU.unit_flops
    calibration.rates_of.cache_clear()
    assert calibration.rates_of(hardware) == rates
    assert len(measured) == 1


def test_what_cannot_be_measured_is_a_large_gpu(hardware: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch, None)
    assert calibration.rates_of(hardware) == LARGE_GPU
    assert len(measured) == 1


@pytest.mark.parametrize("content", [b"", b"[1]", b"[1, 2.5]", b"[99, 0]", b'{"a": 1}', b"null"])
def test_damaged_files_are_measured_again(hardware: Adapter, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    peak = Peak(LARGE_GPU.unit_flops * 132, LARGE_GPU.memory_bandwidth / 0.6)
    measured = measuring(monkeypatch, peak)
    calibration.rates_of(hardware)
    (file,) = (Path(str(calibration.cache_folder())) / "peaks").iterdir()
    file.write_bytes(content)
    calibration.rates_of.cache_clear()
    assert calibration.rates_of(hardware) == LARGE_GPU
    assert len(measured) == 2


@pytest.mark.parametrize("factor", [0.75, 0.9, 1.0, 1.1, 1.3])
def test_the_same_device_is_of_the_same_class_however_it_was_measured(factor: float) -> None:
    known = Peak(LARGE_GPU.unit_flops * 132 * factor, LARGE_GPU.memory_bandwidth / 0.6 * factor)
    assert scaled(LARGE_GPU, scale_of(known, LARGE_GPU)) == LARGE_GPU


def test_no_measurement_is_too_wild() -> None:
    assert scaled(LARGE_GPU, scale_of(Peak(1.0, 1.0), LARGE_GPU)).compute_units >= 1
    assert scaled(LARGE_GPU, scale_of(Peak(1e20, 1e20), LARGE_GPU)).compute_units <= 132 * 8
