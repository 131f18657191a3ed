"""Printing: tables for people, JSON for programs, numbers with units."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from weft.cli.fitted_tables import Facts, FittedTable, ellipsis, fill_text
from weft.quantities import escape_unprintable as escape_unprintable
from weft.quantities import format_bytes as format_bytes
from weft.quantities import format_count as format_count
from weft.quantities import format_seconds as format_seconds

NO_LIMIT = 1_000_000  # cells of a line in a pipe or a file
MIN_WIDTH = 24


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Pass the error on to `main`; rich would exit the process itself."""
        raise

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but break lines only between words, or between the parts of long names."""
        if len(objects) == 1 and isinstance(objects[0], (str, Text)) and not options.get("soft_wrap", self.soft_wrap):
            text = Text(objects[0]) if isinstance(objects[0], str) else objects[0]
            objects = (fill_text(text, self.width, ellipsis(self)),)
            options = {**options, "soft_wrap": True}
        super().print(*objects, **options)


def console() -> Console:
    """Return a console for the current stdout; lines are wrapped only in a terminal."""
    if sys.stdout.isatty():
        return _Console(highlight=False, markup=False, emoji=False, width=terminal_width())
    return _Console(highlight=False, markup=False, emoji=False, width=NO_LIMIT, soft_wrap=True)


def error_console() -> Console:
    """Return a console for the current stderr."""
    is_terminal = sys.stderr.isatty()
    width = terminal_width() if is_terminal else NO_LIMIT
    return _Console(stderr=True, highlight=False, markup=False, emoji=False, width=width, soft_wrap=not is_terminal)


def terminal_width() -> int:
    """Return the columns of the terminal, or the value of COLUMNS."""
    return max(shutil.get_terminal_size().columns, MIN_WIDTH)


def print_json(data: Any) -> None:
    """Print one JSON document to stdout; NaN and infinities become null."""
    sys.stdout.write(json.dumps(plain_data(data), indent=2, allow_nan=False) + "\n")


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    below: str | None = None,
    spare: Sequence[str] = (),
) -> FittedTable:
    """Make a table; columns in `right` are right-aligned numbers, and columns in `whole` are never shortened.

    In a narrow terminal, the column `below` moves under its row, and columns in `spare` are left out. A cell may be a
    Text.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    return FittedTable(escape_unprintable(title), columns, cells, frozenset(right), frozenset(whole), below, spare)


def facts(rows: Iterable[tuple[str, object]]) -> Facts:
    """Make a list of names with their values."""
    return Facts([(name, _text(content)) for name, content in rows])


def format_shape(shape: Sequence[object] | None) -> str:
    """[batch, 3, 224, 224], or [...] if the rank is unknown."""
    return "[...]" if shape is None else f"[{', '.join(map(str, shape))}]"


def format_sizes(sizes: Mapping[str, int], guessed: Sequence[str]) -> str:
    """Format sizes such as "batch = 1, length = 128", and mark those that were guessed."""
    if sizes and len(guessed) == len(sizes):
        listing = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        return f"{listing} (guessed; set them with --shape NAME=SIZE)"
    return ", ".join(f"{name} = {size}{' (guessed)' if name in guessed else ''}" for name, size in sizes.items())


def _text(content: object) -> Text:
    return content if isinstance(content, Text) else Text(escape_unprintable(str(content)))


def plain_data(data: Any) -> Any:
    """Convert data to JSON types: NaN and infinities become None, other objects their text."""
    if isinstance(data, dict):
        return {str(key): plain_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_data(value) for value in data]
    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    return str(data)
