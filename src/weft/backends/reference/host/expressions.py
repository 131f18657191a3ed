"""Translate ONNX's regular expressions (RE2 syntax) to Python's.

Differences are rewritten: `$` matches only at the end of the text, classes are ASCII unless an expression says `(?u)`,
flags may occur in the middle, and RE2 has named POSIX and Unicode classes.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from weft.errors import ExecutionError

POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
LAST = sys.maxunicode
SPACE = "\\t\\n\\f\\r "  # without the vertical tab, which Python's \s includes
NAMED = re.compile(r"\[:(\^?)(\w+):\]")
FLAGS = re.compile(r"\(\?(?P<on>[imsuU]*)(?:-(?P<off>[imsU]+))?(?P<end>[:)])")


@lru_cache(maxsize=256)
def compile_expression(expression: str) -> re.Pattern[str]:
    """Compile an expression; ExecutionError if it is invalid or not supported by Python."""
    try:
        return re.compile(_Translation(expression).text())
    except (re.error, OverflowError, RecursionError) as error:
        raise ExecutionError(f"{expression!r} is not a valid regular expression: {error}") from error


class _Translation:
    """A translation of one expression, from left to right."""

    def __init__(self, expression: str) -> None:
        self.source = expression
        self.place = 0
        self.unicode = "u" in "".join(match.group("on") for match in FLAGS.finditer(expression))
        self.flags: list[list[str]] = [[]]  # for each open group, the groups inside it that hold flags until its end
        self.multiline = [False]

    def text(self) -> str:
        parts = []
        while self.place < len(self.source):
            parts.append(self._next())
        flags = "" if self.unicode else "(?a)"
        return flags + "".join(parts) + ")" * len(self.flags[0])

    def _next(self) -> str:
        here = self.source[self.place]
        match here:
            case "\\":
                return self._escape(inside=False)
            case "[":
                return self._set()
            case "(":
                return self._group()
            case ")" if len(self.flags) > 1:
                self.place += 1
                self.multiline.pop()
                return ")" * (1 + len(self.flags.pop()))
            case "|":
                self.place += 1
                return ")" * len(self.flags[-1]) + "|" + "".join(self.flags[-1])
            case "$" if not self.multiline[-1]:
                self.place += 1
                return "\\Z"
        self.place += 1
        return here

    def _group(self) -> str:
        flags = FLAGS.match(self.source, self.place)
        if flags is None or not (flags.group("on") or flags.group("off") or flags.group("end") == ":"):
            self._open(self.multiline[-1])
            if self.source.startswith("(?<", self.place) and self.source[self.place + 3 : self.place + 4] not in "=!":
                self.place += 3
                return "(?P<"
            self.place += 1
            return "("
        on, off = flags.group("on").replace("u", ""), flags.group("off") or ""
        if "U" in on + off:
            raise re.error("the flag U (ungreedy) is not supported")
        self.place = flags.end()
        multiline = "m" in on or ("m" not in off and self.multiline[-1])
        marks = on + (f"-{off}" if off else "")
        if flags.group("end") == ":":
            self._open(multiline)
            return f"(?{marks}:"
        self.multiline[-1] = multiline
        if not marks:
            return ""
        self.flags[-1].append(f"(?{marks}:")
        return f"(?{marks}:"

    def _open(self, multiline: bool) -> None:
        self.flags.append([])
        self.multiline.append(multiline)

    def _escape(self, inside: bool) -> str:
        letter = self.source[self.place + 1 : self.place + 2]
        if letter in "pP" and letter:
            return self._property(inside)
        if letter == "Q" and not inside:
            end = self.source.find("\\E", self.place)
            end = len(self.source) if end < 0 else end
            quoted = self.source[self.place + 2 : end]
            self.place = end + 2
            return re.escape(quoted)
        if letter == "x" and self.source[self.place + 2 : self.place + 3] == "{":
            end = self.source.find("}", self.place)
            code = int(self.source[self.place + 3 : end], 16) if end > 0 else -1
            self.place = end + 1
            return _character(code)
        self.place += 2
        if letter == "z":
            return "\\Z"
        if letter == "C":
            raise re.error("\\C, a single byte, is not supported")
        if letter in "sS" and letter and not self.unicode:
            if inside:
                return SPACE if letter == "s" else _ranges(lambda c: chr(c) not in "\t\n\f\r ")
            return f"[{'^' if letter == 'S' else ''}{SPACE}]"
        return f"\\{letter}"

    def _property(self, inside: bool) -> str:
        r"""\pN, \p{Lu}, \P{L}, \p{^L}: general categories."""
        negative = self.source[self.place + 1] == "P"
        start = self.place + 2
        if self.source[start : start + 1] == "{":
            end = self.source.find("}", start)
            name, self.place = self.source[start + 1 : end], end + 1
        else:
            name, self.place = self.source[start : start + 1], start + 1
        if name.startswith("^"):
            negative, name = not negative, name[1:]
        members = _category(name, negative)
        return members if inside else f"[{members}]"

    def _set(self) -> str:
        """Translate a bracket expression; a leading `]` belongs to it."""
        self.place += 1
        parts = ["["]
        if self.source.startswith("^", self.place):
            parts.append("^")
            self.place += 1
        first = True
        while self.place < len(self.source):
            here = self.source[self.place]
            if here == "]" and not first:
                self.place += 1
                return "".join([*parts, "]"])
            first = False
            named = NAMED.match(self.source, self.place)
            if named is not None:
                parts.append(_posix(named.group(2), bool(named.group(1))))
                self.place = named.end()
            elif here == "\\":
                parts.append(self._escape(inside=True))
            else:
                parts.append(f"\\{here}" if here in "[]&~|" else here)
                self.place += 1
        raise re.error("a bracket is not closed")


def _posix(name: str, negative: bool) -> str:
    members = POSIX.get(name)
    if members is None:
        raise re.error(f"unknown class [:{name}:]")
    if not negative:
        return members
    inside = re.compile(f"[{members}]")
    return _ranges(lambda code: inside.match(chr(code)) is None)


@lru_cache(maxsize=32)
def _category(name: str, negative: bool) -> str:
    if name == "Any":
        return "" if negative else _ranges(lambda _: True)
    members = _ranges(lambda code: unicodedata.category(chr(code)).startswith(name) is not negative)
    if not name or not _ranges(lambda code: unicodedata.category(chr(code)).startswith(name)):
        raise re.error(f"Unicode has no general category {name!r}, and scripts are not supported")
    return members


def _ranges(belongs: Callable[[int], bool]) -> str:
    """Write the characters that belong as ranges of a bracket expression."""
    parts, start = [], -1
    for code in range(LAST + 2):
        inside = code <= LAST and belongs(code)
        if inside and start < 0:
            start = code
        elif not inside and start >= 0:
            parts.append(f"{_character(start)}-{_character(code - 1)}" if code - 1 > start else _character(start))
            start = -1
    return "".join(parts)


def _character(code: int) -> str:
    if not 0 <= code <= LAST:
        raise re.error("a code point beyond Unicode")
    return f"\\U{code:08x}"
