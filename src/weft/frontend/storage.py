"""Read tensor data that is not in the parsed message: extents of the model's file, and external files.

Every range is checked against the size of its file, and locations must be inside the model's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import InvalidModelError, ModelError
from weft.frontend.files import OpenFile, open_path, private_copy
from weft.frontend.source import OpenedModel
from weft.frontend.wire import EXTENT_KEY, Extent
from weft.records import dataclass

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class WeightStorage:
    """The model's content with the extents left out of the parsed message, and private copies of its external files.

    `folders`: where large copies may be stored.
    """

    source: OpenedModel
    extents: tuple[Extent, ...]
    folders: Sequence[Path] = ()
    copies: dict[Path, memoryview] = field(default_factory=dict)
    external: dict[str, memoryview] = field(default_factory=dict)  # the copies by location


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is outside of the parsed message."""
    return bool(tensor.data_location == tensor.EXTERNAL)


def find_extent(storage: WeightStorage, tensor: onnx.TensorProto) -> Extent | None:
    """Return the extent with the tensor's data, or None if the data is in an external file."""
    numbers = [entry.value for entry in tensor.external_data if entry.key == EXTENT_KEY]
    if not numbers:
        return None
    number = _parse_number(numbers[0], EXTENT_KEY)
    if len(tensor.external_data) != 1 or number >= len(storage.extents):
        raise InvalidModelError(f"the tensor has several kinds of data, or uses the reserved key {EXTENT_KEY}")
    return storage.extents[number]


def read_extent(storage: WeightStorage, extent: Extent) -> memoryview:
    return storage.source.view[extent.offset : extent.offset + extent.length]


def read_external(storage: WeightStorage, tensor: onnx.TensorProto, size: int) -> memoryview:
    """Return the `size` bytes of a tensor in an external file."""
    return slice_external(_read_file(storage, location_of(tensor)), tensor, size)


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the declared location of a tensor's external data."""
    return next((entry.value for entry in reversed(tensor.external_data) if entry.key == "location"), "")


def slice_external(content: memoryview, tensor: onnx.TensorProto, size: int) -> memoryview:
    """Return the `size` bytes of a tensor in the content of its external file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    offset = _parse_number(entries.get("offset", "0"), "offset")
    length = _parse_number(entries["length"], "length") if "length" in entries else size
    if length != size:
        raise InvalidModelError(f"its dims need {size} bytes, but its declared length in {location} is {length}")
    if offset + length > len(content):
        raise InvalidModelError(
            f"external data of {length} bytes at offset {offset} is beyond the end of {location} "
            f"({len(content)} bytes)",
            hint="the data file is truncated or belongs to another model",
        )
    return content[offset : offset + length]


def _read_file(storage: WeightStorage, location: str) -> memoryview:
    path = _external_path(storage.source, location)
    if path not in storage.copies:
        storage.copies[path] = private_copy(open_external(storage.source, location), storage.folders)
    storage.external[location] = storage.copies[path]
    return storage.copies[path]


def open_external(source: OpenedModel, location: str) -> OpenFile:
    """Open an external file; raise an error if it is missing or outside of the model's folder."""
    path = _external_path(source, location)
    opened = open_path(path, str(path))
    assert isinstance(opened, OpenFile)
    return opened


def _external_path(source: OpenedModel, location: str) -> Path:
    if source.path is None:
        raise ModelError(
            f"its data is in the external file {location!r}, but the model was not loaded from a path",
            hint="pass the path of the model instead of its content",
        )
    return _resolve(source.path, location)


def _resolve(model: Path, location: str) -> Path:
    """Return the real path of an external file, which must be in the model's folder.

    If the model is a symbolic link, its target's folder is allowed too: download caches store a model and its data as
    links into one folder of blobs.
    """
    hint = "external data must be in the model's own folder, under a relative path"
    relative = Path(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise InvalidModelError(f"external data location {location!r} is not allowed", hint=hint)
    real = (model.parent / relative).resolve()
    folders = (model.parent.resolve(), model.resolve().parent)
    if not any(real.is_relative_to(folder) for folder in folders):
        raise InvalidModelError(f"external data location {location!r} leads out of the model's folder", hint=hint)
    if not real.is_file():
        raise ModelError(
            f"external data file {location!r} is missing", hint="put it into the folder of the model", file=str(model)
        )
    return real


def _parse_number(text: str, key: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidModelError(f"external data has {key} {text!r}, which is not a number of bytes")
    return int(text)
