"""Run commands in terminals of given widths: `python -m terminal.session CASES RESULTS`.

Each command runs in a fork of this process, which has already imported weft, with a separate terminal or with pipes.
CASES and RESULTS are JSON; a result is the exit code and the output.
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
NAMES = "demo info run generate chat ops devices report kernels plan profile optimize compile cache compare completion"
COMMANDS = NAMES.split()


def play(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run cases: `arguments`, and optionally `columns` (without: pipes), `environment`, `encoding`, `folder`."""
    with TemporaryDirectory() as folder:
        case_file, result_file = Path(folder, "cases.json"), Path(folder, "results.json")
        case_file.write_text(json.dumps(list(cases)), encoding="utf-8")
        command = [sys.executable, "-m", "terminal.session", str(case_file), str(result_file)]
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, check=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": path})
        results: list[dict[str, Any]] = json.loads(result_file.read_text(encoding="utf-8"))
        return results


def _run(case: dict[str, Any]) -> dict[str, Any]:
    """Run one command with stdout and stderr on one terminal or one pipe."""
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
        os._exit(_run_in_child(case))
    written = _read_all(reader)
    _, status = os.waitpid(child, 0)
    return {**case, "code": os.waitstatus_to_exitcode(status), "written": written.decode("utf-8", "replace")}


def _run_in_child(case: dict[str, Any]) -> int:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm-256color", **case.get("environment", {})})
    if case.get("columns"):
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, case["columns"], 0, 0))
    if case.get("folder"):
        os.chdir(case["folder"])
    encoding = case.get("encoding", "utf-8")
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding=encoding, line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding=encoding, errors="backslashreplace", line_buffering=True)
    sys.__stdout__ = sys.stdout  # its terminal determines the width
    code = main(case["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _read_all(descriptor: int) -> bytes:
    written = bytearray()
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # the terminal was closed
            chunk = b""
        if not chunk:
            os.close(descriptor)
            return bytes(written)
        written += chunk


if __name__ == "__main__":
    for name in COMMANDS:
        command_parser([name])
    results = [_run(case) for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")
