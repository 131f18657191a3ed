"""Where a model comes from: a path, bytes, an open file or a ModelProto, as one read-only view of its bytes.

Files are memory-mapped, so that opening even a very large one costs nothing.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Union

import onnx

from weft.errors import InvalidModelError, ModelError


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of a model, the name for messages, and the path that external data lies beside, if there is one.

    `status` is that of the file, where all of it is mapped.
    """

    view: memoryview
    file: str
    path: Path | None = None
    status: os.stat_result | None = None


ModelSource = Union[Source, str, "os.PathLike[str]", bytes, bytearray, memoryview, IO[bytes], onnx.ModelProto]


def source_name(source: Any) -> str:
    """What to call a source in messages."""
    match source:
        case Source():
            return source.file
        case str():
            return source
        case os.PathLike():
            return _path_name(source)
        case bytes() | bytearray() | memoryview():
            return "<bytes>"
        case onnx.ModelProto():
            return "<ModelProto>"
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<file object>"


def _path_name(path: os.PathLike[Any]) -> str:
    try:
        return os.fsdecode(path)
    except Exception as error:  # whatever a class of someone else's raises
        raise ModelError(f"a {type(path).__name__} gives no path: {error}", hint="pass the path as a string") from error


def open_source(source: ModelSource) -> Source:
    """Give any of the accepted sources as a view of its bytes."""
    name = source_name(source)
    match source:
        case Source():
            return source
        case str() | os.PathLike():
            return open_file(Path(name), name)
        case bytes() | bytearray() | memoryview():
            return Source(_flat(source, name), name)
        case onnx.ModelProto():
            return Source(memoryview(_serialize(source)), name)
    if callable(getattr(source, "read", None)) and not isinstance(source, type):
        try:
            return _open_stream(source, name)
        except ModelError:
            raise
        except Exception as error:  # closed, not open for reading, or of a class of someone else's
            problem = f"the file object cannot be read: {error}"
            raise ModelError(problem, hint='open it with mode "rb"', file=name) from error
    raise ModelError(
        f"a {type(source).__name__} is not a model", hint="pass a path, bytes, an open binary file or a ModelProto"
    )


def map_file(path: Path) -> memoryview:
    """The content of a file as a read-only view that takes no memory until it is read."""
    return open_file(path, str(path)).view


def open_file(path: Path, name: str) -> Source:
    try:
        with path.open("rb") as file:
            return Source(_map_descriptor(file), name, path, os.fstat(file.fileno()))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path} cannot be read: {reason}", hint="check the path") from error


def release_pages(view: memoryview) -> None:
    """Let go of the pages of a mapped file that were read so far; they come back by themselves when used."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def _map_descriptor(file: IO[bytes]) -> memoryview:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return memoryview(file.read())
    if status.st_size == 0:  # which mmap refuses
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _open_stream(stream: IO[bytes], name: str) -> Source:
    path = Path(name) if isinstance(getattr(stream, "name", None), str) and Path(name).is_file() else None
    if isinstance(stream, (io.BufferedReader, io.BufferedRandom)) and path is not None:
        start = stream.tell()
        return Source(_map_descriptor(stream)[start:], name, path)
    content: Any = stream.read()
    if isinstance(content, str):
        raise ModelError("the file object gives text, not bytes", hint='open it with mode "rb"', file=name)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ModelError(f"the file object's read() gives a {type(content).__name__}, not bytes", file=name)
    return Source(_flat(content, name), name, path)


def _flat(content: bytes | bytearray | memoryview, name: str) -> memoryview:
    try:
        view = memoryview(content)
        return (view if view.c_contiguous else memoryview(view.tobytes())).toreadonly().cast("B")
    except (ValueError, TypeError) as error:  # released, or of elements that are no bytes
        raise ModelError(f"the bytes cannot be read: {error}", file=name) from error


def _serialize(model: onnx.ModelProto) -> bytes:
    try:
        content: bytes = model.SerializeToString()
    except Exception as error:  # protobuf raises ValueError or its own EncodeError, depending on its implementation
        raise InvalidModelError(
            f"the ModelProto cannot be serialized: {error}",
            hint="beyond 2 GB, save it with external data and pass the path instead",
        ) from error
    return content
