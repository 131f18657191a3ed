"""Read the fields of a request with types: every error names the field, and what it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Union

from weft.errors import InputError, check_unicode, short_repr
from weft.server.http import HttpError, json_kind

Text = Union[str, list[int]]  # token ids stand for a text


class Fields:
    """A JSON object of a request. A field that is null is the same as one that is missing."""

    def __init__(self, content: Mapping[str, Any], place: str = "") -> None:
        self.content = content
        self.place = place

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    def get(self, name: str) -> Any:
        return self.content.get(name)

    def text(self, name: str) -> str | None:
        """Return a string."""
        content = self.get(name)
        if content is None:
            return None
        if not isinstance(content, str):
            raise self.mismatch(name, "a string")
        try:
            check_unicode(content, name)
        except InputError as error:
            raise self.error(name, error.problem) from None
        return content

    def required_text(self, name: str) -> str:
        """Return a string that must not be missing."""
        content = self.text(name)
        if content is None:
            raise self.error(name, f"{self.place}{name} is missing: it must be a string")
        return content

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        content = self.get(name)
        if content is None:
            return default
        if not isinstance(content, bool):
            raise self.mismatch(name, "true or false")
        return content

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return an integer within bounds."""
        content = self.get(name)
        if isinstance(content, float) and content.is_integer():
            content = int(content)
        if content is None:
            return None
        if not isinstance(content, int) or isinstance(content, bool) or not low <= content <= high:
            raise self.mismatch(name, f"an integer from {low:,} " + (f"to {high:,}" if high < 1 << 31 else "on"))
        return content

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number within bounds."""
        content = self.get(name)
        if content is None:
            return None
        is_number = isinstance(content, (int, float)) and not isinstance(content, bool)
        if not is_number or not low <= content <= high or not math.isfinite(content):
            raise self.mismatch(name, f"a number from {low:g} to {high:g}")
        return float(content)

    def section(self, name: str) -> Fields | None:
        """Return an object."""
        content = self.get(name)
        if content is None:
            return None
        if not isinstance(content, dict):
            raise self.mismatch(name, "an object")
        return Fields(content, f"{self.place}{name}.")

    def sections(self, name: str) -> list[Fields]:
        """Return a list of objects; a missing one is empty."""
        content = self.get(name)
        if content is None:
            return []
        if not isinstance(content, list):
            raise self.mismatch(name, "a list of objects")
        sections = []
        for index, entry in enumerate(content):
            if not isinstance(entry, dict):
                raise self.error(f"{name}[{index}]", f"{self.place}{name}[{index}] must be an object")
            sections.append(Fields(entry, f"{self.place}{name}[{index}]."))
        return sections

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """Return one of several strings."""
        content = self.text(name)
        if content is not None and content not in choices:
            raise self.mismatch(name, " or ".join(f'"{choice}"' for choice in choices))
        return content

    def mismatch(self, name: str, expected: str) -> HttpError:
        """Return the error for a field that is not what it should be."""
        content = self.get(name)
        shown = json_kind(content) if isinstance(content, (dict, list)) else short_repr(content)
        return self.error(name, f"{self.place}{name} must be {expected}, not {shown}")

    def error(self, name: str, message: str, code: str | None = None) -> HttpError:
        """Return the error for a field."""
        return HttpError(400, message, parameter=f"{self.place}{name}", code=code)


def read_texts(fields: Fields, name: str, most: int) -> Sequence[Text]:
    """Return the texts of a field: a string, a list of token ids, or a list of these."""
    content = fields.get(name)
    expected = "a string, a list of strings, a list of token ids, or a list of these, none of them empty"
    if isinstance(content, str) or (isinstance(content, list) and content and _is_token(content[0])):
        content = [content]
    if not isinstance(content, list) or not content:
        raise fields.mismatch(name, expected)
    if len(content) > most:
        raise fields.error(name, f"{name} has {len(content):,} texts; the most are {most:,}")
    for text in content:
        is_tokens = isinstance(text, list) and all(map(_is_token, text))
        if not text or not (is_tokens or isinstance(text, str)):
            raise fields.mismatch(name, expected)
    texts: Sequence[Text] = content
    return texts


def _is_token(content: Any) -> bool:
    return isinstance(content, int) and not isinstance(content, bool)
