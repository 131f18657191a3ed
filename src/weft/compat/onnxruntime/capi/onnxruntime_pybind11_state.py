"""What onnxruntime's extension module holds: exceptions, options, enumerations, functions."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from weft.compat.onnxruntime.declared import ModelMetadata as ModelMetadata
from weft.compat.onnxruntime.declared import NodeArg as NodeArg
from weft.compat.onnxruntime.enumerations import *  # noqa: F403
from weft.compat.onnxruntime.exceptions import EXCEPTIONS
from weft.compat.onnxruntime.functions import *  # noqa: F403
from weft.compat.onnxruntime.options import OrtRunOptions as RunOptions  # noqa: F401
from weft.compat.onnxruntime.options import SessionOptions as SessionOptions
from weft.compat.onnxruntime.providers import get_all_providers as get_all_providers
from weft.compat.onnxruntime.providers import get_available_providers as get_available_providers
from weft.compat.onnxruntime.providers import get_device as get_device
from weft.compat.onnxruntime.real import real_function
from weft.compat.onnxruntime.session import InferenceSession as InferenceSession
from weft.compat.onnxruntime.unsupported import *  # noqa: F403
from weft.compat.onnxruntime.values import OrtDevice as OrtDevice
from weft.compat.onnxruntime.values import OrtValue as OrtValue
from weft.compat.onnxruntime.values import OrtValueVector as OrtValueVector

globals().update(EXCEPTIONS)


def __getattr__(name: str) -> Any:
    """What packs weights for quantised products is the real one's, where that is installed: its tools import it."""
    found = real_function(name)
    if found is None:
        raise AttributeError(f"module 'onnxruntime.capi.onnxruntime_pybind11_state' has no attribute {name!r}")
    return found
