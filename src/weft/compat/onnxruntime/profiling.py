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
from typing import Any

_MICROSECOND = 1000


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

    def end(self, model: Any) -> str:
        """Write the file beside the prefix, and give its name."""
        events = list(self._events)
        if self._inputs is not None:
            from weft.report.trace import trace_json

            told = json.loads(trace_json(model.profile(self._inputs, repeat=1)))
            events += told["traceEvents"] if isinstance(told, dict) else told
        moment = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        path = Path(f"{self._prefix}_{moment}_{self.started // 1_000_000 % 1000:03d}.json")
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
        return str(path)

    def _note(self, name: str, start: int, stop: int) -> None:
        self._events.append(
            {
                "cat": "Session",
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "dur": (stop - start) // _MICROSECOND,
                "ts": (start - self._origin) // _MICROSECOND,
                "ph": "X",
                "name": name,
                "args": {},
            }
        )
