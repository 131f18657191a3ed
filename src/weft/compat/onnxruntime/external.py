"""External data: taken from memory into a model, and moved out of a file that a session has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.errors import InputError, InvalidModelError, ModelError


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


def move_initializers(path: Path, file_name: str, smallest: str) -> None:
    """Move a model's initializers of at least `smallest` bytes into one file in the model's folder."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    if not (smallest.isascii() and smallest.isdigit()):
        raise InputError(f"the smallest size of an external initializer is {smallest!r}", hint="give a number of bytes")
    folder = path.parent.resolve()
    target = (folder / file_name).resolve()
    if Path(file_name).is_absolute() or folder not in target.parents or target == path.resolve():
        raise InputError(f"{file_name}: external initializers lie in the model's own folder, in a file of their own")
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no such folder", hint="make it first")
    proto = onnx.load(str(path), load_external_data=False)
    data_files = {_location(tensor) for tensor in proto.graph.initializer if uses_external_data(tensor)}
    if data_files:
        onnx.load_external_data_for_model(proto, str(folder))
    large = [tensor for tensor in proto.graph.initializer if len(tensor.raw_data) >= int(smallest)]
    if large:
        with target.open("wb") as file:
            for tensor in large:
                _move_out(tensor, file, file_name)
    path.write_bytes(proto.SerializeToString())
    for location in data_files - {file_name}:
        if location.startswith(f"{path.name}."):  # written with the model, and never another model's
            (folder / location).unlink()


def _move_out(tensor: Any, file: BinaryIO, file_name: str) -> None:
    from onnx import TensorProto

    place = {"location": file_name, "offset": file.tell(), "length": len(tensor.raw_data)}
    file.write(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))


def _location(tensor: Any) -> str:
    return next(str(entry.value) for entry in tensor.external_data if entry.key == "location")
