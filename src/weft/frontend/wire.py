"""Strip large weights from a serialized ModelProto, so that the remainder is small and quick to parse.

Every large `raw_data`, `float_data` or `double_data` is replaced by a private `external_data` entry with the number of
an `Extent` of the file. No large data is copied, no length is trusted before it is checked, and nesting is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Union

from weft.errors import InvalidModelError
from weft.records import dataclass

EXTENT_KEY = "weft.cut"
"""The key of the private `external_data` entry; its value is the index of an extent."""

LARGE = 1024
"""Bytes from which data is stripped from a tensor; shorter messages are copied whole."""

MAX_DEPTH = 100
"""The deepest nesting of messages, as in protobuf."""

Chunk = Union[memoryview, bytes]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Extent:
    """Data that stays in the file: `length` bytes at `offset`, of the TensorProto field `field`."""

    field: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """The fields of a message that may contain weights, and those after which none follow."""

    name: str
    nested: Mapping[int, str] = field(default_factory=dict)
    data: frozenset[int] = frozenset()
    plain: frozenset[int] = frozenset()  # lists with one field per element, which would be slow to scan


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


def strip_weights(file: memoryview) -> tuple[bytes, tuple[Extent, ...]]:
    """Return a serialized ModelProto without its large data, and the extents of that data."""
    extents: list[Extent] = []
    chunks = _strip(file, 0, len(file), MESSAGE_SCHEMAS["ModelProto"], MAX_DEPTH, extents)
    return b"".join(chunks), tuple(extents)


def _strip(
    file: memoryview, start: int, end: int, schema: MessageSchema, depth: int, extents: list[Extent]
) -> list[Chunk]:
    """Return the message in file[start:end] as chunks, without its large data."""
    if depth == 0:
        raise InvalidModelError(f"messages nest more than {MAX_DEPTH} deep", hint="the file is damaged or hostile")
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
            inner_chunks = _strip(file, position, stop, MESSAGE_SCHEMAS[inner], depth - 1, extents)
            if len(extents) > before:
                chunks.append(file[copied:tag_start])
                chunks.append(encode_varint(number << 3 | DELIMITED) + encode_varint(sum(map(len, inner_chunks))))
                chunks.extend(inner_chunks)
                copied = stop
        position = stop
    chunks.append(file[copied:end])
    return chunks


def _strip_tensor(file: memoryview, start: int, end: int, schema: MessageSchema, extents: list[Extent]) -> list[Chunk]:
    """Strip the large data field of a TensorProto; leave the tensor whole if it has several data fields."""
    data: tuple[Extent, int] | None = None  # and the offset of its tag
    position = start
    while position < end:
        tag_start = position
        number, wire, position, stop = read_field(file, position, end, schema.name)
        if number in schema.plain:
            return [file[start:end]]
        if number in schema.data and stop > position:
            if wire != DELIMITED or data is not None:
                return [file[start:end]]
            data = Extent(number, position, stop - position), tag_start
        position = stop
    if data is None or data[0].length < LARGE:
        return [file[start:end]]
    extent, tag_start = data
    entry = encode_delimited(1, EXTENT_KEY.encode()) + encode_delimited(2, str(len(extents)).encode())
    extents.append(extent)
    marker = encode_delimited(13, entry) + encode_varint(14 << 3 | VARINT) + encode_varint(1)  # data_location: EXTERNAL
    return [file[start:tag_start], file[extent.offset + extent.length : end], marker]


def read_field(file: memoryview, position: int, end: int, message: str) -> tuple[int, int, int, int]:
    """Return (field number, wire type, start and end of the value) of the field whose tag is at `position`."""
    tag, position = _read_varint(file, position, end, message)
    number, wire = tag >> 3, tag & 7
    if number == 0:
        raise _damaged_error(f"a field number 0 in a {message}", position)
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
        raise _damaged_error(f"a field of wire type {wire} in a {message}", position)
    if stop > end:
        raise _damaged_error(f"field {number} of a {message} runs {stop - end} bytes past its end", position)
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
    raise _damaged_error(f"an incomplete number in a {message}", position)


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_delimited(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | DELIMITED) + encode_varint(len(content)) + content


def _damaged_error(problem: str, position: int) -> InvalidModelError:
    return InvalidModelError(
        f"not a complete ONNX file: {problem}, at byte {position}",
        hint="the file is truncated, damaged, or not an ONNX model; fetch or export it again",
    )
