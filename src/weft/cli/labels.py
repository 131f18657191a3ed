"""Class names: from a file, from the metadata of a model, or from the `config.json` next to it."""

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
MAX_BYTES = 1 << 24
WORDNET = re.compile(r"n\d{8}\s+")
NUMBERED = re.compile(r"\s*(\d+)\s*[:,;\t ]\s*(.+)")


def read_labels(name: str) -> tuple[str, ...]:
    """Read class names from a text or JSON file."""
    source = find_source(name)
    if source is None or source.path.is_dir():
        raise InputError(f"--labels {name}: no such file", hint="name a file with one class name per line")
    text = source.read_text()
    names = _parse_json(text) if text.lstrip()[:1] in ("[", "{") else None
    if names is None:
        names = _parse_lines(text)
    if not names:
        hint = "write one name per line, or a JSON list, or a JSON object of numbers and names"
        raise InputError(f"--labels {name}: contains no class names", hint=hint)
    return names


def labels_of_model(properties: Mapping[str, str], file: str) -> tuple[tuple[str, ...], str]:
    """Return the class names of a model, or none, and their source."""
    for key in KEYS:
        text = properties.get(key, "")
        names = _parse_property(text) if 0 < len(text) < MAX_BYTES else None
        if names:
            return names, f"the model's metadata ({key})"
    return _read_config(Path(file).parent / "config.json"), "config.json next to the model"


def _read_config(path: Path) -> tuple[str, ...]:
    """Read the class names of a Hugging Face config."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return ()
        config = json.loads(DataSource(str(path)).read_text())
        return _in_order(config["id2label"]) or () if isinstance(config, dict) and "id2label" in config else ()
    except (OSError, ValueError, InputError, RecursionError, TypeError):  # an unrelated file
        return ()


def _parse_property(text: str) -> tuple[str, ...] | None:
    if text.lstrip()[:1] in ("[", "{", "("):
        return _parse_json(text)
    lines = _parse_lines(text)
    return lines if len(lines) > 1 else tuple(part.strip() for part in text.split(",")) if "," in text else None


def _parse_json(text: str) -> tuple[str, ...] | None:
    content: Any = None
    for parse in (json.loads, ast.literal_eval):
        try:
            content = parse(text)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    if isinstance(content, (list, tuple)):
        return tuple(map(_format_name, content))
    return _in_order(content) if isinstance(content, dict) else None


def _in_order(numbering: Mapping[Any, Any]) -> tuple[str, ...] | None:
    """Sort {0: name}, {"0": name}, {"0": [id, name]} or {name: 0} by number."""
    pairs = [(str(key), value) for key, value in numbering.items()]
    if pairs and all(key.isdecimal() for key, _ in pairs):
        by_number = {int(key): _format_name(value) for key, value in pairs}
    elif pairs and all(isinstance(value, int) and not isinstance(value, bool) for _, value in pairs):
        by_number = {value: _format_name(key) for key, value in pairs}
    else:
        return None
    last = max(by_number)
    if min(by_number) < 0 or last > 4 * len(by_number) + 1000:
        return None
    return tuple(by_number.get(number, str(number)) for number in range(last + 1))


def _parse_lines(text: str) -> tuple[str, ...]:
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    parts = [NUMBERED.fullmatch(line) for line in lines]
    if lines and all(parts):
        numbers = [int(part[1]) for part in parts if part]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[0] in (0, 1):
            return tuple(_format_name(part[2]) for part in parts if part)
    return tuple(_format_name(line) for line in lines)


def _format_name(content: Any) -> str:
    """Return the readable name from a name, a pair of id and name, or a record."""
    if isinstance(content, Sequence) and not isinstance(content, str) and content:
        content = content[-1]
    if isinstance(content, Mapping):
        content = next((content[key] for key in ("name", "label", "id") if key in content), content)
    text = str(content).strip().strip("\"'")
    return WORDNET.sub("", text, count=1) if WORDNET.match(text) else text
