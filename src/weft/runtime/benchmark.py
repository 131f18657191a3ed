"""`model.bench()`: how long a model's runs take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import isfinite
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, short_repr
from weft.quantities import format_plural, format_seconds, join_few, shorten
from weft.records import dataclass
from weft.tables import ShownAsTables, Table

if TYPE_CHECKING:
    from weft.runtime.model import Model


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds of an engine's runs: the median, the quartiles, and the number of runs."""

    median: float
    lower: float
    upper: float
    runs: int


@dataclass(frozen=True, slots=True)
class Benchmark(ShownAsTables):
    """The seconds of a model's runs, and of other engines' on the same inputs, by name.

    Half of all runs took between `lower` and `upper`. Engines take turns, so that all see the same machine load.
    """

    file: str
    device: str
    inputs: Mapping[str, str]  # the type and shape of each
    median: float
    lower: float
    upper: float
    runs: int
    against: Mapping[str, EngineTimes] = field(default_factory=dict, hash=False)

    @property
    def per_second(self) -> float:
        """Runs per second, one after the other."""
        return 1 / self.median if self.median else 0.0

    def __repr__(self) -> str:
        spread = f"{format_seconds(self.median)} ({format_seconds(self.lower)} to {format_seconds(self.upper)})"
        others = "".join(f", {name} {format_seconds(times.median)}" for name, times in self.against.items())
        summary = f"{spread}, {format_plural(self.runs, 'run')}{others}"
        return f"<weft.Benchmark {shorten(self.file)} on {self.device}: {summary}>"

    def _tables(self) -> Iterator[Table]:
        rows = [("weft", self.median, self.lower, self.upper, self.runs)]
        rows += [(name, times.median, times.lower, times.upper, times.runs) for name, times in self.against.items()]
        shown_rows = [
            (
                name,
                *map(format_seconds, (median, lower, upper)),
                runs,
                f"{median / self.median:.2f}" if self.median else "",
            )
            for name, median, lower, upper, runs in rows
        ]
        columns = ("engine", "median", "25 %", "75 %", "runs", "time / weft's")
        takes = join_few((f"{shorten(name)}: {kind}" for name, kind in self.inputs.items()), 6)
        title = f"{shorten(self.file)} on {self.device}"
        yield Table(shown_rows, columns, title=title, right=columns[1:], note=f"Inputs: {takes or 'none'}.")


def benchmark(model: Model, inputs: Mapping[str, Any], seconds: float, against: str | Sequence[str]) -> Benchmark:
    """Time a model, and other engines in turn with it, for some seconds."""
    from weft.bench.in_process import time_engines

    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0 or not isfinite(seconds):
        raise InputError(f"seconds must be a positive number, not {short_repr(seconds)}", file=model.file)
    names = (against,) if isinstance(against, str) else tuple(against)
    spreads = time_engines(model, inputs, float(seconds), names)
    times = {
        name: EngineTimes(spread.median, spread.lower, spread.upper, spread.runs) for name, spread in spreads.items()
    }
    weft_times = times.pop(next(iter(times)))
    kinds = {name: _describe_input(content) for name, content in inputs.items()}
    return Benchmark(
        model.file, model.device, kinds, weft_times.median, weft_times.lower, weft_times.upper, weft_times.runs, times
    )


def _describe_input(content: Any) -> str:
    if not hasattr(content, "shape") or not hasattr(content, "dtype"):
        return type(content).__name__
    return f"{content.dtype}[{', '.join(map(str, content.shape))}]"
