"""Standard output and error: closed streams, limited encodings, and readers that close the pipe."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

HANDLER = "weft.ascii"
_ASCII = {
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
    """Open the null device for closed streams, and replace characters that a stream cannot encode.

    Without the former, the next file that is opened would get the descriptor of a closed stream.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    codecs.register_error(HANDLER, _replace_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def flush_or_silence() -> None:
    """Print what is buffered, if the reader is still there."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence_stdout()


def silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a file descriptor needs nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error: return the replacement, and the position after it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end
