"""One engine in a process of its own: `python -m weft.bench.worker ENGINE`, asked through pickles on stdin.

A request is a command with its arguments, an answer what it returned or why it failed. Whatever the engine prints goes
to stderr.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from weft.bench import rounds
from weft.bench.engines import PEERS, WEFT, Engine, Loaded, Ran, Setup
from weft.cli.process import peak_memory, read_requests
from weft.errors import InputError, WeftError
from weft.plan.sections import make_plan

Answer = tuple[Any, "str | None", "str | None"]
"""What was asked for, or the problem in its place; and a hint."""


class Server:
    """The public methods are the commands."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: Loaded | None = None
        self._prepared: Any = None
        self._memory_before = 0
        self._import_seconds = 0.0

    def load(self, setup: Setup) -> float:
        """Seconds of loading; importing comes before, and counts neither as time of it nor as memory."""
        start = time.perf_counter()
        for module in self._engine.modules:
            import_module(module)
        self._import_seconds = time.perf_counter() - start
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of importing
        self._memory_before = peak_memory() or 0
        start = time.perf_counter()
        self._loaded = self._engine.load(setup)
        return time.perf_counter() - start

    def version(self) -> str:
        return self._engine.version

    def run(self, inputs: Mapping[str, Any]) -> Ran:
        """Two runs: some engines compile or allocate in the first."""
        loaded = self._model()
        self._prepared = loaded.prepare(inputs)
        start = time.perf_counter()
        loaded.run(self._prepared)
        seconds = time.perf_counter() - start
        result = loaded.run(self._prepared)
        peak = peak_memory()
        memory = None if peak is None else peak - self._memory_before
        return Ran(loaded.arrays(result), seconds, memory, self._import_seconds)

    def block(self, seconds: float) -> list[float]:
        run, prepared = self._model().run, self._prepared
        return rounds.time_block(lambda: run(prepared), seconds)

    def inputs(self, sizes: dict[str, int], seed: int) -> dict[str, Any]:
        """Random inputs; of weft's model, which knows its inputs."""
        from weft.cli.inputs import make_inputs

        model = self._model().model
        return {
            item.name: item.array for item in make_inputs(model.inputs, model.defaults, (), sizes, seed, None, model)
        }

    def flops(self, inputs: Mapping[str, Any]) -> int | None:
        """The arithmetic of a run of weft's model on these inputs, where it is known before."""
        from weft.cost.programs import at_sizes, program_cost

        model = self._model().model
        sizes = sizes_in([(spec.name, spec.shape) for spec in model.inputs], inputs)
        cost = program_cost(model.program)
        flops = at_sizes(cost.flops, sizes or {})
        return flops if isinstance(flops, int) and not cost.unknown and sizes is not None else None

    def plan(self, inputs: Mapping[str, Any]) -> float | None:
        """Seconds of planning a run of weft's model on such inputs afresh; None where the device plans nothing."""
        try:
            planned, sizes = self._model().model.plan({name: array.shape for name, array in inputs.items()})
        except (AttributeError, WeftError):
            return None
        start = time.perf_counter()
        for part in planned.sections:
            make_plan(part.section, part.constants, sizes)
        return time.perf_counter() - start

    def _model(self) -> Loaded:
        if self._loaded is None:
            raise InputError("no model is loaded")
        return self._loaded


def sizes_in(
    specs: Sequence[tuple[str, Sequence[int | str] | None]], inputs: Mapping[str, Any]
) -> dict[str, int] | None:
    """The size of every named dim; None where one name stands for several sizes, as in files that lie."""
    sizes: dict[str, int] = {}
    for name, shape in specs:
        for dim, size in zip(shape or (), getattr(inputs.get(name), "shape", ())):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                return None
    return sizes


def serve(server: Server, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""

    def read() -> tuple[str, Sequence[Any]] | None:
        try:
            request: tuple[str, Sequence[Any]] = pickle.load(requests)
            return request
        except EOFError:
            return None

    for command, arguments in read_requests(read):
        pickle.dump(_answer(server, command, arguments), answers)
        answers.flush()


def _answer(server: Server, command: str, arguments: Sequence[Any]) -> Answer:
    try:
        return getattr(server, command)(*arguments), None, None
    except WeftError as error:
        problem, _, hint = str(error).partition("\n  hint: ")
        return None, problem, hint or None
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}", None


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(Server({**PEERS, WEFT.name: WEFT}[sys.argv[1]]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
