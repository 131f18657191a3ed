"""Run cases in a child process: crashes and hangs are findings like others."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from attack.families import Family
from attack.verdict import CRASH, HANG, Payload, Verdict

from weft.cache.files import cache_folder
from weft.compat.conformance.node_tests import FOLDER

PARTING_SECONDS = 0.5  # that a child without more cases may take to end
START_SECONDS = 120.0  # that a child may take to import what it needs
STDERR_LIMIT = 2000  # characters of a dead child's last words that are kept
TESTS = Path(__file__).resolve().parent.parent


class Arena:
    """A temporary folder for the files of attacks: weft's cache and temporary files."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="weft-attack-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        folder = cache_folder()
        if folder is not None and (folder / FOLDER).is_dir():  # which takes each child seconds to compute
            shutil.copytree(folder / FOLDER, self.path / "cache" / FOLDER)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def environment(self) -> dict[str, str]:
        paths = [str(TESTS.parent / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "WEFT_CACHE": str(self.path / "cache"),
            "WEFT_KEYS": str(self.path / "keys"),
            "TMPDIR": str(self.path),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        return {**os.environ, **own}


class Child:
    """A process that runs cases of a family on a device; it is restarted after a crash."""

    def __init__(self, family: Family, device: str, arena: Arena) -> None:
        self.family, self.device, self.arena = family, device, arena
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = (arena.path / f"stderr-{family.name}-{os.getpid()}-{id(self)}").open("w+b")

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._stderr.close()

    def run(self, payload: Payload) -> Verdict:
        """Run a case and return the verdict."""
        fresh = self._process is None
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(payload).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(self.family.seconds + (START_SECONDS if fresh else 0.0))
        except BrokenPipeError:
            answer = b""
        if answer:
            return Verdict(**json.loads(answer))
        hung = answer is None
        code = self._end()
        return Verdict(HANG if hung else CRASH, f"{_ending(code, hung, self.family.seconds)}\n{self._last_words()}")

    def _start(self) -> subprocess.Popen[bytes]:
        self._stderr.seek(0)
        self._stderr.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attack.child", self.family.name, self.device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self.arena.environment(),
            cwd=self.arena.path,
            start_new_session=True,  # so that what it has started can be ended with it
        )
        return self._process

    def _answer(self, seconds: float) -> bytes | None:
        """Read a line from the child; empty if it died, None if it timed out."""
        assert self._process is not None
        assert self._process.stdout is not None
        stream, end, line = self._process.stdout, time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            if not select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                return b""
            line += part
        return line

    def _end(self) -> int:
        """End the child and its processes; return its exit code if it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PARTING_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _last_words(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-STDERR_LIMIT:]


def _ending(code: int, hung: bool, seconds: float) -> str:
    if hung:
        return f"no answer within {seconds:g} s"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def cases_of(family: Family, seed: int, device: str) -> Iterator[Payload]:
    """Yield the family's cases for a seed, always the same."""
    name = int.from_bytes(family.name.encode(), "big") % 2**63
    return family.cases(np.random.default_rng([seed, name]), device)


def signature(family: str, verdict: Verdict) -> str:
    """Return a key that is equal for findings that differ only in numbers, quoted names and addresses."""
    lines = verdict.detail.strip().splitlines() or [""]
    first = re.sub(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\d+(\.\d+)?(e[+-]?\d+)?", "…", lines[0])
    return f"{family}: {verdict.kind}: {first[:200]}"
