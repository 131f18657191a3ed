"""Parse the code blocks of a Markdown page, with the directives in the comments directly above them.

A fence may be indented, in a list or a tab. `comments` has the HTML comments between a block and the text before it; a
comment that begins with `python:` is a hidden block.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

RUN = ("python", "pycon", "sh", "console")
DATA = ("json", "toml", "yaml")
LISTINGS = ("text", "llvm", "wgsl", "ptx")
FILES = ("c", "cpp", "dockerfile", "html", "javascript", "powershell")
"""Blocks in these languages need a title, the name of the file to write, or a reason why they do not run."""
LANGUAGES = (*RUN, *DATA, *LISTINGS, *FILES)
NOT_RUN = "not run:"
NEEDS = "needs:"
SHOWN = "shown:"
RAISES = "raises:"
EXIT = "exit:"
OTHER_OUTPUT = "output of another run:"
OUTPUT = "output"
HIDDEN = "python:"
DIRECTIVES = (NOT_RUN, NEEDS, SHOWN, RAISES, EXIT, OTHER_OUTPUT, OUTPUT, HIDDEN)

_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:>[ ]?)*)(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[^\s`{]*)(?P<rest>[^`]*)$")
_TITLE = re.compile(r"""title=["']([^"']+)["']""")


class BlockError(Exception):
    """A block is invalid or failed."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: the number of its first line of code (from 1), its code, and the comments above it."""

    line: int
    language: str
    code: str
    comments: tuple[str, ...] = ()
    title: str | None = None
    """The name of the file to write, if any."""

    def find_directive(self, directive: str) -> str | None:
        """Return the text of a directive; None if there is none."""
        texts = (text.removeprefix(directive).strip() for text in self.comments if text.startswith(directive))
        return next(texts, None)

    @property
    def needs(self) -> list[str]:
        """The programs, modules and devices that it needs."""
        return [name for part in (self.find_directive(NEEDS) or "").split(",") if (name := part.strip())]

    @property
    def is_output(self) -> bool:
        """Whether it shows the output of the block before it."""
        return OUTPUT in self.comments


def parse_blocks(page: str) -> Iterator[Block]:
    """Yield all blocks of a page, in order; BlockError if a fence is never closed."""
    lines = page.split("\n")
    comments: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        if fence := _FENCE.match(line):
            end = _find_end(lines, place, fence)
            code = textwrap.dedent("\n".join(inner[_indent(inner, fence) :] for inner in lines[place + 1 : end]))
            title = _TITLE.search(fence["rest"])
            yield Block(place + 2, fence["language"], code + "\n", tuple(comments), title and title[1])
            comments, place = [], end + 1
        elif line.lstrip().startswith("<!--"):
            end = place
            while "-->" not in lines[end]:
                end += 1
                if end == len(lines):
                    raise BlockError(f"line {place + 1}: the comment has no end")
            text = "\n".join(lines[place : end + 1]).strip().removeprefix("<!--").removesuffix("-->").strip(" ")
            if text.startswith(HIDDEN):
                yield Block(
                    place + 1, "python", textwrap.dedent(text.removeprefix(HIDDEN)).strip(" ") + "\n", (HIDDEN,)
                )
            else:
                comments.append(text.strip())
            place = end + 1
        else:
            if line.strip():
                comments = []
            place += 1


def _find_end(lines: list[str], start: int, fence: re.Match[str]) -> int:
    closing = re.compile(rf"^[ \t>]*{fence['fence'][0]}{{{len(fence['fence'])},}}[ \t]*$")
    for place in range(start + 1, len(lines)):
        if closing.match(lines[place]):
            return place
    raise BlockError(f"line {start + 1}: the block has no end")


def _indent(line: str, fence: re.Match[str]) -> int:
    """Return the width of the indentation that a line shares with its fence."""
    width = len(fence["indent"])
    return width if line[:width] == fence["indent"] else len(line) - len(line.lstrip())
