"""`run_async`: the results of `run`, an event loop that keeps running, and cancellation with the task."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from runtime.test_calls import layers
from runtime.test_interrupts import TURNS, endless

import weft
from weft import interrupts

X = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
FOREVER = {"turns": np.int64(TURNS), "x": np.zeros(4, np.float32)}


@pytest.fixture(params=["cpu", "reference"])
def loaded(request: pytest.FixtureRequest) -> weft.Model:
    return weft.load(layers(), device=request.param)


@pytest.fixture(params=["cpu", "reference"])
def looping(request: pytest.FixtureRequest) -> weft.Model:
    return weft.load(endless(), device=request.param)


def counted(model: weft.Model, turns: int = 3) -> list[float]:
    return model.run({"turns": np.int64(turns), "x": np.zeros(4, np.float32)})["y"].tolist()


async def until_it_runs() -> None:
    """Until a helper is at work on what was awaited, seen from a loop that goes on."""
    while not interrupts._TaskQueue.helpers:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


def test_it_takes_the_arguments_of_run(loaded: weft.Model) -> None:
    assert inspect.signature(loaded.run_async).parameters == inspect.signature(loaded.run).parameters
    expected = loaded.run({"x": X}, ["t", "y"])

    async def runs() -> Any:
        place = np.empty_like(X)
        large = np.empty((1 << 15, 16), np.float32)
        wide = np.tile(X[:1], (1 << 15, 1))
        one = await loaded.run_async({"x": X})
        two = await loaded.run_async({"x": X}, ["t", "y"], timeout=1000, cancel=weft.Cancellation())
        three = await loaded.run_async({"x": X}, into={"y": place})
        four = await loaded.run_async({"x": X}, keep=True)
        five = await loaded.run_async({"x": wide}, into={"y": large})
        assert three["y"] is place
        assert five["y"] is large
        np.testing.assert_array_equal(large, loaded.run({"x": wide})["y"])
        return one["y"], two["y"], three["y"], four["y"].numpy(), two["t"]

    *results, inner = asyncio.run(runs())
    for result in results:
        np.testing.assert_array_equal(result, expected["y"])
    np.testing.assert_array_equal(inner, expected["t"])


def test_more_awaited_runs_than_workers(loaded: weft.Model) -> None:
    inputs = [X * np.float32(number) for number in range(4 * interrupts.MAX_AWAITED)]

    async def runs() -> list[Any]:
        return await asyncio.gather(*(loaded.run_async({"x": x}) for x in inputs))

    for x, result in zip(inputs, asyncio.run(runs()), strict=True):
        np.testing.assert_array_equal(result["y"], loaded.run({"x": x})["y"])
    with interrupts._TaskQueue.lock:
        assert not interrupts._TaskQueue.waiting
    for _ in range(6000):  # a helper leaves after it has delivered its last result
        if not interrupts._TaskQueue.helpers:
            break
        time.sleep(0.01)
    assert interrupts._TaskQueue.helpers == 0


def test_concurrent_runs_are_limited(looping: weft.Model) -> None:
    """Queued runs can be cancelled, too, and then never start."""
    most = interrupts.MAX_AWAITED

    async def runs() -> None:
        tasks = [asyncio.create_task(looping.run_async(FOREVER)) for _ in range(most + 3)]
        while len(interrupts._TaskQueue.waiting) < 3:
            await asyncio.sleep(0.001)
        assert interrupts._TaskQueue.helpers == most
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * len(tasks)
        assert (await looping.run_async({**FOREVER, "turns": np.int64(2)}))["y"].tolist() == [2] * 4

    asyncio.run(runs())
    assert counted(looping) == [3] * 4


def test_errors_reach_the_awaiting_task(loaded: weft.Model) -> None:
    async def run(*arguments: Any, **named: Any) -> None:
        await loaded.run_async(*arguments, **named)

    for feeds, named, message in [
        ({"z": X}, {}, "no input 'z'"),
        ({"x": X}, {"timeout": -1}, "timeout must be"),
        ({"x": X}, {"cancel": 3}, "cancel must be"),
        ({"x": X}, {"into": {"y": X[0]}}, "has shape"),
        (X, {}, "by name"),
    ]:
        with pytest.raises(weft.InputError, match=message):
            asyncio.run(run(feeds, **named))


def test_cancelling_a_task_ends_its_run(looping: weft.Model) -> None:
    async def runs() -> None:
        task = asyncio.create_task(looping.run_async(FOREVER))
        await until_it_runs()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while interrupts._TaskQueue.helpers:  # the helper has given it up
            await asyncio.sleep(0.001)

    asyncio.run(runs())
    assert counted(looping) == [3] * 4


def test_cancellation_object_ends_it(looping: weft.Model) -> None:
    token = weft.Cancellation()

    async def runs() -> None:
        task = asyncio.create_task(looping.run_async(FOREVER, cancel=token))
        await until_it_runs()
        threading.Thread(target=token.cancel).start()
        with pytest.raises(weft.RunCancelledError, match="it was"):
            await task
        with pytest.raises(weft.RunCancelledError):
            await looping.run_async(FOREVER, cancel=token)

    asyncio.run(runs())
    assert counted(looping) == [3] * 4


def test_closing_the_loop_ends_its_runs(looping: weft.Model) -> None:
    """`asyncio.run` cancels pending runs; their helper threads then report to a closed loop."""

    async def leaves() -> None:
        task = asyncio.create_task(looping.run_async(FOREVER))
        await until_it_runs()
        assert not task.done()

    for _ in range(3):
        asyncio.run(leaves())
    assert counted(looping) == [3] * 4


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no TaskGroup")
def test_failure_in_a_task_group(looping: weft.Model) -> None:
    async def runs() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(looping.run_async(FOREVER))
            await until_it_runs()
            group.create_task(looping.run_async({"z": 1}))

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: F821 - since 3.11
        asyncio.run(runs())
    assert isinstance(caught.value.exceptions[0], weft.InputError)
    assert counted(looping) == [3] * 4


def test_arrays_of_a_cancelled_task_are_not_written(looping: weft.Model) -> None:
    place = np.full(4, 5, np.float32)

    async def runs() -> None:
        task = asyncio.create_task(looping.run_async(FOREVER, into={"y": place}))
        await until_it_runs()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(runs())
    assert place.tolist() == [5] * 4
