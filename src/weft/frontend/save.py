"""A model's file written again with other weights.

In comes the private copy of a file that was read, and arrays for some of its weights; out goes a file in which all
else is copied byte by byte. A weight is an initializer or a constant among the nodes, and has the name of the value
that it gives, with the way to it where that is in a subgraph. Data that lay in other files is taken in, so that one
file is renamed into place and readers see the old model or the new one; where that would be more than protobuf reads,
it goes into one file beside the model, which is named by its content and so is never changed either.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

import onnx

from weft.errors import InputError
from weft.frontend.opsets import canonical_domain
from weft.frontend.source import OpenedModel
from weft.frontend.storage import cut_external, location_of, stored_outside
from weft.frontend.tensors import encoded_strings, external_size, raw_bytes
from weft.frontend.wire import DELIMITED, LARGE, MESSAGE_SCHEMAS, VARINT, Chunk, delimited, read_field, varint
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import inside_prefix

Parts = Sequence[Chunk]
Change = Callable[[int, int, int], "tuple[int, Parts] | None"]
"""What becomes of the field of a number that lies from here to there: another number and content, or None."""

LARGEST = (1 << 31) - 1
"""Bytes of a message that protobuf reads."""

ALIGNMENT = 4096  # of tensors in a file beside the model, so that others can map them
UNFINISHED = ".part"

_NODE, _INITIALIZER, _SPARSE, _GRAPH = 1, 5, 15, 7  # of GraphProto, and the last of ModelProto
_OUTPUT, _ATTRIBUTE = 2, 5  # of NodeProto
_ATTRIBUTE_NAME, _TENSOR, _SUBGRAPH = 1, 5, 6  # of AttributeProto
_STRING_DATA, _NAME, _RAW_DATA, _EXTERNAL_DATA, _LOCATION = 6, 8, 9, 13, 14  # of TensorProto
_DATA = frozenset((4, 5, _STRING_DATA, 7, _RAW_DATA, 10, 11))
_STORAGE = _DATA | {_EXTERNAL_DATA, _LOCATION}  # what says where a tensor's data is, and the data


def weight_names(graph: onnx.GraphProto, prefix: str = "") -> tuple[str, ...]:
    """The weights of a graph, and of those inside it."""
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    constants = (node.output[0] for node in graph.node if is_constant(node))
    found = [prefix + name for name in (*(tensor.name for tensor in graph.initializer), *sparse, *constants)]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += weight_names(attribute.g, prefix + inside_prefix(node.output, attribute.name))
    return tuple(dict.fromkeys(found))


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is nothing but a tensor."""
    alone = not node.input and len(node.output) == 1 and len(node.attribute) == 1
    return alone and not canonical_domain(node.domain) and node.attribute[0].HasField("t")


def save_model(
    source: OpenedModel, external: Mapping[str, memoryview], changed: Mapping[str, Array], path: Path
) -> None:
    """Write the model to a path; `external` are the contents of the files beside it that it was read with."""

    def rewritten(apart: _DataFile | None) -> Parts:
        return _ModelWriter(source.view, external, changed, apart).model()

    parts = rewritten(None)
    if _size(parts) > LARGEST:
        unnamed = _DataFile("")
        rewritten(unnamed)
        apart = _DataFile(f"{path.name}.{unnamed.digest()}.data")
        parts = rewritten(apart)
        if not path.with_name(apart.location).exists():
            _write(path.with_name(apart.location), apart.pieces)
    _write(path, parts)


def model_parts(source: OpenedModel, external: Mapping[str, memoryview], changed: Mapping[str, Array]) -> Parts | None:
    """The same model as the content of one file; None where that is more than protobuf reads."""
    parts = _ModelWriter(source.view, external, changed, None).model() if external or changed else [source.view]
    return parts if _size(parts) <= LARGEST else None


def _size(parts: Parts) -> int:
    return sum(map(len, parts))


class _DataFile:
    """Data of tensors for a file beside the model, one after the other, each at a multiple of ALIGNMENT."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.pieces: list[Chunk] = []
        self._size = 0

    def add(self, content: memoryview) -> int:
        """Where it begins."""
        start = -(-self._size // ALIGNMENT) * ALIGNMENT
        self.pieces += [bytes(start - self._size), content]
        self._size = start + len(content)
        return start

    def digest(self) -> str:
        found = sha256()
        for piece in self.pieces:
            found.update(piece)
        return found.hexdigest()[:16]


class _ModelWriter:
    """The messages of a file, those with weights that changed or that lay elsewhere made anew."""

    def __init__(
        self,
        file: memoryview,
        external: Mapping[str, memoryview],
        changed: Mapping[str, Array],
        apart: _DataFile | None,
    ) -> None:
        """`apart` is where data goes that is changed, or lay in other files; None: into the model's own."""
        self.file = file
        self.external = external
        self.changed = changed
        self.apart = apart

    def model(self) -> Parts:
        def change(number: int, start: int, end: int) -> tuple[int, Parts] | None:
            if number == _GRAPH:
                return _kept(number, self.graph(start, end, "", self.changed))
            return self.inside("ModelProto", number, start, end)

        return self.message(0, len(self.file), "ModelProto", change) or [self.file]

    def graph(self, start: int, end: int, prefix: str, changed: Mapping[str, Array]) -> Parts | None:
        """A graph whose weights have a prefix before their names; what it has itself is not looked for inside it."""
        own = {prefix + name for name in self.names(start, end)}
        inside = {name: array for name, array in changed.items() if name not in own}

        def change(number: int, start: int, end: int) -> tuple[int, Parts] | None:
            if number == _NODE:
                return _kept(number, self.node(start, end, prefix, changed, inside))
            if number == _INITIALIZER and (array := changed.get(prefix + self.text(start, end, _NAME))) is not None:
                return number, self.tensor(self.without_data(start, end), array)
            if number == _SPARSE:
                sparse = onnx.SparseTensorProto.FromString(self.file[start:end].tobytes())
                kind, name = sparse.values.data_type, sparse.values.name
                if (array := changed.get(prefix + name)) is not None:
                    dense = onnx.TensorProto(name=name, data_type=kind, dims=sparse.dims).SerializeToString()
                    return _INITIALIZER, self.tensor([dense], array)
            return self.inside("GraphProto", number, start, end)

        return self.message(start, end, "GraphProto", change)

    def names(self, start: int, end: int) -> Iterator[str]:
        """What a graph's initializers and nodes define."""
        for _, number, _, position, stop in self.fields(start, end, "GraphProto"):
            if number == _INITIALIZER:
                yield self.text(position, stop, _NAME)
            elif number == _NODE:
                yield from self.texts(position, stop, _OUTPUT)

    def node(
        self, start: int, end: int, prefix: str, changed: Mapping[str, Array], inside: Mapping[str, Array]
    ) -> Parts | None:
        """A node that is nothing but a tensor, with another one; or one with other weights in its subgraphs."""
        outputs = self.texts(start, end, _OUTPUT)
        array = changed.get(prefix + outputs[0]) if len(outputs) == 1 else None

        def in_node(number: int, start: int, end: int) -> tuple[int, Parts] | None:
            if number != _ATTRIBUTE:
                return None
            way = prefix + inside_prefix(outputs, self.text(start, end, _ATTRIBUTE_NAME))

            def in_attribute(kind: int, start: int, end: int) -> tuple[int, Parts] | None:
                if kind == _TENSOR and array is not None:
                    return kind, self.tensor(self.without_data(start, end), array)
                if kind == _SUBGRAPH and any(name.startswith(way) for name in inside):
                    return _kept(kind, self.graph(start, end, way, inside))
                return self.inside("AttributeProto", kind, start, end)

            return _kept(number, self.message(start, end, "AttributeProto", in_attribute))

        return self.message(start, end, "NodeProto", in_node)

    def inside(self, message: str, number: int, start: int, end: int) -> tuple[int, Parts] | None:
        """A field with what lies in it, as deep as it goes: tensors whose data is elsewhere are made anew."""
        inner = MESSAGE_SCHEMAS[message].nested.get(number)
        if inner is None:
            return None
        if MESSAGE_SCHEMAS[inner].data:
            return _kept(number, self.stored_tensor(start, end))
        return _kept(number, self.message(start, end, inner, partial(self.inside, inner)))

    def message(self, start: int, end: int, name: str, change: Change) -> Parts | None:
        """A message with some of its fields changed; None where none is."""
        parts: list[Chunk] = []
        copied = start
        for tag, number, wire, position, stop in self.fields(start, end, name):
            made = change(number, position, stop) if wire == DELIMITED else None
            if made is not None:
                kind, inner = made
                parts += [self.file[copied:tag], varint(kind << 3 | DELIMITED) + varint(_size(inner)), *inner]
                copied = stop
        return [*parts, self.file[copied:end]] if parts else None

    def fields(self, start: int, end: int, name: str) -> Iterator[tuple[int, int, int, int, int]]:
        """Where each field's tag is, its number and wire type, and from where to where its content lies."""
        while start < end:
            number, wire, position, stop = read_field(self.file, start, end, name)
            yield start, number, wire, position, stop
            start = stop

    # -- tensors -----------------------------------------------------------------------------------------------------

    def stored_tensor(self, start: int, end: int) -> Parts | None:
        """A tensor whose data is elsewhere, with its data; None for others."""
        if any(number in _DATA and stop > position for _, number, _, position, stop in self.fields(start, end, "")):
            return None
        tensor = onnx.TensorProto.FromString(self.file[start:end].tobytes())
        content = self.external.get(location_of(tensor)) if stored_outside(tensor) else None
        if content is None:  # which is so for a function that nothing calls, too
            return None
        return self.with_data(self.without_data(start, end), cut_external(content, tensor, external_size(tensor)))

    def tensor(self, head: Parts, array: Array) -> Parts:
        """A tensor, of which `head` is all but the data, with these elements."""
        dtype = from_numpy(array.dtype)
        if dtype is DType.string:
            return [*head, *(delimited(_STRING_DATA, text) for text in encoded_strings(array))]
        return self.with_data(head, raw_bytes(array, dtype))

    def with_data(self, head: Parts, content: memoryview) -> Parts:
        if self.apart is None or len(content) < LARGE:
            return [*head, varint(_RAW_DATA << 3 | DELIMITED) + varint(len(content)), content]
        entries = {"location": self.apart.location, "offset": self.apart.add(content), "length": len(content)}
        pairs = (delimited(1, key.encode()) + delimited(2, str(value).encode()) for key, value in entries.items())
        where = b"".join(delimited(_EXTERNAL_DATA, pair) for pair in pairs)
        return [*head, where + varint(_LOCATION << 3 | VARINT) + varint(1)]

    def without_data(self, start: int, end: int) -> Parts:
        fields = self.fields(start, end, "TensorProto")
        return [self.file[tag:stop] for tag, number, _, _, stop in fields if number not in _STORAGE]

    def text(self, start: int, end: int, wanted: int) -> str:
        """The last field of a number, as a text."""
        return next(reversed(self.texts(start, end, wanted)), "")

    def texts(self, start: int, end: int, wanted: int) -> list[str]:
        """The fields of a number as texts."""
        return [
            self.file[position:stop].tobytes().decode("utf-8", "surrogateescape")
            for _, number, wire, position, stop in self.fields(start, end, "")
            if number == wanted and wire == DELIMITED
        ]


def _kept(number: int, parts: Parts | None) -> tuple[int, Parts] | None:
    return None if parts is None else (number, parts)


def _write(path: Path, parts: Parts) -> None:
    """Write a file whole and rename it into place: nobody sees a part of it, and who reads the old one goes on."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be written: {reason}", hint="check the path") from error
