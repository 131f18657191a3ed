"""Observe the values of a model on samples: a histogram of each value, or its type and largest magnitude."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Graph
from weft.quantization.graph_runs import GraphValues, Sample
from weft.quantization.half import ObservedValues
from weft.quantization.ranges import ValueRange

ReportProgress = Callable[[str, float], None]  # the stage, and the share of it that is done


def observe_ranges(
    names: Sequence[str], values: GraphValues, samples: Sequence[Sample], report: ReportProgress
) -> dict[str, ValueRange]:
    """Collect a histogram of each named value; inputs need no run."""
    ranges = {name: ValueRange() for name in dict.fromkeys(names)}
    batches = [observed for batch in values.batches if (observed := [name for name in batch if name in ranges])]
    done, total = 0, max(1, len(batches) * len(samples))
    for sample in samples:
        for name in ranges.keys() & sample.keys():
            ranges[name].add(sample[name])
    for batch in batches:
        runner = values.runner(batch)
        for sample in samples:
            report("calibrating", done / total)
            results = runner.run(sample)
            for name in batch:
                ranges[name].add(results[name])
            done += 1
    return ranges


def observe_values(
    graph: Graph, values: GraphValues, samples: Sequence[Sample], report: ReportProgress
) -> ObservedValues:
    """Collect the types and largest magnitudes of inputs and values."""
    dtypes: dict[str, DType] = {}
    largest: dict[str, float] = {}

    def observe(name: str, content: Any) -> None:
        if isinstance(content, np.ndarray):
            dtypes[name] = from_numpy(content.dtype)
            if dtypes[name] is DType.float32:
                magnitude = float(np.abs(content).max(initial=0.0))
                largest[name] = max(largest.get(name, 0.0), magnitude if np.isfinite(magnitude) else np.inf)

    for value in (*graph.inputs, *graph.defaults):
        for sample in samples:
            if value.name in sample:
                observe(value.name, sample[value.name])
    for done, batch in enumerate(values.batches):
        report("observing values", done / len(values.batches))
        runner = values.runner(batch)
        for sample in samples:
            for name, content in runner.run(sample).items():
                observe(name, content)
    return ObservedValues(dtypes, largest)
