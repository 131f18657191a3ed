"""Metrics in the formats of Prometheus and OpenMetrics: names of our own, and those of Triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weft.batch_inference.optional_packages import import_package
from weft.server.http import Response
from weft.server.snapshots import ModelSnapshot
from weft.server.statistics import LATENCY_BOUNDS, ModelStatistics

if TYPE_CHECKING:
    from weft.server.asgi import Application

LABELS = ("model", "version")
TRITON_COUNTERS = {
    "nv_inference_request_success": "Requests that were answered",
    "nv_inference_request_failure": "Requests that failed",
    "nv_inference_count": "Rows that were computed",
    "nv_inference_exec_count": "Runs",
    "nv_inference_request_duration_us": "Time of answered requests in microseconds",
    "nv_inference_queue_duration_us": "Time that requests waited in microseconds",
    "nv_inference_compute_input_duration_us": "Time of joining inputs in microseconds",
    "nv_inference_compute_infer_duration_us": "Time of runs in microseconds",
    "nv_inference_compute_output_duration_us": "Time of splitting outputs in microseconds",
}


async def metrics_response(app: Application, accept: str) -> Response:
    """Write all metrics, in the format that the request accepts."""
    exposition = import_package("prometheus_client.exposition", "/metrics", "weft-onnx[serve]")
    encode, content_type = exposition.choose_encoder(accept)
    text: bytes = encode(_make_registry(app, await app.snapshots()))
    for name in TRITON_COUNTERS:  # the library writes counters only with names that end in _total
        text = text.replace(f"# TYPE {name} untyped".encode(), f"# TYPE {name} counter".encode())
    return Response(text, headers=((b"content-type", content_type.encode()),))


def _make_registry(app: Application, snapshots: Sequence[ModelSnapshot]) -> Any:
    registry = import_package("prometheus_client", "/metrics", "weft-onnx[serve]").CollectorRegistry(
        auto_describe=False
    )
    registry.register(_Collector(app, snapshots))
    registry.register(_process_collector())
    return registry


@lru_cache(maxsize=1)
def _process_collector() -> Any:
    from prometheus_client import ProcessCollector

    return ProcessCollector(registry=None)


class _Collector:
    """Turns the counters of a server into metrics."""

    def __init__(self, app: Application, snapshots: Sequence[ModelSnapshot]) -> None:
        self._app = app
        self._snapshots = snapshots

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        yield from _triton_metrics(self._snapshots)
        yield from _model_metrics(self._snapshots)
        memory = GaugeMetricFamily("weft_memory_bytes", "Memory by what it is for", labels=("kind",))
        budget = self._app.budget
        for kind, size in (("limit", budget.limit), ("models", budget.reserved), ("runs", budget.used)):
            memory.add_metric((kind,), size)
        yield memory
        yield GaugeMetricFamily("weft_http_active_requests", "Requests being answered", value=self._app.active)


def _triton_metrics(snapshots: Sequence[ModelSnapshot]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

    for name, description in TRITON_COUNTERS.items():
        metric = Metric(name, description, "unknown")
        for each in snapshots:
            labels = {"model": each.name, "version": each.version}
            if name == "nv_inference_request_failure":
                for reason, number in _failures(each.statistics).items():
                    metric.add_sample(name, {**labels, "reason": reason}, number)
            else:
                metric.add_sample(name, labels, _triton_count(name, each.statistics))
        yield metric
    pending = GaugeMetricFamily("nv_inference_pending_request_count", "Requests that wait", labels=LABELS)
    for each in snapshots:
        pending.add_metric((each.name, each.version), each.queue)
    yield pending


def _failures(counts: ModelStatistics) -> dict[str, int]:
    return {"REJECTED": counts.rejected, "CANCELED": counts.cancel.count, "OTHER": counts.fail.count - counts.rejected}


def _triton_count(name: str, counts: ModelStatistics) -> float:
    match name.removeprefix("nv_inference_"):
        case "request_success":
            return counts.success.count
        case "count":
            return counts.inferences
        case "exec_count":
            return counts.executions
        case "request_duration_us":
            return counts.success.ns // 1000
        case "queue_duration_us":
            return counts.queue.ns // 1000
        case phase:
            ns: int = getattr(counts, phase.removesuffix("_duration_us")).ns
            return ns // 1000


def _model_metrics(snapshots: Sequence[ModelSnapshot]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily("weft_requests", "Requests by outcome", labels=(*LABELS, "outcome"))
    rows = CounterMetricFamily("weft_rows", "Rows that were computed", labels=LABELS)
    runs = CounterMetricFamily("weft_runs", "Runs, each of a batch", labels=LABELS)
    tokens = CounterMetricFamily("weft_tokens", "Tokens of language models", labels=(*LABELS, "kind"))
    queue = GaugeMetricFamily("weft_queue_length", "Requests that wait", labels=LABELS)
    latency = HistogramMetricFamily("weft_request_seconds", "Time of answered requests", labels=LABELS)
    for each in snapshots:
        labels, counts = (each.name, each.version), each.statistics
        outcomes = {"success": counts.success.count, "cancelled": counts.cancel.count, "rejected": counts.rejected}
        outcomes["failed"] = counts.fail.count - counts.rejected
        for outcome, number in outcomes.items():
            requests.add_metric((*labels, outcome), number)
        rows.add_metric(labels, counts.inferences)
        runs.add_metric(labels, counts.executions)
        queue.add_metric(labels, each.queue)
        latency.add_metric(labels, _buckets(counts), counts.success.ns / 1e9)
        for kind, number in each.tokens.items():
            tokens.add_metric((*labels, kind), number)
    yield from (requests, rows, runs, tokens, queue, latency)


def _buckets(counts: ModelStatistics) -> list[tuple[str, float]]:
    """Return how many requests took at most each bound."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, number in zip((*map(str, LATENCY_BOUNDS), "+Inf"), counts.latencies):
        total += number
        buckets.append((bound, total))
    return buckets
