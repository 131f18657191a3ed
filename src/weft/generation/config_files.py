"""JSON files beside a model, read with types: every error names the file and the field.

A missing field and `null` are the same. Files are limited in size, and names of files in them may not leave the folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from weft.errors import InvalidModelError, MissingFileError, ModelError, short_repr
from weft.records import dataclass

MAX_BYTES = 1 << 28
"""The largest file that is read; tokenizers of 262,144 tokens take 33 MB."""

HINT = "fetch or export the folder again"


def read_text_file(path: Path) -> str:
    """Return the text of a file that is UTF-8 and not larger than `MAX_BYTES`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist", hint=HINT) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint=HINT) from error
    if len(content) > MAX_BYTES:
        raise InvalidModelError(f"it is larger than {MAX_BYTES >> 20} MiB", file=str(path), hint=HINT)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"it is not UTF-8: {error.reason}", file=str(path), hint=HINT) from error


def read_config(path: Path) -> Config:
    """Read a file with one JSON object."""
    text = read_text_file(path)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidModelError(f"it is not valid JSON: {reason}", file=str(path), hint=HINT) from error
    if not isinstance(fields, dict):
        raise InvalidModelError(f"it holds {short_repr(fields)}, not a JSON object", file=str(path), hint=HINT)
    return Config(path, fields)


def read_optional_config(path: Path) -> Config:
    """Read a file with one JSON object; a file that does not exist has no fields."""
    return read_config(path) if path.is_file() else Config(path, {})


@dataclass(frozen=True, slots=True)
class Config:
    """An object of a JSON file, or a section of one at `place`."""

    path: Path
    fields: Mapping[str, Any]
    place: str = ""

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def section(self, name: str) -> Config:
        """Return the object of a field; a missing one has no fields."""
        fields = self.fields.get(name)
        if fields is None:
            fields = {}
        if not isinstance(fields, dict):
            raise self.field_error(name, "an object")
        return Config(self.path, fields, f"{self.place}{name}.")

    def sections(self, name: str) -> Iterator[Config]:
        """Yield the objects of a field that is a list."""
        entries = self.fields.get(name)
        if entries is None:
            return
        if not isinstance(entries, list):
            raise self.field_error(name, "a list")
        for index, fields in enumerate(entries):
            if not isinstance(fields, dict):
                raise self.field_error(name, "a list of objects")
            yield Config(self.path, fields, f"{self.place}{name}[{index}].")

    def text(self, name: str) -> str | None:
        content = self.fields.get(name)
        if content is None or isinstance(content, str):
            return content
        raise self.field_error(name, "a text")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a text, or a list of texts."""
        content = self.fields.get(name)
        texts = [content] if isinstance(content, str) else [] if content is None else content
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self.field_error(name, "a text or a list of texts")
        return tuple(texts)

    def flag(self, name: str) -> bool | None:
        content = self.fields.get(name)
        if content is None or isinstance(content, bool):
            return content
        raise self.field_error(name, "true or false")

    def integer(self, name: str, low: int = 0, high: int = 2**53) -> int | None:
        content = self.fields.get(name)
        if isinstance(content, float) and content.is_integer():
            content = int(content)
        if content is None or (_is_integer(content) and low <= content <= high):
            return content
        raise self.field_error(name, f"an integer from {low} to {high}")

    def integers(self, name: str, low: int = 0) -> tuple[int, ...]:
        """Return an integer, or a list of integers."""
        content = self.fields.get(name)
        integers = [content] if _is_integer(content) else [] if content is None else content
        if not isinstance(integers, list) or not all(_is_integer(entry) and entry >= low for entry in integers):
            raise self.field_error(name, f"an integer of at least {low}, or a list of them")
        return tuple(integers)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return one token or a list of tokens, without duplicates; -1 stands for none."""
        return tuple(dict.fromkeys(token for token in self.integers(name, low=-1) if token != -1))

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        content = self.fields.get(name)
        if content is None:
            return None
        is_number = isinstance(content, (int, float)) and not isinstance(content, bool) and abs(content) < 1e300
        if not is_number or not low <= content <= high:
            bounds = (
                f" from {low:g} to {high:g}" if high < math.inf else f" of at least {low:g}" if low > -math.inf else ""
            )
            raise self.field_error(name, f"a number{bounds}")
        return float(content)

    def file(self, name: str) -> Path | None:
        """Return the path of a file in the folder of this file; it may not lead out of the folder."""
        content = self.text(name)
        return None if content is None else self._locate(name, content)

    def _locate(self, field: str, name: str) -> Path:
        parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
        absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
        if not name or absolute or ".." in parts or "\0" in name:
            raise self.field_error(field, "the name of a file in this folder")
        path = self.path.parent / name
        if not path.is_file():
            problem = f"{path} does not exist, but {self.place}{field} of {self.path.name} names it"
            raise MissingFileError(problem, hint=HINT)
        return path

    def field_error(self, name: str, expected: str) -> InvalidModelError:
        """Return the error for a field that is not what it should be."""
        problem = f"{self.place}{name} is {short_repr(self.fields.get(name))}, not {expected}"
        return InvalidModelError(problem, file=str(self.path), hint="correct the file, or " + HINT)


def _is_integer(content: object) -> bool:
    return isinstance(content, int) and not isinstance(content, bool)
