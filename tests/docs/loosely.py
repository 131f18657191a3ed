"""Whether printed text is what a page shows: but for numbers, units of time, spaces, rules, and what `…` stands for."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![A-Za-z_])[-+−]?\d[\d.,]*(?:e[-+]?\d+)?")
_TIME = re.compile(r"# (?:ns|µs|us|ms|s|min)\b")


def missing(expected: str, printed: str) -> str | None:
    """The first line of what is expected that is not printed after the line before it; None where all are."""
    lines = [plain(line) for line in printed.split("\n")]
    place = 0
    for line in expected.split("\n"):
        wanted = plain(line)
        if wanted in ("", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        found = next((at for at in range(place, len(lines)) if pattern.search(lines[at])), None)
        if found is None:
            return line
        place = found + 1
    return None


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"\.\.\.", "…", line)
    line = re.sub(r"[─━]+", "─", line)
    line = _NUMBER.sub("#", line)
    return _TIME.sub("# s", " ".join(line.split()))
