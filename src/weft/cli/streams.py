"""Where a command writes: streams that are there, that take every character, and that may be closed by their reader."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

HANDLER = "weft.plain"
_PLAIN = {
    "─": "-",
    "━": "-",
    "–": "-",
    "—": "-",
    "×": "x",
    "µ": "u",
    "μ": "u",
    "…": "...",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "•": "*",
    "✓": "+",
    "▀": "#",
    "▄": "#",
    "█": "#",
    "░": ".",
    "▒": ":",
    "▓": "#",
}


def open_streams() -> None:
    """Streams that were closed before the start are nothing, and not the next file that is opened.

    What a stream's encoding lacks is written with characters that it has.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    codecs.register_error(HANDLER, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def flush_or_silence() -> None:
    """What was printed before an error, where it can be."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence_stdout()


def silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a file descriptor needs nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What is written where an encoding has no such character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
