"""What values are over samples: a model and data in, a histogram for each value out, or its type and magnitude."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Graph
from weft.quantization.halves import SeenValues
from weft.quantization.ranges import ValueRange
from weft.quantization.running import GraphValues, Sample

Tell = Callable[[str, float], None]


def observed_ranges(
    names: Sequence[str], values: GraphValues, samples: Sequence[Sample], tell: Tell
) -> dict[str, ValueRange]:
    """What numbers each of the named values has; inputs are known without a run."""
    ranges = {name: ValueRange() for name in dict.fromkeys(names)}
    batches = [wanted for batch in values.batches if (wanted := [name for name in batch if name in ranges])]
    done, whole = 0, max(1, len(batches) * len(samples))
    for sample in samples:
        for name in ranges.keys() & sample.keys():
            ranges[name].add(sample[name])
    for batch in batches:
        runner = values.runner(batch)
        for sample in samples:
            tell("calibrating", done / whole)
            found = runner.run(sample)
            for name in batch:
                ranges[name].add(found[name])
            done += 1
    return ranges


def seen_values(graph: Graph, values: GraphValues, samples: Sequence[Sample], tell: Tell) -> SeenValues:
    """The types and largest magnitudes of all values that runs give, and of what goes in."""
    dtypes: dict[str, DType] = {}
    largest: dict[str, float] = {}

    def see(name: str, content: Any) -> None:
        if isinstance(content, np.ndarray):
            dtypes[name] = from_numpy(content.dtype)
            if dtypes[name] is DType.float32:
                magnitude = float(np.abs(content).max(initial=0.0))
                largest[name] = max(largest.get(name, 0.0), magnitude if np.isfinite(magnitude) else np.inf)

    for value in (*graph.inputs, *graph.defaults):
        for sample in samples:
            if value.name in sample:
                see(value.name, sample[value.name])
    for done, batch in enumerate(values.batches):
        tell("looking at values", done / len(values.batches))
        runner = values.runner(batch)
        for sample in samples:
            for name, content in runner.run(sample).items():
                see(name, content)
    return SeenValues(dtypes, largest)
