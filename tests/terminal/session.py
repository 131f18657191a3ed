"""Commands in a terminal of so many columns: `python -m terminal.session CASES RESULTS`.

Each command runs in a fork of this process, which has imported weft already, on a terminal of its own or on pipes.
CASES and RESULTS are JSON; a result is the exit code and what was written, as it was written.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.cli import command_parser, main

LINES = 50
SECONDS = 120
COMMANDS = "demo info run ops devices report kernels plan profile optimize compile cache compare completion".split()


def play(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of cases: `arguments`, and if given `columns` (none: pipes), `environment`, `encoding`, `folder`."""
    with TemporaryDirectory() as folder:
        asked, answered = Path(folder, "cases.json"), Path(folder, "results.json")
        asked.write_text(json.dumps(list(cases)), encoding="utf-8")
        command = [sys.executable, "-m", "terminal.session", str(asked), str(answered)]
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, check=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": path})
        found: list[dict[str, Any]] = json.loads(answered.read_text(encoding="utf-8"))
        return found


def _run(case: dict[str, Any]) -> dict[str, Any]:
    """One command, its stdout and stderr on one terminal, or on one pipe."""
    if case.get("columns"):
        child, reader = pty.fork()
    else:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
        os.close(writer)
    if not child:
        os._exit(_in_child(case))
    written = _read(reader)
    _, status = os.waitpid(child, 0)
    return {**case, "code": os.waitstatus_to_exitcode(status), "written": written.decode("utf-8", "replace")}


def _in_child(case: dict[str, Any]) -> int:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm-256color", **case.get("environment", {})})
    if case.get("columns"):
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, case["columns"], 0, 0))
    if case.get("folder"):
        os.chdir(case["folder"])
    encoding = case.get("encoding", "utf-8")
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding=encoding, line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding=encoding, errors="backslashreplace", line_buffering=True)
    sys.__stdout__ = sys.stdout  # whose terminal is asked for its size
    code = main(case["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _read(descriptor: int) -> bytes:
    written = bytearray()
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:  # the end of a terminal
            piece = b""
        if not piece:
            os.close(descriptor)
            return bytes(written)
        written += piece


if __name__ == "__main__":
    for name in COMMANDS:
        command_parser([name])
    results = [_run(case) for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")
