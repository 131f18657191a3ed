"""The code blocks of a page in Markdown, with what the comments directly above them say.

A fence may be indented, in a list or a tab. `comments` has the texts of the HTML comments that stand between a block
and the text before it; a comment that begins with `python:` is a block of its own, which readers do not see.
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
"""These have a title, which is the name of the file that they are, or are not run."""
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
    """What is wrong with a block."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: the line of its first line of code (from 1), what it holds, and what is said of it."""

    line: int
    language: str
    code: str
    comments: tuple[str, ...] = ()
    title: str | None = None
    """The name of the file that it is, where it is one."""

    def said(self, directive: str) -> str | None:
        """What a comment says after these words; None where there is none."""
        found = (text.removeprefix(directive).strip() for text in self.comments if text.startswith(directive))
        return next(found, None)

    @property
    def needs(self) -> list[str]:
        """Programs, modules and devices that it needs."""
        return [name for part in (self.said(NEEDS) or "").split(",") if (name := part.strip())]

    @property
    def is_output(self) -> bool:
        """Whether it is what the block before it printed."""
        return OUTPUT in self.comments


def blocks(page: str) -> Iterator[Block]:
    """All of a page, in order; BlockError where a fence is never closed."""
    lines = page.split("\n")
    comments: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        if fence := _FENCE.match(line):
            end = _end(lines, place, fence)
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


def _end(lines: list[str], start: int, fence: re.Match[str]) -> int:
    closing = re.compile(rf"^[ \t>]*{fence['fence'][0]}{{{len(fence['fence'])},}}[ \t]*$")
    for place in range(start + 1, len(lines)):
        if closing.match(lines[place]):
            return place
    raise BlockError(f"line {start + 1}: the block has no end")


def _indent(line: str, fence: re.Match[str]) -> int:
    """How much of a line belongs to what the fence stands in."""
    width = len(fence["indent"])
    return width if line[:width] == fence["indent"] else len(line) - len(line.lstrip())
