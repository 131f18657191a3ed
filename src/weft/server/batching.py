"""Join requests into batches, run them, and split the results.

Requests wait in groups that can be joined: the same shapes but for the batch, the same shared inputs, the same outputs.
Lengths of a model with a mask may differ a little: shorter rows are padded. While a batch runs, the next one gathers;
when nothing runs, a request does not wait. Only after a batch of several requests does the next one wait for as many
rows, at most `max_wait` and no longer than a run takes: clients that send their next request when they get an answer
would otherwise leave every second batch nearly empty. A row has the same bits in any batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import OutOfMemoryError, RunCancelledError, RunTimeoutError, WeftError
from weft.interrupts import Cancellation, await_run
from weft.quantities import format_bytes
from weft.runtime.batch_axes import BatchAxes, index_rows, join_rows, split_rows
from weft.runtime.ragged_axes import RaggedAxes, length_class
from weft.server.errors import overload_error
from weft.server.http import HttpError
from weft.server.memory import MemoryBudget
from weft.server.statistics import ModelStatistics

if TYPE_CHECKING:
    from weft.runtime.model import Model

INLINE_SECONDS = 0.0003  # a run that is shorter blocks the event loop less than handing it to a thread would
MOST_INLINE_NS = 5_000_000  # of short runs in a row, before the event loop does other things
MOST_PREDICTIONS = 4096  # of memory, by shapes

Arrays = Mapping[str, Any]
_numbers = count()  # keys of groups that nothing joins


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How requests of one model are joined.

    largest: the most rows of a run; more rows are split.
    max_wait: seconds to wait for as many rows as the last batch had.
    concurrency: runs at a time.
    max_queue: the most requests that wait.
    run_seconds: how long a run takes, as far as is known.
    """

    largest: int = 1
    max_wait: float = 0.002
    concurrency: int = 1
    max_queue: int = 1000
    run_seconds: float = 1.0


class _Entry:
    """A request that waits for its results."""

    __slots__ = ("arrays", "arrived", "future", "outputs", "rows", "started")

    def __init__(self, arrays: Arrays, outputs: tuple[str, ...] | None, rows: int, future: asyncio.Future[Any]) -> None:
        self.arrays = arrays
        self.outputs = outputs
        self.rows = rows
        self.future = future
        self.arrived = time.perf_counter_ns()
        self.started = 0

    def expire(self, timeout: float) -> None:
        """Fail the request because its time is over."""
        if not self.future.done():
            position = "it was running" if self.started else "it waited for other requests"
            self.future.set_exception(RunTimeoutError(f"the request was not done after {timeout:g} s; {position}"))


class Batcher:
    """Runs the requests of one model, on the event loop that calls `submit`."""

    def __init__(
        self,
        model: Model,
        axes: BatchAxes,
        ragged: RaggedAxes | None,
        options: BatchOptions,
        budget: MemoryBudget,
        statistics: ModelStatistics,
    ) -> None:
        """Join requests along `axes`, which may say that the rows of several requests cannot be joined.

        `ragged`: the axes along which rows may be padded to join them.
        """
        self.model = model
        self.axes = axes
        self.ragged = ragged
        self.options = options
        self.statistics = statistics
        self.pending = 0  # requests that wait
        self.running = 0
        self._budget = budget
        self._groups: dict[Hashable, deque[_Entry]] = {}  # in the order of their first requests
        self._last_rows: dict[Hashable, int] = {}  # of the last batch of groups that run or ran just now
        self._next: asyncio.Handle | None = None  # starts batches in this iteration of the event loop
        self._timer: asyncio.TimerHandle | None = None  # starts them when `max_wait` ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._seconds = options.run_seconds  # of recent runs
        self._predictions: dict[Hashable, int] = {}

    # -- requests ----------------------------------------------------------------------------------------------------

    async def run(
        self, arrays: Arrays, outputs: tuple[str, ...] | None = None, timeout: float | None = None
    ) -> tuple[dict[str, Any], int]:
        """Run a request in the next batch; return its outputs and the nanoseconds that it waited.

        Raise HttpError 429 if too many requests wait, and 413 if its memory can never be there; RunTimeoutError if it
        is not done after `timeout` seconds.
        """
        if self.pending >= self.options.max_queue:
            self.statistics.rejected += 1
            problem = f"{self.pending} requests wait for this model; try again later"
            raise overload_error(problem, retry_after=self._expected_wait())
        rows = self.axes.count_rows(arrays) if self.axes.can_join else 1
        key = self._group(arrays, outputs)
        self._check_size(key, arrays, rows)
        loop = asyncio.get_running_loop()
        entry = _Entry(arrays, outputs, rows, loop.create_future())
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = deque()
        group.append(entry)
        self.pending += 1
        if self._timer is not None and not self._wait_for_more(key):
            self._timer.cancel()
            self._timer = None
        self._schedule(loop)
        expiry = None if timeout is None else loop.call_later(timeout, entry.expire, timeout)
        try:
            results: dict[str, Any] = await entry.future
        except (asyncio.CancelledError, RunTimeoutError):
            self._forget(key, entry)
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
        return results, entry.started - entry.arrived

    def _group(self, arrays: Arrays, outputs: tuple[str, ...] | None) -> Hashable:
        """Return what requests must have in common to run as one batch."""
        axes = self.axes
        if not axes.can_join:
            return next(_numbers)
        axis_of = axes.inputs
        parts: list[Hashable] = [outputs]
        if self.ragged is not None and (length := self.ragged.length(arrays)) is not None:
            arrays = {name: array for name, array in arrays.items() if name not in self.ragged.inputs}
            parts.append(length_class(length))
        for name, array in arrays.items():
            axis = axis_of.get(name)
            if axis is None:
                parts.append((name, array.shape, array.tobytes() if array.dtype != object else tuple(array.flat)))
            elif axis == 0:
                parts.append((name, array.shape[1:]))
            else:
                parts.append((name, array.shape[:axis], array.shape[axis + 1 :]))
        return tuple(parts)

    def _forget(self, key: Hashable, entry: _Entry) -> None:
        """Drop a request that is no longer wanted, unless it already runs."""
        group = self._groups.get(key)
        if group is not None and entry in group:
            group.remove(entry)
            self.pending -= 1
            if not group:
                del self._groups[key]

    # -- memory ------------------------------------------------------------------------------------------------------

    def predict(self, key: Hashable, arrays: Arrays, rows: int) -> int:
        """Predict the bytes of a run on a number of rows of these shapes, besides the weights."""
        size = 1 << (rows - 1).bit_length() if rows > 1 else rows
        cached_prediction = self._predictions.get((key, size) if self.axes.can_join else _shapes(arrays))
        if cached_prediction is not None:
            return cached_prediction
        shapes = {}
        for name, array in arrays.items():
            axis = self.axes.inputs.get(name) if self.axes.can_join else None
            shape = list(array.shape)
            if axis is not None:
                shape[axis] = size
            if self.ragged is not None and name in self.ragged.inputs:
                place = self.ragged.inputs[name]
                shape[place] = length_class(shape[place])
            shapes[name] = tuple(shape)
        try:
            memory = self.model.memory(shapes)
            needed = memory.peak - memory.weights
        except WeftError:  # the run will say what is wrong with these shapes
            needed = 0
        if len(self._predictions) >= MOST_PREDICTIONS:
            self._predictions.clear()
        self._predictions[(key, size) if self.axes.can_join else _shapes(arrays)] = needed
        return needed

    def _check_size(self, key: Hashable, arrays: Arrays, rows: int) -> None:
        needed = self.predict(key, arrays, 1 if self.axes.can_join else rows)
        if not self._budget.can_ever_fit(needed):
            room = format_bytes(max(self._budget.limit - self._budget.reserved, 0))
            problem = f"this request needs {format_bytes(needed)} of memory, and the server has {room} for runs"
            raise HttpError(413, f"{problem}; send smaller inputs, or raise --memory-limit")

    def _fitting_rows(self, key: Hashable, entry: _Entry) -> int:
        """Return the most rows of a run, so that it can ever fit."""
        rows = self.options.largest
        while rows > 1 and not self._budget.can_ever_fit(self.predict(key, entry.arrays, rows)):
            rows //= 2
        return rows

    # -- batches -----------------------------------------------------------------------------------------------------

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start batches after all requests that have arrived by now."""
        if self._next is None and self._timer is None and self.running < self.options.concurrency:
            self._next = loop.call_soon(self._start)

    def _start(self) -> None:
        """Start as many batches as may run at a time."""
        self._next = self._timer = None
        loop = asyncio.get_running_loop()
        end = time.perf_counter_ns() + MOST_INLINE_NS
        while self._groups and self.running < self.options.concurrency:
            key = min(self._groups, key=lambda key: self._groups[key][0].arrived)
            delay = self._wait_for_more(key)
            if delay:
                self._timer = loop.call_later(delay, self._start)
                return
            entries = self._take(key)
            if self._seconds < INLINE_SECONDS and self._run_now(key, entries):
                if time.perf_counter_ns() > end:
                    self._schedule(loop)
                    return
                continue
            self.running += 1
            task = loop.create_task(self._run_later(key, entries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait_for_more(self, key: Hashable) -> float:
        """Return the seconds to wait for a batch as large as the last one of this group."""
        expected = self._last_rows.get(key, 1)
        longest = min(self.options.max_wait, self._seconds)  # joining saves less than a run
        if expected <= 1 or not longest:
            return 0.0
        group = self._groups[key]
        waited = (time.perf_counter_ns() - group[0].arrived) / 1e9
        if waited >= longest or sum(entry.rows for entry in group) >= expected:
            return 0.0
        return longest - waited

    def _take(self, key: Hashable) -> list[_Entry]:
        group = self._groups[key]
        entries = [group.popleft()]
        rows = entries[0].rows
        if self.axes.can_join:
            largest = self._fitting_rows(key, entries[0])
            while group and rows + group[0].rows <= largest:
                rows += group[0].rows
                entries.append(group.popleft())
        if not group:
            del self._groups[key]
        if self.axes.can_join:
            if len(self._last_rows) > 256:
                self._last_rows.clear()
            self._last_rows[key] = rows if len(entries) > 1 else 1
        self.pending -= len(entries)
        now = time.perf_counter_ns()
        for entry in entries:
            entry.started = now
        return entries

    def _run_now(self, key: Hashable, entries: Sequence[_Entry]) -> bool:
        """Run a short batch on the event loop; False if its memory is not free."""
        rows = sum(entry.rows for entry in entries)
        needed = self.predict(key, entries[0].arrays, rows)
        if rows > self.options.largest or not self._budget.try_acquire(needed):
            return False
        try:
            results = self._compute(entries, None)
        except Exception as error:
            self._fail(entries, error)
        else:
            self._answer(entries, results)
        finally:
            self._budget.release(needed)
        return True

    async def _run_later(self, key: Hashable, entries: Sequence[_Entry]) -> None:
        """Run a batch in a helper thread; a batch whose requests have all ended is abandoned."""
        rows = min(sum(entry.rows for entry in entries), self._fitting_rows(key, entries[0]))
        needed = self.predict(key, entries[0].arrays, rows)
        cancellation = Cancellation()
        left = len(entries)

        def leave(_: asyncio.Future[Any]) -> None:
            nonlocal left
            left -= 1
            if not left:
                cancellation.cancel()

        for entry in entries:
            entry.future.add_done_callback(leave)
        try:
            await self._budget.acquire(needed)
            try:
                if not left:
                    return
                results = await await_run(self._compute, entries, rows, cancel=cancellation)
            finally:
                self._budget.release(needed)
        except RunCancelledError:
            pass
        except Exception as error:
            self._fail(entries, error)
        else:
            self._answer(entries, results)
        finally:
            self.running -= 1
            if self._groups:
                self._schedule(asyncio.get_running_loop())

    def _compute(self, entries: Sequence[_Entry], most_rows: int | None) -> list[dict[str, Any]]:
        """Run a batch, in steps of at most `most_rows` rows, and split the outputs by request."""
        begin = time.perf_counter_ns()
        outputs = entries[0].outputs
        if not self.axes.can_join:
            results = self.model.run(entries[0].arrays, outputs)
            self._count(1, 1, begin, begin, time.perf_counter_ns())
            return [results]
        rows = sum(entry.rows for entry in entries)
        requests, lengths = self._pad([entry.arrays for entry in entries])
        joined = join_rows(requests, self.axes)
        ready = time.perf_counter_ns()
        if most_rows is None or rows <= most_rows:
            results = self.model.run(joined, outputs)
        else:
            results = self._run_in_steps(joined, outputs, rows, most_rows)
        done = time.perf_counter_ns()
        parts = [results] if len(entries) == 1 else split_rows(results, self.axes, [entry.rows for entry in entries])
        if lengths is not None and self.ragged is not None:
            parts = [self.ragged.trim(part, length) for part, length in zip(parts, lengths)]
        self._count(len(entries), rows, begin, ready, done)
        return parts

    def _pad(self, requests: list[Arrays]) -> tuple[list[Arrays], list[int] | None]:
        """Pad rows of different lengths to the longest; return them with their lengths, None if all are equal."""
        ragged = self.ragged
        if ragged is None or len(requests) == 1:
            return requests, None
        lengths = [ragged.length(request) or 0 for request in requests]
        longest = max(lengths)
        if min(lengths) == longest:
            return requests, None
        return [ragged.pad(request, longest) for request in requests], lengths

    def _run_in_steps(
        self, joined: Arrays, outputs: tuple[str, ...] | None, rows: int, most_rows: int
    ) -> dict[str, Any]:
        steps = [
            self.model.run(slice_rows(joined, self.axes, start, min(start + most_rows, rows)), outputs)
            for start in range(0, rows, most_rows)
        ]
        return {name: np.concatenate([step[name] for step in steps], self.axes.outputs[name]) for name in steps[0]}

    def _count(self, requests: int, rows: int, begin: int, ready: int, done: int) -> None:
        self._seconds += ((done - begin) / 1e9 - self._seconds) / 4
        self.statistics.add_run(requests, rows, ready - begin, done - ready, time.perf_counter_ns() - done)

    def _answer(self, entries: Sequence[_Entry], results: Sequence[dict[str, Any]]) -> None:
        for entry, outputs in zip(entries, results):
            if not entry.future.done():
                entry.future.set_result(outputs)

    def _fail(self, entries: Sequence[_Entry], error: Exception) -> None:
        """Fail the request of a batch; run those of several alone, since one of them may be at fault."""
        waiting = [entry for entry in entries if not entry.future.done()]
        if len(entries) == 1 or isinstance(error, OutOfMemoryError):
            for entry in waiting:
                entry.future.set_exception(error)
            return
        loop = asyncio.get_running_loop()
        for entry in waiting:
            self._groups[next(_numbers)] = deque([entry])
            self.pending += 1
        self._schedule(loop)

    def _expected_wait(self) -> float:
        """Estimate the seconds until the requests that wait now are done."""
        batches = self.pending / max(self.options.largest * self.options.concurrency, 1)
        return max(1.0, batches * self._seconds)


def slice_rows(arrays: Arrays, axes: BatchAxes, start: int, stop: int) -> dict[str, Any]:
    """Return some rows of a batch; shared inputs are left whole."""
    return {
        name: array[index_rows(axes.inputs[name], start, stop)] if name in axes.inputs else array
        for name, array in arrays.items()
    }


def _shapes(arrays: Arrays) -> Hashable:
    return tuple((name, array.shape) for name, array in arrays.items())
