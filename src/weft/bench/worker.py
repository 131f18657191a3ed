"""Run one engine in its own process: `python -m weft.bench.worker [--generate] ENGINE`, with pickled requests on stdin.

A request is a command with arguments; the reply is its result or the error. The engine's own output goes to stderr.
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
from weft.bench.engines import PEERS, WEFT, Engine, FirstRuns, LoadedModel, Setup
from weft.cli.process import peak_memory, read_requests
from weft.errors import InputError, WeftError
from weft.plan.sections import make_plan

Reply = tuple[Any, "str | None", "str | None"]
"""The result, or None with the problem and a hint."""


class Server:
    """Keeps a model of one engine; public methods are the commands."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: LoadedModel | None = None
        self._prepared: Any = None
        self._memory_before = 0
        self._import_seconds = 0.0

    def load(self, setup: Setup) -> float:
        """Load the model and return the seconds; importing the engine counts neither as time nor as memory."""
        start = time.perf_counter()
        for module in self._engine.modules:
            import_module(module)
        self._import_seconds = time.perf_counter() - start
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak memory
        self._memory_before = peak_memory() or 0
        start = time.perf_counter()
        self._loaded = self._engine.load(setup)
        return time.perf_counter() - start

    def version(self) -> str:
        return self._engine.version

    def run(self, inputs: Mapping[str, Any]) -> FirstRuns:
        """Run twice, since some engines compile or allocate in the first run."""
        loaded = self._loaded_model()
        self._prepared = loaded.prepare(inputs)
        start = time.perf_counter()
        loaded.run(self._prepared)
        seconds = time.perf_counter() - start
        result = loaded.run(self._prepared)
        peak = peak_memory()
        memory = None if peak is None else peak - self._memory_before
        return FirstRuns(loaded.arrays(result), seconds, memory, self._import_seconds)

    def block(self, seconds: float) -> list[float]:
        run, prepared = self._loaded_model().run, self._prepared
        return rounds.time_block(lambda: run(prepared), seconds)

    def inputs(self, sizes: dict[str, int], seed: int) -> dict[str, Any]:
        """Return random inputs for weft's model."""
        from weft.cli.inputs import make_inputs

        model = self._loaded_model().model
        return {
            item.name: item.array for item in make_inputs(model.inputs, model.defaults, (), sizes, seed, None, model)
        }

    def flops(self, inputs: Mapping[str, Any]) -> int | None:
        """Return the FLOPs of weft's model on these inputs; None if they depend on data."""
        from weft.cost.programs import at_sizes, program_cost

        model = self._loaded_model().model
        sizes = dim_sizes([(spec.name, spec.shape) for spec in model.inputs], inputs)
        cost = program_cost(model.program)
        flops = at_sizes(cost.flops, sizes or {})
        return flops if isinstance(flops, int) and not cost.unknown and sizes is not None else None

    def plan(self, inputs: Mapping[str, Any]) -> float | None:
        """Return the seconds of planning a run of weft's model anew; None if the device has no plans."""
        try:
            plan, sizes = self._loaded_model().model.plan({name: array.shape for name, array in inputs.items()})
        except (AttributeError, WeftError):
            return None
        start = time.perf_counter()
        for part in plan.sections:
            make_plan(part.section, part.constants, sizes)
        return time.perf_counter() - start

    def _loaded_model(self) -> LoadedModel:
        if self._loaded is None:
            raise InputError("no model is loaded")
        return self._loaded


def dim_sizes(
    specs: Sequence[tuple[str, Sequence[int | str] | None]], inputs: Mapping[str, Any]
) -> dict[str, int] | None:
    """Return the size of every named dim; None if a name has several sizes, as in inconsistent files."""
    sizes: dict[str, int] = {}
    for name, shape in specs:
        for dim, size in zip(shape or (), getattr(inputs.get(name), "shape", ())):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                return None
    return sizes


def serve(server: Any, requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until stdin ends."""

    def read() -> tuple[str, Sequence[Any]] | None:
        try:
            request: tuple[str, Sequence[Any]] = pickle.load(requests)
            return request
        except EOFError:
            return None

    for command, arguments in read_requests(read):
        pickle.dump(_reply(server, command, arguments), replies)
        replies.flush()


def _reply(server: Any, command: str, arguments: Sequence[Any]) -> Reply:
    try:
        return getattr(server, command)(*arguments), None, None
    except WeftError as error:
        problem, _, hint = str(error).partition("\n  hint: ")
        return None, problem, hint or None
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}", None


def main() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    server: Any
    if sys.argv[1] == "--generate":
        from weft.bench.generation_engines import GENERATION_ENGINES, GenerationServer

        server = GenerationServer(GENERATION_ENGINES[sys.argv[2]])
    else:
        server = Server({**PEERS, WEFT.name: WEFT}[sys.argv[1]])
    serve(server, sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
