"""Count what a served model does. Counters are plain integers; exporters read them when they are asked."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds


@dataclass(slots=True)
class Phase:
    """A number of events and the nanoseconds that they took."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count events that took so long together."""
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Runs of one batch size."""

    input: Phase = field(default_factory=Phase)
    infer: Phase = field(default_factory=Phase)
    output: Phase = field(default_factory=Phase)


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one version of a model since it was loaded.

    inferences counts rows, executions counts runs. Phases of a request: the queue, joining inputs, the run, splitting
    outputs; `success` and `fail` are whole requests.
    """

    inferences: int = 0
    executions: int = 0
    last_inference: int = 0  # milliseconds since 1970
    success: Phase = field(default_factory=Phase)
    fail: Phase = field(default_factory=Phase)
    cancel: Phase = field(default_factory=Phase)
    rejected: int = 0
    queue: Phase = field(default_factory=Phase)
    compute_input: Phase = field(default_factory=Phase)
    compute_infer: Phase = field(default_factory=Phase)
    compute_output: Phase = field(default_factory=Phase)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    tokens_in: int = 0
    tokens_out: int = 0

    def add_run(self, requests: int, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count a run for some requests."""
        self.inferences += rows
        self.executions += 1
        self.last_inference = time.time_ns() // 1_000_000
        self.compute_input.add(input_ns * requests, requests)
        self.compute_infer.add(infer_ns * requests, requests)
        self.compute_output.add(output_ns * requests, requests)
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchStatistics()
        batch.input.add(input_ns)
        batch.infer.add(infer_ns)
        batch.output.add(output_ns)

    def add_success(self, ns: int, queue_ns: int) -> None:
        """Count an answered request."""
        self.success.add(ns)
        self.queue.add(queue_ns)
        self.latencies[bisect_left(LATENCY_BOUNDS, ns / 1e9)] += 1
