"""Tables that fit where they are printed: words stay whole, numbers are never wrapped, long names lose their middle.

Where even that does not fit, each row becomes a list of its cells. In a pipe, which has no width, nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from weft.records import dataclass

GAP = 2
NARROWEST = 12  # cells that a column of words needs to be read
BELOW = 36  # cells without which a column that may goes below its row
_JOINTS = "/.,:;=_-"


@dataclass(frozen=True, slots=True)
class FittedTable:
    """Columns with a head. Those in `right` hold numbers, those in `whole` names to copy: neither is cut.

    Where there is no room, what is in the column `below` stands under its row, and columns in `spare` are left out, the
    first ones first, which is said.
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
            yield from _printed(wrap(Text(self.title, "bold"), room, mark))
        widths = self._widths(room)
        if widths is None and self.spare:
            yield from self._smaller(room, mark)
        elif self.below is not None and self._is_tight(widths, self.columns.index(self.below)):
            yield from _printed(self._lines_with_more(self.columns.index(self.below), room, mark))
        elif widths is None:
            yield from _printed(self._stacked(room, mark))
        else:
            yield from _printed(self._lines(widths, mark))

    def _smaller(self, room: int, mark: str) -> RenderResult:
        """With as few spare columns left out as will do; with all of them where nothing does."""
        for count in range(1, len(self.spare) + 1):
            left_out = self.spare[:count]
            places = [place for place, column in enumerate(self.columns) if column not in left_out]
            rows = [[row[place] for place in places] for row in self.rows]
            rest = FittedTable("", [self.columns[place] for place in places], rows, self.right, self.whole, self.below)
            widths = rest._widths(room)
            if widths is not None:
                yield from _printed(rest._lines(widths, mark))
                note = f"not shown in {room} columns: {', '.join(left_out)}"
                yield from _printed(wrap(Text(note, "dim"), room, mark))
                return
        yield from _printed(self._stacked(room, mark))

    def _is_tight(self, widths: Sequence[int] | None, place: int) -> bool:
        return widths is None or widths[place] < min(BELOW, max((row[place].cell_len for row in self.rows), default=0))

    def _lines_with_more(self, place: int, room: int, mark: str) -> Iterator[Text]:
        others = [number for number in range(len(self.columns)) if number != place]
        rows = [[row[number] for number in others] for row in self.rows]
        rest = FittedTable("", [self.columns[number] for number in others], rows, self.right, self.whole)
        widths = rest._widths(room)
        if widths is None:
            yield from self._stacked(room, mark)
            return
        yield from rest._head(widths, mark)
        for row, whole in zip(rest.rows, self.rows):
            yield from rest._row(row, widths, mark)
            for line in wrap(whole[place], room - 4, mark):
                if line.plain:
                    yield Text.assemble("    ", Text(line.plain, "dim"))

    def _widths(self, room: int) -> list[int] | None:
        """The cells that each column gets; None where they do not fit."""
        natural = [
            max([cell_len(column), *(cell_len(line) for row in self.rows for line in row[place].plain.split("\n"))])
            for place, column in enumerate(self.columns)
        ]
        room -= GAP * (len(natural) - 1)
        if sum(natural) <= room:
            return natural
        yielding = [place for place, column in enumerate(self.columns) if not {column} & (self.right | self.whole)]
        room -= sum(width for place, width in enumerate(natural) if place not in yielding)
        widths = list(natural)
        for number, place in enumerate(sorted(yielding, key=lambda place: natural[place])):
            share = room // (len(yielding) - number)
            if share < min(natural[place], NARROWEST):
                return None
            widths[place] = min(natural[place], share)
            room -= widths[place]
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
            named = [(column, cell) for column, cell in zip(self.columns, row) if cell.plain]
            yield from _fact_lines(named, room, mark)


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what they are, without a frame."""

    rows: Sequence[tuple[str, Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _printed(_fact_lines(self.rows, options.max_width, ellipsis(console)))


def ellipsis(console: Console) -> str:
    """What stands for what was left out."""
    return "…" if console.encoding.lower().startswith("utf") else "..."


def wrap(text: Text, width: int, mark: str) -> Iterator[Text]:
    """Lines of at most so many cells, broken at spaces; a longer word loses its middle, with `mark` in its place."""
    for paragraph in text.split("\n", allow_blank=True):
        line = Text()
        for word in _words(paragraph):
            if not line or line.cell_len + 1 + word.cell_len <= width:
                line = Text.assemble(line, " ", word) if line else word
            else:
                yield _shortened(line, width, mark)
                line = word
        yield _shortened(line, width, mark)


def filled(text: Text, width: int, mark: str) -> Text:
    """A text in lines of at most so many cells: words that are longer are broken where their parts meet."""
    if all(cell_len(line) <= width for line in text.plain.split("\n")):
        return text
    lines = list(wrap(_jointed(text, width), width, mark))
    for line in lines[:-1]:
        line.end = "\n"
    return Text("\n").join(lines)


def _words(text: Text) -> Iterator[Text]:
    """What stands between spaces; leading spaces belong to the first word."""
    plain = text.plain
    start = 0
    while start < len(plain):
        end = start
        while end < len(plain) and plain[end] == " ":
            end += 1
        begin = start if start == 0 else end
        end = next((place for place in range(end, len(plain)) if plain[place] == " "), len(plain))
        if begin < end:
            yield text[begin:end]
        start = end + 1


def _shortened(text: Text, width: int, mark: str) -> Text:
    if text.cell_len <= width:
        return text
    path = _shortened_path(text.plain, width, mark)
    if path is not None and not text.spans:
        return Text(path, text.style)
    room = max(width - cell_len(mark), 2)
    head = _fitting(text.plain, room // 3)
    tail = len(text.plain) - _fitting(text.plain[::-1], room - room // 3)
    return Text.assemble(text[:head], mark, text[tail:])


def _shortened_path(name: str, width: int, mark: str) -> str | None:
    """The name of a node in its scopes, without some of them: those with a number tell it from its likes."""
    parts = name.split("/")
    while cell_len("/".join(parts)) > width:
        plain = [part for part in parts[:-1] if part not in ("", mark) and not any(map(str.isdigit, part))]
        if not plain:
            return None
        place = parts.index(max(plain, key=cell_len))
        parts[place] = mark
        parts = [part for number, part in enumerate(parts) if part != mark or parts[number - 1 : number] != [mark]]
    return "/".join(parts)


def _fitting(plain: str, cells: int) -> int:
    """How many of the first characters have room in so many cells."""
    used = 0
    for number, character in enumerate(plain):
        used += cell_len(character)
        if used > cells:
            return number
    return len(plain)


def _fact_lines(rows: Sequence[tuple[str, Text]], room: int, mark: str) -> Iterator[Text]:
    label = max((cell_len(name) for name, _ in rows), default=0)
    if room - label - GAP < NARROWEST:  # the name on a line of its own
        for name, content in rows:
            yield Text(name, "dim")
            yield from (Text.assemble("  ", line) for line in wrap(_jointed(content, room - 2), room - 2, mark))
        return
    width = room - label - GAP
    for name, content in rows:
        for number, line in enumerate(wrap(_jointed(content, width), width, mark)):
            space = " " * (label + GAP - (0 if number else cell_len(name)))
            yield Text.assemble("" if number else (name, "dim"), space, line)


def _jointed(text: Text, width: int) -> Text:
    """The text with longer words broken where their parts meet, so that nothing of them is left out."""
    breaks: list[int] = []
    for start, word in _placed_words(text.plain):
        begin = 0
        while cell_len(word[begin:]) > width:
            room = word[begin : begin + _fitting(word[begin:], width)]
            joint = room.rfind("/") + 1 or max(room.rfind(mark) for mark in _JOINTS) + 1
            if not joint:
                break
            begin += joint
            breaks.append(start + begin)
    return Text("\n").join(text.divide(breaks)) if breaks else text


def _placed_words(plain: str) -> Iterator[tuple[int, str]]:
    start = 0
    for word in plain.replace("\n", " ").split(" "):
        yield start, word
        start += len(word) + 1


def _printed(lines: Iterator[Text]) -> Iterator[Text | Segment]:
    for line in lines:
        line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
        yield line
