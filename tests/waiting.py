"""Wait for other threads and processes, with watchdogs of minutes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE = 60.0  # seconds
LONG_PATIENCE = 300.0  # for a program whose imports alone take half a minute on a busy machine
CLIENTS = Path(__file__).parent.parent / ".clients" / "bin" / "python"


def require_client(module: str) -> Path:
    """Return the interpreter of .clients, or skip the test if it lacks a module."""
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module.partition('.')[0]!r}) is None)"
    is_missing = (
        not CLIENTS.exists() or subprocess.run([CLIENTS, "-c", program], timeout=PATIENCE, check=False).returncode
    )
    if is_missing:
        pytest.skip(f"needs {module} in .clients (scripts/setup-clients)")
    return CLIENTS


def wait_for(condition: Callable[[], bool], what: str = "what the test waits for") -> None:
    """Return as soon as a condition holds; fail after a minute."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"after {PATIENCE:g} s, not yet: {what}"
        time.sleep(0.02)
