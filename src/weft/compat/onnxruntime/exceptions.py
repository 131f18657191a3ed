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
    OutOfMemoryError,
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
_BEGINNING = "[ONNXRuntimeError] : "


class OrtStatusError(Exception):
    """Base of those that are called as onnxruntime's are; they cross to other processes by that name alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raised_elsewhere, (type(self).__name__, self.args)


def _raised_elsewhere(name: str, arguments: tuple[Any, ...]) -> Exception:
    return EXCEPTIONS[name](*arguments)


EXCEPTIONS: dict[str, type[Exception]] = {
    name: type(name, (OrtStatusError,), {"__module__": STATE, "__doc__": f"onnxruntime's {name}."}) for name in _STATUS
}


def status(name: str, text: str) -> Exception:
    """An exception of onnxruntime's, with the words that its texts begin with."""
    number, word = _STATUS[name]
    return EXCEPTIONS[name](f"{_BEGINNING}{number} : {word} : {text}")


def without_status(text: str) -> str:
    """A text without the words that it began with."""
    return text.split(" : ", 3)[-1] if text.startswith(_BEGINNING) else text


def loading_failed(error: WeftError) -> Exception:
    """What stands for an error in loading a model."""
    match error:
        case InvalidModelError(node=None, value=None):
            name = "InvalidProtobuf"
        case InvalidModelError() | UnsupportedModelError(node=str()):
            name = "InvalidGraph"
        case DeviceError():
            name = "EPFail"
        case _:
            name = "Fail"
    return status(name, str(error))


def running_failed(error: WeftError) -> Exception:
    """What stands for an error in a run: onnxruntime blames arguments for what it sees before, and wrong indices."""
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
    return status(name, str(error))


def refusal(call: str, reason: str, hint: str | None = None) -> Exception:
    """For what weft does not have: it names the call."""
    cause = UnsupportedModelError(f"{call} is not supported: {reason}", hint=hint)
    error = status("NotImplemented", str(cause))
    error.__cause__ = cause
    return error


def incompatible(call: str, expected: str, given: Any) -> TypeError:
    """For an argument of a wrong kind."""
    return TypeError(f"{call}: incompatible function arguments: it takes {expected}, not a {type(given).__name__}")
