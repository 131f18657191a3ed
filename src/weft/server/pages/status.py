"""The figures of a server and its models, as `/status.json` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weft.server.served_model import ServedModel
from weft.server.snapshots import ModelSnapshot
from weft.server.statistics import LATENCY_BOUNDS
from weft.version import __version__

if TYPE_CHECKING:
    from weft.server.asgi import Application


async def describe_status(app: Application, uptime: float) -> dict[str, Any]:
    """Describe a server and its models; counters are those of all workers.

    uptime: seconds since the start of the server.
    """
    budget = app.budget
    served = {(each.name, each.version): each for each in app.repository.served()}
    snapshots = {(each.name, each.version): each for each in await app.snapshots()}
    return {
        "name": "weft",
        "version": __version__,
        "uptime": round(uptime, 3),
        "ready": app.repository.is_ready_for_requests and not app.is_draining,
        "draining": app.is_draining,
        "active_requests": max(app.active - 1, 0),  # besides the one for these figures
        "devices": sorted({each.device for each in served.values()}),
        "memory": {"limit": budget.limit, "models": budget.reserved, "runs": budget.used},
        "models": [_describe_model(row, served, snapshots) for row in app.repository.index()],
    }


def _describe_model(
    row: dict[str, str],
    served: Mapping[tuple[str, str], ServedModel],
    snapshots: Mapping[tuple[str, str], ModelSnapshot],
) -> dict[str, Any]:
    version = row.get("version", "")
    entry: dict[str, Any] = {
        "name": row["name"],
        "version": version,
        "state": row["state"],
        "reason": row["reason"],
    }
    key = row["name"], version
    model, snapshot = served.get(key), snapshots.get(key)
    return entry if model is None or snapshot is None else {**entry, **_count(model, snapshot)}


def _count(model: ServedModel, snapshot: ModelSnapshot) -> dict[str, Any]:
    counts = snapshot.statistics
    answered = counts.success.count
    figures: dict[str, Any] = {
        "kind": model.kind,
        "device": model.device,
        "memory": model.memory,
        "active_requests": model.requests,
        "queue_length": snapshot.queue,
        "requests": {
            "success": answered,
            "failed": counts.fail.count - counts.rejected,
            "rejected": counts.rejected,
            "cancelled": counts.cancel.count,
        },
        "rows": counts.inferences,
        "runs": counts.executions,
        "latency": {
            "total": counts.success.ns / 1e9,
            "p50": estimate_quantile(counts.latencies, 0.5),
            "p99": estimate_quantile(counts.latencies, 0.99),
        },
    }
    if model.generator is not None:
        statistics = model.generator.statistics
        figures["can_chat"] = _can_chat(model)
        figures["tokens"] = {"generated": snapshot.tokens["generated"], "running_answers": statistics.running}
    return figures


def _can_chat(model: ServedModel) -> bool:
    generator = model.generator
    return (
        generator is not None and generator.folder.encoder is None and bool(generator.tokenizer.chat_templates.sources)
    )


def estimate_quantile(counts: Sequence[int], fraction: float) -> float | None:
    """Estimate a quantile of latencies in seconds, as Prometheus does: linearly within a bucket.

    counts: the requests of each bucket of `LATENCY_BOUNDS`; the last bucket has no upper bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank = fraction * total
    for (low, high), number in zip(pairwise((0.0, *LATENCY_BOUNDS)), counts, strict=False):
        if number and rank <= number:
            return round(low + (high - low) * rank / number, 6)
        rank -= number
    return LATENCY_BOUNDS[-1]
