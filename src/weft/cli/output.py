"""How commands print: tables for people, JSON for programs, numbers in units that can be read."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from weft.cli.fitted_tables import Facts, FittedTable, ellipsis, filled
from weft.quantities import escape_unprintable as escape_unprintable
from weft.quantities import format_bytes as format_bytes
from weft.quantities import format_count as format_count
from weft.quantities import format_seconds as format_seconds

NO_LIMIT = 1_000_000  # cells of a line in a pipe or a file
LEAST_WIDTH = 24


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as one whose reader has gone; rich would end the process itself."""
        raise

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but texts are broken between words, or where parts of long names meet."""
        if len(objects) == 1 and isinstance(objects[0], (str, Text)) and not options.get("soft_wrap", self.soft_wrap):
            text = Text(objects[0]) if isinstance(objects[0], str) else objects[0]
            objects = (filled(text, self.width, ellipsis(self)),)
            options = {**options, "soft_wrap": True}
        super().print(*objects, **options)


def console() -> Console:
    """A console on today's stdout. A terminal gets lines of its width, a pipe or a file each line whole."""
    if sys.stdout.isatty():
        return _Console(highlight=False, markup=False, emoji=False, width=terminal_width())
    return _Console(highlight=False, markup=False, emoji=False, width=NO_LIMIT, soft_wrap=True)


def error_console() -> Console:
    """The same on stderr."""
    whole = not sys.stderr.isatty()
    width = NO_LIMIT if whole else terminal_width()
    return _Console(stderr=True, highlight=False, markup=False, emoji=False, width=width, soft_wrap=whole)


def terminal_width() -> int:
    """The columns of the terminal: what COLUMNS says, or it itself."""
    return max(shutil.get_terminal_size().columns, LEAST_WIDTH)


def print_json(data: Any) -> None:
    """One JSON document on stdout. What JSON cannot say (NaN, infinities) is null."""
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
    """A table in weft's look; the columns named in `right` hold numbers, those in `whole` are never cut.

    Where there is no room, what is in the column `below` stands under its row, and columns in `spare` are left out.
    A cell may be a Text.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    return FittedTable(escape_unprintable(title), columns, cells, frozenset(right), frozenset(whole), below, spare)


def facts(rows: Iterable[tuple[str, object]]) -> Facts:
    """Names and what they are, without a frame."""
    return Facts([(name, _text(content)) for name, content in rows])


def format_shape(shape: Sequence[object] | None) -> str:
    """(batch, 3, 224, 224), or (...) where the rank is unknown."""
    return "[...]" if shape is None else f"[{', '.join(map(str, shape))}]"


def format_sizes(sizes: Mapping[str, int], guessed: Sequence[str]) -> str:
    """batch = 1, length = 128, and which of them were not given."""
    if sizes and len(guessed) == len(sizes):
        said = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        return f"{said} (guessed: --shape NAME=SIZE gives others)"
    return ", ".join(f"{name} = {size}{' (guessed)' if name in guessed else ''}" for name, size in sizes.items())


def _text(content: object) -> Text:
    return content if isinstance(content, Text) else Text(escape_unprintable(str(content)))


def plain_data(data: Any) -> Any:
    """Data as JSON can say it: NaN and infinities are null, what it has no form for is its text."""
    if isinstance(data, dict):
        return {str(key): plain_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_data(value) for value in data]
    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    return str(data)
