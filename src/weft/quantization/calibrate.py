"""The ranges of values over samples: a model and data in, a histogram for each value out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
