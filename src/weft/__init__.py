"""weft: load an ONNX model with one line and run it on what is there.

model = weft.load("model.onnx")
outputs = model.run({"x": array})
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    InternalError,
    InvalidModelError,
    ModelError,
    OutOfMemoryError,
    UnsupportedModelError,
    WeftError,
)

if TYPE_CHECKING:
    from weft.compiler import load
    from weft.runtime.devices import Device, devices
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile
    from weft.runtime.session import Model
    from weft.runtime.specs import TensorSpec

__version__ = "0.1.0"

__all__ = [
    "Device",
    "DeviceError",
    "ExecutionError",
    "HostStep",
    "InputError",
    "InternalError",
    "InvalidModelError",
    "Memory",
    "Model",
    "ModelError",
    "OutOfMemoryError",
    "Profile",
    "TensorSpec",
    "UnsupportedModelError",
    "WeftError",
    "__version__",
    "devices",
    "load",
]

_LAZY = {  # so that `import weft` is quick: the compiler and onnx come in with the first use
    "load": "weft.compiler",
    "devices": "weft.runtime.devices",
    "Device": "weft.runtime.devices",
    "HostStep": "weft.runtime.explain",
    "Model": "weft.runtime.session",
    "Memory": "weft.runtime.memory",
    "Profile": "weft.runtime.profile",
    "TensorSpec": "weft.runtime.specs",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
