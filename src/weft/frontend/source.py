"""Where a model comes from: a path, bytes, an open file, or what a library holds it in, as one thing that can be read.

Opening a file reads nothing of it, so that it costs nothing even for a very large one. What is used of it is a copy
that no one else can change; so is what was given as bytes that can be.
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
from weft.frontend.exported import converted, is_convertible, way_to_onnx
from weft.frontend.files import OpenFile, open_path, private_copy
from weft.records import dataclass

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's content, the name for messages, and the path that external data lies beside, if there is one."""

    content: OpenFile | memoryview  # bytes are private already, a file has yet to be copied
    file: str
    path: Path | None = None

    @property
    def size(self) -> int:
        return self.content.size if isinstance(self.content, OpenFile) else len(self.content)

    @property
    def view(self) -> memoryview:
        """The content of a source that is private."""
        assert isinstance(self.content, memoryview)
        return self.content


class ReadableBytes(Protocol):
    """A file object that is open for reading bytes."""

    def read(self) -> bytes: ...


class HoldsProto(Protocol):
    """What exporters give that hold a ModelProto, as torch's ONNXProgram does."""

    @property
    def model_proto(self) -> Any: ...


class GivesProto(Protocol):
    """What can be made a ModelProto, as the functions of onnxscript can."""

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
"""What a model is loaded from: a path, bytes, a file object, a ModelProto, or what exporters hold one in."""


def source_name(source: Any) -> str:
    """What to call a source in messages."""
    match source:
        case OpenedModel():
            return source.file
        case str():
            return source
        case os.PathLike():
            return _path_name(source)
        case bytes() | bytearray() | memoryview():
            return "<bytes>"
    if _is_proto(source) or is_convertible(source):
        return f"<{type(source).__name__}>"
    if not _is_stream(source):
        return f"<{type(source).__name__}>"
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<file object>"


def _is_proto(source: object) -> TypeGuard[onnx.ModelProto]:
    """Whether it is onnx's own form of a model: then somebody has imported onnx."""
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(source, onnx.ModelProto)


def _is_stream(source: object) -> TypeGuard[IO[bytes]]:
    return callable(getattr(source, "read", None)) and not isinstance(source, type)


def _path_name(path: os.PathLike[Any]) -> str:
    try:
        return os.fsdecode(path)
    except Exception as error:  # whatever a class of someone else's raises
        raise ModelError(f"a {type(path).__name__} gives no path: {error}", hint="pass the path as a string") from error


def open_model(source: ModelSource) -> OpenedModel:
    """Any source opened for reading, once or more than once; nothing of it is parsed."""
    with blaming(source_name(source)):
        return open_source(source)


def copy_model(source: OpenedModel, folders: Sequence[Path] = ()) -> OpenedModel:
    """An opened source with bytes that nobody else can change."""
    with blaming(source.file):
        return privately(source, folders)


@contextmanager
def blaming(file: str) -> Iterator[None]:
    """Whatever is wrong inside is a WeftError that names the file."""
    try:
        yield
    except WeftError as error:
        raise error.at(file=file) from error.__cause__
    except MemoryError as error:
        raise OutOfMemoryError("the model does not fit into memory", file=file) from error
    except Exception as error:
        raise InvalidModelError(
            f"the model cannot be read: {type(error).__name__}: {error}",
            hint="the file is damaged or no ONNX model; fetch or export it again",
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
            return OpenedModel(_flat(source, name), name)
    folder: Path | None = None
    if is_convertible(source):
        source, folder = converted(source)
    if _is_proto(source):
        return OpenedModel(memoryview(_serialize(source)), name, folder and folder / "model.onnx")
    if _is_stream(source):
        try:
            return _open_stream(source, name)
        except ModelError:
            raise
        except Exception as error:  # closed, not open for reading, or of a class of someone else's
            problem = f"the file object cannot be read: {error}"
            raise ModelError(problem, hint='open it with mode "rb"', file=name) from error
    raise ModelError("this is not a model", hint=way_to_onnx(source))


def open_file(path: Path, name: str) -> OpenedModel:
    """A file by its path; pipes are read at once."""
    opened = open_path(path, name, streams=True)
    return OpenedModel(opened if isinstance(opened, OpenFile) else memoryview(opened), name, placed(path))


def placed(path: Path) -> Path:
    """A path that means the same wherever the process goes."""
    try:
        return path.absolute()
    except OSError:  # it works in a folder that is gone
        return path


def privately(source: OpenedModel, folders: Sequence[Path] = ()) -> OpenedModel:
    """The same with bytes that only this process has, large ones in a nameless file in one of these folders."""
    if isinstance(source.content, OpenFile):
        return replace(source, content=private_copy(source.content, folders))
    return source


def _open_stream(stream: IO[bytes], name: str) -> OpenedModel:
    path = placed(Path(name)) if isinstance(getattr(stream, "name", None), str) and Path(name).is_file() else None
    if isinstance(stream, (io.BufferedReader, io.BufferedRandom)) and path is not None:
        stream.flush()
        descriptor = os.dup(stream.fileno())
        at_end = os.fstat(descriptor).st_size <= stream.tell()
        if hasattr(os, "preadv") and stat.S_ISREG(os.fstat(descriptor).st_mode) and not at_end:  # reading would move it
            return OpenedModel(OpenFile(descriptor, name, stream.tell()), name, path)
        os.close(descriptor)
    content: Any = stream.read()
    if not content and _has_passed(stream):
        raise ModelError("the file object is at its end", hint="go back to its beginning: file.seek(0)", file=name)
    if isinstance(content, str):
        raise ModelError("the file object gives text, not bytes", hint='open it with mode "rb"', file=name)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ModelError(f"the file object's read() gives a {type(content).__name__}, not bytes", file=name)
    return OpenedModel(_flat(content, name), name, path)


def _has_passed(stream: IO[bytes]) -> bool:
    """Whether a stream stands behind bytes that somebody wrote or read."""
    try:
        return stream.seekable() and stream.tell() > 0
    except Exception:  # whatever a class of someone else's raises
        return False


def _flat(content: bytes | bytearray | memoryview, name: str) -> memoryview:
    """The bytes, as a copy unless nobody can change them."""
    try:
        view = memoryview(content)
        if isinstance(view.obj, bytes) and view.c_contiguous:
            return view.cast("B")
        return memoryview(view.tobytes())
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
