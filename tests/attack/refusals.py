"""The checked-in list of (case, form) pairs that weft refuses for a stated reason; it may only shrink.

Each line is `devices | case | form  # reason`, devices being `all` or some, parted by commas; empty lines and those
that start with `#` are comments.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("refusals.txt")


@cache
def listed(device: str) -> dict[tuple[str, str], str]:
    """The reasons for a device ("webgpu" for all its numbers), by case and form."""
    return read(LIST.read_text(encoding="utf-8"), device)


def read(text: str, device: str) -> dict[tuple[str, str], str]:
    kind = device.partition(":")[0]
    reasons: dict[tuple[str, str], str] = {}
    entries: set[tuple[str, str, str]] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        entry, _, reason = (part.strip() for part in line.partition("#"))
        if not entry:
            continue
        fields = [part.strip() for part in entry.split("|")]
        assert len(fields) == 3, f"line {number} is not 'devices | case | form  # reason': {line!r}"
        assert reason, f"line {number} gives no reason: {line!r}"
        devices, case, form = fields
        for name in devices.split(","):
            assert (name.strip(), case, form) not in entries, f"line {number} repeats an entry: {line!r}"
            entries.add((name.strip(), case, form))
            if name.strip() in ("all", kind):
                reasons[case, form] = reason
    return reasons
