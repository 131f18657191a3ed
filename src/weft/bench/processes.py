"""The other end of a worker: start it, ask it, end it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

import weft
from weft.bench.engines import Engine, Ran, Setup
from weft.cache.files import VARIABLE
from weft.errors import ExecutionError

PATIENCE = 600.0  # seconds for one answer; some engines compile for minutes, some hang
GOODBYE = 10.0
LAST_WORDS = 300  # characters


class EngineProcess:
    """An engine's process with a model; leaving the `with` block ends it."""

    def __init__(self, engine: Engine, setup: Setup, cache: Path, patience: float = PATIENCE) -> None:
        """`cache` is the folder for compiled code."""
        self.engine = engine
        self._setup = setup
        self._patience = patience
        self._impatient = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft.bench.worker", engine.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(engine, setup.threads, cache),
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=GOODBYE)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def version(self) -> str:
        return str(self._ask("version"))

    def load(self) -> float:
        return float(self._ask("load", self._setup))

    def run(self, inputs: Mapping[str, Any]) -> Ran:
        ran: Ran = self._ask("run", inputs)
        return ran

    def block(self, seconds: float) -> Sequence[float]:
        times: list[float] = self._ask("block", seconds)
        return times

    def plan(self, inputs: Mapping[str, Any]) -> float | None:
        seconds: float | None = self._ask("plan", inputs)
        return seconds

    def inputs(self, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        made: dict[str, Any] = self._ask("inputs", dict(sizes), seed)
        return made

    def flops(self, inputs: Mapping[str, Any]) -> int | None:
        flops: int | None = self._ask("flops", inputs)
        return flops

    def _ask(self, command: str, *arguments: Any) -> Any:
        timer = Timer(self._patience, self._lose_patience)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread to be had: no limit
            timer.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            pickle.dump((command, arguments), self._process.stdin)
            self._process.stdin.flush()
            content, problem, hint = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise ExecutionError(f"{self.engine.name}: {self._end(command)}") from error
        finally:
            timer.cancel()
        if problem is not None:
            raise ExecutionError(f"{self.engine.name}: {problem}", hint=hint)
        return content

    def _lose_patience(self) -> None:
        self._impatient = True
        self._process.kill()

    def _end(self, command: str) -> str:
        """Why there is no answer."""
        code = self._process.wait()
        if self._impatient:
            return f"no answer to {command!r} within {self._patience:.0f} s"
        self._stderr.seek(0)
        words = " ".join(self._stderr.read().decode(errors="replace").split())[-LAST_WORDS:]
        return f"its process ended with code {code} during {command!r}" + (f": {words}" if words else "")


def environment(engine: Engine, threads: int, cache: Path) -> dict[str, str]:
    """This process' environment, with the same weft, a code cache of its own, and all pools of one size."""
    source = str(Path(weft.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: str(cache),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "LP_NUM_THREADS": str(threads),  # of llvmpipe, which plays a GPU
        **{name: text.format(threads=threads, cache=cache) for name, text in engine.environment.items()},
    }
