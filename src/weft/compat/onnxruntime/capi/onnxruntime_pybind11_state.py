"""The content of onnxruntime's extension module: exceptions, options, enumerations, functions."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from weft.compat.onnxruntime.declarations import ModelMetadata as ModelMetadata
from weft.compat.onnxruntime.declarations import NodeArg as NodeArg
from weft.compat.onnxruntime.dlpack import is_dlpack_uint8_tensor as is_dlpack_uint8_tensor
from weft.compat.onnxruntime.enumerations import *  # noqa: F403
from weft.compat.onnxruntime.enumerations import ArenaExtendStrategy
from weft.compat.onnxruntime.exceptions import EXCEPTIONS
from weft.compat.onnxruntime.functions import *  # noqa: F403
from weft.compat.onnxruntime.memory_info import OrtMemoryInfo as OrtMemoryInfo
from weft.compat.onnxruntime.options import OrtRunOptions as RunOptions  # noqa: F401
from weft.compat.onnxruntime.options import SessionOptions as SessionOptions
from weft.compat.onnxruntime.providers import get_all_providers as get_all_providers
from weft.compat.onnxruntime.providers import get_available_providers as get_available_providers
from weft.compat.onnxruntime.providers import get_device as get_device
from weft.compat.onnxruntime.real_extension import get_real_function
from weft.compat.onnxruntime.session import InnerSession as InferenceSession  # noqa: F401
from weft.compat.onnxruntime.unsupported import *  # noqa: F403
from weft.compat.onnxruntime.unsupported import UNSUPPORTED_FUNCTIONS
from weft.compat.onnxruntime.values import OrtDevice as OrtDevice
from weft.compat.onnxruntime.values import OrtValue as OrtValue
from weft.compat.onnxruntime.values import OrtValueVector as OrtValueVector

globals().update(EXCEPTIONS)
globals().update(UNSUPPORTED_FUNCTIONS)
globals().update(ArenaExtendStrategy.__members__)


def __getattr__(name: str) -> Any:
    """Look up functions that pack weights in the real module; onnxruntime's tools need them."""
    function = get_real_function(name)
    if function is None:
        raise AttributeError(f"module 'onnxruntime.capi.onnxruntime_pybind11_state' has no attribute {name!r}")
    return function
