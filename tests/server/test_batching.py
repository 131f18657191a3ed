"""Batches of requests: the same bits as alone, limits of the queue and of memory, timeouts and cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import models

import weft
import weft.server
from weft.errors import RunTimeoutError
from weft.runtime.batch_axes import find_batch_axes
from weft.server.asgi import Application
from weft.server.http import HttpError
from weft.server.served_model import ServedModel

SEED = 20
REQUESTS = 1500


def run_app(make: Callable[[], Application], check: Callable[[Application], Awaitable[None]]) -> None:
    """Start an app on a new event loop, check it there, and stop it."""

    async def run() -> None:
        app = make()
        await app.start()
        try:
            await check(app)
        finally:
            await app.stop()

    asyncio.run(run())


def app_of(path: Path, **settings: Any) -> Callable[[], Application]:
    return lambda: weft.server.app({"m": path}, device="cpu", poll=0, **settings)


WRITERS = {
    "simple": models.write_simple,
    "dense": models.write_dense,
    "lengths": models.write_sequence_model,
    "mixing": models.write_mixing,
    "encoder": models.write_encoder,
}


def _random_inputs(name: str, random: np.random.Generator) -> dict[str, Any]:
    rows = int(random.integers(1, 6)) if random.random() < 0.9 else int(random.integers(6, 200))
    if name == "simple":
        return {key: random.integers(-99, 99, (rows, 16), np.int32) for key in ("INPUT0", "INPUT1")}
    if name == "encoder":
        rows = min(rows, 8)
        length = int(random.integers(1, 60))
        mask = (np.arange(length) < random.integers(1, length + 1, (rows, 1))).astype(np.int64)
        return {"input_ids": random.integers(0, 50, (rows, length)), "attention_mask": mask}
    shape = {"dense": (rows, 8), "lengths": (rows, int(random.integers(1, 5)), 4), "mixing": (rows, 4)}[name]
    return {"x": random.normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("max_wait", [0.0, 0.002])
def test_rows_have_the_same_bits_in_any_batch(name: str, max_wait: float, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "m.onnx")
    random = np.random.default_rng(SEED)
    model = weft.load(path, device="cpu")
    requests = [_random_inputs(name, random) for _ in range(REQUESTS)]
    delays = random.exponential(0.0002, REQUESTS) * (random.random(REQUESTS) < 0.5)

    async def check(app: Application) -> None:
        served = app.repository.get("m")

        async def send(number: int) -> None:
            results = await served.infer(requests[number], None)
            for key, expected in model.run(requests[number]).items():
                assert results[key].tobytes() == expected.tobytes(), (SEED, name, number)
                assert results[key].shape == expected.shape

        tasks = []
        for number, delay in enumerate(delays):
            tasks.append(asyncio.create_task(send(number)))
            if delay:
                await asyncio.sleep(delay)
        await asyncio.gather(*tasks)
        counts = served.statistics
        assert counts.inferences == sum(1 if name == "mixing" else len(next(iter(r.values()))) for r in requests)
        assert counts.success.count == REQUESTS
        if name != "mixing":
            assert counts.executions < REQUESTS  # some were joined

    run_app(app_of(path, max_wait=max_wait, max_batch=32), check)


def test_requests_that_select_outputs_are_not_joined_with_others(tmp_path: Path) -> None:
    path = models.write_simple(tmp_path / "m.onnx")
    x = np.arange(16, dtype=np.int32)[None]

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        feeds = {"INPUT0": x, "INPUT1": x}
        chosen: list[Any] = [None, ("OUTPUT1",), ("OUTPUT0",)] * 5
        for outputs, results in zip(chosen, await asyncio.gather(*(served.infer(feeds, each) for each in chosen))):
            assert tuple(results) == (outputs or ("OUTPUT0", "OUTPUT1"))

    run_app(app_of(path), check)


def test_shared_inputs_join_only_if_they_are_equal(tmp_path: Path) -> None:
    graph = weft.Graph("scaled")
    x = graph.input("x", ("batch", 2), "float32")
    scale = graph.input("scale", (), "float32")
    graph.output(x * scale, "y")
    path = tmp_path / "m.onnx"
    graph.to_onnx(path)

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        assert served.batcher is not None
        assert served.batcher.axes.inputs == {"x": 0}
        feeds = [{"x": np.full((1, 2), i, np.float32), "scale": np.array(i % 3, np.float32)} for i in range(30)]
        results = await asyncio.gather(*(served.infer(each, None) for each in feeds))
        for number, result in enumerate(results):
            assert (result["y"] == number * (number % 3)).all()

    run_app(app_of(path), check)


def test_rows_of_different_lengths_run_together(tmp_path: Path) -> None:
    path = models.write_encoder(tmp_path / "m.onnx")
    random = np.random.default_rng(SEED)
    model = weft.load(path, device="cpu")

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        assert served.batcher is not None
        assert served.batcher.ragged is not None
        assert served.batcher.ragged.inputs == {"input_ids": 1, "attention_mask": 1}
        assert served.batcher.ragged.outputs == {"last_hidden_state": 1}
        feeds = [
            {"input_ids": random.integers(0, 50, (1, length)), "attention_mask": np.ones((1, length), np.int64)}
            for length in range(33, 49)
        ]
        before = served.statistics.executions
        for feed, result in zip(feeds, await asyncio.gather(*(served.infer(each, None) for each in feeds))):
            assert result["last_hidden_state"].tobytes() == model.run(feed)["last_hidden_state"].tobytes()
        assert served.statistics.executions == before + 1

    run_app(app_of(path, max_batch=32), check)


def test_models_that_mix_rows_are_not_batched(tmp_path: Path) -> None:
    axes = find_batch_axes(weft.load(models.write_mixing(tmp_path / "m.onnx"), device="cpu"))
    assert not axes.can_join
    assert "rows" in axes.reason


def test_full_queue_refuses_with_a_time_to_come_back(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx")

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        x = {"x": np.zeros((1, 1400), np.float32)}
        tasks = [asyncio.create_task(served.infer(x, None)) for _ in range(30)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, HttpError)]
        answered = [result for result in results if isinstance(result, dict)]
        assert refused
        assert len(answered) >= 4
        assert len(refused) + len(answered) == 30
        assert all(error.status == 429 for error in refused)
        assert dict(refused[0].headers)[b"retry-after"].isdigit()
        assert served.statistics.rejected == len(refused)

    run_app(app_of(path, max_queue=4, max_batch=1), check)


def test_timeout_ends_waiting_and_running_requests(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx")

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        x = {"x": np.zeros((1, 1400), np.float32)}
        first = asyncio.create_task(served.infer(x, None))
        await asyncio.sleep(0.001)
        with pytest.raises(RunTimeoutError, match="waited"):
            await served.infer(x, None, timeout=0.005)
        assert (await first)["y"].shape == (1, 1400)
        with pytest.raises(RunTimeoutError, match="running"):
            await served.infer({"x": np.zeros((64, 1400), np.float32)}, None, timeout=0.01)
        assert (await served.infer(x, None))["y"].shape == (1, 1400)
        assert app.budget.used == 0
        assert served.batcher is not None
        assert served.batcher.pending == served.batcher.running == 0

    run_app(app_of(path, max_batch=1), check)


def test_cancelled_requests_leave_the_queue(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx")

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        x = {"x": np.zeros((1, 1400), np.float32)}
        tasks = [asyncio.create_task(served.infer(x, None)) for _ in range(10)]
        await asyncio.sleep(0.001)
        for task in tasks[1:]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], dict)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[1:])
        assert served.statistics.executions <= 2
        assert served.statistics.cancel.count == 9

    run_app(app_of(path, max_batch=1), check)


def test_requests_beyond_the_memory_limit_are_refused_before_they_run(tmp_path: Path) -> None:
    path = models.write_sequence_model(tmp_path / "m.onnx")

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        small, large = np.ones((8, 5, 4), np.float32), np.ones((1, 400_000, 4), np.float32)
        results = await asyncio.gather(*(served.infer({"x": small}, None) for _ in range(50)))
        assert all(result["y"].shape == (8, 5, 6) for result in results)
        with pytest.raises(HttpError, match="of memory") as caught:
            await served.infer({"x": large}, None)
        assert caught.value.status == 413
        many = np.ones((20_000, 5, 4), np.float32)  # more rows than fit are run in steps
        assert (await served.infer({"x": many}, None))["y"].shape == (20_000, 5, 6)
        assert app.budget.used == 0

    run_app(app_of(path, memory_limit="1MB", max_batch=4096), check)


def test_one_request_that_fails_does_not_fail_its_batch(tmp_path: Path) -> None:
    graph = weft.Graph("gather")
    index = graph.input("index", ("batch",), "int64")
    table = graph.parameter("table", np.arange(10, dtype=np.float32))
    graph.output(weft.ops.gather(table, index), "y")
    path = tmp_path / "m.onnx"
    graph.to_onnx(path)

    async def check(app: Application) -> None:
        served = app.repository.get("m")
        feeds = [{"index": np.array([99 if number == 7 else number % 10])} for number in range(20)]
        results = await asyncio.gather(*(served.infer(each, None) for each in feeds), return_exceptions=True)
        for number, result in enumerate(results):
            if number == 7:
                assert isinstance(result, weft.WeftError)
            else:
                assert isinstance(result, dict)
                assert result["y"].tolist() == [number % 10]

    run_app(app_of(path), check)


def test_idle_server_does_not_wait_for_other_requests(tmp_path: Path) -> None:
    path = models.write_dense(tmp_path / "m.onnx")

    async def check(app: Application) -> None:
        served: ServedModel = app.repository.get("m")
        for _ in range(5):
            await served.infer({"x": np.zeros((1, 8), np.float32)}, None)
        assert served.statistics.executions == 5

    run_app(app_of(path, max_wait=1e6), check)
