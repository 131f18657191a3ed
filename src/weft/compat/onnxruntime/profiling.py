"""enable_profiling and end_profiling: a session's runs as a file that chrome://tracing shows."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.runtime.model import Model

_MICROSECOND = 1000  # nanoseconds
_MICROSECONDS = 1e6  # of a second


class SessionProfile:
    """The times of runs; and, of the last inputs, where a run's time goes."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.started = time.time_ns()
        self._origin = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._inputs: Mapping[str, Any] | None = None

    @contextmanager
    def run(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Note a run."""
        if not self._events:
            self._note("session_initialization", self._origin, time.perf_counter_ns())
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._note("model_run", start, time.perf_counter_ns())
            self._inputs = inputs

    def end(self, model: Model, provider: str) -> str:
        """Write the file beside the prefix, and give its name."""
        events = [*self._events, *([] if self._inputs is None else self._kernels(model, self._inputs, provider))]
        moment = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        path = Path(f"{self._prefix}_{moment}_{self.started // 1_000_000 % 1000:03d}.json")
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
        return str(path)

    def _kernels(self, model: Model, inputs: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
        """What each thread does in a run of its own, kernel by kernel; a kernel goes by the first of its nodes."""
        from weft.report.nodes import ops_by_node

        start = (time.perf_counter_ns() - self._origin) // _MICROSECOND
        profile, ops = model.profile(inputs, repeat=1), ops_by_node(model.source.graph)
        events = []
        for span in profile.spans:
            kernel = profile.kernels[span.kernel]
            named = next((node for node in kernel.nodes if node in ops), kernel.name)
            told = {"op_name": ops.get(named, kernel.name), "provider": provider, "nodes": list(kernel.nodes)}
            times = start + round(span.start * _MICROSECONDS), round((span.end - span.start) * _MICROSECONDS)
            events.append(_event("Node", f"{named}_kernel_time", span.thread + 1, *times, told))
        return events

    def _note(self, name: str, start: int, stop: int) -> None:
        times = (start - self._origin) // _MICROSECOND, (stop - start) // _MICROSECOND
        self._events.append(_event("Session", name, threading.get_native_id(), *times, {}))


def _event(category: str, name: str, thread: int, start: int, duration: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """One that a tracing page shows, with the fields that onnxruntime's have."""
    place = {"cat": category, "pid": os.getpid(), "tid": thread}
    return {**place, "dur": duration, "ts": start, "ph": "X", "name": name, "args": dict(told)}
