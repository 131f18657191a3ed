"""Open a model from any source: a path, bytes, an open file, a ModelProto, or an exporter's object.

Opening a file does not read it, so it takes no time even for a large one. weft works on a private copy of the content,
also of bytes that the caller could change.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeGuard, Union

from weft.errors import InvalidModelError, ModelError, OutOfMemoryError, WeftError
from weft.frontend.exporters import conversion_hint, convert_to_proto, is_convertible
from weft.frontend.files import OpenFile, open_path, private_copy
from weft.records import dataclass

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's content, its name for messages, and its path, if it has one, which locates external data."""

    content: OpenFile | memoryview  # bytes are private, a file still has to be copied
    file: str
    path: Path | None = None

    @property
    def size(self) -> int:
        return self.content.size if isinstance(self.content, OpenFile) else len(self.content)

    @property
    def view(self) -> memoryview:
        """The content of a private source."""
        assert isinstance(self.content, memoryview)
        return self.content


class ReadableBytes(Protocol):
    """A file object that is open for reading bytes."""

    def read(self) -> bytes: ...


class HoldsProto(Protocol):
    """An object that holds a ModelProto, such as torch's ONNXProgram."""

    @property
    def model_proto(self) -> Any: ...


class GivesProto(Protocol):
    """An object that converts to a ModelProto, such as an onnxscript function."""

    def to_model_proto(self) -> Any: ...


class IntermediateModel(Protocol):
    """A model of onnx_ir."""

    @property
    def graph(self) -> Any: ...
    @property
    def ir_version(self) -> Any: ...
    @property
    def opset_imports(self) -> Any: ...


ModelSource = Union[
    OpenedModel,
    str,
    "os.PathLike[str]",
    bytes,
    bytearray,
    memoryview,
    ReadableBytes,
    "onnx.ModelProto",
    HoldsProto,
    GivesProto,
    IntermediateModel,
]
"""What `weft.load` accepts: a path, bytes, a file object, a ModelProto, or an object of an exporter."""


def source_name(source: Any) -> str:
    """Return the name of a source for messages."""
    match source:
        case OpenedModel():
            return source.file
        case str():
            return source
        case os.PathLike():
            return _path_name(source)
        case bytes() | bytearray() | memoryview():
            return "<bytes>"
    if _is_proto(source) or is_convertible(source) or not _is_stream(source):
        return f"<{type(source).__name__}>"
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<file object>"


def _is_proto(source: object) -> TypeGuard[onnx.ModelProto]:
    """Whether the source is a ModelProto; if it is, onnx has been imported."""
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(source, onnx.ModelProto)


def _is_stream(source: object) -> TypeGuard[IO[bytes]]:
    return callable(getattr(source, "read", None)) and not isinstance(source, type)


def _path_name(path: os.PathLike[Any]) -> str:
    try:
        return os.fsdecode(path)
    except Exception as error:  # foreign code may raise anything
        problem = f"a {type(path).__name__} cannot be converted to a path: {error}"
        raise ModelError(problem, hint="pass the path as a string") from error


def open_model(source: ModelSource) -> OpenedModel:
    """Open any source, without parsing it; the result can be read repeatedly."""
    with name_file_in_errors(source_name(source)):
        return open_source(source)


def copy_model(source: OpenedModel, folders: Sequence[Path] = ()) -> OpenedModel:
    """Return the source with a private copy of its content; large ones go to one of these folders."""
    with name_file_in_errors(source.file):
        return make_private(source, folders)


@contextmanager
def name_file_in_errors(file: str) -> Iterator[None]:
    """Turn every exception in the block into a WeftError that names the file."""
    try:
        yield
    except WeftError as error:
        raise error.at(file=file) from error.__cause__
    except MemoryError as error:
        raise OutOfMemoryError("the model does not fit into memory", file=file) from error
    except Exception as error:
        raise InvalidModelError(
            f"the model cannot be read: {type(error).__name__}: {error}",
            hint="the file is damaged or not an ONNX model; fetch or export it again",
            file=file,
        ) from error


def open_source(source: ModelSource) -> OpenedModel:
    """Open any of the accepted sources."""
    name = source_name(source)
    match source:
        case OpenedModel():
            return source
        case str() | os.PathLike():
            return open_file(Path(name), name)
        case bytes() | bytearray() | memoryview():
            return OpenedModel(_flat_view(source, name), name)
    folder: Path | None = None
    if is_convertible(source):
        source, folder = convert_to_proto(source)
    if _is_proto(source):
        return OpenedModel(memoryview(_serialize(source)), name, folder and folder / "model.onnx")
    if _is_stream(source):
        try:
            return _open_stream(source, name)
        except ModelError:
            raise
        except Exception as error:  # closed, not open for reading, or a foreign class
            problem = f"the file object cannot be read: {error}"
            raise ModelError(problem, hint='open it with mode "rb"', file=name) from error
    raise ModelError("this is not a model", hint=conversion_hint(source))


def open_file(path: Path, name: str) -> OpenedModel:
    """Open a file by its path; a pipe is read at once."""
    opened = open_path(path, name, streams=True)
    return OpenedModel(opened if isinstance(opened, OpenFile) else memoryview(opened), name, make_absolute(path))


def make_absolute(path: Path) -> Path:
    """Return a path that does not depend on the working directory."""
    try:
        return path.absolute()
    except OSError:  # the working directory was removed
        return path


def make_private(source: OpenedModel, folders: Sequence[Path] = ()) -> OpenedModel:
    """Replace an open file by a private copy of its content; a large one is an unnamed file in one of these folders."""
    if isinstance(source.content, OpenFile):
        return replace(source, content=private_copy(source.content, folders))
    return source


def _open_stream(stream: IO[bytes], name: str) -> OpenedModel:
    is_named = isinstance(getattr(stream, "name", None), str) and Path(name).is_file()
    path = make_absolute(Path(name)) if is_named else None
    if isinstance(stream, (io.BufferedReader, io.BufferedRandom)) and path is not None:
        stream.flush()
        descriptor = os.dup(stream.fileno())
        at_end = os.fstat(descriptor).st_size <= stream.tell()
        # Without preadv, reading later would move the caller's file position.
        if hasattr(os, "preadv") and stat.S_ISREG(os.fstat(descriptor).st_mode) and not at_end:
            return OpenedModel(OpenFile(descriptor, name, stream.tell()), name, path)
        os.close(descriptor)
    content: Any = stream.read()
    if not content and _is_past_start(stream):
        raise ModelError("the file object is at its end", hint="go back to its beginning: file.seek(0)", file=name)
    if isinstance(content, str):
        raise ModelError("the file object returns text, not bytes", hint='open it with mode "rb"', file=name)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ModelError(f"the file object's read() returns a {type(content).__name__}, not bytes", file=name)
    return OpenedModel(_flat_view(content, name), name, path)


def _is_past_start(stream: IO[bytes]) -> bool:
    try:
        return stream.seekable() and stream.tell() > 0
    except Exception:  # foreign code may raise anything
        return False


def _flat_view(content: bytes | bytearray | memoryview, name: str) -> memoryview:
    """Return the bytes as a flat view: of the object itself if it is immutable, otherwise of a copy."""
    try:
        view = memoryview(content)
        if isinstance(view.obj, bytes) and view.c_contiguous:
            return view.cast("B")
        return memoryview(view.tobytes())
    except (ValueError, TypeError) as error:  # a released view, or one of elements that are not bytes
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
