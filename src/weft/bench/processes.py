"""Start, query and stop worker processes of engines."""

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
from typing import TYPE_CHECKING, Any

import weft
from weft.bench.engines import Engine, FirstRuns, Setup
from weft.cache.files import VARIABLE
from weft.errors import ExecutionError

if TYPE_CHECKING:
    from typing_extensions import Self

REPLY_TIMEOUT = 600.0  # seconds for one reply; some engines compile for minutes, some hang
EXIT_TIMEOUT = 10.0  # seconds
MOST_STDERR = 300  # characters in a message


class EngineProcess:
    """An engine's process with a model; leaving the `with` block ends it."""

    def __init__(
        self,
        engine: Engine,
        setup: Setup,
        cache: Path,
        reply_timeout: float = REPLY_TIMEOUT,
        python: str = sys.executable,
    ) -> None:
        """`cache` is the folder for compiled code, `python` the interpreter that has the engine."""
        self.engine = engine
        self._setup = setup
        self._reply_timeout = reply_timeout
        self._timed_out = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [python, "-m", "weft.bench.worker", *self.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(engine, setup.threads, cache),
        )

    def arguments(self) -> list[str]:
        """Return the arguments of the worker."""
        return [self.engine.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=EXIT_TIMEOUT)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def version(self) -> str:
        return str(self.request("version"))

    def load(self) -> float:
        return float(self.request("load", self._setup))

    def run(self, inputs: Mapping[str, Any]) -> FirstRuns:
        runs: FirstRuns = self.request("run", inputs)
        return runs

    def block(self, seconds: float) -> Sequence[float]:
        times: list[float] = self.request("block", seconds)
        return times

    def plan(self, inputs: Mapping[str, Any]) -> float | None:
        seconds: float | None = self.request("plan", inputs)
        return seconds

    def inputs(self, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        inputs: dict[str, Any] = self.request("inputs", dict(sizes), seed)
        return inputs

    def flops(self, inputs: Mapping[str, Any]) -> int | None:
        flops: int | None = self.request("flops", inputs)
        return flops

    def request(self, command: str, *arguments: Any) -> Any:
        timer = Timer(self._reply_timeout, self._time_out)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can start: no timeout
            timer.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            pickle.dump((command, arguments), self._process.stdin)
            self._process.stdin.flush()
            content, problem, hint = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise ExecutionError(f"{self.engine.name}: {self._describe_end(command)}") from error
        finally:
            timer.cancel()
        if problem is not None:
            raise ExecutionError(f"{self.engine.name}: {problem}", hint=hint)
        return content

    def _time_out(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _describe_end(self, command: str) -> str:
        """Return why the process did not reply."""
        code = self._process.wait()
        if self._timed_out:
            return f"no answer to {command!r} within {self._reply_timeout:.0f} s"
        self._stderr.seek(0)
        message = " ".join(self._stderr.read().decode(errors="replace").split())[-MOST_STDERR:]
        return f"its process ended with code {code} during {command!r}" + (f": {message}" if message else "")


def environment(engine: Engine, threads: int, cache: Path) -> dict[str, str]:
    """Return this process' environment with the same weft, a separate cache, and thread pools of one size."""
    source = str(Path(weft.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: str(cache),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "LP_NUM_THREADS": str(threads),  # of llvmpipe, a software rasteriser
        **{name: text.format(threads=threads, cache=cache) for name, text in engine.environment.items()},
    }
