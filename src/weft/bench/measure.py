"""Measure one model in all engines: load it twice, compare outputs, then run in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.bench.agreement import TOLERANCE, difference
from weft.bench.engines import REFERENCE, WEFT, Engine, FirstRuns, Setup
from weft.bench.processes import EngineProcess
from weft.bench.results import Measurement, ModelResult, Start
from weft.bench.rounds import Spread, summarize_times, take_turns
from weft.errors import WeftError
from weft.records import dataclass
from weft.runtime.options import NARROW

SEED = 0
NARROW_TOLERANCE = 3e-2  # of models with operands of products in a narrow type


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A model to measure; without `inputs`, they are random, with these sizes."""

    name: str
    path: Path
    inputs: Mapping[str, Any] | None = None
    sizes: Mapping[str, int] | None = None
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True)
class Options:
    device: str
    threads: int
    seconds: float
    peers: tuple[Engine, ...]
    peak_flops: float | None  # of all threads; None if weft runs on another device
    precision: str = "float32"  # of weft
    load_options: Mapping[str, Any] = field(default_factory=dict)  # options of weft.load

    def tolerance(self, case: BenchCase, engine: str) -> float:
        """Return the allowed difference of an engine."""
        return (
            max(case.tolerance, NARROW_TOLERANCE)
            if engine == WEFT.name and self.precision in NARROW
            else case.tolerance
        )


@dataclass(frozen=True, slots=True)
class _WarmEngine:
    """An engine that loaded the model for the second time, and the facts of both starts."""

    worker: EngineProcess
    cold: Start
    cached: Start
    outputs: list[Any]
    plan: float | None = None


def measure(case: BenchCase, options: Options, report: Callable[[str], None] = lambda _: None) -> ModelResult:
    """Measure one model; `report` gets the progress. Raises an error only if weft fails."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="weft-bench-")))
        setup = Setup(str(case.path), options.device, options.threads, options.precision, options.load_options)
        _warm_file_cache(case.path)
        report(f"{case.name}: {WEFT.name}")
        subject, inputs, flops = _load_weft(case, setup, folder, stack)
        ready = {WEFT.name: subject}
        failures: dict[str, str] = {}
        for engine in options.peers:
            report(f"{case.name}: {engine.name}")
            try:
                with ExitStack() as attempt:
                    ready[engine.name] = _load_twice(engine, setup, folder, inputs, attempt)
                    stack.push(attempt.pop_all())
            except WeftError as error:
                failures[engine.name] = str(error).removeprefix(f"{engine.name}: ")
        differences = _compare_outputs(ready, setup, folder, inputs)
        report(f"{case.name}: taking turns")
        times = take_turns({name: engine.worker.block for name, engine in ready.items()}, options.seconds)
    spreads = {name: summarize_times(seconds) for name, seconds in times.items()}
    measurements = tuple(
        Measurement(
            name,
            spreads[name],
            engine.cold,
            engine.cached,
            differences.get(name),
            differences[name] <= options.tolerance(case, name) if name in differences else None,
            _share_of_peak(flops, spreads[name], options),
            engine.plan,
        )
        for name, engine in ready.items()
    )
    return ModelResult(case.name, _describe_inputs(inputs), flops, measurements, failures)


def _load_weft(
    case: BenchCase, setup: Setup, folder: Path, stack: ExitStack
) -> tuple[_WarmEngine, Mapping[str, Any], int | None]:
    """Load the model in weft; return it, the inputs for all engines, and the FLOPs of a run."""
    with EngineProcess(WEFT, setup, folder / WEFT.name) as first:
        seconds = first.load()
        inputs = case.inputs if case.inputs is not None else first.inputs(case.sizes or {}, SEED)
        cold = _describe_start(seconds, first.run(inputs))
        flops = first.flops(inputs)
    return _load_again(WEFT, setup, folder, inputs, cold, stack), inputs, flops


def _load_twice(engine: Engine, setup: Setup, folder: Path, inputs: Mapping[str, Any], stack: ExitStack) -> _WarmEngine:
    with EngineProcess(engine, setup, folder / engine.name) as first:
        cold = _describe_start(first.load(), first.run(inputs))
    return _load_again(engine, setup, folder, inputs, cold, stack)


def _load_again(
    engine: Engine, setup: Setup, folder: Path, inputs: Mapping[str, Any], cold: Start, stack: ExitStack
) -> _WarmEngine:
    """Load in a new process that uses the cache of the first one, and runs the benchmark."""
    worker = stack.enter_context(EngineProcess(engine, setup, folder / engine.name))
    seconds = worker.load()
    first_runs = worker.run(inputs)
    plan = worker.plan(inputs) if engine is WEFT else None
    return _WarmEngine(worker, cold, _describe_start(seconds, first_runs), first_runs.outputs, plan)


def _describe_start(load_seconds: float, runs: FirstRuns) -> Start:
    return Start(load_seconds, runs.first_seconds, runs.memory, runs.import_seconds)


def _compare_outputs(
    ready: Mapping[str, _WarmEngine], setup: Setup, folder: Path, inputs: Mapping[str, Any]
) -> dict[str, float]:
    """Return the difference of each engine from the reference; {} if that is not installed or fails."""
    expected = _reference_outputs(ready, setup, folder, inputs)
    if expected is None:
        return {}
    return {name: difference(expected, engine.outputs) for name, engine in ready.items()}


def _reference_outputs(
    ready: Mapping[str, _WarmEngine], setup: Setup, folder: Path, inputs: Mapping[str, Any]
) -> list[Any] | None:
    """Return the reference engine's outputs, even if it is not among the peers."""
    if REFERENCE.name in ready:
        return ready[REFERENCE.name].outputs
    if REFERENCE.missing is not None:
        return None
    try:
        with EngineProcess(REFERENCE, setup, folder / REFERENCE.name) as reference:
            reference.load()
            return reference.run(inputs).outputs
    except WeftError:
        return None


def _share_of_peak(flops: int | None, run: Spread, options: Options) -> float | None:
    """Return the share of the machine's peak, with the FLOPs of the model, not of the engine's algorithm."""
    if flops is None or options.peak_flops is None:
        return None
    return flops / run.median / options.peak_flops


def _describe_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{array.dtype}[{', '.join(map(str, array.shape))}]" if hasattr(array, "shape") else type(array).__name__
        for name, array in inputs.items()
    }


def _warm_file_cache(path: Path) -> None:
    """Read the file into the page cache, so that no engine waits for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
