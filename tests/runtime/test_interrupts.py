"""Runs that are ended early, by Ctrl-C, a timeout or another thread, leave the model usable."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import interrupts

TURNS = 1 << 40  # iterations of a loop that does not end in time
DEVICES = ["cpu", "reference"]


def endless() -> bytes:
    """Build a loop of `turns` iterations, each of which adds 1 to x."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "one"], ["next"], name="count"),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
        ],
    )
    return _serialized(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], name="loop", body=body)],
        [("turns", TensorProto.INT64, []), ("x", TensorProto.FLOAT, [4])],
        {"one": np.ones(4, np.float32)},
    )


def product() -> bytes:
    """Build the product of two square matrices of any size."""
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"], name="square")]
    return _serialized(nodes, [("x", TensorProto.FLOAT, ["n", "n"])], {})


def sort() -> bytes:
    """Build a sort of one row: a single block, which cannot be interrupted."""
    nodes = [
        helper.make_node("Shape", ["x"], ["count"]),
        helper.make_node("TopK", ["x", "count"], ["y", "places"], axis=0, name="order"),
    ]
    return _serialized(nodes, [("x", TensorProto.FLOAT, ["n"])], {})


def _serialized(nodes: list[Any], inputs: list[Any], weights: dict[str, Any]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def _check(model: weft.Model) -> None:
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(model.run({"turns": np.int64(3), "x": x})["y"], x + 3)


def test_abandoned_run_does_not_write_outputs() -> None:
    """Its helper thread may run on; the caller's arrays are not touched any more."""
    loaded = weft.load(endless(), device="cpu")
    place = np.full(4, 5, np.float32)
    with pytest.raises(weft.RunTimeoutError):
        loaded.run({"turns": np.int64(1 << 40), "x": np.zeros(4, np.float32)}, timeout=0.05, into={"y": place})
    assert place.tolist() == [5] * 4
    loaded.run({"turns": np.int64(3), "x": np.zeros(4, np.float32)}, timeout=600, into={"y": place})
    assert place.tolist() == [3] * 4


def _late(model: weft.Model, feeds: dict[str, Any]) -> weft.RunTimeoutError:
    """Return the error of a run that times out; retry with more time if a busy machine did not start the first step."""
    for seconds in (0.2, 1.0, 2.0, 4.0):
        with pytest.raises(weft.RunTimeoutError, match=f"after {seconds:g} s; it was ") as caught:
            model.run(feeds, timeout=seconds)
        if "before its first step" not in str(caught.value):
            break
    return caught.value


@pytest.mark.parametrize("device", DEVICES)
def test_a_timeout_ends_a_run(device: str) -> None:
    model = weft.load(endless(), device=device)
    _check(model)
    error = _late(model, {"turns": np.int64(TURNS), "x": np.zeros(4, np.float32)})
    assert "it was at " in str(error)
    assert isinstance(error, TimeoutError)
    assert error.file == model.file
    _check(model)
    x = np.ones(4, np.float32)
    assert model.run({"turns": np.int64(2), "x": x}, timeout=1e9)["y"].tolist() == [3, 3, 3, 3]
    assert model.run({"turns": np.int64(2), "x": x}, timeout=float("inf"))["y"].tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_another_thread_cancels_runs(device: str) -> None:
    model = weft.load(endless(), device=device)
    token = weft.Cancellation()
    assert not token.cancelled
    errors: list[Exception] = []

    def run() -> None:
        try:
            model.run({"turns": np.int64(TURNS), "x": np.zeros(4, np.float32)}, cancel=token)
        except weft.RunCancelledError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    token.cancel()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert token.cancelled
    with pytest.raises(weft.RunCancelledError, match="before its first step"):
        model.run({"turns": np.int64(1), "x": np.zeros(4, np.float32)}, cancel=token)
    fresh = weft.Cancellation()
    assert model.run({"turns": np.int64(1), "x": np.zeros(4, np.float32)}, cancel=fresh)["y"].tolist() == [1, 1, 1, 1]
    assert not fresh._watches
    _check(model)


@pytest.mark.parametrize("threads", [1, 2])
def test_launch_is_interrupted_and_names_its_node(threads: int) -> None:

    size = 12_000  # half a minute of arithmetic
    model = weft.load(product(), device="cpu", threads=threads)
    x = np.ones((size, size), np.float32)
    assert "square" in str(_late(model, {"x": x}))
    small = np.ones((50, 50), np.float32)
    np.testing.assert_array_equal(model.run({"x": small})["y"], small @ small)


def test_uninterruptible_block_does_not_block_the_caller() -> None:
    """The caller does not wait for a long block; the next run gets its own memory."""
    model = weft.load(sort(), device="cpu", threads=2)
    x = np.random.default_rng(0).standard_normal(20_000_000).astype(np.float32)
    assert "order" in str(_late(model, {"x": x}))
    np.testing.assert_array_equal(model.run({"x": x[:2000]})["y"], np.sort(x[:2000])[::-1])


def test_runs_with_a_timeout_raise_the_same_errors() -> None:
    model = weft.load(product(), device="cpu")
    with pytest.raises(weft.InputError):
        model.run({"x": np.ones((2, 3), np.float32)}, timeout=10)
    for bad in ("soon", 0, -1, float("nan"), True, [1]):
        with pytest.raises(weft.InputError, match="positive number of seconds"):
            model.run({"x": np.ones((2, 2), np.float32)}, timeout=bad)  # type: ignore[arg-type]
    with pytest.raises(weft.InputError, match=r"weft\.Cancellation"):
        model.run({"x": np.ones((2, 2), np.float32)}, cancel=5)  # type: ignore[arg-type]


def test_other_threads_keep_running_during_a_run() -> None:
    """Native code releases the GIL."""
    model = weft.load(product(), device="cpu", threads=1)
    x = np.ones((2000, 2000), np.float32)
    model.run({"x": x})
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    while not counted[0]:
        time.sleep(0.001)
    before = counted[0]
    model.run({"x": x})
    during = counted[0] - before
    stop.set()
    counter.join()
    assert during > 0


def test_helper_threads_are_reused() -> None:
    before = threading.active_count()
    for number in range(20):
        assert interrupts.run_watched(lambda x: x + 1, number, timeout=10) == number + 1
    assert threading.active_count() <= before + 2


def test_helper_is_told_that_the_caller_left() -> None:
    heard = threading.Event()

    def work() -> None:
        try:
            while True:
                interrupts.raise_if_abandoned()
                time.sleep(0.001)
        except interrupts.RunAbandoned:
            heard.set()
            raise

    with pytest.raises(weft.RunTimeoutError):
        interrupts.run_watched(work, timeout=0.01)
    assert heard.wait(10)


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import weft
from runtime.test_interrupts import endless, product, sort, TURNS
signal.signal(signal.SIGINT, signal.default_int_handler)
made, device = sys.argv[1:3]
x = np.random.default_rng(0).random({"product": (9000, 9000), "sort": (30_000_000,), "endless": (4,)}[made], np.float32)
given = {"x": x, "turns": np.int64(TURNS)} if made == "endless" else {"x": x}
model = weft.load(globals()[made](), device=device, threads=2)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    model.run(given)
    print("it ran to its end")
except KeyboardInterrupt:
    small = {**given, "turns": np.int64(2)} if made == "endless" else {"x": x[:9, :9] if made == "product" else x[:9]}
    expected = x + 2 if made == "endless" else small["x"] @ small["x"] if made == "product" else np.sort(x[:9])[::-1]
    small = {name: np.array(content) for name, content in small.items()}
    print("usable" if np.allclose(model.run(small)["y"], expected, atol=1e-4) else "wrong")
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("model_name", "device"), [("product", "cpu"), ("sort", "cpu"), ("endless", "cpu"), ("endless", "reference")]
)
def test_ctrl_c_ends_a_run(model_name: str, device: str) -> None:
    folders = (str(Path(weft.__file__).parent.parent), str(Path(__file__).parent.parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", SCRIPT, model_name, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stdout.strip() == "usable", done.stderr


@pytest.mark.parametrize("device", DEVICES)
def test_awaited_runs_time_out(device: str) -> None:
    """By their own timeout or by asyncio's; the event loop keeps running."""
    model = weft.load(endless(), device=device)
    forever = {"turns": np.int64(TURNS), "x": np.zeros(4, np.float32)}
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def runs() -> None:
        ticks = asyncio.create_task(ticking())
        with pytest.raises(weft.RunTimeoutError, match="it was"):
            await model.run_async(forever, timeout=0.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.run_async(forever), 0.1)
        ticks.cancel()

    asyncio.run(runs())
    assert turns > 1
    _check(model)
