"""Cut the large weights out of a serialized ModelProto, so that what is left is small and quick to parse.

In goes a view of the whole file; out come the bytes of an equivalent message in which every large `raw_data`,
`float_data` or `double_data` is replaced by a private `external_data` entry, and the `Extent`s that those entries
number. Nothing large is copied, no length is trusted before it is checked, and nesting is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Union

from weft.errors import InvalidModelError
from weft.records import dataclass

EXTENT_KEY = "weft.cut"
"""The key of the private `external_data` entry; its value is an index into the extents."""

LARGE = 1024
"""Messages shorter than this are copied whole, and data shorter than this stays in its tensor."""

DEEPEST = 100
"""How deep messages may nest; protobuf draws the same line."""

Chunk = Union[memoryview, bytes]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Extent:
    """Data that was left in the file: `length` bytes from `offset`, of the TensorProto field `field`."""

    field: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """What the scanner knows about a message: which fields to enter, and which say that no weights follow."""

    name: str
    nested: Mapping[int, str] = field(default_factory=dict)
    data: frozenset[int] = frozenset()
    plain: frozenset[int] = frozenset()  # repeated element by element: walking them would be slow and find nothing


MESSAGE_SCHEMAS = {
    schema.name: schema
    for schema in (
        MessageSchema("ModelProto", {7: "GraphProto", 25: "FunctionProto"}),
        MessageSchema("GraphProto", {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"}),
        MessageSchema("FunctionProto", {7: "NodeProto", 11: "AttributeProto"}),
        MessageSchema("NodeProto", {5: "AttributeProto"}),
        MessageSchema(
            "AttributeProto",
            {
                5: "TensorProto",
                6: "GraphProto",
                10: "TensorProto",
                11: "GraphProto",
                22: "SparseTensorProto",
                23: "SparseTensorProto",
            },
            plain=frozenset((7, 8, 9)),
        ),
        MessageSchema("SparseTensorProto", {1: "TensorProto", 2: "TensorProto"}),
        MessageSchema("TensorProto", data=frozenset((4, 9, 10)), plain=frozenset((5, 6, 7, 11))),
    )
}


def cut_weights(file: memoryview) -> tuple[bytes, tuple[Extent, ...]]:
    """The small remainder of a serialized ModelProto, and what was cut out of it."""
    extents: list[Extent] = []
    chunks = _strip(file, 0, len(file), MESSAGE_SCHEMAS["ModelProto"], DEEPEST, extents)
    return b"".join(chunks), tuple(extents)


def _strip(
    file: memoryview, start: int, end: int, schema: MessageSchema, depth: int, extents: list[Extent]
) -> list[Chunk]:
    """The message in file[start:end] as chunks without its large data."""
    if depth == 0:
        raise InvalidModelError(f"messages nest more than {DEEPEST} deep", hint="the file is damaged or hostile")
    if schema.data:
        return _strip_tensor(file, start, end, schema, extents)
    chunks: list[Chunk] = []
    copied = position = start
    while position < end:
        tag_start = position
        number, wire, position, stop = read_field(file, position, end, schema.name)
        if number in schema.plain:
            break
        inner = schema.nested.get(number)
        if inner is not None and wire == DELIMITED and stop - position >= LARGE:
            before = len(extents)
            parts = _strip(file, position, stop, MESSAGE_SCHEMAS[inner], depth - 1, extents)
            if len(extents) > before:
                chunks.append(file[copied:tag_start])
                chunks.append(varint(number << 3 | DELIMITED) + varint(sum(map(len, parts))))
                chunks.extend(parts)
                copied = stop
        position = stop
    chunks.append(file[copied:end])
    return chunks


def _strip_tensor(file: memoryview, start: int, end: int, schema: MessageSchema, extents: list[Extent]) -> list[Chunk]:
    """A TensorProto with its one large data field cut out; left whole where the data lies in several pieces."""
    found: list[tuple[Extent, int]] = []
    position = start
    while position < end:
        tag_start = position
        number, wire, position, stop = read_field(file, position, end, schema.name)
        if number in schema.plain:
            return [file[start:end]]
        if number in schema.data and stop > position:
            if wire != DELIMITED or found:
                return [file[start:end]]
            found.append((Extent(number, position, stop - position), tag_start))
        position = stop
    if not found or found[0][0].length < LARGE:
        return [file[start:end]]
    extent, tag_start = found[0]
    entry = delimited(1, EXTENT_KEY.encode()) + delimited(2, str(len(extents)).encode())
    extents.append(extent)
    marker = delimited(13, entry) + varint(14 << 3 | VARINT) + varint(1)  # data_location: EXTERNAL
    return [file[start:tag_start], file[extent.offset + extent.length : end], marker]


def read_field(file: memoryview, position: int, end: int, message: str) -> tuple[int, int, int, int]:
    """(field number, wire type, start, end) of the value of the field whose tag is at `position`."""
    tag, position = _read_varint(file, position, end, message)
    number, wire = tag >> 3, tag & 7
    if number == 0:
        raise _damaged(f"a field number 0 in a {message}", position)
    if wire == VARINT:
        _, stop = _read_varint(file, position, end, message)
    elif wire == DELIMITED:
        length, position = _read_varint(file, position, end, message)
        stop = position + length
    elif wire == FIXED32:
        stop = position + 4
    elif wire == FIXED64:
        stop = position + 8
    else:
        raise _damaged(f"a field of wire type {wire} in a {message}", position)
    if stop > end:
        raise _damaged(f"field {number} of a {message} runs {stop - end} bytes past its end", position)
    return number, wire, position, stop


def _read_varint(file: memoryview, position: int, end: int, message: str) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = file[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _damaged(f"an unfinished number in a {message}", position)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | DELIMITED) + varint(len(content)) + content


def _damaged(what: str, position: int) -> InvalidModelError:
    return InvalidModelError(
        f"not a whole ONNX file: {what}, at byte {position}",
        hint="the file is truncated, damaged, or no ONNX model; fetch or export it again",
    )
