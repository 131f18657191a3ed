"""onnxruntime's exceptions, and which of them stands for an error of weft's. That is the cause."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.naming import STATE
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    InternalError,
    InvalidModelError,
    ModelError,
    OutOfMemoryError,
    RunCancelledError,
    UnsupportedModelError,
    WeftError,
)

_STATUS = {  # the name of each class: the status that its texts begin with
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
EXCEPTIONS: dict[str, type[Exception]] = {
    name: type(name, (Exception,), {"__module__": STATE, "__doc__": f"onnxruntime's {name}."}) for name in _STATUS
}

_WHILE_LOADING: tuple[tuple[type[BaseException], str], ...] = (
    (UnsupportedModelError, "NotImplemented"),
    (InvalidModelError, "InvalidGraph"),
    (ModelError, "Fail"),
    (DeviceError, "EPFail"),
)
_WHILE_RUNNING: tuple[tuple[type[BaseException], str], ...] = (
    (InputError, "InvalidArgument"),
    (RunCancelledError, "Fail"),
    (ExecutionError, "Fail"),
    (UnsupportedModelError, "NotImplemented"),
    (DeviceError, "EPFail"),
    (OutOfMemoryError, "RuntimeException"),
    (InternalError, "RuntimeException"),
)


def status(name: str, text: str) -> Exception:
    """An exception of onnxruntime's, with the words that its texts begin with."""
    number, word = _STATUS[name]
    return EXCEPTIONS[name](f"[ONNXRuntimeError] : {number} : {word} : {text}")


def loading_failed(error: WeftError) -> Exception:
    """What stands for an error in loading a model."""
    return status(_name_of(error, _WHILE_LOADING), str(error))


def running_failed(error: WeftError) -> Exception:
    """What stands for an error in a run."""
    return status(_name_of(error, _WHILE_RUNNING), str(error))


def _name_of(error: WeftError, table: tuple[tuple[type[BaseException], str], ...]) -> str:
    return next((name for kind, name in table if isinstance(error, kind)), "Fail")


def refusal(call: str, reason: str, hint: str | None = None) -> Exception:
    """For what weft does not have: it names the call."""
    cause = UnsupportedModelError(f"{call} is not supported: {reason}", hint=hint)
    error = status("NotImplemented", str(cause))
    error.__cause__ = cause
    return error


def incompatible(call: str, expected: str, given: Any) -> TypeError:
    """For an argument of a wrong kind."""
    return TypeError(f"{call}: incompatible function arguments: it takes {expected}, not a {type(given).__name__}")
