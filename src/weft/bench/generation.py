"""Measure generation in weft and in other engines: the engines take turns, each in its own process."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from weft.bench.engines import Engine, Setup
from weft.bench.generation_engines import WEFT, GenerationRun
from weft.bench.processes import EngineProcess
from weft.bench.rounds import PAUSE_SECONDS, turn_order
from weft.errors import WeftError
from weft.records import dataclass

FEWEST_ROUNDS = 3
LOWEST_TOKEN = 10  # below are special tokens


@dataclass(frozen=True, slots=True)
class GenerationCase:
    """A batch to measure: prompts of equal length, and new tokens after each."""

    prompt_length: int
    batch: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    """Medians of one engine for one case.

    same_tokens: the share of generated tokens that equal weft's at the same place.
    """

    engine: str
    prompt_length: int
    batch: int
    new_tokens: int
    rounds: int
    decode_rate: float  # tokens per second of all sequences
    prefill_rate: float
    first_seconds: float
    same_tokens: float


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """All figures, what each engine needed to load, and why others are missing."""

    model: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    load_seconds: Mapping[str, float]
    peak_memory: Mapping[str, int | None]
    figures: tuple[GenerationFigures, ...]
    failures: Mapping[str, str]

    def record(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return asdict(self)


class GenerationProcess(EngineProcess):
    """The process of an engine that generates text."""

    def arguments(self) -> list[str]:
        return ["--generate", self.engine.name]

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> GenerationRun:
        run: GenerationRun = self.request("generate", prompts, count)
        return run

    def memory(self) -> int | None:
        memory: int | None = self.request("memory")
        return memory


def measure_generation(
    setup: Setup,
    peers: Sequence[Engine],
    cases: Sequence[GenerationCase],
    seconds: float,
    vocabulary: int,
    cache: Path | None = None,
    python: str = sys.executable,
    report: Callable[[str], None] = lambda _: None,
) -> GenerationReport:
    """Measure all cases. Raises an error only if weft fails.

    seconds: for each case, at least `FEWEST_ROUNDS` rounds. python: the interpreter that has the other engines.
    """
    failures: dict[str, str] = {}
    versions: dict[str, str] = {}
    load_seconds: dict[str, float] = {}
    with ExitStack() as stack:
        folder = cache or Path(stack.enter_context(TemporaryDirectory(prefix="weft-bench-")))
        workers: dict[str, GenerationProcess] = {}
        for engine in (WEFT, *peers):
            report(f"loading in {engine.name}")
            interpreter = sys.executable if engine is WEFT else python
            try:
                with ExitStack() as attempt:
                    process = GenerationProcess(engine, setup, folder / engine.name, python=interpreter)
                    worker = attempt.enter_context(process)
                    load_seconds[engine.name] = worker.load()
                    versions[engine.name] = worker.version()
                    workers[engine.name] = worker
                    stack.push(attempt.pop_all())
            except WeftError as error:
                if engine is WEFT:
                    raise
                failures[engine.name] = str(error).removeprefix(f"{engine.name}: ")
        figures: list[GenerationFigures] = []
        for case in cases:
            report(f"prompt {case.prompt_length}, batch {case.batch}")
            figures += _measure_case(case, workers, seconds, vocabulary, failures)
        memory = {name: worker.memory() for name, worker in workers.items()}
    settings = {"device": setup.device, "threads": setup.threads, "seconds": seconds}
    return GenerationReport(
        Path(setup.path).resolve().name, settings, versions, load_seconds, memory, tuple(figures), failures
    )


def _measure_case(
    case: GenerationCase,
    workers: dict[str, GenerationProcess],
    seconds: float,
    vocabulary: int,
    failures: dict[str, str],
) -> list[GenerationFigures]:
    """Measure one case in turns; an engine that fails is left out from then on."""
    runs: dict[str, list[GenerationRun]] = {name: [] for name in workers}
    end = 0.0
    turn = -1  # the first turn warms up
    while turn < FEWEST_ROUNDS or time.perf_counter() < end:
        prompts = make_prompts(case, vocabulary, turn)
        for name in turn_order(list(workers), max(turn, 0)):
            time.sleep(PAUSE_SECONDS)
            try:
                run = workers[name].generate(prompts, case.new_tokens)
            except WeftError as error:
                if name == WEFT.name:
                    raise
                failures[name] = str(error).removeprefix(f"{name}: ")
                del workers[name], runs[name]
                continue
            if turn >= 0:
                runs[name].append(run)
        if turn < 0:
            end = time.perf_counter() + seconds
        turn += 1
    return [_summarize(name, case, timed, runs[WEFT.name]) for name, timed in runs.items()]


def make_prompts(case: GenerationCase, vocabulary: int, turn: int) -> list[list[int]]:
    """Return random prompts, new ones in each turn, so that no engine has computed their prefixes."""
    source = random.Random(f"{case.prompt_length} {case.batch} {turn}")
    lowest = min(LOWEST_TOKEN, vocabulary // 2)
    return [[source.randrange(lowest, vocabulary) for _ in range(case.prompt_length)] for _ in range(case.batch)]


def _summarize(
    name: str, case: GenerationCase, runs: Sequence[GenerationRun], expected: Sequence[GenerationRun]
) -> GenerationFigures:
    first = median(run.first_seconds for run in runs)
    pairs = [
        actual == expectation
        for run, other in zip(runs, expected)
        for answer, expected_answer in zip(run.tokens, other.tokens)
        for actual, expectation in zip(answer, expected_answer)
    ]
    return GenerationFigures(
        name,
        case.prompt_length,
        case.batch,
        case.new_tokens,
        len(runs),
        median(run.decode_tokens / max(run.decode_seconds, 1e-9) for run in runs),
        case.prompt_length * case.batch / first,
        first,
        sum(pairs) / max(len(pairs), 1),
    )
