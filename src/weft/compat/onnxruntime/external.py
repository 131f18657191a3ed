"""External data that a program hands over in memory: a model's file and that data become one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InvalidModelError, ModelError


def with_data(source: str | bytes, files: Mapping[str, bytes], values: Mapping[str, Any]) -> bytes:
    """The model with data in it: of files by the names that it gives them, and of tensors by their own names."""
    import onnx

    try:
        proto = onnx.ModelProto.FromString(source if isinstance(source, bytes) else Path(source).read_bytes())
    except Exception as error:  # of protobuf's, or of the system's
        raise InvalidModelError(f"the model cannot be read: {error}", hint="fetch or export it again") from error
    found = {tensor.name for tensor in _tensors(proto.graph) if _take_in(tensor, files, values)}
    if values.keys() - found:
        named = ", ".join(sorted(values.keys() - found))
        raise ModelError(f"no external initializer has these names: {named}")
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:
        hint = "write the data into the files that the model names"
        raise ModelError("with its data the model is larger than a file of this kind can be", hint=hint) from error


def _take_in(tensor: Any, files: Mapping[str, bytes], values: Mapping[str, Any]) -> bool:
    """Give a tensor its data, if that lies elsewhere and is here; whether that was so."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_location != TensorProto.EXTERNAL:
        return False
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.name in values:
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(values[tensor.name]), tensor.name))
        return True
    content = files.get(entries.get("location", ""))
    if content is None:
        return False
    try:
        start = int(entries.get("offset", 0))
        stop = start + int(entries["length"]) if "length" in entries else len(content)
    except ValueError as error:
        raise InvalidModelError(f"the place of its data is no number: {error}", value=tensor.name) from error
    if not 0 <= start <= stop <= len(content):
        place = entries["location"]
        raise InvalidModelError(f"its data goes past the {len(content)} bytes of {place!r}", value=tensor.name)
    tensor.raw_data = content[start:stop]
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT
    return True


def _tensors(graph: Any) -> Iterator[Any]:
    """The initializers of a graph and of those in its nodes, and tensors that are attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner)
