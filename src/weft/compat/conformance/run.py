"""Run the suite in worker processes, so that a case that crashes or hangs does not end the run.

A worker runs one case at a time. If it dies or does not answer in time, the case has failed, and the worker is started
again for the next one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from threading import Event, Timer
from typing import Any

from weft.compat.conformance.records import KINDS, CaseInfo, CaseResult, ConformanceReport, Status
from weft.errors import InputError, InternalError
from weft.records import dataclass
from weft.threads import HelperPool

Progress = Callable[[CaseResult, int], None]

_START_TIMEOUT = 300.0  # seconds
_EXIT_TIMEOUT = 10.0  # seconds
_CASES_PER_WORKER = 16  # fewer are not worth another worker
_WORKER = "weft.compat.conformance.worker"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The first message of a worker."""

    onnx_version: str
    cases: tuple[CaseInfo, ...]


def run_suite(
    device: str,
    *,
    kinds: Iterable[str] = KINDS,
    pattern: str = "",
    workers: int = 2,
    timeout: float = 120.0,
    loader: str = "weft:load",
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run the cases of these kinds whose names match the regular expression `pattern`.

    `timeout` is in seconds, for one case. `loader` is the function that loads models, as `module:function`.
    `progress` is called with each result and the number of selected cases.
    """
    begin = time.monotonic()
    matches = _compile_pattern(pattern)
    command = _worker_command(device, _check_kinds(kinds), loader)
    team = [Worker(command, timeout) for _ in range(max(1, workers))]
    try:
        catalogue = team[0].await_catalogue()  # caches the computed cases for the other workers
        selected = [case for case in catalogue.cases if matches.search(case.name)]
        needed = team[: max(1, len(selected) // _CASES_PER_WORKER)]
        for worker in needed[1:]:
            worker.launch()
        with HelperPool(len(needed)) as pool:
            results = _run_cases(selected, needed, pool, progress)
    finally:
        for worker in team:
            worker.kill()
    return ConformanceReport(device, catalogue.onnx_version, time.monotonic() - begin, results)


def _run_cases(
    selected: list[CaseInfo], team: list[Worker], pool: HelperPool, progress: Progress | None
) -> tuple[CaseResult, ...]:
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in team:
        idle.put(worker)

    ended: SimpleQueue[CaseResult | None] = SimpleQueue()

    def run_case(case: CaseInfo) -> CaseResult:
        worker = idle.get()
        result = None
        try:
            result = worker.run_case(case)
            return result
        finally:
            idle.put(worker)
            ended.put(result)

    tasks = [pool.submit(run_case, case) for case in selected]
    for _ in tasks:
        result = ended.get()
        if result is None:  # a worker could not start; task.result() below raises the reason
            break
        if progress is not None:
            progress(result, len(selected))
    return tuple(task.result() for task in tasks)


class Worker:
    """A worker process and its pipes. If the process has died, it is started again when it is needed."""

    def __init__(self, command: list[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._catalogue: Catalogue | None = None
        self._stderr = TemporaryFile()  # noqa: SIM115 - lives as long as the worker

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._stderr.seek(0)
        self._stderr.truncate()
        self._catalogue = None
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            env=_environment(),
        )

    def await_catalogue(self) -> Catalogue:
        """Wait until the process is ready for cases."""
        if self._process is None:
            self.launch()
        if self._catalogue is None:
            answer, reason = self._await_answer(_START_TIMEOUT)
            if answer is None:
                raise InternalError(f"a conformance worker does not start: {reason}")
            cases = tuple(CaseInfo(case["name"], case["kind"], tuple(case["ops"])) for case in answer["cases"])
            self._catalogue = Catalogue(answer["onnx_version"], cases)
        return self._catalogue

    def run_case(self, case: CaseInfo) -> CaseResult:
        """Run one case. If the process dies, the case has failed."""
        self.await_catalogue()
        begin = time.monotonic()
        self._send(case.name)
        answer, reason = self._await_answer(self._timeout)
        status: Status = "failed" if answer is None else answer["status"]
        reason = reason if answer is None else answer["reason"]
        return CaseResult(case.name, case.kind, case.ops, status, reason, time.monotonic() - begin)

    def kill(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _send(self, name: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # if it has died, `_await_answer` returns the reason
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()

    def _await_answer(self, seconds: float) -> tuple[dict[str, Any] | None, str]:
        """Return the next message. Or return None and the reason, and kill the process."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        overdue = Event()

        def expire() -> None:
            overdue.set()
            process.kill()

        timer = Timer(seconds, expire)
        with suppress(RuntimeError):  # without a free thread, there is no timeout
            timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()
        if line.endswith("\n") and not overdue.is_set():
            answer: dict[str, Any] = json.loads(line)
            return answer, ""
        reason = f"no answer within {seconds:g} s" if overdue.is_set() else self._describe_exit(process)
        self.kill()
        return None, reason

    def _describe_exit(self, process: subprocess.Popen[str]) -> str:
        try:
            status = process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if status < 0:
            return f"crashed with {_signal_name(-status)}"
        self._stderr.seek(0)
        last_line = self._stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"exited with status {status}" + (f": {last_line}" if last_line else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _worker_command(device: str, kinds: list[str], loader: str) -> list[str]:
    command = [sys.executable, "-m", _WORKER, "--device", device, "--loader", loader]
    return command + [f"--kind={kind}" for kind in kinds]


def _environment() -> dict[str, str]:
    """Return an environment in which workers import the same modules as this process."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _check_kinds(kinds: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(kinds))
    unknown = [kind for kind in unique if kind not in KINDS]
    if unknown or not unique:
        raise InputError(
            f"the suite has no kind {', '.join(map(repr, unknown))}" if unknown else "no kind of case was chosen",
            hint=f"choose from {', '.join(KINDS)}",
        )
    return unique


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is not a regular expression: {error}") from error
