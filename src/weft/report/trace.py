"""Write a profile as a trace for Perfetto and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weft.report.nodes import label_nodes
from weft.runtime.profile import HOST, Profile

_PROCESS = 1
_MICROSECOND = 1e-6


def trace_json(profile: Profile, ops: Mapping[str, str] | None = None) -> str:
    """Return the trace as JSON; `ops` are the operators of nodes, by name."""
    events = [*_name_events(profile), *_span_events(profile, ops or {}), *_counter_events(profile)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, ensure_ascii=True)


def _name_events(profile: Profile) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": f"{profile.file}, {profile.device}"}}
    threads = [(thread, f"thread {thread}") for thread in range(profile.threads)]
    for thread, name in [(HOST, "host"), *threads]:
        tid = _thread_id(thread)
        yield {"ph": "M", "pid": _PROCESS, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": _PROCESS, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _span_events(profile: Profile, ops: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for span in profile.spans:
        kernel = profile.kernels[span.kernel]
        yield {
            "ph": "X",
            "pid": _PROCESS,
            "tid": _thread_id(span.thread),
            "name": span.name,
            "cat": kernel.bound,
            "ts": span.start / _MICROSECOND,
            "dur": (span.end - span.start) / _MICROSECOND,
            "args": {
                "nodes": list(label_nodes(kernel.nodes, ops)),
                "flops": kernel.flops,
                "bytes": kernel.bytes,
                "share of roofline": kernel.roofline,
                **({"tiles": kernel.tiles} if kernel.tiles else {}),
            },
        }


def _counter_events(profile: Profile) -> Iterator[dict[str, Any]]:
    for point in profile.memory:
        ts = point.start / _MICROSECOND
        yield {"ph": "C", "pid": _PROCESS, "name": "live bytes", "ts": ts, "args": {"bytes": point.bytes}}


def _thread_id(thread: int) -> int:
    """Return the thread id, which must not be 0: Chrome takes that for an unknown thread."""
    return thread - HOST + 1
