"""One model through all engines: load twice, compare the outputs, then run in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.bench.agreement import TOLERANCE, difference
from weft.bench.engines import JUDGE, WEFT, Engine, Ran, Setup
from weft.bench.processes import EngineProcess
from weft.bench.results import Measurement, ModelResult, Start
from weft.bench.rounds import Spread, spread_of, take_turns
from weft.errors import WeftError
from weft.records import dataclass
from weft.runtime.options import NARROW

SEED = 0
NARROW_TOLERANCE = 3e-2  # of a model whose products round their operands


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A model to measure. Inputs that are not given are random, with the sizes that are."""

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
    peak_flops: float | None  # of the threads together; None where weft's device is not what was measured
    precision: str = "float32"  # of weft
    further: Mapping[str, Any] = field(default_factory=dict)  # options of weft.load

    def tolerance(self, case: BenchCase, engine: str) -> float:
        """How far an engine may be off."""
        return (
            max(case.tolerance, NARROW_TOLERANCE)
            if engine == WEFT.name and self.precision in NARROW
            else case.tolerance
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A model loaded in an engine for the second time, and how both times went."""

    worker: EngineProcess
    cold: Start
    cached: Start
    outputs: list[Any]
    plan: float | None = None


def measure(case: BenchCase, options: Options, tell: Callable[[str], None] = lambda _: None) -> ModelResult:
    """Everything about one model; `tell` hears what is being done. Fails only where weft fails."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="weft-bench-")))
        setup = Setup(str(case.path), options.device, options.threads, options.precision, options.further)
        _read_through(case.path)
        tell(f"{case.name}: {WEFT.name}")
        subject, inputs, flops = _begin(case, setup, folder, stack)
        ready = {WEFT.name: subject}
        failures: dict[str, str] = {}
        for engine in options.peers:
            tell(f"{case.name}: {engine.name}")
            try:
                with ExitStack() as attempt:
                    ready[engine.name] = _load_twice(engine, setup, folder, inputs, attempt)
                    stack.push(attempt.pop_all())
            except WeftError as error:
                failures[engine.name] = str(error).removeprefix(f"{engine.name}: ")
        apart = _differences(ready, setup, folder, inputs)
        tell(f"{case.name}: taking turns")
        times = take_turns({name: found.worker.block for name, found in ready.items()}, options.seconds)
    spreads = {name: spread_of(found) for name, found in times.items()}
    measurements = tuple(
        Measurement(
            name,
            spreads[name],
            found.cold,
            found.cached,
            apart.get(name),
            apart[name] <= options.tolerance(case, name) if name in apart else None,
            _share(flops, spreads[name], options),
            found.plan,
        )
        for name, found in ready.items()
    )
    return ModelResult(case.name, _described(inputs), flops, measurements, failures)


def _begin(
    case: BenchCase, setup: Setup, folder: Path, stack: ExitStack
) -> tuple[_Ready, Mapping[str, Any], int | None]:
    """weft with the model, the inputs for all, and the arithmetic of a run."""
    with EngineProcess(WEFT, setup, folder / WEFT.name) as first:
        seconds = first.load()
        inputs = case.inputs if case.inputs is not None else first.inputs(case.sizes or {}, SEED)
        cold = _start(seconds, first.run(inputs))
        flops = first.flops(inputs)
    return _load_again(WEFT, setup, folder, inputs, cold, stack), inputs, flops


def _load_twice(engine: Engine, setup: Setup, folder: Path, inputs: Mapping[str, Any], stack: ExitStack) -> _Ready:
    with EngineProcess(engine, setup, folder / engine.name) as first:
        cold = _start(first.load(), first.run(inputs))
    return _load_again(engine, setup, folder, inputs, cold, stack)


def _load_again(
    engine: Engine, setup: Setup, folder: Path, inputs: Mapping[str, Any], cold: Start, stack: ExitStack
) -> _Ready:
    """In a fresh process that finds what the first one has cached, and stays for the runs."""
    worker = stack.enter_context(EngineProcess(engine, setup, folder / engine.name))
    seconds = worker.load()
    ran = worker.run(inputs)
    plan = worker.plan(inputs) if engine is WEFT else None
    return _Ready(worker, cold, _start(seconds, ran), ran.outputs, plan)


def _start(load_seconds: float, ran: Ran) -> Start:
    return Start(load_seconds, ran.first_seconds, ran.memory, ran.import_seconds)


def _differences(
    ready: Mapping[str, _Ready], setup: Setup, folder: Path, inputs: Mapping[str, Any]
) -> dict[str, float]:
    """How far each engine is from the judge; of none where the judge is not installed or fails."""
    expected = _expected(ready, setup, folder, inputs)
    if expected is None:
        return {}
    return {name: difference(expected, found.outputs) for name, found in ready.items()}


def _expected(ready: Mapping[str, _Ready], setup: Setup, folder: Path, inputs: Mapping[str, Any]) -> list[Any] | None:
    """The judge's outputs, whether or not it is among the peers."""
    if JUDGE.name in ready:
        return ready[JUDGE.name].outputs
    if JUDGE.missing is not None:
        return None
    try:
        with EngineProcess(JUDGE, setup, folder / JUDGE.name) as judge:
            judge.load()
            return judge.run(inputs).outputs
    except WeftError:
        return None


def _share(flops: int | None, run: Spread, options: Options) -> float | None:
    """Of the machine's peak; the arithmetic is that of the model, whichever way an engine computes it."""
    if flops is None or options.peak_flops is None:
        return None
    return flops / run.median / options.peak_flops


def _described(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{array.dtype}[{', '.join(map(str, array.shape))}]" if hasattr(array, "shape") else type(array).__name__
        for name, array in inputs.items()
    }


def _read_through(path: Path) -> None:
    """Bring the file into the system's cache, so that no engine waits for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
