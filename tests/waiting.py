"""Wait for something that happens in another thread or process, with a watchdog of a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds


def wait_for(condition: Callable[[], bool], what: str = "what the test waits for") -> None:
    """Return as soon as a condition holds; fail after a minute."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"after {PATIENCE:g} s, not yet: {what}"
        time.sleep(0.02)
