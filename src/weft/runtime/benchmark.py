"""How long a model's runs take: what `model.bench()` measures, and how it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, shown
from weft.quantities import counted, few, format_seconds, shortened
from weft.records import dataclass
from weft.tables import ShownTable, Tabled

if TYPE_CHECKING:
    from weft.runtime.model import Model


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds of an engine's runs: the median, the quartiles around it, and how many there were."""

    median: float
    lower: float
    upper: float
    runs: int


@dataclass(frozen=True, slots=True)
class Benchmark(Tabled):
    """How long runs of a model take, in seconds, and those of other engines on the same inputs by name.

    Half of all runs took between `lower` and `upper`. Engines take turns, so that all meet the same machine.
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
        """How many runs fit into a second, one after the other."""
        return 1 / self.median if self.median else 0.0

    def __repr__(self) -> str:
        spread = f"{format_seconds(self.median)} ({format_seconds(self.lower)} to {format_seconds(self.upper)})"
        others = "".join(f", {name} {format_seconds(found.median)}" for name, found in self.against.items())
        said = f"{spread}, {counted(self.runs, 'run')}{others}"
        return f"<weft.Benchmark {shortened(self.file)} on {self.device}: {said}>"

    def _tables(self) -> Iterator[ShownTable]:
        rows = [("weft", self.median, self.lower, self.upper, self.runs)]
        rows += [(name, each.median, each.lower, each.upper, each.runs) for name, each in self.against.items()]
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
        takes = few((f"{shortened(name)}: {kind}" for name, kind in self.inputs.items()), 6)
        title = f"{shortened(self.file)} on {self.device}"
        yield ShownTable(shown_rows, columns, title=title, right=columns[1:], note=f"Inputs: {takes or 'none'}.")


def benchmark(model: Model, inputs: Mapping[str, Any], seconds: float, against: str | Sequence[str]) -> Benchmark:
    """Run a model, and other engines in turn with it, for so many seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0 or not isfinite(seconds):
        raise InputError(f"seconds must be a positive number, not {shown(seconds)}", file=model.file)
    names = (against,) if isinstance(against, str) else tuple(against)
    found = import_module("weft.bench.in_process").times_in_turn(model, inputs, float(seconds), names)
    times = {name: EngineTimes(each.median, each.lower, each.upper, each.runs) for name, each in found.items()}
    own = times.pop(next(iter(times)))
    kinds = {name: _kind(content) for name, content in inputs.items()}
    return Benchmark(model.file, model.device, kinds, own.median, own.lower, own.upper, own.runs, times)


def _kind(content: Any) -> str:
    if not hasattr(content, "shape") or not hasattr(content, "dtype"):
        return type(content).__name__
    return f"{content.dtype}[{', '.join(map(str, content.shape))}]"
