"""onnxruntime_genai's classes that weft does not support: making one raises an error with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime_genai.errors import unsupported_error

_MEDIA = "weft generates text from text"
_ADAPTERS = "merge adapters into the model's weights"
_REQUESTS = "weft.Generator runs many requests at once"
_DRAFTS = "weft.Generator speculates by itself"
_PROVIDERS = "weft's devices are Python packages, see docs/guides/devices.md"


def _unsupported_function(name: str, reason: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise unsupported_error(name, reason)

    call.__name__ = call.__qualname__ = name
    return call


def _unsupported_class(title: str, reason: str, members: str = "") -> Any:
    namespace: dict[str, Any] = {"__module__": __name__, "__doc__": f"Not supported: {reason}."}
    namespace["__init__"] = _unsupported_function(title, reason)
    for member in members.split():
        namespace[member] = staticmethod(_unsupported_function(f"{title}.{member}", reason))
    return type(title, (), namespace)


Adapters = _unsupported_class("Adapters", _ADAPTERS, "load unload")
Audios = _unsupported_class("Audios", _MEDIA, "open open_bytes")
Engine = _unsupported_class("Engine", _REQUESTS)
Images = _unsupported_class("Images", _MEDIA, "open open_bytes")
MtpGenerator = _unsupported_class("MtpGenerator", _DRAFTS)
MultiModalProcessor = _unsupported_class("MultiModalProcessor", _MEDIA)
Request = _unsupported_class("Request", _REQUESTS)
RequestOptions = _unsupported_class("RequestOptions", _REQUESTS)
StreamingProcessor = _unsupported_class("StreamingProcessor", _MEDIA)
TurnOptions = _unsupported_class("TurnOptions", _REQUESTS)

register_execution_provider_library = _unsupported_function("register_execution_provider_library", _PROVIDERS)
unregister_execution_provider_library = _unsupported_function("unregister_execution_provider_library", _PROVIDERS)
