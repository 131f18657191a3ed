"""enable_profiling and end_profiling: a session's runs as a trace file for chrome://tracing."""

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

from weft.report.nodes import ops_by_node

if TYPE_CHECKING:
    from weft.runtime.model import Model

_NANOSECONDS_PER_MICROSECOND = 1000
_MICROSECONDS_PER_SECOND = 1e6


class SessionProfile:
    """The times of a session's runs, and of the kernels in one more run on the last inputs."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.started = time.time_ns()
        self._origin = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._inputs: Mapping[str, Any] | None = None

    @contextmanager
    def run(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Record a run."""
        if not self._events:
            self._record("session_initialization", self._origin, time.perf_counter_ns())
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._record("model_run", start, time.perf_counter_ns())
            self._inputs = inputs

    def end(self, model: Model, provider: str) -> str:
        """Write the trace file and return its name."""
        kernels = [] if self._inputs is None else self._kernel_events(model, self._inputs, provider)
        events = [*self._events, *kernels]
        moment = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        path = Path(f"{self._prefix}_{moment}_{self.started // 1_000_000 % 1000:03d}.json")
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
        return str(path)

    def _kernel_events(self, model: Model, inputs: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
        """Run the model once more and return an event for each kernel on each thread, named by its first node."""
        start = (time.perf_counter_ns() - self._origin) // _NANOSECONDS_PER_MICROSECOND
        profile, ops = model.profile(inputs, repeat=1), ops_by_node(model.source.graph)
        events = []
        for span in profile.spans:
            kernel = profile.kernels[span.kernel]
            node = next((node for node in kernel.nodes if node in ops), kernel.name)
            arguments = {"op_name": ops.get(node, kernel.name), "provider": provider, "nodes": list(kernel.nodes)}
            kernel_start = start + round(span.start * _MICROSECONDS_PER_SECOND)
            duration = round((span.end - span.start) * _MICROSECONDS_PER_SECOND)
            events.append(
                _trace_event("Node", f"{node}_kernel_time", span.thread + 1, kernel_start, duration, arguments)
            )
        return events

    def _record(self, name: str, start: int, stop: int) -> None:
        since_origin = (start - self._origin) // _NANOSECONDS_PER_MICROSECOND
        duration = (stop - start) // _NANOSECONDS_PER_MICROSECOND
        self._events.append(_trace_event("Session", name, threading.get_native_id(), since_origin, duration, {}))


def _trace_event(
    category: str, name: str, thread: int, start: int, duration: int, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a trace event with the fields of onnxruntime's; times are in microseconds."""
    return {
        "cat": category,
        "pid": os.getpid(),
        "tid": thread,
        "dur": duration,
        "ts": start,
        "ph": "X",
        "name": name,
        "args": dict(arguments),
    }
