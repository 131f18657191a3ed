"""Facts about the machine and the code that results depend on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import weft
from weft.backends.host.machine import host
from weft.bench.engines import Engine
from weft.threads import usable_cores


def machine_facts(engines: Iterable[Engine]) -> dict[str, Any]:
    """Return facts for comparisons of results, without anything that identifies the machine."""
    return {
        "processor": _processor_name(),
        "instructions": host().processor,
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {engine.name: engine.version for engine in engines},
        "commit": commit(Path(weft.__file__)),
    }


def commit(file: Path) -> str | None:
    """Return the commit of a file's checkout, with + for uncommitted changes; None outside a checkout."""
    if _run_git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    number = _run_git(file.parent, "rev-parse", "--short=12", "HEAD")
    changed = _run_git(file.parent, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{number}{'+' if changed else ''}" if number else None


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
