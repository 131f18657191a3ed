"""The manifest of a saved file: the version of weft that wrote it, its programs with their requirements, its blocks.

The manifest is not trusted: every field is checked when it is read, and a wrong one is a ValueError. The names of the
fields of these records are keys in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from weft.records import dataclass

JsonType = TypeVar("JsonType")
LIMIT = 1 << 62  # of all numbers
NAME_LENGTH = 64  # of a digest in hexadecimal


@dataclass(frozen=True, slots=True)
class Block:
    """A range of bytes in the file; `name` is the digest of its content (cache/digests.py)."""

    start: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A model compiled for one target of a kind of device. `program`, `arrays` and `support` are numbers of blocks.

    `sizes`: sizes of dynamic dims that it was compiled for. `support`: code that the device needs in addition to the
    program's, by the digest of its source. `records`: the record classes in its structure, with their fields.
    """

    device: str
    target: str
    needs: Mapping[str, Any]
    precision: str
    outputs: tuple[str, ...] | None
    sizes: Mapping[str, int]
    program: int
    arrays: tuple[int, ...]
    support: Mapping[str, int]
    records: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.device} ({self.target})" if self.target else self.device


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of the manifest.

    `meaning`: the version of the semantics of programs (layout.MEANING). `version`: the version of weft that wrote the
    file. `file`: the name of the ONNX file. `model`: the digest of the ONNX model, which follows the manifest if
    `has_graph`.
    """

    meaning: int
    version: str
    file: str
    model: str
    has_graph: bool
    programs: tuple[SavedProgram, ...]
    blocks: tuple[Block, ...]


def to_bytes(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    fields["blocks"] = [[block.start, block.size, block.name] for block in manifest.blocks]
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def from_bytes(content: bytes, start: int, end: int) -> Manifest:
    """Parse the manifest of a file whose blocks fill the bytes from `start` to `end`; ValueError if it is invalid."""
    try:
        fields = json.loads(content)
        blocks = tuple(_parse_block(entry) for entry in fields["blocks"])
        programs = tuple(_parse_program(entry, len(blocks)) for entry in fields["programs"])
        manifest = Manifest(
            _check_number(fields["meaning"]),
            _check_type(str, fields["version"]),
            _check_type(str, fields["file"]),
            _check_name(fields["model"]),
            _check_type(bool, fields["has_graph"]),
            programs,
            blocks,
        )
    except (KeyError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"its manifest is invalid: {type(error).__name__} {error}") from error
    for block in blocks:
        if block.start != start:
            raise ValueError("its blocks are not contiguous")
        start += block.size
    if start != end:
        raise ValueError("its blocks do not end at the manifest")
    return manifest


def _parse_program(entry: Any, blocks: int) -> SavedProgram:
    outputs = entry["outputs"]
    return SavedProgram(
        _check_type(str, entry["device"]),
        _check_type(str, entry["target"]),
        _check_type(dict, entry["needs"]),
        _check_type(str, entry["precision"]),
        None if outputs is None else tuple(_check_type(str, name) for name in _check_type(list, outputs)),
        {name: _check_number(size) for name, size in _check_type(dict, entry["sizes"]).items()},
        _check_number(entry["program"], blocks),
        tuple(_check_number(number, blocks) for number in _check_type(list, entry["arrays"])),
        {name: _check_number(number, blocks) for name, number in _check_type(dict, entry["support"]).items()},
        {name: _check_type(str, form) for name, form in _check_type(dict, entry["records"]).items()},
    )


def _parse_block(entry: Any) -> Block:
    start, size, name = entry
    return Block(_check_number(start), _check_number(size), _check_name(name))


def _check_number(value: Any, end: int = LIMIT) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"its manifest has a number out of range: {str(value)[:40]}")
    return value


def _check_name(value: Any) -> str:
    name = _check_type(str, value)
    if len(name) != NAME_LENGTH or name.strip("0123456789abcdef"):
        raise ValueError("its manifest has an invalid digest")
    return name


def _check_type(expected: type[JsonType], value: Any) -> JsonType:
    if not isinstance(value, expected):
        raise ValueError(f"its manifest has a {type(value).__name__} instead of a {expected.__name__}")
    return value
