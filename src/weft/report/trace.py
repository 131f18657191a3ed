"""A profile as a trace in the format that Chrome's tracing page and Perfetto read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weft.report.nodes import labelled
from weft.runtime.profile import HOST, Profile

_PROCESS = 1
_MICROSECOND = 1e-6


def trace_json(profile: Profile, ops: Mapping[str, str] | None = None) -> str:
    """The trace; `ops` are the operators of nodes, by name."""
    events = [*_names(profile), *_spans(profile, ops or {}), *_counters(profile)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, ensure_ascii=True)


def _names(profile: Profile) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": f"{profile.file}, {profile.device}"}}
    threads = [(thread, f"thread {thread}") for thread in range(profile.threads)]
    for thread, name in [(HOST, "host"), *threads]:
        tid = _tid(thread)
        yield {"ph": "M", "pid": _PROCESS, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": _PROCESS, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _spans(profile: Profile, ops: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for span in profile.spans:
        kernel = profile.kernels[span.kernel]
        yield {
            "ph": "X",
            "pid": _PROCESS,
            "tid": _tid(span.thread),
            "name": span.name,
            "cat": kernel.bound,
            "ts": span.start / _MICROSECOND,
            "dur": (span.end - span.start) / _MICROSECOND,
            "args": {
                "nodes": list(labelled(kernel.nodes, ops)),
                "flops": kernel.flops,
                "bytes": kernel.bytes,
                "share of roofline": kernel.roofline,
                **({"tiles": kernel.tiles} if kernel.tiles else {}),
            },
        }


def _counters(profile: Profile) -> Iterator[dict[str, Any]]:
    for point in profile.memory:
        ts = point.start / _MICROSECOND
        yield {"ph": "C", "pid": _PROCESS, "name": "live bytes", "ts": ts, "args": {"bytes": point.bytes}}


def _tid(thread: int) -> int:
    """Chrome takes 0 for a thread that is not known."""
    return thread - HOST + 1
