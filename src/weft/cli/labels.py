"""Names of classes: from a file, from what a model says of itself, or from `config.json` beside it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.readers.content import DataSource, find_source

KEYS = (
    "names",
    "classes",
    "labels",
    "class_names",
    "class_labels",
    "id2label",
    "label_names",
    "categories",
    "character",
)
LARGEST = 1 << 24  # bytes
WORDNET = re.compile(r"n\d{8}\s+")
NUMBERED = re.compile(r"\s*(\d+)\s*[:,;\t ]\s*(.+)")


def read_labels(name: str) -> tuple[str, ...]:
    """One name for each class, from a text or a JSON file."""
    source = find_source(name)
    if source is None or source.path.is_dir():
        raise InputError(f"--labels {name}: no such file", hint="give a file with a name for each class")
    text = source.read_text()
    found = _of_json(text) if text.lstrip()[:1] in ("[", "{") else None
    if found is None:
        found = _of_lines(text)
    if not found:
        hint = "write one name on each line, or a JSON list, or a JSON object of numbers and names"
        raise InputError(f"--labels {name}: holds no names of classes", hint=hint)
    return found


def labels_of_model(properties: Mapping[str, str], file: str) -> tuple[tuple[str, ...], str]:
    """The names that a model brings, and where they are from; none where it brings none."""
    for key in KEYS:
        text = properties.get(key, "")
        found = _of_text(text) if 0 < len(text) < LARGEST else None
        if found:
            return found, f"the model's metadata ({key})"
    return _of_config(Path(file).parent / "config.json"), "config.json beside the model"


def _of_config(path: Path) -> tuple[str, ...]:
    """What Hugging Face's exports have beside the model."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return ()
        said = json.loads(DataSource(str(path)).read_text())
        return _numbered(said["id2label"]) or () if isinstance(said, dict) and "id2label" in said else ()
    except (OSError, ValueError, InputError, RecursionError, TypeError):  # a file of somebody else's
        return ()


def _of_text(text: str) -> tuple[str, ...] | None:
    if text.lstrip()[:1] in ("[", "{", "("):
        return _of_json(text)
    lines = _of_lines(text)
    return lines if len(lines) > 1 else tuple(part.strip() for part in text.split(",")) if "," in text else None


def _of_json(text: str) -> tuple[str, ...] | None:
    said: Any = None
    for read in (json.loads, ast.literal_eval):
        try:
            said = read(text)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    if isinstance(said, (list, tuple)):
        return tuple(_name(each) for each in said)
    return _numbered(said) if isinstance(said, dict) else None


def _numbered(said: Mapping[Any, Any]) -> tuple[str, ...] | None:
    """{0: name}, {"0": name}, {"0": [id, name]} or {name: 0}, in order."""
    pairs = [(str(key), value) for key, value in said.items()]
    if pairs and all(key.isdecimal() for key, _ in pairs):
        by_number = {int(key): _name(value) for key, value in pairs}
    elif pairs and all(isinstance(value, int) and not isinstance(value, bool) for _, value in pairs):
        by_number = {value: _name(key) for key, value in pairs}
    else:
        return None
    last = max(by_number)
    if min(by_number) < 0 or last > 4 * len(by_number) + 1000:
        return None
    return tuple(by_number.get(number, str(number)) for number in range(last + 1))


def _of_lines(text: str) -> tuple[str, ...]:
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    parts = [NUMBERED.fullmatch(line) for line in lines]
    if lines and all(parts):
        numbers = [int(part[1]) for part in parts if part]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[0] in (0, 1):
            return tuple(_name(part[2]) for part in parts if part)
    return tuple(_name(line) for line in lines)


def _name(content: Any) -> str:
    """A name as people read it: of an id and a name, the name."""
    if isinstance(content, Sequence) and not isinstance(content, str) and content:
        content = content[-1]
    if isinstance(content, Mapping):
        content = next((content[key] for key in ("name", "label", "id") if key in content), content)
    text = str(content).strip().strip("\"'")
    return WORDNET.sub("", text, count=1) if WORDNET.match(text) else text
