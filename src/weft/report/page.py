"""Write a profile as one HTML page: a timeline of the threads, the arena over time, and all kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cost.roofline import TilePeak
from weft.report.html import render_page
from weft.report.nodes import label_nodes
from weft.runtime.profile import Profile

MOST_SPANS = 60_000  # that are drawn, the longest first


def profile_page(profile: Profile, ops: Mapping[str, str] | None = None) -> str:
    """Return the HTML; `ops` are the operators of nodes, by name."""
    title = Path(profile.file).name or profile.file
    data = _page_data(profile, title, ops or {})
    return render_page("profile.html", title, data, ("common.css", "profile.css"), ("common.js", "profile.js"))


def _page_data(profile: Profile, title: str, ops: Mapping[str, str]) -> dict[str, Any]:
    """Return the data that the script draws; times are in microseconds."""
    names: dict[str, int] = {}
    spans = sorted(profile.spans, key=lambda span: span.start - span.end)[:MOST_SPANS]
    spans.sort(key=lambda span: span.start)
    peak = profile.peak_memory
    return {
        "title": title,
        "device": profile.device,
        "threads": profile.threads,
        "runs": len(profile.runs),
        "length": _to_microseconds(profile.seconds),
        "flops": profile.flops,
        "peakFlops": profile.machine.flops,
        "peakBandwidth": profile.machine.bandwidth,
        "peakProducts": dict(profile.machine.products) if isinstance(profile.machine, TilePeak) else {},
        "occupancy": [round(part, 4) for part in profile.occupancy],
        "kernels": [
            {
                "name": kernel.name,
                "nodes": label_nodes(kernel.nodes, ops),
                "launches": kernel.launches,
                "time": _to_microseconds(kernel.seconds),
                "busy": _to_microseconds(kernel.busy),
                "share": kernel.share,
                "flops": kernel.flops_per_second,
                "bytes": kernel.bytes_per_second,
                "roofline": kernel.roofline,
                "bound": kernel.bound,
                "tiles": kernel.tiles,
            }
            for kernel in profile.kernels
        ],
        "spans": [
            [
                span.kernel,
                names.setdefault(span.name, len(names)),
                span.thread,
                _to_microseconds(span.start),
                _to_microseconds(span.end - span.start),
            ]
            for span in spans
        ],
        "names": list(names),
        "leftOut": len(profile.spans) - len(spans),
        "tensors": [
            [t.name, label_nodes(t.nodes, ops), t.offset, t.size, _to_microseconds(t.start), _to_microseconds(t.end)]
            for t in profile.tensors
        ],
        "memory": [[_to_microseconds(point.start), point.bytes, point.kernel] for point in profile.memory],
        "arena": profile.arena_bytes,
        "peak": None if peak is None else [_to_microseconds(peak.start), peak.bytes, peak.kernel],
    }


def _to_microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
