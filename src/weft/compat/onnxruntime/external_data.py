"""External data: embed it in a model from memory, and move initializers of a written model to another file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from weft.errors import InputError, InvalidModelError, ModelError


def embed_external_data(source: str | bytes, files: Mapping[str, bytes], values: Mapping[str, Any]) -> bytes:
    """Return the model with external data embedded: `files` by their location, `values` by tensor name."""
    try:
        proto = onnx.ModelProto.FromString(source if isinstance(source, bytes) else Path(source).read_bytes())
    except Exception as error:  # protobuf's errors and the system's
        raise InvalidModelError(f"the model cannot be read: {error}", hint="fetch or export it again") from error
    embedded = {tensor.name for tensor in _iterate_tensors(proto.graph) if _embed_tensor(tensor, files, values)}
    if unknown := values.keys() - embedded:
        raise ModelError(f"no external initializer has these names: {', '.join(sorted(unknown))}")
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:
        hint = "write the data to the files that the model refers to"
        raise ModelError("with its data embedded, the model exceeds protobuf's limit of 2 GiB", hint=hint) from error


def _embed_tensor(tensor: Any, files: Mapping[str, bytes], values: Mapping[str, Any]) -> bool:
    """Embed the external data of a tensor, if `files` or `values` have it. Return whether they do."""
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
        raise InvalidModelError(
            f"the offset or length of its data is not a number: {error}", value=tensor.name
        ) from error
    if not 0 <= start <= stop <= len(content):
        problem = f"its data exceeds the {len(content)} bytes of {entries['location']!r}"
        raise InvalidModelError(problem, value=tensor.name)
    tensor.raw_data = content[start:stop]
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT
    return True


def _iterate_tensors(graph: Any) -> Iterator[Any]:
    """Yield the initializers of a graph and of its subgraphs, and tensors in attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _iterate_tensors(inner)


def move_initializers(path: Path, file_name: str, min_size: str) -> None:
    """Move a model's initializers of at least `min_size` bytes to one file in the model's folder."""
    if not (min_size.isascii() and min_size.isdigit()):
        raise InputError(f"the minimum size of external initializers is {min_size!r}", hint="pass a number of bytes")
    folder = path.parent.resolve()
    target = (folder / file_name).resolve()
    if Path(file_name).is_absolute() or folder not in target.parents or target == path.resolve():
        raise InputError(f"{file_name}: external initializers must be in another file in the model's folder")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: there is no such folder", hint="create it first")
    proto = onnx.load(str(path), load_external_data=False)
    data_files = {_location(tensor) for tensor in proto.graph.initializer if uses_external_data(tensor)}
    if data_files:
        onnx.load_external_data_for_model(proto, str(folder))
    large = [tensor for tensor in proto.graph.initializer if len(tensor.raw_data) >= int(min_size)]
    if large:
        with target.open("wb") as file:
            for tensor in large:
                _move_data(tensor, file, file_name)
    path.write_bytes(proto.SerializeToString())
    for location in data_files - {file_name}:
        if location.startswith(f"{path.name}."):  # written together with this model
            (folder / location).unlink()


def _move_data(tensor: Any, file: BinaryIO, file_name: str) -> None:
    reference = {"location": file_name, "offset": file.tell(), "length": len(tensor.raw_data)}
    file.write(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in reference.items():
        tensor.external_data.add(key=key, value=str(value))


def _location(tensor: Any) -> str:
    return next(str(entry.value) for entry in tensor.external_data if entry.key == "location")
