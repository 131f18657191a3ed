"""Files of one tensor each, as the test sets of models have them: `input_0.pb`."""

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
    """The tensor's name, which may be empty, and its elements; InputError where the file holds none."""
    try:
        return tensor_in(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def tensor_in(content: bytes, file: str) -> tuple[str, np.ndarray[Any, Any]]:
    """The same for the bytes of a file."""
    try:
        proto = onnx.TensorProto.FromString(content)
        return proto.name, read_tensor(WeightStorage(OpenedModel(memoryview(b""), file), ()), proto)
    except WeftError as error:
        raise InputError(f"{file}: {error.problem}", hint=error.hint) from error
    except Exception as error:  # protobuf has errors of its own, depending on its implementation
        raise InputError(f"{file}: holds no tensor", hint="a test set has a TensorProto in each .pb file") from error
