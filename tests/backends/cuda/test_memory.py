"""GPU memory: reuse, leaks and running out of it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from backends.cuda.recording_driver import RecordingDriver
from test_api import X, affine

import weft
from weft.backends.cuda import gpu
from weft.backends.cuda.gpu import open_gpu
from weft.errors import OutOfMemoryError


def test_freed_memory_serves_again(driver: RecordingDriver) -> None:
    opened = open_gpu()
    first = opened.unset_buffer(1000)
    address = first.address
    first.release()
    first.release()
    again, other = opened.unset_buffer(1000), opened.unset_buffer(1000)
    assert again.address == address
    assert other.address != address
    assert driver.calls["cuMemAllocFromPoolAsync"] == 2
    assert opened.allocated == 2 * 1008


def test_new_memory_is_zero_and_used_memory_becomes_zero(driver: RecordingDriver) -> None:
    opened = open_gpu()
    buffer = opened.buffer(64)
    opened.write(buffer, 0, np.full(64, 7, np.uint8))
    buffer.release()
    buffer = opened.buffer(64)
    assert not opened.read([(buffer, 0, 64)])[0].any()


def test_spare_memory_is_limited(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_MOST_SPARE_BYTES", 1 << 12)
    opened = open_gpu()
    buffers = [opened.unset_buffer(1 << 10) for _ in range(10)]
    buffers.clear()
    gc.collect()
    assert driver.freed == 6
    assert opened.allocated == 0


def test_nothing_is_left_of_many_runs(any_driver: RecordingDriver) -> None:
    """Outputs of several sizes stay on the GPU, some longer than others."""
    loaded = weft.load(affine(), device="cuda")
    outputs: list[Any] = []

    def run(loaded: weft.Model, number: int) -> None:
        x = np.ones((1 + number % 5, 3), np.float32)
        result = loaded.run({"x": loaded.to_device(x) if number % 2 else x}, keep=["y", "z"] if number % 3 else ["z"])
        outputs.append(result)
        del outputs[: -7 if number % 50 else None]

    for number in range(60):
        run(loaded, number)
    outputs.clear()
    gc.collect()
    opened = open_gpu()
    allocated, used, graphs = opened.allocated, any_driver.used, len(any_driver.graphs)
    for number in range(300):
        run(loaded, number)
    outputs.clear()
    gc.collect()
    assert (opened.allocated, any_driver.used, len(any_driver.graphs)) == (allocated, used, graphs)
    del loaded
    gc.collect()
    assert opened.allocated == 0
    assert not any_driver.graphs
    assert not any_driver.modules
    assert any_driver.calls["cuGraphCreate"] == any_driver.calls["cuGraphDestroy"]


def test_spare_memory_is_given_back_before_it_runs_out(driver: RecordingDriver) -> None:
    opened = open_gpu()
    opened.unset_buffer(1 << 16).release()
    driver.free_bytes = 1 << 17
    larger = opened.unset_buffer(1 << 17)
    assert driver.freed == 1
    assert driver.used == larger.size == opened.allocated


def test_memory_that_runs_out(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    loaded.run({"x": X})
    driver.free_bytes = driver.used + 1000
    with pytest.raises(OutOfMemoryError, match=r"NVIDIA H200 is out of memory(.|\n)*smaller inputs"):
        loaded.run({"x": np.ones((10_000, 3), np.float32)})
    assert driver.calls["cuMemPoolTrimTo"]
    loaded.run({"x": X})
    driver.free_bytes = 1 << 40
    loaded.run({"x": np.ones((10_000, 3), np.float32)})


def test_the_caller_may_limit_memory(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda", memory_limit=1 << 16)
    loaded.run({"x": X})
    with pytest.raises(OutOfMemoryError):
        loaded.run({"x": np.ones((100_000, 3), np.float32)})
