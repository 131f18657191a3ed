"""What a saved file says of itself: who made it, the programs in it with what each needs, and the blocks of bytes.

It is read before anything in the file is trusted: every field is checked, and whatever is wrong is a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from weft.records import dataclass

Kind = TypeVar("Kind")
MOST = 1 << 62  # what no number reaches
DIGITS = 64  # of a name of some bytes


@dataclass(frozen=True, slots=True)
class Block:
    """Some bytes of the file, and the name of what they hold (cache/digests.py)."""

    start: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A model compiled for one target of a kind of device. Numbers are those of blocks.

    `sizes` are those of dynamic dims that it was compiled for. `support` is code that the device needs beside the
    program's own, by the name of what it was made from. `records` are the kinds of records in its structure.
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
        """As messages have it."""
        return f"{self.device} ({self.target})" if self.target else self.device


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of it. `meaning` is the number of what programs mean, `version` that of the weft that made the file; `model`
    is the name of the ONNX model's content, which is what follows the manifest unless it was left out.
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
    """The manifest of a file that has blocks from `start` to `end`, without a gap; ValueError where it is none."""
    try:
        fields = json.loads(content)
        blocks = tuple(_block(entry) for entry in fields["blocks"])
        programs = tuple(_program(entry, len(blocks)) for entry in fields["programs"])
        made = Manifest(
            _number(fields["meaning"]),
            _text(fields["version"]),
            _text(fields["file"]),
            _name(fields["model"]),
            _truth(fields["has_graph"]),
            programs,
            blocks,
        )
    except (KeyError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"its manifest is none: {type(error).__name__} {error}") from error
    for block in blocks:
        if block.start != start:
            raise ValueError("its blocks do not follow each other")
        start += block.size
    if start != end:
        raise ValueError("its blocks are not all of it")
    return made


def _program(entry: Any, blocks: int) -> SavedProgram:
    outputs = entry["outputs"]
    return SavedProgram(
        _text(entry["device"]),
        _text(entry["target"]),
        _mapping(entry["needs"]),
        _text(entry["precision"]),
        None if outputs is None else tuple(_text(name) for name in _list(outputs)),
        {_text(name): _number(size) for name, size in _mapping(entry["sizes"]).items()},
        _number(entry["program"], blocks),
        tuple(_number(number, blocks) for number in _list(entry["arrays"])),
        {_text(name): _number(number, blocks) for name, number in _mapping(entry["support"]).items()},
        {_text(name): _text(form) for name, form in _mapping(entry["records"]).items()},
    )


def _block(entry: Any) -> Block:
    start, size, name = entry
    if type(start) is int and type(size) is int and 0 <= start < MOST and 0 <= size < MOST:
        return Block(start, size, _name(name))
    raise ValueError("its manifest has a block out of range")


def _number(value: Any, end: int = MOST) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"its manifest has a number out of range: {str(value)[:40]}")
    return value


def _name(value: Any) -> str:
    if len(_text(value)) != DIGITS or value.strip("0123456789abcdef"):
        raise ValueError("its manifest has a name that is none")
    return _text(value)


def _text(value: Any) -> str:
    return _of(str, value)


def _truth(value: Any) -> bool:
    return _of(bool, value)


def _list(value: Any) -> list[Any]:
    return _of(list, value)


def _mapping(value: Any) -> dict[str, Any]:
    return _of(dict, value)


def _of(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, kind):
        raise ValueError(f"its manifest has a {type(value).__name__} where a {kind.__name__} belongs")
    return value
