"""Save a model's file with new weights; everything else is copied byte by byte.

A weight is an initializer or a Constant node. Its name is that of its value, with a prefix for the path to it if it is
in a subgraph. External data is moved into the new file, so that one rename replaces the model and readers see the old
or the new one. If the file would exceed what protobuf can read, large data goes into one file in the same folder, which
is named by its content and never changed.
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
from weft.frontend.storage import is_external, location_of, slice_external
from weft.frontend.tensors import encode_strings, external_nbytes, to_raw_bytes
from weft.frontend.wire import (
    DELIMITED,
    LARGE,
    MESSAGE_SCHEMAS,
    VARINT,
    Chunk,
    encode_delimited,
    encode_varint,
    read_field,
)
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import inside_prefix

Chunks = Sequence[Chunk]
RewriteField = Callable[[int, int, int], "tuple[int, Chunks] | None"]
"""(field number, start, end) -> the new field number and content, or None to copy the field."""

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The largest message that protobuf reads."""

ALIGNMENT = 4096  # of tensors in an external file, so that other programs can map them
UNFINISHED = ".part"

_NODE, _INITIALIZER, _SPARSE, _GRAPH = 1, 5, 15, 7  # of GraphProto, and the last of ModelProto
_OUTPUT, _ATTRIBUTE = 2, 5  # of NodeProto
_ATTRIBUTE_NAME, _TENSOR, _SUBGRAPH = 1, 5, 6  # of AttributeProto
_STRING_DATA, _NAME, _RAW_DATA, _EXTERNAL_DATA, _LOCATION = 6, 8, 9, 13, 14  # of TensorProto
_DATA = frozenset((4, 5, _STRING_DATA, 7, _RAW_DATA, 10, 11))
_STORAGE = _DATA | {_EXTERNAL_DATA, _LOCATION}  # the data and its location


def weight_names(graph: onnx.GraphProto, prefix: str = "") -> tuple[str, ...]:
    """Return the names of the weights of a graph and its subgraphs."""
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    constants = (node.output[0] for node in graph.node if is_constant(node))
    names = [prefix + name for name in (*(tensor.name for tensor in graph.initializer), *sparse, *constants)]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names += weight_names(attribute.g, prefix + inside_prefix(node.output, attribute.name))
    return tuple(dict.fromkeys(names))


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node only holds a tensor."""
    alone = not node.input and len(node.output) == 1 and len(node.attribute) == 1
    return alone and not canonical_domain(node.domain) and node.attribute[0].HasField("t")


def save_model(
    source: OpenedModel, external: Mapping[str, memoryview], changed: Mapping[str, Array], path: Path
) -> None:
    """Write the model to a path; `external` has the content of its external files, `changed` the new weights."""

    def rewrite(data_file: _DataFile | None) -> Chunks:
        return _ModelWriter(source.view, external, changed, data_file).model()

    chunks = rewrite(None)
    if _total_size(chunks) > MAX_MESSAGE_BYTES:
        unnamed = _DataFile("")
        rewrite(unnamed)
        data_file = _DataFile(f"{path.name}.{unnamed.digest()}.data")
        chunks = rewrite(data_file)
        if not path.with_name(data_file.location).exists():
            _write_file(path.with_name(data_file.location), data_file.chunks)
    _write_file(path, chunks)


def model_parts(source: OpenedModel, external: Mapping[str, memoryview], changed: Mapping[str, Array]) -> Chunks | None:
    """Return the content of a single file with the model, or None if it would exceed what protobuf can read."""
    chunks = _ModelWriter(source.view, external, changed, None).model() if external or changed else [source.view]
    return chunks if _total_size(chunks) <= MAX_MESSAGE_BYTES else None


def _total_size(chunks: Chunks) -> int:
    return sum(map(len, chunks))


class _DataFile:
    """The content of an external file: tensors at multiples of ALIGNMENT."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.chunks: list[Chunk] = []
        self._size = 0

    def add(self, content: memoryview) -> int:
        """Append the data of a tensor and return its offset."""
        offset = -(-self._size // ALIGNMENT) * ALIGNMENT
        self.chunks += [bytes(offset - self._size), content]
        self._size = offset + len(content)
        return offset

    def digest(self) -> str:
        digest = sha256()
        for chunk in self.chunks:
            digest.update(chunk)
        return digest.hexdigest()[:16]


class _ModelWriter:
    """Copy the messages of a file, and rewrite those with weights that are new or external.

    Methods that rewrite a message return None if it does not change.
    """

    def __init__(
        self,
        file: memoryview,
        external: Mapping[str, memoryview],
        changed: Mapping[str, Array],
        data_file: _DataFile | None,
    ) -> None:
        """`data_file` takes new and external data; if it is None, they go into the model's file."""
        self.file = file
        self.external = external
        self.changed = changed
        self.data_file = data_file

    def model(self) -> Chunks:
        def change(number: int, start: int, end: int) -> tuple[int, Chunks] | None:
            if number == _GRAPH:
                return _with_number(number, self.graph(start, end, "", self.changed))
            return self.inside("ModelProto", number, start, end)

        return self.message(0, len(self.file), "ModelProto", change) or [self.file]

    def graph(self, start: int, end: int, prefix: str, changed: Mapping[str, Array]) -> Chunks | None:
        """Rewrite a graph; `prefix` precedes the names of its weights."""
        defined = {prefix + name for name in self.names(start, end)}
        inner_changes = {name: array for name, array in changed.items() if name not in defined}

        def change(number: int, start: int, end: int) -> tuple[int, Chunks] | None:
            if number == _NODE:
                return _with_number(number, self.node(start, end, prefix, changed, inner_changes))
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
        """Yield the names that a graph's initializers and nodes define."""
        for _, number, _, position, stop in self.fields(start, end, "GraphProto"):
            if number == _INITIALIZER:
                yield self.text(position, stop, _NAME)
            elif number == _NODE:
                yield from self.texts(position, stop, _OUTPUT)

    def node(
        self, start: int, end: int, prefix: str, changed: Mapping[str, Array], inner_changes: Mapping[str, Array]
    ) -> Chunks | None:
        """Rewrite a Constant node, or a node with new weights in its subgraphs."""
        outputs = self.texts(start, end, _OUTPUT)
        array = changed.get(prefix + outputs[0]) if len(outputs) == 1 else None

        def in_node(number: int, start: int, end: int) -> tuple[int, Chunks] | None:
            if number != _ATTRIBUTE:
                return None
            inner_prefix = prefix + inside_prefix(outputs, self.text(start, end, _ATTRIBUTE_NAME))

            def in_attribute(kind: int, start: int, end: int) -> tuple[int, Chunks] | None:
                if kind == _TENSOR and array is not None:
                    return kind, self.tensor(self.without_data(start, end), array)
                if kind == _SUBGRAPH and any(name.startswith(inner_prefix) for name in inner_changes):
                    return _with_number(kind, self.graph(start, end, inner_prefix, inner_changes))
                return self.inside("AttributeProto", kind, start, end)

            return _with_number(number, self.message(start, end, "AttributeProto", in_attribute))

        return self.message(start, end, "NodeProto", in_node)

    def inside(self, message: str, number: int, start: int, end: int) -> tuple[int, Chunks] | None:
        """Rewrite the external tensors inside a field, at any depth."""
        inner = MESSAGE_SCHEMAS[message].nested.get(number)
        if inner is None:
            return None
        if MESSAGE_SCHEMAS[inner].data:
            return _with_number(number, self.stored_tensor(start, end))
        return _with_number(number, self.message(start, end, inner, partial(self.inside, inner)))

    def message(self, start: int, end: int, name: str, change: RewriteField) -> Chunks | None:
        """Rewrite a message field by field."""
        chunks: list[Chunk] = []
        copied = start
        for tag, number, wire, position, stop in self.fields(start, end, name):
            new_field = change(number, position, stop) if wire == DELIMITED else None
            if new_field is not None:
                kind, inner = new_field
                head = encode_varint(kind << 3 | DELIMITED) + encode_varint(_total_size(inner))
                chunks += [self.file[copied:tag], head, *inner]
                copied = stop
        return [*chunks, self.file[copied:end]] if chunks else None

    def fields(self, start: int, end: int, name: str) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (offset of the tag, field number, wire type, start and end of the content) for each field."""
        while start < end:
            number, wire, position, stop = read_field(self.file, start, end, name)
            yield start, number, wire, position, stop
            start = stop

    # -- tensors -----------------------------------------------------------------------------------------------------

    def stored_tensor(self, start: int, end: int) -> Chunks | None:
        """Move the data of an external tensor into the tensor."""
        if any(number in _DATA and stop > position for _, number, _, position, stop in self.fields(start, end, "")):
            return None
        tensor = onnx.TensorProto.FromString(self.file[start:end].tobytes())
        content = self.external.get(location_of(tensor)) if is_external(tensor) else None
        if content is None:  # also in a function that is never called, whose files were not read
            return None
        return self.with_data(self.without_data(start, end), slice_external(content, tensor, external_nbytes(tensor)))

    def tensor(self, head: Chunks, array: Array) -> Chunks:
        """Return a tensor with these elements; `head` is the message without its data."""
        dtype = from_numpy(array.dtype)
        if dtype is DType.string:
            return [*head, *(encode_delimited(_STRING_DATA, text) for text in encode_strings(array))]
        return self.with_data(head, to_raw_bytes(array, dtype))

    def with_data(self, head: Chunks, content: memoryview) -> Chunks:
        if self.data_file is None or len(content) < LARGE:
            return [*head, encode_varint(_RAW_DATA << 3 | DELIMITED) + encode_varint(len(content)), content]
        offset = self.data_file.add(content)
        entries = {"location": self.data_file.location, "offset": offset, "length": len(content)}
        pairs = (
            encode_delimited(1, key.encode()) + encode_delimited(2, str(value).encode())
            for key, value in entries.items()
        )
        where = b"".join(encode_delimited(_EXTERNAL_DATA, pair) for pair in pairs)
        return [*head, where + encode_varint(_LOCATION << 3 | VARINT) + encode_varint(1)]

    def without_data(self, start: int, end: int) -> Chunks:
        fields = self.fields(start, end, "TensorProto")
        return [self.file[tag:stop] for tag, number, _, _, stop in fields if number not in _STORAGE]

    def text(self, start: int, end: int, field: int) -> str:
        """Return the last field of this number as text."""
        return next(reversed(self.texts(start, end, field)), "")

    def texts(self, start: int, end: int, field: int) -> list[str]:
        """Return all fields of this number as text."""
        return [
            self.file[position:stop].tobytes().decode("utf-8", "surrogateescape")
            for _, number, wire, position, stop in self.fields(start, end, "")
            if number == field and wire == DELIMITED
        ]


def _with_number(number: int, chunks: Chunks | None) -> tuple[int, Chunks] | None:
    return None if chunks is None else (number, chunks)


def _write_file(path: Path, chunks: Chunks) -> None:
    """Write a file and rename it into place, so that readers see the old file or the whole new one."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
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
