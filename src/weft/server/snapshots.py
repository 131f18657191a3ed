"""Counters of models at one moment: as records that pass between processes, and added up over several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.server.statistics import BatchStatistics, ModelStatistics, Phase

if TYPE_CHECKING:
    from weft.server.served_model import ServedModel

PHASES = ("success", "fail", "cancel", "queue", "compute_input", "compute_infer", "compute_output")
COUNTS = ("inferences", "executions", "rejected", "tokens_in", "tokens_out")
BATCH_PHASES = ("input", "infer", "output")
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """A version of a model in one process, or in all.

    queue: the requests that wait. tokens: of a generator, by what became of them.
    """

    name: str
    version: str
    statistics: ModelStatistics
    queue: int
    tokens: Mapping[str, int]


def take_snapshot(served: ServedModel) -> ModelSnapshot:
    """Return the counters of a model now."""
    tokens = {}
    if served.generator is not None:
        counts = served.generator.statistics
        tokens = {"generated": counts.generated, "computed": counts.computed, "shared": counts.shared}
    return ModelSnapshot(served.name, served.version, served.statistics, served.queue_length, tokens)


def to_record(snapshot: ModelSnapshot) -> dict[str, Any]:
    """Write a snapshot as JSON values."""
    counts = snapshot.statistics
    return {
        "name": snapshot.name,
        "version": snapshot.version,
        "queue": snapshot.queue,
        "tokens": dict(snapshot.tokens),
        "last_inference": counts.last_inference,
        "counts": {name: getattr(counts, name) for name in COUNTS},
        "phases": {name: _pair(getattr(counts, name)) for name in PHASES},
        "latencies": counts.latencies,
        "batches": {
            str(rows): [_pair(getattr(batch, name)) for name in BATCH_PHASES] for rows, batch in counts.batches.items()
        },
    }


def from_record(record: Record) -> ModelSnapshot:
    """Read a snapshot."""
    phases: dict[str, Any] = {name: Phase(*pair) for name, pair in record["phases"].items()}
    batches = {int(rows): BatchStatistics(*(Phase(*pair) for pair in each)) for rows, each in record["batches"].items()}
    statistics = ModelStatistics(
        **record["counts"],
        **phases,
        last_inference=record["last_inference"],
        latencies=list(record["latencies"]),
        batches=batches,
    )
    return ModelSnapshot(record["name"], record["version"], statistics, record["queue"], record["tokens"])


def add_snapshots(snapshots: Iterable[ModelSnapshot]) -> list[ModelSnapshot]:
    """Add up the snapshots of each version, in the order of the first of each."""
    groups: dict[tuple[str, str], list[ModelSnapshot]] = {}
    for snapshot in snapshots:
        groups.setdefault((snapshot.name, snapshot.version), []).append(snapshot)
    return [group[0] if len(group) == 1 else _add(group) for group in groups.values()]


def _add(group: list[ModelSnapshot]) -> ModelSnapshot:
    parts = [each.statistics for each in group]
    counts: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in COUNTS}
    phases: dict[str, Any] = {name: _add_phases(getattr(part, name) for part in parts) for name in PHASES}
    total = ModelStatistics(
        **counts,
        **phases,
        last_inference=max(part.last_inference for part in parts),
        latencies=[sum(numbers) for numbers in zip(*(part.latencies for part in parts))],
    )
    for rows in {rows for part in parts for rows in part.batches}:
        batches = [part.batches[rows] for part in parts if rows in part.batches]
        total.batches[rows] = BatchStatistics(
            *(_add_phases(getattr(batch, name) for batch in batches) for name in BATCH_PHASES)
        )
    tokens = {name: sum(each.tokens.get(name, 0) for each in group) for name in group[0].tokens}
    return ModelSnapshot(group[0].name, group[0].version, total, sum(each.queue for each in group), tokens)


def _add_phases(phases: Iterable[Phase]) -> Phase:
    total = Phase()
    for phase in phases:
        total.add(phase.ns, phase.count)
    return total


def _pair(phase: Phase) -> tuple[int, int]:
    return phase.count, phase.ns
