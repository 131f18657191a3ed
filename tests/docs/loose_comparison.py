"""Compare printed text with a page, ignoring numbers, units of time, spaces and rules; `…` matches anything."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![A-Za-z_])[-+−]?\d[\d.,]*(?:e[-+]?\d+)?")
_TIME = re.compile(r"# (?:ns|µs|us|ms|s|min)\b")


def find_missing_line(expected: str, printed: str) -> str | None:
    """Return the first expected line that is not printed after the one before it; None if all are."""
    lines = [normalize(line) for line in printed.split("\n")]
    place = 0
    for line in expected.split("\n"):
        text = normalize(line)
        if text in ("", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in text.split("…")))
        match = next((at for at in range(place, len(lines)) if pattern.search(lines[at])), None)
        if match is None:
            return line
        place = match + 1
    return None


def normalize(line: str) -> str:
    """Remove what differs from run to run."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"\.\.\.", "…", line)
    line = re.sub(r"[─━]+", "─", line)
    line = _NUMBER.sub("#", line)
    return _TIME.sub("# s", " ".join(line.split()))
