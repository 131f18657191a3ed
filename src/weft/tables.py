"""Render tables as text for terminals and as HTML for notebooks.

Cells may come from untrusted files, so each is shortened and escaped. The HTML has no style sheet, script or colours,
so that it suits light and dark pages and editors that strip styles; on narrow pages the table scrolls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from weft.quantities import ELLIPSIS, escape_unprintable, shorten
from weft.records import dataclass

MAX_ROWS = 40
MAX_CELL = 120
MIN_WIDTH = 40  # columns of a terminal
DEFAULT_WIDTH = 100  # where there is no terminal
GAP = "  "
_BOX = "overflow-x:auto;max-width:100%;margin:.3em 0"
_TABLE = "border-collapse:collapse;margin:0"
_CELL = "text-align:{side};vertical-align:top;padding:.15em .9em .15em 0;border:none"
_TEXT = ";white-space:pre-wrap;max-width:44em"
_BREAK_WORDS = ";overflow-wrap:anywhere"
_LONG_WORD = 24  # characters
_WIDE = ";min-width:12em"  # long texts make a narrow page scroll instead of wrapping at each word
_LONG_TEXT = 40  # characters
_NUMBER = ";white-space:nowrap;font-variant-numeric:tabular-nums"
_HEAD = ";font-weight:600;border-bottom:1px solid rgba(128,128,128,.5)"
_TITLE = "margin-bottom:.2em"
_QUIET = "opacity:.75"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; columns in `right` are right-aligned. Without names, rows are (name, value) pairs."""

    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    title: str = ""
    right: Sequence[str] = ()
    note: str = ""
    most: int = MAX_ROWS

    def text(self, width: int | None = None) -> str:
        """Format for a terminal of `width` columns, by default the current one."""
        width = width or terminal_width()
        rows = [[_cell(content, MAX_CELL) for content in row] for row in self._visible_rows()]
        lines = [*([list(self.columns)] if self.columns else []), *rows]
        widths = _fit_widths([max(map(_text_width, column)) for column in zip(*lines)], width)
        body = [text for line in lines for text in self._format_row(line, widths)]
        if self.columns:
            body.insert(1, GAP.join("-" * size for size in widths))
        parts = [
            *_wrap(escape_unprintable(self.title), width),
            *body,
            self._omitted_note(),
            *_wrap(escape_unprintable(self.note), width),
        ]
        return "\n".join(part for part in parts if part)

    def html(self) -> str:
        """Format for a notebook."""
        sides = self._alignments(len(self._visible_rows()[0]) if self.rows else len(self.columns))
        head = "".join(_html("th", name, side, _HEAD) for name, side in zip(self.columns, sides))
        body = "".join(
            "<tr>"
            + "".join(
                _html("td", text := _cell(content, MAX_CELL), side, _NUMBER if side == "right" else _wrap_style(text))
                for content, side in zip(row, sides)
            )
            + "</tr>"
            for row in self._visible_rows()
        )
        below = " ".join(part for part in (self._omitted_note(), escape_unprintable(self.note)) if part)
        return "".join(
            (
                f'<div style="{_BOX}">',
                f'<div style="{_TITLE}"><strong>{escape(escape_unprintable(self.title))}</strong></div>'
                if self.title
                else "",
                f'<table style="{_TABLE}">',
                f"<thead><tr>{head}</tr></thead>" if head else "",
                f"<tbody>{body}</tbody></table>",
                f'<div style="{_QUIET}">{escape(below)}</div>' if below else "",
                "</div>",
            )
        )

    def _visible_rows(self) -> Sequence[Sequence[object]]:
        return self.rows if len(self.rows) <= self.most + 1 else self.rows[: self.most]

    def _omitted_note(self) -> str:
        return (
            f"{ELLIPSIS} {len(self.rows) - len(self._visible_rows()):,} more"
            if len(self._visible_rows()) < len(self.rows)
            else ""
        )

    def _alignments(self, number: int) -> list[str]:
        return ["right" if name in self.right else "left" for name in self.columns] or ["left"] * number

    def _format_row(self, cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        """Yield the lines of a row; a long text in the last cell wraps."""
        sides = self._alignments(len(cells))
        last = _wrap(cells[-1], widths[-1]) if cells and sides[-1] == "left" and " " in cells[-1] else cells[-1:]
        for number, words in enumerate(last or [""]):
            row = [*cells[:-1], words] if number == 0 else [*[""] * (len(cells) - 1), words]
            yield GAP.join(map(_align, row, widths, sides)).rstrip()


class ShownAsTables:
    """Base of classes that `str` and notebooks show as tables."""

    __slots__ = ()

    def _tables(self) -> Iterable[Table]:
        """Return the tables to show."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self._tables())

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables())


def terminal_width() -> int:
    """Return the number of columns of the terminal, or a default."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns
    except (ValueError, OSError):
        columns = 0
    return max(columns or DEFAULT_WIDTH, MIN_WIDTH)


def escape(text: str) -> str:
    """Escape text for HTML."""
    from html import escape  # slow to import: it builds a table of two thousand entities

    return escape(text)


def _cell(content: object, longest: int) -> str:
    return "" if content is None else shorten(str(content), longest)


def _wrap_style(text: str) -> str:
    """Choose the style of a cell: words stay whole unless they are very long."""
    broken = _BREAK_WORDS if any(len(word) > _LONG_WORD for word in text.split()) else ""
    return _TEXT + broken + (_WIDE if len(text) > _LONG_TEXT else "")


def _html(element: str, text: str, side: str, style: str) -> str:
    return f'<{element} style="{_CELL.format(side=side)}{style}">{escape(text)}</{element}>'


def _fit_widths(widths: list[int], available: int) -> list[int]:
    """Shrink the widest columns until all fit."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - available
    while excess > 0 and max(widths) > 8:
        widest = max(widths)
        next_widest = max((width for width in widths if width < widest), default=8)
        widest_columns = [index for index, width in enumerate(widths) if width == widest]
        step = max(1, min(widest - max(next_widest, 8), -(-excess // len(widest_columns))))
        for index in widest_columns:
            widths[index] -= step
        excess -= step * len(widest_columns)
    return widths


def _align(text: str, width: int, side: str) -> str:
    text = _truncate(text, width)
    space = " " * (width - _text_width(text))
    return f"{space}{text}" if side == "right" else f"{text}{space}"


def _wrap(text: str, width: int) -> list[str]:
    """Wrap a text; a word that is wider than a line loses its middle."""
    lines: list[str] = []
    for word in (_truncate(word, width) for word in text.split(" ")):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _truncate(text: str, width: int) -> str:
    """Truncate a text to a number of terminal columns."""
    longest = width
    while _text_width(text) > width:
        text = shorten(text, longest)
        longest -= 1
    return text


def _text_width(text: str) -> int:
    """Count the terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # a shared library, which most programs do not need

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
