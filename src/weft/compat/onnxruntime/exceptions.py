"""onnxruntime's exceptions, and the conversion of weft's errors to them. The weft error is the `__cause__`."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.naming import STATE
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    InternalError,
    InvalidModelError,
    OutOfMemoryError,
    UnsupportedModelError,
    WeftError,
)

_STATUS = {  # class name -> the status at the start of its messages
    "Fail": (1, "FAIL"),
    "InvalidArgument": (2, "INVALID_ARGUMENT"),
    "NoSuchFile": (3, "NO_SUCHFILE"),
    "NoModel": (4, "NO_MODEL"),
    "EngineError": (5, "ENGINE_ERROR"),
    "RuntimeException": (6, "RUNTIME_EXCEPTION"),
    "InvalidProtobuf": (7, "INVALID_PROTOBUF"),
    "ModelLoaded": (8, "MODEL_LOADED"),
    "NotImplemented": (9, "NOT_IMPLEMENTED"),
    "InvalidGraph": (10, "INVALID_GRAPH"),
    "EPFail": (11, "EP_FAIL"),
    "ModelLoadCanceled": (12, "MODEL_LOAD_CANCELED"),
    "ModelRequiresCompilation": (13, "MODEL_REQUIRES_COMPILATION"),
    "NotFound": (14, "NOT_FOUND"),
    "DeviceReset": (15, "DEVICE_RESET"),
}
_PREFIX = "[ONNXRuntimeError] : "


class OrtStatusError(Exception):
    """Base of the exceptions with onnxruntime's names, which are pickled by name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_error, (type(self).__name__, self.args)


def _unpickle_error(name: str, arguments: tuple[Any, ...]) -> Exception:
    return EXCEPTIONS[name](*arguments)


EXCEPTIONS: dict[str, type[Exception]] = {
    name: type(name, (OrtStatusError,), {"__module__": STATE, "__doc__": f"onnxruntime's {name}."}) for name in _STATUS
}


def status_error(name: str, text: str) -> Exception:
    """Return an onnxruntime exception whose message starts with its status."""
    number, word = _STATUS[name]
    return EXCEPTIONS[name](f"{_PREFIX}{number} : {word} : {text}")


def strip_status(text: str) -> str:
    """Remove the status from the start of a message."""
    return text.split(" : ", 3)[-1] if text.startswith(_PREFIX) else text


def load_error(error: WeftError) -> Exception:
    """Return the onnxruntime exception for an error in loading a model."""
    match error:
        case InvalidModelError(node=None, value=None):
            name = "InvalidProtobuf"
        case InvalidModelError() | UnsupportedModelError(node=str()):
            name = "InvalidGraph"
        case DeviceError():
            name = "EPFail"
        case _:
            name = "Fail"
    return status_error(name, str(error))


def run_error(error: WeftError) -> Exception:
    """Return the onnxruntime exception for an error in a run.

    InvalidArgument is for what onnxruntime checks before the run, and for indices out of range.
    """
    match error:
        case InputError(node=None) | ExecutionError(__cause__=None):
            name = "InvalidArgument"
        case UnsupportedModelError():
            name = "NotImplemented"
        case DeviceError():
            name = "EPFail"
        case OutOfMemoryError() | InternalError():
            name = "RuntimeException"
        case _:
            name = "Fail"
    return status_error(name, str(error))


def unsupported_error(call: str, reason: str, hint: str | None = None) -> Exception:
    """Return the exception for a call that weft does not support."""
    cause = UnsupportedModelError(f"{call} is not supported: {reason}", hint=hint)
    error = status_error("NotImplemented", str(cause))
    error.__cause__ = cause
    return error


def argument_error(call: str, expected: str, value: Any) -> TypeError:
    """Return the exception for an argument of the wrong type."""
    return TypeError(f"{call}: incompatible function arguments: expected {expected}, not a {type(value).__name__}")
