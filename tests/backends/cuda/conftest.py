"""weft's cuda device on a driver that only records: what no GPU is needed for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backends.cuda.recording_driver import A100, H200, T4, RecordingDriver

from weft.backends.cuda import device, gpu, gpus, library
from weft.backends.cuda.gpus import NvidiaGpu
from weft.cache.code import shared_cache

GPUS = {"h200": H200, "a100": A100, "t4": T4}
Attach = Callable[..., RecordingDriver]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Attach]:
    """A function that makes these GPUs the ones that are here; what was opened before is forgotten."""

    def attached(*described: NvidiaGpu) -> RecordingDriver:
        driver = RecordingDriver(gpus=described)
        monkeypatch.setattr(gpus, "gpus", lambda: described)
        monkeypatch.setattr(gpu, "library", lambda: driver)
        monkeypatch.setattr(gpu, "_open", {})
        monkeypatch.setattr(library, "_owner", os.getpid())
        monkeypatch.setattr(device, "_cannot_be", lambda: False)
        return driver

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    shared_cache.cache_clear()
    yield attached
    shared_cache.cache_clear()


@pytest.fixture
def driver(attach: Attach) -> RecordingDriver:
    """The driver of an H200."""
    return attach(H200)


@pytest.fixture(params=GPUS)
def any_driver(request: pytest.FixtureRequest, attach: Attach) -> RecordingDriver:
    """The drivers of GPUs of several generations, one by one."""
    return attach(GPUS[request.param])
