"""Read files with one TensorProto each, such as `input_0.pb` in the test sets of ONNX models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from weft.errors import InputError, WeftError
from weft.frontend.source import OpenedModel
from weft.frontend.storage import WeightStorage
from weft.frontend.tensors import read_tensor


def read_tensor_file(path: Path) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the tensor's name, which may be empty, and its elements; raise InputError if the file has none."""
    try:
        return parse_tensor(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def parse_tensor(content: bytes, file: str) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the name and the elements of a serialized TensorProto; `file` is for messages."""
    try:
        proto = onnx.TensorProto.FromString(content)
        return proto.name, read_tensor(WeightStorage(OpenedModel(memoryview(b""), file), ()), proto)
    except WeftError as error:
        raise InputError(f"{file}: {error.problem}", hint=error.hint) from error
    except Exception as error:  # the class depends on the implementation of protobuf
        raise InputError(f"{file}: not a tensor", hint="each .pb file must hold one TensorProto") from error
