"""Tables that fit the terminal: lines break between words, numbers are never wrapped, long names lose their middle.

If the columns still do not fit, each row becomes a list of its cells. In a pipe nothing is shortened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from weft.records import dataclass

GAP = 2
MIN_COLUMN = 12  # cells of a readable text column
MIN_BESIDE = 36  # cells below which the column `below` moves under its row
_BREAKS = "/.,:;=_-"  # where long words are broken


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table. Columns in `right` hold numbers, columns in `whole` hold names to copy; neither is shortened.

    In a narrow terminal, the column `below` moves under its row, and columns in `spare` are left out, the first ones
    first, with a note.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    right: frozenset[str]
    whole: frozenset[str]
    below: str | None = None
    spare: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = ellipsis(console)
        room = options.max_width
        if self.title:
            yield from _unwrapped_lines(wrap(Text(self.title, "bold"), room, mark))
        widths = self._widths(room)
        if widths is None and self.spare:
            yield from self._without_spare_columns(room, mark)
        elif self.below is not None and self._is_tight(widths, self.columns.index(self.below)):
            yield from _unwrapped_lines(self._lines_with_column_below(self.columns.index(self.below), room, mark))
        elif widths is None:
            yield from _unwrapped_lines(self._stacked(room, mark))
        else:
            yield from _unwrapped_lines(self._lines(widths, mark))

    def _without_spare_columns(self, room: int, mark: str) -> RenderResult:
        """Leave out as few spare columns as possible; if none of that fits, stack the cells of all columns."""
        for count in range(1, len(self.spare) + 1):
            left_out = self.spare[:count]
            indices = [index for index, column in enumerate(self.columns) if column not in left_out]
            rows = [[row[index] for index in indices] for row in self.rows]
            columns = [self.columns[index] for index in indices]
            narrower = FittedTable("", columns, rows, self.right, self.whole, self.below)
            widths = narrower._widths(room)
            if widths is not None:
                yield from _unwrapped_lines(narrower._lines(widths, mark))
                note = f"not shown in {room} columns: {', '.join(left_out)}"
                yield from _unwrapped_lines(wrap(Text(note, "dim"), room, mark))
                return
        yield from _unwrapped_lines(self._stacked(room, mark))

    def _is_tight(self, widths: Sequence[int] | None, index: int) -> bool:
        return widths is None or widths[index] < min(
            MIN_BESIDE, max((row[index].cell_len for row in self.rows), default=0)
        )

    def _lines_with_column_below(self, index: int, room: int, mark: str) -> Iterator[Text]:
        others = [number for number in range(len(self.columns)) if number != index]
        rows = [[row[number] for number in others] for row in self.rows]
        narrower = FittedTable("", [self.columns[number] for number in others], rows, self.right, self.whole)
        widths = narrower._widths(room)
        if widths is None:
            yield from self._stacked(room, mark)
            return
        yield from narrower._head(widths, mark)
        for row, full_row in zip(narrower.rows, self.rows):
            yield from narrower._row(row, widths, mark)
            for line in wrap(full_row[index], room - 4, mark):
                if line.plain:
                    yield Text.assemble("    ", Text(line.plain, "dim"))

    def _widths(self, room: int) -> list[int] | None:
        """Return the width of each column in cells; None if the columns do not fit."""
        natural = [
            max([cell_len(column), *(cell_len(line) for row in self.rows for line in row[index].plain.split("\n"))])
            for index, column in enumerate(self.columns)
        ]
        room -= GAP * (len(natural) - 1)
        if sum(natural) <= room:
            return natural
        flexible = [index for index, column in enumerate(self.columns) if column not in self.right | self.whole]
        room -= sum(width for index, width in enumerate(natural) if index not in flexible)
        widths = list(natural)
        for number, index in enumerate(sorted(flexible, key=lambda index: natural[index])):
            share = room // (len(flexible) - number)
            if share < min(natural[index], MIN_COLUMN):
                return None
            widths[index] = min(natural[index], share)
            room -= widths[index]
        return widths if room >= 0 else None

    def _lines(self, widths: Sequence[int], mark: str) -> Iterator[Text]:
        yield from self._head(widths, mark)
        for row in self.rows:
            yield from self._row(row, widths, mark)

    def _head(self, widths: Sequence[int], mark: str) -> Iterator[Text]:
        yield from self._row([Text(column, "bold") for column in self.columns], widths, mark)
        yield Text("─" * (sum(widths) + GAP * (len(widths) - 1)), "dim")

    def _row(self, row: Sequence[Text], widths: Sequence[int], mark: str) -> Iterator[Text]:
        cells = [list(wrap(cell, width, mark)) for cell, width in zip(row, widths)]
        for number in range(max(map(len, cells), default=0)):
            line = Text()
            for column, cell, width in zip(self.columns, cells, widths):
                part = cell[number] if number < len(cell) else Text()
                space = " " * (width - part.cell_len)
                line.append_text(Text.assemble(space, part) if column in self.right else Text.assemble(part, space))
                line.append(" " * GAP)
            line.rstrip()
            yield line

    def _stacked(self, room: int, mark: str) -> Iterator[Text]:
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            facts = [(column, cell) for column, cell in zip(self.columns, row) if cell.plain]
            yield from _fact_lines(facts, room, mark)


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names with their values."""

    rows: Sequence[tuple[str, Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _unwrapped_lines(_fact_lines(self.rows, options.max_width, ellipsis(console)))


def ellipsis(console: Console) -> str:
    """Return the mark for omitted text."""
    return "…" if console.encoding.lower().startswith("utf") else "..."


def wrap(text: Text, width: int, mark: str) -> Iterator[Text]:
    """Break a text at spaces into lines of at most `width` cells; a longer word loses its middle, shown by `mark`."""
    for paragraph in text.split("\n", allow_blank=True):
        line = Text()
        for word in _words(paragraph):
            if not line or line.cell_len + 1 + word.cell_len <= width:
                line = Text.assemble(line, " ", word) if line else word
            else:
                yield _shorten(line, width, mark)
                line = word
        yield _shorten(line, width, mark)


def fill_text(text: Text, width: int, mark: str) -> Text:
    """Break a text into lines of at most `width` cells; longer words are broken between their parts."""
    if all(cell_len(line) <= width for line in text.plain.split("\n")):
        return text
    lines = list(wrap(_break_long_words(text, width), width, mark))
    for line in lines[:-1]:
        line.end = "\n"
    return Text("\n").join(lines)


def _words(text: Text) -> Iterator[Text]:
    """Split a text at spaces; leading spaces belong to the first word."""
    plain = text.plain
    start = 0
    while start < len(plain):
        end = start
        while end < len(plain) and plain[end] == " ":
            end += 1
        begin = start if start == 0 else end
        end = next((position for position in range(end, len(plain)) if plain[position] == " "), len(plain))
        if begin < end:
            yield text[begin:end]
        start = end + 1


def _shorten(text: Text, width: int, mark: str) -> Text:
    if text.cell_len <= width:
        return text
    path = _shorten_path(text.plain, width, mark)
    if path is not None and not text.spans:
        return Text(path, text.style)
    room = max(width - cell_len(mark), 2)
    head = _count_fitting(text.plain, room // 3)
    tail = len(text.plain) - _count_fitting(text.plain[::-1], room - room // 3)
    return Text.assemble(text[:head], mark, text[tail:])


def _shorten_path(name: str, width: int, mark: str) -> str | None:
    """Leave out scopes of a node's name, but not those with a number, which distinguish it from similar ones."""
    parts = name.split("/")
    while cell_len("/".join(parts)) > width:
        plain = [part for part in parts[:-1] if part not in ("", mark) and not any(map(str.isdigit, part))]
        if not plain:
            return None
        longest = parts.index(max(plain, key=cell_len))
        parts[longest] = mark
        parts = [part for number, part in enumerate(parts) if part != mark or parts[number - 1 : number] != [mark]]
    return "/".join(parts)


def _count_fitting(plain: str, cells: int) -> int:
    """Count the first characters that fit into a number of cells."""
    used = 0
    for number, character in enumerate(plain):
        used += cell_len(character)
        if used > cells:
            return number
    return len(plain)


def _fact_lines(rows: Sequence[tuple[str, Text]], room: int, mark: str) -> Iterator[Text]:
    label = max((cell_len(name) for name, _ in rows), default=0)
    if room - label - GAP < MIN_COLUMN:  # each name on a separate line
        for name, content in rows:
            yield Text(name, "dim")
            yield from (
                Text.assemble("  ", line) for line in wrap(_break_long_words(content, room - 2), room - 2, mark)
            )
        return
    width = room - label - GAP
    for name, content in rows:
        for number, line in enumerate(wrap(_break_long_words(content, width), width, mark)):
            space = " " * (label + GAP - (0 if number else cell_len(name)))
            yield Text.assemble("" if number else (name, "dim"), space, line)


def _break_long_words(text: Text, width: int) -> Text:
    """Break words of more than `width` cells between their parts."""
    breaks: list[int] = []
    for start, word in _words_with_offsets(text.plain):
        begin = 0
        while cell_len(word[begin:]) > width:
            room = word[begin : begin + _count_fitting(word[begin:], width)]
            length = room.rfind("/") + 1 or max(room.rfind(mark) for mark in _BREAKS) + 1
            if not length:
                break
            begin += length
            breaks.append(start + begin)
    return Text("\n").join(text.divide(breaks)) if breaks else text


def _words_with_offsets(plain: str) -> Iterator[tuple[int, str]]:
    start = 0
    for word in plain.replace("\n", " ").split(" "):
        yield start, word
        start += len(word) + 1


def _unwrapped_lines(lines: Iterator[Text]) -> Iterator[Text | Segment]:
    for line in lines:
        line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
        yield line
