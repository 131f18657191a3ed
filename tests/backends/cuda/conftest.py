"""Fixtures that run the cuda device on a recording driver, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backends.cuda.recording_driver import A100, H200, T4, RecordingDriver

from weft.backends.cuda import device, discovery, gpu, launches, library
from weft.backends.cuda.discovery import GpuProperties
from weft.cache.code import shared_cache

GPUS = {"h200": H200, "a100": A100, "t4": T4}
Attach = Callable[..., RecordingDriver]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Attach]:
    """A function that replaces the machine's GPUs, and forgets those opened before."""

    def attached(*properties: GpuProperties) -> RecordingDriver:
        driver = RecordingDriver(gpus=properties)
        monkeypatch.setattr(discovery, "list_gpus", lambda: properties)
        monkeypatch.setattr(gpu, "library", lambda: driver)
        monkeypatch.setattr(gpu, "_open", {})
        monkeypatch.setattr(library, "_owner", os.getpid())
        monkeypatch.setattr(device, "_has_no_gpu_files", lambda: False)
        return driver

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    shared_cache.cache_clear()
    yield attached
    shared_cache.cache_clear()


@pytest.fixture
def driver(attach: Attach) -> RecordingDriver:
    """The recording driver of an H200."""
    return attach(H200)


@pytest.fixture
def graphs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first run of some sizes build a graph."""
    monkeypatch.setattr(launches, "_RUNS_BEFORE_GRAPH", 0)


@pytest.fixture(params=GPUS)
def any_driver(request: pytest.FixtureRequest, attach: Attach) -> RecordingDriver:
    """Recording drivers of several GPU generations."""
    return attach(GPUS[request.param])
