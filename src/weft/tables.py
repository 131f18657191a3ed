"""Tables of what weft tells people: as text for a terminal, as HTML for a notebook.

What they hold comes from files that nobody has checked: every cell is shortened, made printable and escaped. The HTML
has no style sheet, script or colour of its own, so that it looks right on light and dark pages, in editors that leave
out all but plain elements, and on narrow ones, where it scrolls by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from weft.quantities import MORE, printable, shortened
from weft.records import dataclass

MOST_ROWS = 40
LONGEST_CELL = 120
NARROWEST = 40  # columns of a terminal that tables are made for
USUAL_WIDTH = 100  # where there is no terminal
GAP = "  "
_BOX = "overflow-x:auto;max-width:100%;margin:.3em 0"
_TABLE = "border-collapse:collapse;margin:0"
_CELL = "text-align:{side};vertical-align:top;padding:.15em .9em .15em 0;border:none"
_TEXT = ";white-space:pre-wrap;max-width:44em"
_BROKEN = ";overflow-wrap:anywhere"  # of words that no narrow page has room for
_LONG_WORD = 24  # characters
_ROOM = ";min-width:12em"  # for what has many words: a narrow page scrolls
_MANY_WORDS = 40  # characters
_NUMBER = ";white-space:nowrap;font-variant-numeric:tabular-nums"
_HEAD = ";font-weight:600;border-bottom:1px solid rgba(128,128,128,.5)"
_TITLE = "margin-bottom:.2em"
_QUIET = "opacity:.75"


@dataclass(frozen=True, slots=True)
class ShownTable:
    """Rows under the names of columns, of which those in `right` hold numbers; without names, facts by name."""

    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    title: str = ""
    right: Sequence[str] = ()
    note: str = ""
    most: int = MOST_ROWS

    def text(self, width: int | None = None) -> str:
        """For so many columns of a terminal, by default those that there are."""
        room = width or terminal_width()
        rows = [[_cell(content, LONGEST_CELL) for content in row] for row in self._shown()]
        lines = [*([list(self.columns)] if self.columns else []), *rows]
        widths = _fitting([max(map(_columns, column)) for column in zip(*lines)], room)
        laid = [placed for line in lines for placed in self._lines(line, widths)]
        if self.columns:
            laid.insert(1, GAP.join("-" * size for size in widths))
        parts = [*_wrapped(printable(self.title), room), *laid, self._left_out(), *_wrapped(printable(self.note), room)]
        return "\n".join(part for part in parts if part)

    def html(self) -> str:
        sides = self._sides(len(self._shown()[0]) if self.rows else len(self.columns))
        head = "".join(_html("th", name, side, _HEAD) for name, side in zip(self.columns, sides))
        body = "".join(
            "<tr>"
            + "".join(
                _html("td", text := _cell(content, LONGEST_CELL), side, _NUMBER if side == "right" else _wrapping(text))
                for content, side in zip(row, sides)
            )
            + "</tr>"
            for row in self._shown()
        )
        below = " ".join(part for part in (self._left_out(), printable(self.note)) if part)
        return "".join(
            (
                f'<div style="{_BOX}">',
                f'<div style="{_TITLE}"><strong>{escape(printable(self.title))}</strong></div>' if self.title else "",
                f'<table style="{_TABLE}">',
                f"<thead><tr>{head}</tr></thead>" if head else "",
                f"<tbody>{body}</tbody></table>",
                f'<div style="{_QUIET}">{escape(below)}</div>' if below else "",
                "</div>",
            )
        )

    def _shown(self) -> Sequence[Sequence[object]]:
        return self.rows if len(self.rows) <= self.most + 1 else self.rows[: self.most]

    def _left_out(self) -> str:
        return f"{MORE} {len(self.rows) - len(self._shown()):,} more" if len(self._shown()) < len(self.rows) else ""

    def _sides(self, number: int) -> list[str]:
        return ["right" if name in self.right else "left" for name in self.columns] or ["left"] * number

    def _lines(self, cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        """A row, on more than one line where its last cell has words for more."""
        sides = self._sides(len(cells))
        last = _wrapped(cells[-1], widths[-1]) if cells and sides[-1] == "left" and " " in cells[-1] else cells[-1:]
        for number, words in enumerate(last or [""]):
            row = [*cells[:-1], words] if number == 0 else [*[""] * (len(cells) - 1), words]
            yield GAP.join(map(_placed, row, widths, sides)).rstrip()


class Tabled:
    """What is shown as tables: `str` of it for terminals, and itself in notebooks."""

    __slots__ = ()

    def _tables(self) -> Iterable[ShownTable]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self._tables())

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables())


def terminal_width() -> int:
    """Columns that there are, within reason."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns
    except (ValueError, OSError):
        columns = 0
    return max(columns or USUAL_WIDTH, NARROWEST)


def escape(text: str) -> str:
    """Text as an element of a page holds it."""
    from html import escape  # which has a table of two thousand names with it

    return escape(text)


def _cell(content: object, longest: int) -> str:
    return "" if content is None else shortened(str(content), longest)


def _wrapping(text: str) -> str:
    """How a text goes on: words stay whole, unless they are too long for that."""
    broken = _BROKEN if any(len(word) > _LONG_WORD for word in text.split()) else ""
    return _TEXT + broken + (_ROOM if len(text) > _MANY_WORDS else "")


def _html(element: str, text: str, side: str, style: str) -> str:
    return f'<{element} style="{_CELL.format(side=side)}{style}">{escape(text)}</{element}>'


def _fitting(widths: list[int], room: int) -> list[int]:
    """Widths of columns that fit together, the widest made narrower first."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    while excess > 0 and max(widths) > 8:
        widest = max(widths)
        next_one = max((width for width in widths if width < widest), default=8)
        alike = [index for index, width in enumerate(widths) if width == widest]
        step = max(1, min(widest - max(next_one, 8), -(-excess // len(alike))))
        for index in alike:
            widths[index] -= step
        excess -= step * len(alike)
    return widths


def _placed(text: str, width: int, side: str) -> str:
    text = _cut(text, width)
    space = " " * (width - _columns(text))
    return f"{space}{text}" if side == "right" else f"{text}{space}"


def _wrapped(text: str, width: int) -> list[str]:
    """A text on lines of so many columns; a word that is longer has a line of its own, and loses its middle."""
    lines: list[str] = []
    for word in (_cut(word, width) for word in text.split(" ")):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _columns(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _cut(text: str, width: int) -> str:
    """A text in no more than so many columns of a terminal."""
    longest = width
    while _columns(text) > width:
        text = shortened(text, longest)
        longest -= 1
    return text


def _columns(text: str) -> int:
    """Columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
