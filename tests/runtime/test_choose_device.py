"""A model that may run on several devices runs on the one that the policy picks; the choice is cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost.calibrations import PLAIN
from test_api import X, Y, affine

import weft
from weft import DevicePolicy
from weft.backends.cpu.device import CpuDriver
from weft.cache.files import VARIABLE
from weft.compiler import Pipeline
from weft.cost.calibration import Calibration
from weft.errors import DeviceError, ExecutionError, InputError
from weft.runtime import choose_device, generated_inputs, ranking

GPU = "webgpu:llvmpipe"
GPU_NAME = "webgpu:0"
BOTH = [GPU, "cpu"]
HOST_TWICE = ["reference", "cpu"]
SLOW = replace(PLAIN, run_seconds=1.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts how often models were traced."""
    calls: list[None] = []
    real = Pipeline.trace

    def trace(*arguments: Any, **keywords: Any) -> Any:
        calls.append(None)
        return real(*arguments, **keywords)

    monkeypatch.setattr(Pipeline, "trace", trace)
    return lambda: len(calls)


def numbers(monkeypatch: pytest.MonkeyPatch, **devices: Calibration) -> None:
    """Give devices these calibrations; others cannot be measured."""
    names = {name: "cpu" if name == "cpu" else GPU_NAME for name in devices}
    calibrations = {names[name]: replace(calibration, device=names[name]) for name, calibration in devices.items()}

    def get_calibration(device: str, _: int | None = None) -> Calibration:
        if device not in calibrations:
            raise DeviceError(f"{device} has no clock")
        return calibrations[device]

    monkeypatch.setattr(ranking, "get_calibration", get_calibration)
    monkeypatch.setattr(choose_device, "known_calibration", lambda device, _: calibrations.get(device))


def ran(model: weft.Model) -> bool:
    return bool(np.allclose(model.run({"x": X})["y"], Y))


def test_device_with_the_lowest_cost_is_picked(monkeypatch: pytest.MonkeyPatch, traces: Callable[[], int]) -> None:
    numbers(monkeypatch, cpu=PLAIN, gpu=SLOW)
    model = weft.load(affine(), device=DevicePolicy(allow=BOTH))
    assert model.device == "cpu"
    assert model.devices == ("cpu",)
    assert ran(model)
    assert traces() == 1  # what was traced for the choice was compiled
    report = model.report()
    assert report.pick == "cost"
    assert [entry.device for entry in report.ranking] == ["cpu", GPU_NAME]
    assert "best by cost" in report.services[0].reason
    assert "by cost, cpu: about" in str(report)
    numbers(monkeypatch, cpu=SLOW, gpu=PLAIN)
    assert weft.load(affine(), device=DevicePolicy(allow=BOTH)).device == GPU_NAME


def test_choice_is_cached_until_calibrations_change(monkeypatch: pytest.MonkeyPatch, traces: Callable[[], int]) -> None:
    numbers(monkeypatch, cpu=PLAIN, gpu=SLOW)
    weft.load(affine(), device=DevicePolicy(allow=BOTH))
    assert traces() == 1
    again = weft.load(affine(), device=DevicePolicy(allow=BOTH))
    assert (again.device, traces()) == ("cpu", 1)
    numbers(monkeypatch, cpu=replace(PLAIN, launch_seconds=2e-6), gpu=SLOW)
    weft.load(affine(), device=DevicePolicy(allow=BOTH))
    assert traces() == 2
    weft.load(affine(), device=DevicePolicy(allow=BOTH), sample={"x": X})
    assert traces() == 3  # other sizes, as far as anybody knows
    weft.load(affine(), device=DevicePolicy(allow=BOTH), cache=False)
    weft.load(affine(), device=DevicePolicy(allow=BOTH), cache=False)
    assert traces() == 5


def test_device_without_calibration_comes_last_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(monkeypatch, cpu=SLOW)
    model = weft.load(affine(), device=DevicePolicy(allow=BOTH))
    assert model.device == "cpu"
    assert model.report().ranking[1].reason == f"{GPU_NAME} has no clock"


def test_preferences_and_orders_override_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(monkeypatch, cpu=PLAIN, gpu=SLOW)
    assert weft.load(affine(), device=DevicePolicy(allow=BOTH, prefer=GPU)).device == GPU_NAME
    ordered = weft.load(affine(), device=DevicePolicy(allow=BOTH, pick="order"))
    assert ordered.device == GPU_NAME
    assert ordered.report().ranking == ()
    assert weft.load(affine(), device=BOTH).device == GPU_NAME  # a chain is one


def test_on_picks_a_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(monkeypatch, cpu=PLAIN, gpu=SLOW)
    model = weft.load(affine(), device=GPU)
    assert model.on(DevicePolicy(allow=BOTH)).device == "cpu"


def timed(monkeypatch: pytest.MonkeyPatch, best: str) -> list[str]:
    """Replace benchmarks by single runs with a fixed winner; return the list of devices that were timed."""
    timed_devices: list[str] = []

    def rank_by_benchmark(devices: Any, ready: Any, runs: int) -> ranking.Ranking:
        assert runs == 3
        timed_devices.extend(devices)
        for device in devices:
            ready(device)()
        order = sorted(devices, key=lambda device: device != best)
        return ranking.Ranking("benchmark", tuple(ranking.Ranked(device, 1.0, "timed") for device in order))

    monkeypatch.setattr(choose_device, "rank_by_benchmark", rank_by_benchmark)
    return timed_devices


@pytest.mark.parametrize("best", HOST_TWICE)
def test_winner_of_the_benchmark_is_picked_and_cached(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_devices = timed(monkeypatch, best)
    policy = DevicePolicy(allow=HOST_TWICE, pick="benchmark", runs=3)
    for sample in (None, {"x": X}):
        model = weft.load(affine(), device=policy, sample=sample)
        assert (model.device, model.devices) == (best, (best,))
        assert ran(model)
        assert model.report().ranking[0].reason == "timed"
        timed_devices.clear()
        assert weft.load(affine(), device=policy, sample=sample).device == best
        assert timed_devices == []


def test_benchmark_times_real_runs() -> None:
    model = weft.load(affine(), device=DevicePolicy(allow=HOST_TWICE, pick="benchmark", runs=2))
    assert ran(model)
    assert all(entry.seconds for entry in model.report().ranking)


def test_failure_in_a_benchmark_is_reported_as_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise DeviceError("no code comes out")

    monkeypatch.setattr(CpuDriver, "begin", fails)
    model = weft.load(affine(), device=DevicePolicy(allow=HOST_TWICE, pick="benchmark", runs=2))
    assert model.device == "reference"
    assert ran(model)
    report = model.report()
    assert [(attempt.device, attempt.stage, attempt.reason) for attempt in report.attempts] == [
        ("cpu", "loading", "no code comes out")
    ]
    assert report.ranking[1].reason == "no code comes out"


def test_invalid_sample_is_an_error() -> None:
    policy = DevicePolicy(allow=HOST_TWICE, pick="benchmark", runs=2)
    with pytest.raises(InputError, match="has no input"):
        weft.load(affine(), device=policy, sample={"nothing": X})
    with pytest.raises(InputError, match="is not an array"):
        weft.load(affine(), device=policy, sample={"x": [[1.0], [1.0, 2.0]]})


def test_costs_decide_without_valid_random_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(monkeypatch, cpu=PLAIN)

    def wants_others(_: Any) -> Any:
        raise ExecutionError("an index is out of range")

    monkeypatch.setattr(generated_inputs, "usual_inputs", wants_others)
    model = weft.load(affine(), device=DevicePolicy(allow=HOST_TWICE, pick="benchmark"))
    assert model.device == "cpu"
    assert "best by cost" in model.report().services[0].reason


def test_background_loading_does_not_wait_for_the_choice(
    monkeypatch: pytest.MonkeyPatch, traces: Callable[[], int]
) -> None:
    numbers(monkeypatch, cpu=PLAIN, gpu=SLOW)
    weft.load(affine(), device=DevicePolicy(allow=BOTH))
    remembered = weft.load(affine(), device=DevicePolicy(allow=BOTH), warm="background")
    assert (remembered.device, remembered.report().candidates, traces()) == ("cpu", ("cpu", GPU_NAME), 1)
    assert "best by cost" in remembered.report().services[0].reason


@pytest.mark.parametrize("pick", ["cost", "benchmark"])
@pytest.mark.parametrize("warm", [None, "background"])
def test_device_without_identity_comes_last(pick: str, warm: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a GPU in a forked child."""
    numbers(monkeypatch, cpu=PLAIN)

    def unusable(device: str, threads: int | None) -> str:
        if device == GPU_NAME:
            raise DeviceError("it belongs to another process")
        return real(device, threads)

    def fails(*_: Any) -> Any:
        raise DeviceError("it belongs to another process")

    real = choose_device.device_identity
    monkeypatch.setattr(choose_device, "device_identity", unusable)
    monkeypatch.setattr("weft.backends.webgpu.driver.WebGpuDriver.compile", fails)
    model = weft.load(affine(), device=DevicePolicy(allow=BOTH, pick=pick, runs=2), warm=warm)
    assert model.device == "cpu"
    assert ran(model)
