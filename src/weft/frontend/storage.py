"""The bytes of tensors that do not lie in the parsed message: cut out of the model's own file, or in files beside it.

Every range is checked against its file's size, and no location leads out of the model's folder.
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
    """The model's own bytes with what was cut out of them, and private copies of external files, one each.

    `folders` are those where large copies may lie.
    """

    source: OpenedModel
    extents: tuple[Extent, ...]
    folders: Sequence[Path] = ()
    copies: dict[Path, memoryview] = field(default_factory=dict)
    external: dict[str, memoryview] = field(default_factory=dict)  # the same, by location


def stored_outside(tensor: onnx.TensorProto) -> bool:
    """Whether the tensor's data is not in the parsed message."""
    return bool(tensor.data_location == tensor.EXTERNAL)


def find_extent(storage: WeightStorage, tensor: onnx.TensorProto) -> Extent | None:
    """The cut that holds the tensor's data, if it lies in the model's own file."""
    numbers = [entry.value for entry in tensor.external_data if entry.key == EXTENT_KEY]
    if not numbers:
        return None
    number = _number(numbers[0], EXTENT_KEY)
    if len(tensor.external_data) != 1 or number >= len(storage.extents):
        raise InvalidModelError(f"the tensor's data is given in several ways, or with the reserved key {EXTENT_KEY}")
    return storage.extents[number]


def read_cut(storage: WeightStorage, extent: Extent) -> memoryview:
    return storage.source.view[extent.offset : extent.offset + extent.length]


def read_external(storage: WeightStorage, tensor: onnx.TensorProto, size: int) -> memoryview:
    """The `size` bytes of a tensor in a file beside the model."""
    return cut_external(_read_file(storage, location_of(tensor)), tensor, size)


def location_of(tensor: onnx.TensorProto) -> str:
    """The file beside the model that a tensor's data is said to lie in."""
    return next((entry.value for entry in reversed(tensor.external_data) if entry.key == "location"), "")


def cut_external(content: memoryview, tensor: onnx.TensorProto, size: int) -> memoryview:
    """The `size` bytes of a tensor out of the content of the file that it lies in."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    offset = _number(entries.get("offset", "0"), "offset")
    length = _number(entries["length"], "length") if "length" in entries else size
    if length != size:
        raise InvalidModelError(f"its dims need {size} bytes, but {location} is said to hold {length} for it")
    if offset + length > len(content):
        raise InvalidModelError(
            f"external data of {length} bytes from {offset} runs past the end of {location} ({len(content)} bytes)",
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
    """A file beside a model; an error where it must not be read, or is not there."""
    path = _external_path(source, location)
    opened = open_path(path, str(path))
    assert isinstance(opened, OpenFile)
    return opened


def _external_path(source: OpenedModel, location: str) -> Path:
    if source.path is None:
        raise ModelError(
            f"its data lies in the external file {location!r}, and this model has no folder to look in",
            hint="pass the path of the model instead of its content",
        )
    return _resolve(source.path, location)


def _resolve(model: Path, location: str) -> Path:
    """The real path of an external file, which must lie in the model's folder.

    Where the model is itself a link, its target's folder counts too: download caches keep a model and its data as
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


def _number(text: str, key: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidModelError(f"external data has {key} {text!r}, which is not a count of bytes")
    return int(text)
